//! Captures a Unix socket.
//!
//! Owns: the order of the reads, and finding the other sockets and open file descriptions to which a socket refers.
//! Invariants: no message is consumed.
//! Does not: decide how the socket is restored; `restore` does.

use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use model::{Fd, Inode, Pid};
use prost::Message;
use rustix::event::PollFlags;
use rustix::net::sockopt;
use sys::sock_diag::{self, SockDiag, UnixSocket};
use sys::socket;
use sys::{Errno, Error};

use super::super::description::{Description, Known};
use super::super::identify::identify;
use super::super::inherited_socket::InheritedSocket;
use super::super::kind::FdCapture;
use super::super::peek_queue::{Seen, peek_all};
use super::super::scope::CaptureScope;
use super::super::socket_events::events;
use super::super::socket_family::{Family, SOCK_DGRAM, SOCK_STREAM};
use super::super::socket_options::{Fresh, Options};
use super::super::sockets::Sockets;
use super::names;
use super::queue;
use super::state::{Listener, NAME, Peer, Queued, Sender, State};
use crate::error::{ResourceError, Result};

/// The reason why a socket with an urgent byte is refused. A peek shows neither the byte nor its position.
pub(super) const URGENT: &str = "it contains an unread urgent byte (MSG_OOB), whose position is not visible";
pub(super) const URGENT_FIX: &str = "retry when the program has read it";

#[derive(Debug)]
pub(super) struct Capture {
    family: Family,
    inherited: Option<InheritedSocket>,
    sockets: Sockets,
    diag: Rc<SockDiag>,
    fresh: Rc<Fresh>,
    options: Options,
    seen: Vec<Seen>,
    socket: UnixSocket,
    state: Option<State>,
}

impl Capture {
    pub(super) fn new(description: &Description, scope: &CaptureScope<'_>) -> Result<Self> {
        let inherited = InheritedSocket::of(description, scope);
        let family = Family::of(description)?;
        Ok(Self {
            family,
            inherited,
            sockets: scope.sockets.clone(),
            diag: scope.sockets.diag()?,
            fresh: scope.sockets.fresh(family)?,
            options: Options::default(),
            seen: Vec::new(),
            socket: UnixSocket::default(),
            state: None,
        })
    }

    fn read(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<State> {
        let own = description.as_fd();
        let local = socket::local(own)?;
        let peer = self.read_peer(description, scope)?;
        let mut seen = std::mem::take(&mut self.seen);
        if self.family.kind == SOCK_STREAM {
            let sender = self.socket.peer.and_then(|peer| find(scope, peer));
            let sender = sender.and_then(|sender| scope.open.get(sender.id.get() as usize));
            seen = queue::split_stream(seen, sender.map(AsFd::as_fd))?;
        }
        let mut queue = Vec::with_capacity(seen.len());
        for seen in seen {
            queue.push(relate_message(description, seen, scope)?);
        }
        let maker = self.read_maker(description)?;
        let maker_groups = if maker.is_some() { socket::peer_groups(own)? } else { Vec::new() };
        Ok(State {
            family: self.family,
            options: std::mem::take(&mut self.options),
            state: u32::from(self.socket.state),
            shut: u32::from(self.socket.shut),
            file: names::read_file(description, &local)?,
            local: local.0,
            peer_name: socket::peer(own)?.unwrap_or_default().0,
            peer,
            queue,
            listener: self.read_listener(description, scope),
            inherited: None,
            maker,
            maker_groups,
        })
    }

    /// Returns the process that made the connection, or called listen(2). Returns `None` for other sockets.
    fn read_maker(&self, description: &Description) -> Result<Option<Sender>> {
        let has_one = matches!(self.socket.state, sock_diag::CONNECTED | sock_diag::LISTENING);
        let maker = socket::peer_credentials(description.as_fd())?;
        Ok((has_one && maker.pid > 0).then(|| Sender::from(maker)))
    }

    fn read_peer(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Option<Peer>> {
        let Some(peer) = self.socket.peer else { return Ok(None) };
        if peer == Inode(0) {
            return self.read_closed_peer(description, scope).map(Some);
        }
        if let Some(inside) = find(scope, peer) {
            return Ok(Some(Peer::Inside(inside.id.get())));
        }
        let is_named = socket::peer(description.as_fd())?.is_some_and(|name| !name.body().is_empty());
        if i32::from(self.socket.kind) == SOCK_DGRAM && is_named {
            return Ok(Some(Peer::Outside(true)));
        }
        // A connection of an outside client to a server of the subject may be lost. Before the pause, other outside
        // peers are obstacles.
        if scope.loses_connections || (may_end(description, scope) && is_server(&self.diag, &self.socket)?) {
            return Ok(Some(Peer::Closed(true)));
        }
        Err(description
            .obstacle(
                "Unix socket",
                "it was connected to a process outside the tree during the checkpoint",
                "retry in a moment",
            )
            .into())
    }

    /// Returns the state of a peer without a descriptor. Such a peer was closed, or waits to be accepted.
    fn read_closed_peer(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Peer> {
        let Some(listener) = waits_for(&self.diag, description, scope)? else {
            return Ok(Peer::Closed(true));
        };
        if socket::unacknowledged_bytes(description.as_fd())? > 0 {
            return Err(description.obstacle("Unix socket", UNACCEPTED_BYTES, RETRY).into());
        }
        Ok(Peer::Inside(listener.id.get()))
    }

    fn read_listener(&self, description: &Description, scope: &CaptureScope<'_>) -> Option<Listener> {
        if self.socket.state != sock_diag::LISTENING {
            return None;
        }
        let holder: (Pid, Fd) = (description.pid, description.fd);
        let taken = scope
            .descriptions
            .iter()
            .filter(|one| (one.pid, one.fd) == holder && one.id != description.id)
            .map(|one| one.id.get());
        let clients = self.socket.waiting.iter().filter_map(|client| find(scope, *client));
        let waiting = taken.chain(clients.map(|client| client.id.get())).collect();
        Some(Listener { backlog: self.socket.send_queue, waiting })
    }
}

impl FdCapture for Capture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        if self.inherited.is_some() {
            if sockopt::socket_acceptconn(description.as_fd()).unwrap_or(false) {
                self.sockets.note_unheld();
            }
            return Ok(());
        }
        self.socket = look_up(&self.diag, description)?;
        if self.socket.state == sock_diag::LISTENING {
            self.sockets.note_unheld();
        }
        self.options = Options::read(description, &self.fresh)?;
        if is_urgent(description)? {
            return Err(description.obstacle("Unix socket", URGENT, URGENT_FIX).into());
        }
        self.seen = if self.socket.state == sock_diag::LISTENING {
            Vec::new()
        } else {
            peek_all(description.as_fd(), self.family.kind)?
        };
        Ok(())
    }

    fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        self.state = Some(match self.inherited {
            Some(inherited) => State { family: self.family, inherited: Some(inherited), ..State::default() },
            None => self.read(description, scope)?,
        });
        Ok(())
    }

    fn after(&mut self, description: &Known) -> Result<Vec<u8>> {
        let missing =
            || ResourceError::malformed(NAME, format!("fd {} was not read inside the pause", description.fd));
        Ok(self.state.take().ok_or_else(missing)?.encode_to_vec())
    }
}

fn relate_message(description: &Description, seen: Seen, scope: &CaptureScope<'_>) -> Result<Queued> {
    let mut rights = Vec::with_capacity(seen.rights.len());
    for right in &seen.rights {
        let id = identify(scope.open, right.as_fd())?.ok_or_else(|| {
            ResourceError::from(description.obstacle(
                "Unix socket",
                "a descriptor in flight in this socket refers to no known open file description of the tree",
                "retry in a moment",
            ))
        })?;
        rights.push(id.get());
    }
    Ok(Queued { bytes: seen.bytes, from: seen.from.0, rights, sender: seen.credentials.map(Sender::from) })
}

/// The reason why these bytes cannot be saved without a kill. Only accept(2) gives access to them, and an accepted
/// connection cannot be put back into the queue.
pub(super) const UNACCEPTED_BYTES: &str = "it has sent bytes to a listener of the tree that has not accepted it; \
                                         such bytes can be saved only with --kill";
pub(super) const RETRY: &str = "retry in a moment";

/// Returns the listener of the subject that has not yet accepted a client.
pub(super) fn waits_for<'a>(
    diag: &SockDiag,
    client: &Description,
    scope: &CaptureScope<'a>,
) -> Result<Option<&'a Arc<Known>>> {
    let listeners = diag.unix_sockets(1 << sock_diag::LISTENING)?;
    let found = listeners.iter().find(|listener| listener.waiting.contains(&client.inode()));
    Ok(found.and_then(|listener| find(scope, listener.inode)))
}

/// Reports whether the connection of an outside client to this server may be dropped: the server continues, or has
/// not yet accepted the connection.
pub(super) fn may_end(description: &Description, scope: &CaptureScope<'_>) -> bool {
    !scope.kills || !scope.is_held(description.id)
}

/// Returns the kernel's data about the socket of a description.
pub(super) fn look_up(diag: &SockDiag, description: &Description) -> Result<UnixSocket> {
    let found = diag.unix_socket(description.inode())?;
    Ok(found.ok_or_else(|| {
        Error::descriptor("find the Unix socket", description.pid, description.fd, Errno::ENOENT)
    })?)
}

/// Returns the description of the subject that is the socket with this inode.
pub(super) fn find<'a>(scope: &CaptureScope<'a>, inode: Inode) -> Option<&'a Arc<Known>> {
    scope.socket(inode)
}

/// Reports whether a socket contains an unread urgent byte.
pub(super) fn is_urgent(description: &Description) -> Result<bool> {
    Ok(events(description)?.contains(PollFlags::PRI))
}

/// Reports whether a socket was accepted from a listener. An accepted socket is connected and has the name of its
/// listener.
pub(super) fn is_server(diag: &SockDiag, own: &UnixSocket) -> Result<bool> {
    if own.state != sock_diag::CONNECTED || own.name.is_none() || i32::from(own.kind) == SOCK_DGRAM {
        return Ok(false);
    }
    let listeners = diag.unix_sockets(1 << sock_diag::LISTENING)?;
    Ok(listeners.iter().any(|listener| listener.name == own.name && listener.kind == own.kind))
}
