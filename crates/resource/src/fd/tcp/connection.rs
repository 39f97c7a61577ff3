//! Reads and builds one end of a TCP connection that is established or half closed.
//!
//! In repair mode (TCP_REPAIR), a process can read and set sequence numbers and queues of a TCP socket. The socket
//! sends no packet. A checkpoint reads a live socket in repair mode. A restore builds a new socket in repair mode. At
//! the end of the restore, the socket *starts*: it leaves repair mode. An *outside* connection leads to a process that
//! does not belong to the subject.
//!
//! Owns: reading the state of a live socket, and building a socket with a saved state.
//! Invariants: reading and building send no packet. A built socket stays in repair mode until [`start`].
//! Does not: drop packets of the connection between capture and start; `vacated` does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::Shutdown;
use sys::socket::{self, Message};
use sys::socket_option;
use sys::tcp_repair::{self, Info, Queue, Repair, State as TcpState, Window};
use sys::{Errno, Error};

use super::super::inet_address::show;
use super::super::pieces::Part;
use super::super::socket_options::{PEEK_OFFSET, RECEIVE_BUFFER, REUSE_ADDRESS, SEND_BUFFER, make_room};
use super::super::tcp_stream::{Direction, Streams};
use super::state::{Connection, State};
use super::{address, segment};
use crate::error::{ResourceError, Result};

/// Maximum number of bytes that are written into a queue in one call. For a larger write, the kernel would need one
/// huge buffer.
const WRITE_BYTES: usize = 64 * 1024;
/// A socket buffer must be larger than its queue, because the kernel also counts the overhead of its own buffers. The
/// restore uses twice the length of the queue and this number of bytes.
const ROOM_EXTRA: usize = 256 * 1024;
/// Maximum number of times that a connection is read again because a packet has changed its state during a read.
pub(super) const READS_MAX: usize = 8;

/// Number of known bytes at the end of the queue that are copied again. While the queue is copied, the peer may
/// acknowledge this number of bytes at its front, and the new bytes are still complete.
const ACKNOWLEDGED_MEANWHILE: usize = 256 * 1024;

/// What happens to the live socket after the read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum After {
    /// The socket stays in repair mode, so that a close of the socket sends no packet.
    StaysInRepair,
    /// The socket leaves repair mode, and the connection continues.
    GoesOn,
}

/// Reads one end of a connection.
pub(super) fn read(socket: BorrowedFd<'_>, after: After) -> Result<Connection> {
    // Leaving repair mode clears SO_REUSEADDR. `leave` therefore needs the present value.
    let reuse = socket_option::get_int(socket, REUSE_ADDRESS)?;
    tcp_repair::set_repair(socket, Repair::On)?;
    if after == After::GoesOn {
        let outcome = read_stable(socket);
        leave(socket, reuse, Repair::Off)?;
        return outcome;
    }
    let outcome = tcp_repair::window(socket).map_err(Into::into).and_then(|window| {
        let outcome = read_frozen(socket, window);
        if outcome.is_err() {
            let _ = unfreeze(socket, window.send);
        }
        outcome
    });
    if outcome.is_err() {
        leave(socket, reuse, Repair::Off)?;
    }
    outcome
}

/// Reads a connection, and prevents that the kernel sends data which was unsent at the read. In repair mode, the loss
/// probe and other timers still send. If such data reached the peer, the peer would acknowledge bytes that the restored
/// socket has not sent. The kernel ignores such acknowledgements, so the connection would hang.
fn read_frozen(socket: BorrowedFd<'_>, window: Window) -> Result<Connection> {
    for _ in 0..READS_MAX {
        let sent = in_flight(socket)?;
        // The send window ends at the last sent byte.
        tcp_repair::set_window(socket, Window { send: sent, ..window })?;
        if in_flight(socket)? == sent {
            let mut connection = read_stable(socket)?;
            // With the send queue chosen, the kernel would count unsent data as sent.
            tcp_repair::choose_queue(socket, Queue::Neither)?;
            connection.window_send = window.send;
            return Ok(connection);
        }
    }
    Err(Error::new("read a TCP connection without changes by packets", Errno(EBUSY)).into())
}

/// Returns the number of bytes that were sent and not acknowledged. A FIN counts as one byte.
fn in_flight(socket: BorrowedFd<'_>) -> Result<u32> {
    let (unsent, all) = (socket::unsent_bytes(socket)?, socket::unacknowledged_bytes(socket)?);
    Ok(all.saturating_sub(unsent) as u32)
}

/// Lets a socket that `read` has left in repair mode send again. `send_window` is the `window_send` of the result.
pub(super) fn unfreeze(socket: BorrowedFd<'_>, send_window: u32) -> Result<()> {
    let window = tcp_repair::window(socket)?;
    Ok(tcp_repair::set_window(socket, Window { send: send_window, ..window })?)
}

/// Leaves repair mode, and sets SO_REUSEADDR to `reuse`.
pub(super) fn leave(socket: BorrowedFd<'_>, reuse: i32, how: Repair) -> Result<()> {
    tcp_repair::choose_queue(socket, Queue::Neither)?;
    tcp_repair::set_repair(socket, how)?;
    Ok(socket_option::set_int(socket, REUSE_ADDRESS, i32::from(reuse != 0))?)
}

/// The bytes of one queue of a connection, as parts of the payload.
#[derive(Debug)]
pub(super) struct QueueParts {
    pub(super) direction: Direction,
    pub(super) parts: Vec<Part>,
}

/// Reads an outside connection like [`super::live::read_moving`], on a kernel that shows too little outside of repair mode.
pub(super) fn read_in_repair_mode(
    socket: BorrowedFd<'_>,
    streams: &mut Streams,
) -> Result<(Connection, Vec<QueueParts>)> {
    let reuse = socket_option::get_int(socket, REUSE_ADDRESS)?;
    tcp_repair::set_repair(socket, Repair::On)?;
    let mut queues = Vec::new();
    let outcome = read_between_packets(socket, &mut |direction, end, length| {
        let read = |new| peek_last(length, new, |skip, bytes| peek_behind(socket, skip, bytes));
        let (parts, length) = streams.of(direction).update(end, length, read)?;
        queues.push(QueueParts { direction, parts });
        Ok((Vec::new(), length))
    });
    leave(socket, reuse, Repair::Off)?;
    Ok((outcome?, queues))
}

fn read_between_packets(socket: BorrowedFd<'_>, read: &mut ReadQueue<'_>) -> Result<Connection> {
    for _ in 0..READS_MAX {
        let info = tcp_repair::info(socket)?;
        tcp_repair::choose_queue(socket, Queue::Receive)?;
        let end = tcp_repair::sequence(socket)?;
        let unread = socket::readable_bytes(socket)?;
        if tcp_repair::info(socket)?.received_bytes == info.received_bytes {
            return read_queues(socket, &info, (end, unread), read);
        }
    }
    Err(Error::new("read a TCP connection between two packets", Errno(EBUSY)).into())
}

fn read_stable(socket: BorrowedFd<'_>) -> Result<Connection> {
    let mut last = read_once(socket)?;
    for _ in 0..READS_MAX {
        let again = read_once(socket)?;
        let same = Connection { timestamp: last.timestamp, ..again.clone() } == last;
        if same {
            return Ok(again);
        }
        last = again;
    }
    Err(Error::new("read a TCP connection without changes by packets", Errno(EBUSY)).into())
}

/// Maximum number of attempts to connect. All attempts together take 1.2 seconds. After one second, a socket in
/// TIME_WAIT no longer prevents a connection with the same addresses.
const CONNECT_ATTEMPTS_MAX: u32 = 120;
const CONNECT_PAUSE: Duration = Duration::from_millis(10);

const EBUSY: i32 = 16;
const EADDRNOTAVAIL: i32 = 99;

fn read_once(socket: BorrowedFd<'_>) -> Result<Connection> {
    let info = tcp_repair::info(socket)?;
    tcp_repair::choose_queue(socket, Queue::Receive)?;
    let end = tcp_repair::sequence(socket)?;
    let unread = socket::readable_bytes(socket)?;
    read_queues(socket, &info, (end, unread), &mut |_, _, length| {
        let bytes = peek(socket, length)?;
        let length = bytes.len();
        Ok((bytes, length))
    })
}

/// Reads the bytes of the queue that was chosen in repair mode. Receives the sequence number at the end of the queue, and
/// the number of bytes in the queue. Returns the bytes for the [`Connection`], and the number of bytes in the queue,
/// which is smaller if the peer has acknowledged bytes meanwhile.
type ReadQueue<'a> = dyn FnMut(Direction, u32, usize) -> Result<(Vec<u8>, usize)> + 'a;

/// The FINs of a connection. The kernel counts each as a byte.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fins {
    pub(super) received: bool,
    pub(super) sent: bool,
    /// Our FIN is in the send queue.
    pub(super) waits: bool,
}

impl Fins {
    pub(super) fn of(state: Option<TcpState>) -> Self {
        let received = matches!(state, Some(TcpState::CloseWait | TcpState::Closing | TcpState::LastAck));
        let sent = matches!(
            state,
            Some(TcpState::FinWait1 | TcpState::FinWait2 | TcpState::Closing | TcpState::LastAck)
        );
        Self { received, sent, waits: sent && state != Some(TcpState::FinWait2) }
    }
}

/// Reads the remaining state of one end. The receive queue ends at the sequence number `end`, and contains `unread`
/// bytes.
fn read_queues(
    socket: BorrowedFd<'_>,
    info: &Info,
    (end, unread): (u32, usize),
    read: &mut ReadQueue<'_>,
) -> Result<Connection> {
    let fins = Fins::of(TcpState::from_number(info.state));
    let receive_end = end.wrapping_sub(u32::from(fins.received));
    let (received, _) = read(Direction::Received, receive_end, unread)?;
    tcp_repair::choose_queue(socket, Queue::Send)?;
    let send_end = tcp_repair::sequence(socket)?.wrapping_sub(u32::from(fins.sent));
    let waiting = socket::unacknowledged_bytes(socket)?.saturating_sub(usize::from(fins.waits));
    let (written, length) = read(Direction::Written, send_end, waiting)?;
    // The kernel may count an unsent FIN as one more unsent byte.
    let unsent = socket::unsent_bytes(socket)?.min(length);
    let window = tcp_repair::window(socket)?;
    Ok(Connection {
        receive_end,
        send_end,
        received,
        unsent: unsent as u32,
        written,
        segment_limit: tcp_repair::segment_limit(socket)?,
        scaling: info.scaling,
        send_scale: u32::from(info.send_scale),
        receive_scale: u32::from(info.receive_scale),
        selective_acknowledgement: info.selective_acknowledgement,
        timestamps: info.timestamps,
        timestamp: if info.timestamps { tcp_repair::timestamp(socket)? } else { 0 },
        window_send_update: window.send_update,
        window_send: window.send,
        window_send_max: window.send_max,
        window_receive: window.receive,
        window_receive_update: window.receive_update,
    })
}

/// Returns the first `length` bytes of the queue that was chosen in repair mode. Does not consume the bytes.
fn peek(socket: BorrowedFd<'_>, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let count = peek_behind(socket, 0, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Returns the last `count` bytes of the queue that was chosen in repair mode, which had `length` bytes. If the peer has
/// acknowledged some of the last bytes meanwhile, returns only the bytes that are still in the queue. The kernel can copy
/// a queue only from its front, so the bytes before the last bytes are copied to a small buffer. `peek` works like
/// `peek_behind`.
pub(super) fn peek_last(
    length: usize,
    count: usize,
    mut peek: impl FnMut(usize, &mut [u8]) -> Result<usize>,
) -> Result<Vec<u8>> {
    for margin in [ACKNOWLEDGED_MEANWHILE, length] {
        let skip = length.saturating_sub(count + margin);
        let mut bytes = vec![0; length - skip];
        let all = peek(skip, &mut bytes)?;
        let end = all.saturating_sub(skip);
        if end >= count || skip == 0 {
            bytes.truncate(end);
            bytes.drain(..end.saturating_sub(count));
            return Ok(bytes);
        }
    }
    unreachable!("the last attempt skips no byte")
}

/// Peeks into the queue that was chosen in repair mode. Copies the bytes behind the first `skip` bytes into `bytes`.
/// Returns the number of bytes in the queue, including the skipped bytes.
pub(super) fn peek_behind(socket: BorrowedFd<'_>, skip: usize, bytes: &mut [u8]) -> Result<usize> {
    if bytes.is_empty() {
        return Ok(skip);
    }
    // If the program has set a peek offset (SO_PEEK_OFF), a peek would skip bytes. So the offset is switched off.
    let offset = socket_option::get_int(socket, PEEK_OFFSET).unwrap_or(-1);
    if offset >= 0 {
        socket_option::set_int(socket, PEEK_OFFSET, -1)?;
    }
    let peeked = socket::peek_behind(socket, skip, bytes);
    if offset >= 0 {
        socket_option::set_int(socket, PEEK_OFFSET, offset)?;
    }
    Ok(peeked?)
}

/// Builds one end of a connection. The socket stays in repair mode. Bytes before the sequence number `sent_until` are
/// counted as sent, because the peer may have received them. If not, the kernel sends them again.
pub(super) fn build(state: &State, connection: &Connection, sent_until: u32) -> Result<OwnedFd> {
    let owned = state.family.create()?;
    let socket = owned.as_fd();
    state.options.apply_early(socket, state.family)?;
    make_room(socket, RECEIVE_BUFFER, 2 * connection.received.len() + ROOM_EXTRA)?;
    make_room(socket, SEND_BUFFER, 2 * connection.written.len() + ROOM_EXTRA)?;
    tcp_repair::set_repair(socket, Repair::On)?;
    socket::bind(socket, &state.local())?;
    tcp_repair::choose_queue(socket, Queue::Receive)?;
    let received = connection.received.len() as u32;
    tcp_repair::set_sequence(socket, connection.receive_end.wrapping_sub(received))?;
    tcp_repair::choose_queue(socket, Queue::Send)?;
    let written = connection.written.len() as u32;
    tcp_repair::set_sequence(socket, connection.send_end.wrapping_sub(written))?;
    connect(socket, state)?;
    tcp_repair::set_agreement(socket, connection.agreement())?;
    if connection.timestamps {
        tcp_repair::set_timestamp(socket, connection.timestamp)?;
    }
    tcp_repair::choose_queue(socket, Queue::Receive)?;
    write(socket, &connection.received)?;
    tcp_repair::choose_queue(socket, Queue::Send)?;
    write(socket, &connection.written[..connection.sent(sent_until)])?;
    tcp_repair::choose_queue(socket, Queue::Neither)?;
    tcp_repair::set_window(socket, connection.window())?;
    Ok(owned)
}

/// Connects a socket to its peer. A closed socket of the old connection can occupy the addresses for a short time, so
/// the call is repeated.
pub(super) fn connect(socket: BorrowedFd<'_>, state: &State) -> Result<()> {
    for _ in 1..CONNECT_ATTEMPTS_MAX {
        match socket::connect(socket, &state.peer()) {
            Err(error) if error.errno == Errno(EADDRNOTAVAIL) => {
                address::end_remains(&state.local(), &state.peer());
                std::thread::sleep(CONNECT_PAUSE);
            }
            outcome => return Ok(outcome?),
        }
    }
    socket::connect(socket, &state.peer()).map_err(|error| match error.errno {
        Errno(EADDRNOTAVAIL) => ResourceError::File {
            path: format!("TCP {} - {}", show(&state.local()), show(&state.peer())),
            why: "a connection with these addresses still exists".to_owned(),
            fix:
                "end the program that has this connection (`ss -tanp` lists the program), then restore again"
                    .to_owned(),
        },
        _ => error.into(),
    })
}

/// Reports whether a new socket with the state `to` of the checkpoint can replace a live socket. The replacement is
/// possible if the peer has acknowledged no byte that the program wrote after the checkpoint.
pub(super) fn can_rewind(socket: BorrowedFd<'_>, to: &Connection) -> Result<bool> {
    tcp_repair::set_repair(socket, Repair::On)?;
    tcp_repair::choose_queue(socket, Queue::Send)?;
    let acknowledged =
        tcp_repair::sequence(socket)?.wrapping_sub(socket::unacknowledged_bytes(socket)? as u32);
    tcp_repair::choose_queue(socket, Queue::Neither)?;
    tcp_repair::set_repair(socket, Repair::Off)?;
    Ok(acknowledged.wrapping_sub(to.send_end) as i32 <= 0)
}

/// Disconnects a socket without sending a packet. Afterwards, all duplicates of the socket are disconnected.
pub(super) fn vanish(socket: BorrowedFd<'_>) -> Result<()> {
    tcp_repair::set_repair(socket, Repair::On)?;
    Ok(socket::disconnect(socket)?)
}

/// Starts a built socket: the socket leaves repair mode, sends and receives. If the peer is outside the subject, the
/// kernel sends a window probe. The answer shows whether the peer still has the connection.
pub(super) fn start(
    socket: BorrowedFd<'_>,
    state: &State,
    connection: &Connection,
    peer_is_inside: bool,
) -> Result<()> {
    // `build` may have counted more bytes as sent than the checkpoint.
    tcp_repair::choose_queue(socket, Queue::Send)?;
    let left = connection.send_end.wrapping_sub(tcp_repair::sequence(socket)?) as usize;
    let how = if peer_is_inside { Repair::Off } else { Repair::OffWithProbe };
    leave(socket, state.options.int(REUSE_ADDRESS).unwrap_or(0), how)?;
    write(socket, &connection.written[connection.written.len().saturating_sub(left)..])
}

/// Shuts down the directions that were shut at the checkpoint, and sets buffer sizes and late options. Called after
/// all built sockets have started. The peer of a connection inside the subject can then receive the FIN.
pub(super) fn shut(
    socket: BorrowedFd<'_>,
    state: &State,
    connection: &Connection,
    peer_is_inside: bool,
) -> Result<()> {
    let is_simultaneous = state.tcp_state() == Some(TcpState::Closing);
    let peer_fin = state.was_shut() && !peer_is_inside;
    if peer_fin && !is_simultaneous {
        segment::inject_fin(state, connection)?;
    }
    if state.has_shut() {
        rustix::net::shutdown(socket, Shutdown::Write)
            .map_err(|errno| Error::new("shut a TCP socket", errno))?;
    }
    if peer_fin && is_simultaneous {
        segment::inject_fin(state, connection)?;
    }
    state.options.restore_buffers(socket, state.family)?;
    state.options.apply_late(socket, state.family)
}

fn write(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<()> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let piece = &rest[..rest.len().min(WRITE_BYTES)];
        let length = socket::send(socket, &Message { bytes: piece, ..Message::default() })?;
        rest = &rest[length..];
    }
    Ok(())
}
