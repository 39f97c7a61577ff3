//! Captures a TCP socket of the subject.
//!
//! A connection is *inside* if both of its ends are sockets of the subject. All other connections are *outside*. With
//! `kills`, the subject is killed after the checkpoint. The restored subject *takes over* the connections, and
//! continues them with the captured state. Without `kills`, the subject continues after the checkpoint. The capture
//! then records the *progress* of an outside connection: how many bytes the program has read and written. If the
//! subject dies, a connection without progress since the checkpoint can be kept.
//!
//! The capture runs inside the pause, while all threads of the subject are stopped. `inside` reads each socket.
//! `relate` runs after `inside` of all sockets, and knows which connections are inside.
//!
//! Owns: the order of the reads, and reverting their effects on the live socket.
//! Invariants: with `kills`, no packet changes a connection after its capture. When the subject is killed, the kernel
//! sends no packet for a captured connection.
//! Does not: decide how the socket is restored; `restore` does.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::rc::Rc;

use model::{Fd, Pid};
use prost::Message;
use rustix::event::PollFlags;
use rustix::net::sockopt;
use sys::sock_diag::SockDiag;
use sys::socket::{self, SocketAddress};
use sys::socket_option::{self, FILTER_DROPS_ALL};
use sys::tcp_repair::{self, Info, Repair, State as TcpState};

use super::super::description::{Description, Known};
use super::super::inet_address::{encode, parse_plain, show};
use super::super::inherited_socket::InheritedSocket;
use super::super::kept_connections::Keep;
use super::super::kind::FdCapture;
use super::super::pieces::Part;
use super::super::scope::CaptureScope;
use super::super::socket_events::events;
use super::super::socket_family::{Family, IPPROTO_MPTCP, IPPROTO_TCP};
use super::super::socket_options::{Fresh, Options, REUSE_ADDRESS};
use super::super::sockets::Sockets;
use super::super::tcp_progress::{self, Progress};
use super::super::vacated;
use super::connection::{self, After, QueueParts};
use super::live;
use super::state::{Ended, Listener, NAME, State};
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;

/// The reason why an MPTCP connection is refused, and the fix.
pub(super) const MULTIPATH: (&str, &str) = (
    "it is an MPTCP connection, whose sequence numbers the kernel does not show",
    "let the program or its client use TCP (GODEBUG=multipathtcp=0 for a Go program)",
);

#[derive(Debug)]
pub(super) struct Capture {
    family: Family,
    kills: bool,
    /// Set when outside connections are not taken over, even if the subject is killed.
    loses: bool,
    inherited: Option<InheritedSocket>,
    sockets: Sockets,
    fresh: Rc<Fresh>,
    /// Facts about a connection that were read before the pause. Not used with `kills`.
    recent: Option<Recent>,
    /// Options that were read inside the pause.
    options: Option<Options>,
    seen: Seen,
    state: Option<State>,
    /// The bytes of the queues, if they are not in `state`.
    queues: Vec<QueueParts>,
    held: Option<Held>,
}

/// Facts that `inside` has read.
#[derive(Debug, Default)]
struct Seen {
    info: Option<Info>,
    addresses: Option<(SocketAddress, SocketAddress)>,
    /// Set when the packets that the socket sends are held back until the next checkpoint is complete.
    is_held: bool,
}

/// Facts about a connection that were read before the pause.
#[derive(Debug)]
struct Recent {
    options: Rc<Options>,
    /// The socket cookie (SO_COOKIE), which identifies the socket.
    cookie: u64,
}

/// Changes that the capture has made to the live socket. The socket has a filter that drops all packets (`filtered`),
/// is in repair mode (`repaired`), or has an entry in the packet filter (`locked`). `reuse` is the original value of
/// SO_REUSEADDR. `release` reverts the changes.
#[derive(Debug)]
struct Held {
    reuse: i32,
    filtered: bool,
    /// The send window of a socket that is in repair mode.
    repaired: Option<u32>,
    locked: Option<(SocketAddr, SocketAddr)>,
}

impl Capture {
    pub(super) fn new(description: &Description, scope: &CaptureScope<'_>) -> Result<Self> {
        let inherited = InheritedSocket::of(description, scope);
        let family = Family::of(description)?;
        let socket = description.as_fd();
        let state = TcpState::from_number(tcp_repair::info(socket)?.state);
        let recent = if is_connected(state) && !scope.kills && inherited.is_none() {
            let options = scope.sockets.recent_options(description.inode(), socket, family)?;
            Some(Recent { options, cookie: socket::cookie(socket)? })
        } else {
            None
        };
        Ok(Self {
            family,
            kills: scope.kills,
            loses: scope.loses_connections,
            inherited,
            sockets: scope.sockets.clone(),
            fresh: scope.sockets.fresh(family)?,
            recent,
            options: None,
            seen: Seen::default(),
            state: None,
            queues: Vec::new(),
            held: None,
        })
    }

    fn read(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<State> {
        let socket = description.as_fd();
        let addresses = self.seen.addresses.take();
        let ends = addresses.as_ref().and_then(|(local, peer)| ends(local, peer));
        let is_inside = ends.is_some_and(|ends| self.sockets.has_other_end(ends.0, ends.1));
        // If the subject continues, the TCP_INFO that `inside` has read is used for an outside connection. Packets
        // may have arrived after this read, but the progress must be computed from this read.
        let seen = self.seen.info.filter(|_| addresses.is_some() && !is_inside && !self.kills);
        let info = seen.map_or_else(|| tcp_repair::info(socket), Ok)?;
        let state = TcpState::from_number(info.state);
        if seen.is_none() || self.recent.is_none() {
            self.read_options(socket)?;
        }
        let mut saved = State { family: self.family, state: u32::from(info.state), ..State::default() };
        let (local, peer) = match addresses {
            Some((local, peer)) => (local, Some(peer)),
            None => (socket::local(socket)?, None),
        };
        saved.local = local.0;
        match state {
            Some(TcpState::Listen) => saved.listener = Some(read_listener(description, scope, info.backlog)),
            Some(TcpState::Close) => saved.ended = read_ended(socket)?,
            Some(TcpState::SynReceived) => {
                return Err(being_established(description).into());
            }
            Some(TcpState::SynSent) => {
                let peer = self.sockets.diag()?.connecting_to(self.family.domain, description.inode())?;
                saved.peer = peer.unwrap_or_default().0;
            }
            _ => {
                let peer = peer.map_or_else(|| socket::peer(socket), |peer| Ok(Some(peer)))?;
                saved.peer = peer.unwrap_or_default().0;
            }
        }
        if is_connected(state) {
            self.read_connection(description, is_inside, &mut saved)?;
        }
        // An MPTCP connection has ended, or is restored as a connection that has ended. A TCP socket is enough for
        // both cases.
        if saved.family.protocol == IPPROTO_MPTCP && (is_connected(state) || saved.ended.is_some()) {
            saved.family.protocol = IPPROTO_TCP;
        }
        Ok(saved)
    }

    /// Replaces the filter that this capture has attached by the program's own filter. If the program has no filter,
    /// detaches the filter of this capture.
    fn remove_filter(&mut self, socket: BorrowedFd<'_>) {
        let is_filtered = self.held.as_mut().is_some_and(|held| std::mem::take(&mut held.filtered));
        if is_filtered {
            let _ = match self.options.as_ref().map(Options::filter) {
                None | Some([]) => socket_option::detach_filter(socket),
                Some(program) => socket_option::attach_filter(socket, program),
            };
        }
    }

    /// Reads the options, if they were not yet read in this pause.
    fn read_options(&mut self, socket: BorrowedFd<'_>) -> Result<()> {
        if self.options.is_none() {
            self.options = Some(Options::read(socket, &self.fresh)?);
        }
        Ok(())
    }

    fn read_connection(
        &mut self,
        description: &Description,
        is_inside: bool,
        saved: &mut State,
    ) -> Result<()> {
        let socket = description.as_fd();
        let ends = parse_plain(&saved.local()).zip(parse_plain(&saved.peer()));
        let takes = self.kills && (is_inside || !self.loses);
        if self.family.protocol == IPPROTO_MPTCP && (takes || is_inside) {
            return Err(connection_obstacle(description, MULTIPATH.0, MULTIPATH.1).into());
        }
        if self.kills && !takes {
            self.remove_filter(socket);
        }
        if takes {
            let mut connection = connection::read(socket, After::StaysInRepair)?;
            if let Some(held) = &mut self.held {
                held.repaired = Some(connection.window_send);
                if !held.filtered {
                    // Acknowledgements may arrive after the read, and let the kernel send the unsent bytes.
                    connection.unsent = 0;
                }
                held.locked = ends.filter(|_| !is_inside);
                self.sockets.drop_later(held.locked);
            }
            saved.connection = Some(connection);
        } else if is_inside {
            let cookie = self.cookie(socket)?;
            let read = self
                .sockets
                .with_streams(cookie, |streams, reader| live::read_inside(socket, streams, reader));
            saved.connection = Some(read?);
        } else {
            if saved.was_shut() {
                saved.ended = Some(Ended { received: peek(socket)?, failed: false });
            }
            let is_whole = self.seen.is_held && tcp_progress::is_open(saved.tcp_state());
            if is_whole {
                let cookie = self.cookie(socket)?;
                let read = self
                    .sockets
                    .with_streams(cookie, |streams, reader| live::read_moving(socket, streams, reader));
                let (connection, queues) = read?;
                (saved.connection, self.queues) = (Some(connection), queues);
            }
            let is_kept = is_whole || self.sockets.keeps_all();
            self.note_progress(socket, saved, if is_kept { Keep::Any } else { Keep::Idle })?;
        }
        Ok(())
    }

    /// Returns the cookie of the socket.
    fn cookie(&self, socket: BorrowedFd<'_>) -> Result<u64> {
        Ok(self.recent.as_ref().map_or_else(|| socket::cookie(socket), |one| Ok(one.cookie))?)
    }

    /// Marks the socket, so that the packet filter holds back its output. Does nothing if output is not held back. If
    /// the program itself has set a mark, the mark stays, and the output of this socket is not held back.
    fn mark(&mut self, socket: BorrowedFd<'_>) -> Result<()> {
        let Some(mark) = self.sockets.mark() else { return Ok(()) };
        if self.inherited.is_none() && self.family.protocol == IPPROTO_TCP {
            self.seen.is_held = mark.claim(socket)?;
        } else if sockopt::socket_acceptconn(socket).unwrap_or(false) {
            // Connections that this listener accepts are not inherited, and are plain TCP connections unless the client
            // uses MPTCP.
            mark.claim(socket)?;
        }
        Ok(())
    }

    /// Saves the progress of an outside connection: the number of bytes that the program has read and written. If the
    /// progress has not changed since the previous checkpoint, a duplicate of the socket is kept open. With
    /// [`Keep::Any`], the duplicate is kept in every case.
    fn note_progress(&self, socket: BorrowedFd<'_>, saved: &mut State, which: Keep) -> Result<()> {
        let (Some(recent), Some(info)) = (&self.recent, &self.seen.info) else { return Ok(()) };
        if tcp_progress::is_open(saved.tcp_state()) && self.family.protocol == IPPROTO_TCP {
            // A connection without a rewind stays only if the counters are exact.
            let exact = self.sockets.keeps_all().then(|| Progress::exact(socket)).transpose()?.flatten();
            let progress = match exact {
                Some((_, progress)) => progress,
                None => Progress::after(info, socket, recent.cookie)?,
            };
            self.sockets.note_progress(progress, socket, which);
            saved.progress = Some(progress);
        }
        Ok(())
    }
}

impl FdCapture for Capture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        let socket = description.as_fd();
        (self.held, self.options, self.seen) = (None, None, Seen::default());
        self.queues.clear();
        // The mark is set before the state is read, so that packets that are sent during the read are held back.
        self.mark(socket)?;
        let info = tcp_repair::info(socket)?;
        let state = TcpState::from_number(info.state);
        self.seen.info = Some(info);
        if is_connected(state) {
            let addresses = (socket::local(socket)?, socket::peer(socket)?.unwrap_or_default());
            if let Some((local, peer)) = ends(&addresses.0, &addresses.1) {
                self.sockets.note_end(local, peer);
            }
            self.seen.addresses = Some(addresses);
        }
        if self.kills && is_connected(state) && self.inherited.is_none() {
            // The options are read before a filter is attached here, since the options include the program's filter.
            self.read_options(socket)?;
            let reuse = socket_option::get_int(socket, REUSE_ADDRESS)?;
            // If the program has locked its filter, the filter cannot be replaced. The packets of the connection are
            // then dropped only from `after` on, by the packet filter table of `sys::packet_drop`.
            let filtered = socket_option::attach_filter(socket, &FILTER_DROPS_ALL).is_ok();
            self.held = Some(Held { reuse, filtered, repaired: None, locked: None });
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

    fn after(&mut self, description: &Known) -> Result<Vec<u8>> {
        self.sockets.drop_packets()?;
        let missing =
            || ResourceError::malformed(NAME, format!("fd {} was not read inside the pause", description.fd));
        let mut state = self.state.take().ok_or_else(missing)?;
        let options = self.options.as_ref().or(self.recent.as_ref().map(|recent| &*recent.options));
        state.options = options.cloned().unwrap_or_default();
        Ok(state.encode_to_vec())
    }

    fn parts(&mut self) -> Vec<Part> {
        let queues = std::mem::take(&mut self.queues);
        queues.into_iter().flat_map(|queue| State::with_queue(queue.direction, queue.parts)).collect()
    }

    fn release(&mut self, description: &Description) {
        let Some(held) = self.held.take() else { return };
        let socket = description.as_fd();
        // Errors are ignored, because the subject continues even if the socket cannot be reverted.
        if let Some(send_window) = held.repaired {
            let _ = connection::unfreeze(socket, send_window);
            let _ = connection::leave(socket, held.reuse, Repair::Off);
        }
        self.held = Some(held);
        self.remove_filter(socket);
        let Some(held) = self.held.take() else { return };
        let _ = vacated::pass(held.locked.as_slice());
    }
}

/// Reports whether a socket in this state has a connection that is established or half closed.
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

/// Reports whether the other end of a connection is a socket of the subject.
fn is_inside(diag: &SockDiag, scope: &CaptureScope<'_>, ends: (SocketAddr, SocketAddr)) -> bool {
    let (local, peer) = (encode(ends.0), encode(ends.1));
    let other = diag.tcp_socket(&peer, &local).ok().flatten();
    other.is_some_and(|other| scope.socket(other.inode).is_some())
}

/// Reports whether the connection of a description is inside.
pub(super) fn has_peer_inside(description: &Description, scope: &CaptureScope<'_>) -> bool {
    let socket = description.as_fd();
    let local = socket::local(socket).ok();
    let peer = socket::peer(socket).ok().flatten();
    let ends = local.zip(peer).and_then(|(local, peer)| parse_plain(&local).zip(parse_plain(&peer)));
    let diag = scope.sockets.diag().ok();
    diag.zip(ends).is_some_and(|(diag, ends)| is_inside(&diag, scope, ends))
}

/// Returns backlog and accept queue of a listener. The checkpoint has accepted the connections of the queue. No
/// process of the subject has a descriptor of such a connection. Its description has the pid and the fd of the
/// listener.
fn read_listener(description: &Description, scope: &CaptureScope<'_>, backlog: u32) -> Listener {
    let holder: (Pid, Fd) = (description.pid, description.fd);
    let waiting = scope
        .descriptions
        .iter()
        .filter(|one| (one.pid, one.fd) == holder && one.id != description.id)
        .map(|one| one.id.get());
    Listener { backlog, waiting: waiting.collect() }
}

/// Returns how the connection of a closed socket has ended. Returns `None` if the socket was never connected.
fn read_ended(socket: BorrowedFd<'_>) -> Result<Option<Ended>> {
    let events = events(socket)?;
    if !events.contains(PollFlags::RDHUP) {
        return Ok(None);
    }
    Ok(Some(Ended { received: peek(socket)?, failed: events.contains(PollFlags::ERR) }))
}

/// Returns the readable bytes without consuming them. Makes no call of recv(2) if there are no readable bytes,
/// because this call would consume a pending error.
fn peek(socket: BorrowedFd<'_>) -> Result<Vec<u8>> {
    let length = socket::readable_bytes(socket)?;
    let mut bytes = vec![0; length];
    if length > 0 {
        let peeked = socket::peek(socket, &mut bytes)?;
        bytes.truncate(peeked.map_or(0, |peeked| peeked.length));
    }
    Ok(bytes)
}

pub(super) fn being_established(description: &Description) -> Obstacle {
    connection_obstacle(description, "it is being established", "retry in a moment")
}

pub(super) fn connection_obstacle(description: &Description, why: &str, fix: &str) -> Obstacle {
    let socket = description.as_fd();
    let shown = |address: Option<_>| address.map_or_else(String::new, |one| show(&one));
    let local = shown(socket::local(socket).ok());
    let peer = shown(socket::peer(socket).ok().flatten());
    Obstacle { place: format!("{local} - {peer}"), ..description.obstacle("TCP connection", why, fix) }
}

/// Returns local address and peer address in a form that can be compared.
pub(super) fn ends(local: &SocketAddress, peer: &SocketAddress) -> Option<(SocketAddr, SocketAddr)> {
    parse_plain(local).zip(parse_plain(peer))
}
