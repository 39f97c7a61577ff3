//! Builds the TCP sockets of an image in a restore.
//!
//! A connection is *inside* if both of its ends are in the image, and *outside* if only one end is in the image. A
//! connection *waits* if the program has not yet accepted it. A connection that waits is rebuilt by a new connect(2) of
//! its client. While the subject is dead, `undying` can keep the sockets of outside connections open. A kept connection
//! without traffic since the checkpoint continues with its kept socket. A kept connection with traffic since the
//! checkpoint is *rewound*, if possible: a new socket with the state of the checkpoint replaces the kept socket.
//!
//! Owns: the order of building: listeners, then connections and unconnected sockets, then connections that wait.
//! Invariants: no outside connection sends a packet before `start`, so that a failed restore does not affect the
//! peers.
//! Does not: read sockets; `capture` does.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use model::DescriptionId;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::Shutdown;
use sys::clock::Stopwatch;
use sys::packet_hold::SocketMark;
use sys::socket::{self, Message};
use sys::socket_option::{self, SocketOption};
use sys::tcp_repair::{self, Repair, State as TcpState};
use sys::{Errno, Error};

use super::super::held_listener;
use super::super::inet_address::parse;
use super::super::kept_connections::KEPT_NUMBER_MIN;
use super::super::kind::{FdCreate, FdRecord, Kept};
use super::super::socket_family::IPPROTO_TCP;
use super::super::socket_options::{REUSE_ADDRESS, REUSE_PORT};
use super::super::sockets::may_repair;
use super::super::tcp_progress;
use super::super::vacated;
use super::capture::ends;
use super::ended::{self, End};
use super::state::{Connection, Listener, NAME, State};
use super::{address, connection};
use crate::error::Result;

const REPAIR: SocketOption = SocketOption { level: IPPROTO_TCP, number: 19, name: "TCP_REPAIR" };
const EINPROGRESS: i32 = 115;
/// A restore waits at most this long for acknowledgements inside the subject. The kernel delays them by 40 ms.
const ACKNOWLEDGED_MAX: Duration = Duration::from_millis(200);
const ACKNOWLEDGED_POLL: Duration = Duration::from_millis(1);

/// All TCP sockets of an image.
struct Image {
    states: Vec<(DescriptionId, State)>,
    /// The ends of connections in the image: local and peer address.
    ends: HashSet<(SocketAddr, SocketAddr)>,
    /// The server sides of connections that wait.
    waiting: HashSet<DescriptionId>,
}

impl Image {
    fn read(records: &[FdRecord]) -> Result<Self> {
        let mut image = Self { states: Vec::new(), ends: HashSet::new(), waiting: HashSet::new() };
        for record in records {
            let state: State = crate::error::decode(NAME, &record.payload)?;
            if state.connection.is_some() {
                image.ends.extend(ends(&state.local(), &state.peer()));
            }
            let listener = state.listener.as_ref();
            image
                .waiting
                .extend(listener.iter().flat_map(|listener| &listener.waiting).map(|id| DescriptionId(*id)));
            image.states.push((record.id, state));
        }
        Ok(image)
    }

    fn state(&self, id: DescriptionId) -> Option<&State> {
        self.states.iter().find(|row| row.0 == id).map(|row| &row.1)
    }

    /// Reports whether the other end of a connection is in the image.
    fn is_inside(&self, state: &State) -> bool {
        ends(&state.local(), &state.peer()).is_some_and(|(local, peer)| self.ends.contains(&(peer, local)))
    }

    /// Returns the other end of a connection. Returns `None` for an outside connection.
    fn other_end(&self, state: &State) -> Option<(DescriptionId, &Connection)> {
        let (local, peer) = ends(&state.local(), &state.peer())?;
        self.states.iter().find_map(|(id, other)| {
            let connection = other.connection.as_ref()?;
            (ends(&other.local(), &other.peer()) == Some((peer, local))).then_some((*id, connection))
        })
    }

    /// Returns the client of a connection that waits. Returns `None` if the client is outside.
    fn client_of(&self, server: &State) -> Option<DescriptionId> {
        self.other_end(server).map(|other| other.0)
    }

    /// Returns the clients in the image whose connections wait. The restore connects these clients to their
    /// listeners.
    fn reconnecting(&self) -> HashSet<DescriptionId> {
        self.waiting.iter().filter_map(|id| self.client_of(self.state(*id)?)).collect()
    }
}

/// Builds all TCP sockets of an image.
pub(super) fn create(records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
    let image = Image::read(records)?;
    let reconnecting = image.reconnecting();
    let rewound = vacate(&image, context)?;
    let shared = SharedAddresses::of(context.kept);
    let mut listeners = Vec::new();
    for (id, state) in &image.states {
        if let Some(listener) = &state.listener {
            let kept = held_listener::take(context.held, state.family, &state.local(), |_| true);
            let socket = kept.map_or_else(|| build_listener(state, listener), Ok)?;
            mark(&socket, state, context)?;
            context.created.insert(*id, socket);
            listeners.push((*id, listener));
        }
    }
    drop(shared);
    for (id, state) in &image.states {
        if state.listener.is_some() || image.waiting.contains(id) || reconnecting.contains(id) {
            continue;
        }
        let socket = match (&state.inherited, &state.connection) {
            (Some(inherited), _) => inherited.take(context)?,
            (None, Some(connection)) if rewound.contains(id) => rewind(state, connection, context)?,
            (None, Some(connection)) if state.progress.is_none() => {
                build_end(&image, state, connection, context.connections_lost)?
            }
            (None, _) => keep_or_build(state, context)?,
        };
        mark(&socket, state, context)?;
        context.created.insert(*id, socket);
    }
    for (id, listener) in listeners {
        let steered = steer(&image, id, context)?;
        for server in &listener.waiting {
            reconnect(&image, DescriptionId(*server), context)?;
        }
        drop(steered);
        // While clients connected to the listener, its backlog may have been larger than the saved backlog. This call
        // sets the saved backlog.
        if let (Some(socket), false) = (context.created.get(&id), listener.waiting.is_empty()) {
            address::listen(socket.as_fd(), listener.backlog)?;
        }
    }
    Ok(())
}

/// Vacates the addresses of connections that will be rewound: makes the packet filter drop the packets of these
/// connections, and disconnects their old sockets. Returns the connections.
fn vacate(image: &Image, context: &mut FdCreate<'_>) -> Result<HashSet<DescriptionId>> {
    let Kept { sockets, rewinds: Some(hold), vacated, .. } = context.kept else { return Ok(HashSet::new()) };
    let built = vacated.take_built();
    let (mut rewound, mut leaving) = (HashSet::new(), Vec::new());
    for (id, state) in &image.states {
        let (Some(saved), Some(progress)) = (&state.connection, state.progress) else { continue };
        let Some(ends) = ends(&state.local(), &state.peer()) else { continue };
        // If an earlier restore has rewound the connection and then failed, `built` contains the socket of the
        // connection.
        let mut live = built.iter().chain(sockets);
        let Some(old) = live.find(|socket| ends_of(socket.as_fd()) == Some(ends)) else {
            if vacated.has(ends) {
                rewound.insert(*id);
            }
            continue;
        };
        // A connection without traffic since the checkpoint needs no rewind.
        if tcp_progress::keep(sockets, progress)?.is_some() {
            continue;
        }
        if connection::can_rewind(old.as_fd(), saved)? {
            rewound.insert(*id);
            leaving.push((old, ends));
        } else {
            // The connection cannot be rewound, and ends when its socket is closed. The peer then receives a reset
            // instead of a FIN.
            ended::reset_when_closed(old.as_fd())?;
        }
    }
    let ends: Vec<_> = leaving.iter().map(|row| row.1).collect();
    vacated.add(hold, &ends)?;
    leaving.iter().try_for_each(|(old, _)| connection::vanish(old.as_fd()))?;
    // The hold contains packets that the kernel has sent for the old sockets: acknowledgements and retransmissions.
    hold.discard_all()?;
    Ok(rewound)
}

/// Kept sockets whose addresses a listener may bind until this value is dropped. A connection inherits SO_REUSEADDR from
/// its listener. Without this option, it would prevent that its listener is built again.
struct SharedAddresses<'a>(Vec<(BorrowedFd<'a>, i32)>);

impl<'a> SharedAddresses<'a> {
    fn of(kept: &'a Kept) -> Self {
        let reuse = |socket: &'a Arc<OwnedFd>| {
            let before = socket_option::get_int(socket.as_fd(), REUSE_ADDRESS).ok()?;
            socket_option::set_int(socket.as_fd(), REUSE_ADDRESS, 1).ok()?;
            Some((socket.as_fd(), before))
        };
        Self(kept.sockets.iter().filter_map(reuse).collect())
    }
}

impl Drop for SharedAddresses<'_> {
    fn drop(&mut self) {
        for (socket, before) in &self.0 {
            let _ = socket_option::set_int(*socket, REUSE_ADDRESS, *before);
        }
    }
}

fn ends_of(socket: BorrowedFd<'_>) -> Option<(SocketAddr, SocketAddr)> {
    ends(&socket::local(socket).ok()?, &socket::peer(socket).ok()??)
}

/// Rewinds a connection: builds its socket in the state of the checkpoint.
fn rewind(state: &State, saved: &Connection, context: &mut FdCreate<'_>) -> Result<OwnedFd> {
    // After the checkpoint, the old socket may have sent all bytes that were unsent at the checkpoint.
    let socket =
        connection::build(state, saved, saved.send_end).map_err(|error| address::refused(state, error))?;
    mark(&socket, state, context)?;
    context.connections.rewound += 1;
    if let Some(copy) = note(&socket, context) {
        context.kept.vacated.note_built(copy);
    }
    Ok(socket)
}

/// Makes the output of a socket be held from its first byte on, if output is held. A connection inherits the mark of its
/// listener.
fn mark(socket: &OwnedFd, state: &State, context: &FdCreate<'_>) -> Result<()> {
    match context.kept.mark {
        Some(mark) if state.inherited.is_none() => {
            mark.claim(socket.as_fd())?;
        }
        _ => {}
    }
    Ok(())
}

/// Keeps a duplicate of a socket. If the program dies again before the next checkpoint, the next restore uses this
/// duplicate.
fn note(socket: &OwnedFd, context: &mut FdCreate<'_>) -> Option<Arc<OwnedFd>> {
    let copy = rustix::io::fcntl_dupfd_cloexec(socket, KEPT_NUMBER_MIN).map(Arc::new).ok();
    context.connections.sockets.extend(copy.clone());
    copy
}

/// Returns the kept socket of an outside connection. If there is no kept socket, builds a socket whose connection has
/// ended. For a socket without a connection, builds an unconnected socket.
fn keep_or_build(state: &State, context: &mut FdCreate<'_>) -> Result<OwnedFd> {
    let Some(progress) = state.progress else { return build_unconnected(state) };
    if let Some(kept) = tcp_progress::keep(&context.kept.sockets, progress)? {
        context.connections.kept += 1;
        note(&kept, context);
        return Ok(kept);
    }
    context.connections.ended += 1;
    build_unconnected(state)
}

fn build_listener(state: &State, listener: &Listener) -> Result<OwnedFd> {
    let socket = state.family.create()?;
    state.options.apply_early(&socket, state.family)?;
    state.options.apply_unconnected(&socket, state.family)?;
    let backlog = listener.backlog.max(listener.waiting.len() as u32);
    address::bind_and_listen(socket.as_fd(), state, backlog)?;
    state.options.apply_late(&socket, state.family)?;
    Ok(socket)
}

/// Makes the kernel deliver all new connections of a port to the listener `id`, if several listeners share the port
/// (SO_REUSEPORT). The clients of `id` can then connect to `id`. Returns `None` if no connection waits in `id`, or if
/// only one listener has the port.
fn steer(image: &Image, id: DescriptionId, context: &FdCreate<'_>) -> Result<Option<Steered>> {
    let Some(state) = image.state(id) else { return Ok(None) };
    let waits = state.listener.as_ref().is_some_and(|listener| !listener.waiting.is_empty());
    // The listeners of the port, in the order of their listen(2) calls.
    let group: Vec<_> = image.states.iter().filter(|(_, other)| shares_port(state, other)).collect();
    let place = group.iter().position(|row| row.0 == id);
    let (Some(place), Some(socket)) = (place, context.created.get(&id)) else { return Ok(None) };
    if !waits || group.len() == 1 {
        return Ok(None);
    }
    let socket = socket.try_clone().map_err(|error| Error::new("duplicate a socket", error))?;
    socket_option::steer_to(socket.as_fd(), place as u32)?;
    Ok(Some(Steered(socket)))
}

fn shares_port(one: &State, other: &State) -> bool {
    let shares = |state: &State| state.listener.is_some() && state.options.int(REUSE_PORT) == Some(1);
    shares(one) && shares(other) && one.local == other.local
}

/// A listener that receives all new connections of its port until this value is dropped.
struct Steered(OwnedFd);

impl Drop for Steered {
    fn drop(&mut self) {
        let _ = socket_option::stop_steering(self.0.as_fd());
    }
}

fn build_end(image: &Image, state: &State, connection: &Connection, lost: bool) -> Result<OwnedFd> {
    let is_inside = image.is_inside(state);
    if lost && !is_inside {
        let end = if state.was_shut() { End::Finished { both: state.has_shut() } } else { End::Reset };
        let received = if state.was_shut() { connection.received.as_slice() } else { &[] };
        return ended::build(state.family, &state.options, received, end);
    }
    // An inside connection continues while its two ends are read. The end that was read second may therefore have
    // received bytes that were unsent in the state of the first end.
    let sent_until = image.other_end(state).map_or(connection.sent_end(), |other| other.1.receive_end);
    connection::build(state, connection, sent_until).map_err(|error| address::refused(state, error))
}

fn build_unconnected(state: &State) -> Result<OwnedFd> {
    if let Some(over) = &state.ended {
        let both = state.tcp_state() == Some(TcpState::Close) || state.has_shut();
        let end = if over.failed { End::Reset } else { End::Finished { both } };
        return ended::build(state.family, &state.options, &over.received, end);
    }
    if !matches!(state.tcp_state(), Some(TcpState::Close | TcpState::SynSent)) {
        return ended::build(state.family, &state.options, &[], End::Reset);
    }
    let socket = state.family.create()?;
    state.options.apply_early(&socket, state.family)?;
    if state.tcp_state() == Some(TcpState::Close) {
        state.options.apply_unconnected(&socket, state.family)?;
    }
    let has_port = parse(&state.local()).is_some_and(|address| address.port() != 0);
    // The kernel chose the port of a socket that was connecting. It gives the same port to connections to other peers.
    if has_port && state.tcp_state() == Some(TcpState::SynSent) && may_repair() {
        bind_beside_others(&socket, state)?;
    } else if has_port {
        address::bind(socket.as_fd(), state)?;
    }
    if state.tcp_state() == Some(TcpState::Close) {
        state.options.apply_late(&socket, state.family)?;
    }
    Ok(socket)
}

/// Binds a socket that will be connected. In repair mode, bind(2) succeeds although other connections occupy the address,
/// for example the old connection.
fn bind_beside_others(socket: &OwnedFd, state: &State) -> Result<()> {
    tcp_repair::set_repair(socket.as_fd(), Repair::On)?;
    socket::bind(socket.as_fd(), &state.local()).map_err(|error| address::refused(state, error.into()))?;
    connection::leave(socket.as_fd(), state.options.int(REUSE_ADDRESS).unwrap_or(0), Repair::Off)
}

/// Rebuilds a connection that waits: connects its client to the listener, and sends the bytes that the client had
/// sent at the checkpoint.
fn reconnect(image: &Image, server: DescriptionId, context: &mut FdCreate<'_>) -> Result<()> {
    let Some(waiting) = image.state(server) else { return Ok(()) };
    // The image does not contain the state of an outside client. `start` resets the connection of an outside client.
    let Some(client) = image.client_of(waiting) else { return Ok(()) };
    let Some(state) = image.state(client) else { return Ok(()) };
    let (Some(connection), Some(other)) = (&state.connection, &waiting.connection) else { return Ok(()) };
    let socket = state.family.create()?;
    state.options.apply_early(&socket, state.family)?;
    bind_beside_others(&socket, state)?;
    connection::connect(socket.as_fd(), state)?;
    let begin = connection.send_end.wrapping_sub(connection.written.len() as u32);
    let known = other.receive_end.wrapping_sub(begin) as usize;
    let rest = connection.written.get(known..).unwrap_or_default();
    let bytes = [other.received.as_slice(), rest].concat();
    super::super::socket_options::make_room(
        &socket,
        super::super::socket_options::SEND_BUFFER,
        2 * bytes.len() + 1,
    )?;
    let mut left = bytes.as_slice();
    while !left.is_empty() {
        let sent = socket::send(socket.as_fd(), &Message { bytes: left, ..Message::default() })?;
        left = &left[sent..];
    }
    if state.has_shut() {
        rustix::net::shutdown(&socket, Shutdown::Write)
            .map_err(|errno| Error::new("shut a TCP socket", errno))?;
    }
    state.options.restore_buffers(&socket, state.family)?;
    state.options.apply_late(&socket, state.family)?;
    context.created.insert(client, socket);
    Ok(())
}

/// Starts all connections: the built sockets leave repair mode, and send and receive.
pub(super) fn start(records: &[FdRecord], created: &HashMap<DescriptionId, OwnedFd>) -> Result<()> {
    let image = Image::read(records)?;
    let mut ready = Vec::new();
    for (id, state) in &image.states {
        let (Some(connection), Some(socket)) = (&state.connection, created.get(id)) else { continue };
        if socket_option::get_int(socket.as_fd(), REPAIR)? == 1 {
            ready.push((state, connection, socket.as_fd(), image.is_inside(state)));
        }
    }
    let is_outside = |state: &&State| state.connection.is_some() && !image.is_inside(state);
    let outside = image.states.iter().map(|row| &row.1).filter(is_outside);
    let locked: Vec<_> = outside.filter_map(|state| ends(&state.local(), &state.peer())).collect();
    vacated::pass(&locked)?;
    let unheld = unhold(ready.iter().filter(|row| row.3).map(|row| row.2))?;
    for (state, connection, socket, is_inside) in &ready {
        connection::start(*socket, state, connection, *is_inside)?;
    }
    for (state, connection, socket, is_inside) in &ready {
        connection::shut(*socket, state, connection, *is_inside)?;
    }
    let half_closed = ready
        .iter()
        .filter(|(state, _, _, is_inside)| *is_inside && state.tcp_state() == Some(TcpState::FinWait2));
    await_acknowledged(half_closed.map(|(_, _, socket, _)| *socket))?;
    for (socket, mark) in unheld {
        mark.put_on(socket)?;
    }
    for server in image.waiting.iter().filter_map(|id| image.state(*id)) {
        if image.client_of(server).is_none() {
            reset_client(server);
        }
    }
    for (id, state) in &image.states {
        if let (Some(TcpState::SynSent), Some(socket)) = (state.tcp_state(), created.get(id)) {
            begin_connecting(socket, state)?;
        }
    }
    Ok(())
}

/// Lets packets of these sockets pass that would be held, until the returned marks are put on again. What a restore sends
/// inside the subject, the program has sent before the checkpoint.
fn unhold<'a>(sockets: impl Iterator<Item = BorrowedFd<'a>>) -> Result<Vec<(BorrowedFd<'a>, SocketMark)>> {
    let mut held = Vec::new();
    for socket in sockets {
        let mark = SocketMark::of(socket)?;
        if mark.is_ours() {
            SocketMark::NONE.put_on(socket)?;
            held.push((socket, mark));
        }
    }
    Ok(held)
}

/// Waits until the peers have acknowledged the FINs of these sockets, as at the checkpoint. The peers are restored, too,
/// and the kernel delays their acknowledgements. If one does not arrive, the socket stays in its earlier state.
fn await_acknowledged<'a>(sockets: impl Iterator<Item = BorrowedFd<'a>>) -> Result<()> {
    let waiting = Stopwatch::start();
    for socket in sockets {
        while TcpState::from_number(tcp_repair::info(socket)?.state) == Some(TcpState::FinWait1)
            && waiting.elapsed() < ACKNOWLEDGED_MAX
        {
            std::thread::sleep(ACKNOWLEDGED_POLL);
        }
    }
    Ok(())
}

/// Resets the connection of an outside client that waited. A restore cannot put such a connection into an accept
/// queue. The client has received no packet about the end of the connection. Without a reset, the client would wait
/// forever.
fn reset_client(server: &State) {
    let Some(connection) = &server.connection else { return };
    // An error is ignored, because the program has not accepted this client and does not need the connection.
    let _ = connection::build(server, connection, connection.sent_end()).and_then(|socket| {
        connection::leave(socket.as_fd(), 0, Repair::Off)?;
        ended::reset_when_closed(socket.as_fd())
    });
}

/// Calls connect(2) for a socket that was waiting for the answer to its SYN at the checkpoint. Does not wait for the
/// answer, because the program does.
fn begin_connecting(socket: &OwnedFd, state: &State) -> Result<()> {
    let failed = |errno| Error::new("change the flags of a socket", errno);
    let flags = fcntl_getfl(socket).map_err(failed)?;
    fcntl_setfl(socket, flags | OFlags::NONBLOCK).map_err(failed)?;
    let outcome = socket::connect(socket.as_fd(), &state.peer());
    fcntl_setfl(socket, flags).map_err(failed)?;
    match outcome {
        Err(Error { errno: Errno(EINPROGRESS), .. }) => Ok(()),
        // If the connection is refused at once, the next call of the program on this socket returns the error.
        Err(_) | Ok(()) => state.options.apply_late(socket, state.family),
    }
}
