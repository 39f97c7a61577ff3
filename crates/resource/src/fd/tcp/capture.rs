//! Reading a TCP socket.
//!
//! Owns: what is read when, and undoing what that does to the live socket.
//! Invariants: with `kills` no packet changes a connection between its capture and its end, and its end is silent.
//! Does not: decide how the socket comes back.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, PoisonError};

use model::{Fd, Pid};
use prost::Message;
use rustix::event::PollFlags;
use sys::sock_diag::SockDiag;
use sys::socket::{self, SocketAddress};
use sys::socket_option::{self, FILTER_DROPS_ALL};
use sys::tcp_repair::{self, Repair, State as TcpState};

use super::super::inet_address::{encode, parse_plain};
use super::super::inherited_socket::InheritedSocket;
use super::super::socket_events::events;
use super::super::socket_options::{Family, Options, REUSE_ADDRESS};
use super::super::{CaptureScope, Description, FdCapture};
use super::connection::{self, After};
use super::lock;
use super::state::{Ended, Listener, State};
use crate::error::{ResourceError, Result};

/// Connections whose packets have to be held back before their process is killed. One run of the packet filter
/// command locks all that are here, whichever socket's turn it is.
static TO_LOCK: Mutex<Vec<(SocketAddr, SocketAddr)>> = Mutex::new(Vec::new());

#[derive(Debug)]
pub(super) struct Capture {
    family: Family,
    kills: bool,
    inherited: Option<InheritedSocket>,
    diag: SockDiag,
    options: Options,
    state: Option<State>,
    held: Option<Held>,
}

/// What was done to the live socket.
#[derive(Debug)]
struct Held {
    reuse: i32,
    filtered: bool,
    repaired: bool,
    locked: Option<(SocketAddr, SocketAddr)>,
}

impl Capture {
    pub(super) fn new(description: &Description, scope: &CaptureScope<'_>) -> Result<Self> {
        let inherited = InheritedSocket::of(description, scope);
        Ok(Self {
            family: Family::of(description)?,
            kills: scope.kills,
            inherited,
            diag: SockDiag::open()?,
            options: Options::default(),
            state: None,
            held: None,
        })
    }

    fn read(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<State> {
        let socket = description.as_fd();
        let number = tcp_repair::info(socket)?.state;
        let state = TcpState::from_number(number);
        let mut saved = State {
            family: self.family,
            options: std::mem::take(&mut self.options),
            state: u32::from(number),
            local: socket::local(socket)?.0,
            ..State::default()
        };
        match state {
            Some(TcpState::Listen) => saved.listener = Some(read_listener(description, scope)?),
            Some(TcpState::Close) => saved.ended = read_ended(socket)?,
            Some(TcpState::SynReceived) => return Err(being_made(description)),
            Some(TcpState::SynSent) => {
                let peer = self.diag.connecting_to(self.family.domain, description.inode())?;
                saved.peer = peer.unwrap_or_default().0;
            }
            _ => saved.peer = socket::peer(socket)?.unwrap_or_default().0,
        }
        if is_connected(state) {
            self.read_connection(socket, scope, &mut saved)?;
        }
        Ok(saved)
    }

    fn read_connection(
        &mut self,
        socket: BorrowedFd<'_>,
        scope: &CaptureScope<'_>,
        saved: &mut State,
    ) -> Result<()> {
        let ends = parse_plain(&saved.local()).zip(parse_plain(&saved.peer()));
        let is_inside = ends.is_some_and(|ends| is_inside(&self.diag, scope, ends));
        if self.kills {
            saved.connection = Some(connection::read(socket, After::StaysInRepair)?);
            if let Some(held) = &mut self.held {
                held.repaired = true;
                held.locked = ends.filter(|_| !is_inside);
                let mut waiting = TO_LOCK.lock().unwrap_or_else(PoisonError::into_inner);
                waiting.extend(held.locked);
            }
        } else if is_inside {
            saved.connection = Some(connection::read(socket, After::GoesOn)?);
        } else if saved.was_shut() {
            saved.ended = Some(Ended { received: peek(socket)?, failed: false });
        }
        Ok(())
    }
}

impl FdCapture for Capture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        let socket = description.as_fd();
        self.held = None;
        if self.inherited.is_some() {
            return Ok(());
        }
        self.options = Options::read(socket, self.family)?;
        let state = TcpState::from_number(tcp_repair::info(socket)?.state);
        if self.kills && is_connected(state) {
            let reuse = socket_option::get_int(socket, REUSE_ADDRESS)?;
            // A filter that the program has locked stays; packets are then only held back by the table.
            let filtered = socket_option::attach_filter(socket, &FILTER_DROPS_ALL).is_ok();
            self.held = Some(Held { reuse, filtered, repaired: false, locked: None });
        }
        Ok(())
    }

    fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        self.state = Some(match self.inherited {
            Some(inherited) => State { family: self.family, inherited: Some(inherited), ..State::default() },
            None => self.read(description, scope)?,
        });
        Ok(())
    }

    fn after(&mut self, description: &Description) -> Result<Vec<u8>> {
        let waiting = std::mem::take(&mut *TO_LOCK.lock().unwrap_or_else(PoisonError::into_inner));
        lock::lock(&waiting)?;
        let missing = || ResourceError::Malformed {
            kind: super::NAME,
            why: format!("fd {} was not read inside the pause", description.fd),
        };
        Ok(self.state.take().ok_or_else(missing)?.encode_to_vec())
    }

    fn release(&mut self, description: &Description) {
        let Some(held) = self.held.take() else { return };
        let socket = description.as_fd();
        // The subject goes on whatever fails here; each step is worth trying.
        if held.repaired {
            let _ = connection::leave(socket, held.reuse, Repair::Off);
        }
        if held.filtered {
            let options = self.state.as_ref().map_or(&self.options, |state| &state.options);
            let _ = match options.filter() {
                [] => socket_option::detach_filter(socket),
                program => socket_option::attach_filter(socket, program),
            };
        }
        let _ = lock::unlock(held.locked.as_slice());
    }
}

/// Whether a socket in this state is one end of a connection.
pub(super) fn is_connected(state: Option<TcpState>) -> bool {
    matches!(
        state,
        Some(
            TcpState::Established
                | TcpState::FinWait1
                | TcpState::FinWait2
                | TcpState::CloseWait
                | TcpState::LastAck
                | TcpState::Closing
        )
    )
}

/// Whether the other end of a connection is a socket of the subject as well.
fn is_inside(diag: &SockDiag, scope: &CaptureScope<'_>, ends: (SocketAddr, SocketAddr)) -> bool {
    let (local, peer) = (encode(ends.0), encode(ends.1));
    let other = diag.tcp_socket(&peer, &local).ok().flatten();
    other.is_some_and(|other| {
        scope.descriptions.iter().any(|one| one.inode() == other.inode && one.target().starts_with("socket:"))
    })
}

/// The same of the connection that a description is one end of.
pub(super) fn has_peer_inside(description: &Description, scope: &CaptureScope<'_>) -> bool {
    let socket = description.as_fd();
    let local = socket::local(socket).ok();
    let peer = socket::peer(socket).ok().flatten();
    let ends = local.zip(peer).and_then(|(local, peer)| parse_plain(&local).zip(parse_plain(&peer)));
    let diag = SockDiag::open().ok();
    diag.zip(ends).is_some_and(|(diag, ends)| is_inside(&diag, scope, ends))
}

/// Connections that were taken out of the accept queue carry the listener's own holder.
fn read_listener(description: &Description, scope: &CaptureScope<'_>) -> Result<Listener> {
    let holder: (Pid, Fd) = (description.pid, description.fd);
    let waiting = scope
        .descriptions
        .iter()
        .filter(|one| (one.pid, one.fd) == holder && one.id != description.id)
        .map(|one| one.id.get());
    Ok(Listener { backlog: tcp_repair::info(description.as_fd())?.backlog, waiting: waiting.collect() })
}

/// A socket that is closed was never connected, or its connection is over.
fn read_ended(socket: BorrowedFd<'_>) -> Result<Option<Ended>> {
    let events = events(socket)?;
    if !events.contains(PollFlags::RDHUP) {
        return Ok(None);
    }
    Ok(Some(Ended { received: peek(socket)?, failed: events.contains(PollFlags::ERR) }))
}

/// What can be read. With nothing to read it does not ask, since that would take away an error that waits.
fn peek(socket: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let length = socket::readable_bytes(socket)?;
    let mut bytes = vec![0; length];
    if length > 0 {
        let peeked = socket::peek(socket, &mut bytes)?;
        bytes.truncate(peeked.map_or(0, |peeked| peeked.length));
    }
    Ok(bytes)
}

fn being_made(description: &Description) -> ResourceError {
    ResourceError::Unsupported {
        pid: description.pid,
        what: description.named("TCP connection"),
        why: "it is just being made".to_owned(),
        fix: "try again in a moment".to_owned(),
    }
}

/// Both ends of a saved connection, so that the two ends of one are seen to belong together.
pub(super) fn ends(local: &SocketAddress, peer: &SocketAddress) -> Option<(SocketAddr, SocketAddr)> {
    parse_plain(local).zip(parse_plain(peer))
}
