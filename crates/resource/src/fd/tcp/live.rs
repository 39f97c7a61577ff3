//! Reads a live connection without single calls in repair mode.
//!
//! If this process were killed while a connection is in repair mode, the connection would stay in it, and the next recv(2) of
//! the program would fail. So the sequence numbers and the send queue are read in one call that SIGKILL does not interrupt
//! ([`LiveReader`]), and everything else follows from counters (TCP_INFO).
//!
//! Owns: the computation of the state of a connection from its counters.
//! Invariants: the sequence numbers and the queues are those of one moment, except that packets may append bytes to the receive
//! queue and remove bytes from the send queue during the read.
//! Does not: read connections on kernels that show too little; `connection` does.

#[cfg(test)]
mod tests;

use std::os::fd::BorrowedFd;

use prost::Message as _;
use sys::tcp_repair::{self, LiveReader, State as TcpState};
use sys::{socket, socket_option};

use super::super::pieces::Part;
use super::super::socket_options::REUSE_ADDRESS;
use super::super::tcp_stream::{Counters, Direction, LastRead, Streams};
use super::connection::{
    After, Fins, QueueParts, READS_MAX, peek_behind, peek_last, read, read_in_repair_mode,
};
use super::state::{Connection, NAME};
use crate::error::{Result, decode};

/// Number of bytes that timestamps take in each segment.
const TIMESTAMP_BYTES: u32 = 12;

/// Reads the counters of a connection while no packet changes them. Returns `None` if packets arrive all the time.
fn counters(socket: BorrowedFd<'_>) -> Result<Option<Counters>> {
    for _ in 0..READS_MAX {
        let counters = Counters {
            info: tcp_repair::info(socket)?,
            unread: socket::readable_bytes(socket)?,
            waiting: socket::unacknowledged_bytes(socket)?,
            unsent: socket::unsent_bytes(socket)?,
        };
        if tcp_repair::info(socket)? == counters.info {
            return Ok(Some(counters));
        }
    }
    Ok(None)
}

/// Reads an outside connection, which may receive packets during the read. The program is stopped, and neither reads
/// from the socket nor writes to it. An arriving packet can only append bytes to the receive queue, or remove
/// acknowledged bytes from the front of the send queue. `streams` contains the bytes that earlier checkpoints have
/// read. The returned parts contain the bytes of the queues. The queues of the returned connection are empty.
///
/// If this process were killed while a connection is in repair mode, the connection would stay in it, and the next recv(2) of
/// the program would fail. So the state is computed without repair mode, if the kernel permits.
pub(super) fn read_moving(
    socket: BorrowedFd<'_>,
    streams: &mut Streams,
    reader: &mut LiveReader,
) -> Result<(Connection, Vec<QueueParts>)> {
    let computed = compute(socket, streams, reader)?;
    computed.map_or_else(|| read_in_repair_mode(socket, streams), Ok)
}

fn compute(
    socket: BorrowedFd<'_>,
    streams: &mut Streams,
    reader: &mut LiveReader,
) -> Result<Option<(Connection, Vec<QueueParts>)>> {
    let last = streams.last.take();
    let Some(mut now) = counters(socket)? else { return Ok(None) };
    let mut connection = match last {
        Some(last) => {
            if last.counters == now
                && let Some(unchanged) = unchanged(socket, streams, &last)?
            {
                streams.last = Some(last);
                return Ok(Some(unchanged));
            }
            let mut connection = decode::<Connection>(NAME, &last.state)?;
            advance(&mut connection, &last.counters, &now);
            connection
        }
        None => match first(socket, &mut now, reader)? {
            Some(connection) => connection,
            None => return Ok(None),
        },
    };
    if !set_windows(&mut connection, &now) {
        return Ok(None);
    }
    let Some((queues, lengths)) = read_queues_live(socket, (streams, reader), &connection, &now)? else {
        return Ok(None);
    };
    connection.unsent = now.unsent.min(lengths[1]) as u32;
    if connection.timestamps {
        connection.timestamp = tcp_repair::timestamp(socket)?;
    }
    streams.last = Some(LastRead { counters: now, state: connection.encode_to_vec(), lengths });
    Ok(Some((connection, queues)))
}

/// Reads one end of an inside connection, at a moment between two packets. As in [`read_moving`], the state is computed without
/// repair mode, if the kernel permits.
pub(super) fn read_inside(
    socket: BorrowedFd<'_>,
    streams: &mut Streams,
    reader: &mut LiveReader,
) -> Result<Connection> {
    for _ in 0..READS_MAX {
        let Some((mut connection, queues)) = compute(socket, streams, reader)? else { break };
        // The bytes of both ends are in the record, and need not be known at the next checkpoint.
        streams.forget();
        if counters(socket)? == streams.last.as_ref().map(|last| last.counters) {
            for QueueParts { direction, parts } in queues {
                let bytes = parts.iter().map(Part::bytes).collect::<Vec<_>>().concat();
                match direction {
                    Direction::Received => connection.received = bytes,
                    Direction::Written => connection.written = bytes,
                }
            }
            return Ok(connection);
        }
    }
    read(socket, After::GoesOn)
}

/// Returns a connection and its queues, if nothing has changed since the last read.
fn unchanged(
    socket: BorrowedFd<'_>,
    streams: &mut Streams,
    last: &LastRead,
) -> Result<Option<(Connection, Vec<QueueParts>)>> {
    let mut connection = decode::<Connection>(NAME, &last.state)?;
    let mut queues = Vec::new();
    for (direction, end, length) in [
        (Direction::Received, connection.receive_end, last.lengths[0]),
        (Direction::Written, connection.send_end, last.lengths[1]),
    ] {
        let Some(parts) = streams.of(direction).known(end, length) else { return Ok(None) };
        queues.push(QueueParts { direction, parts });
    }
    if connection.timestamps {
        connection.timestamp = tcp_repair::timestamp(socket)?;
    }
    Ok(Some((connection, queues)))
}

/// Computes the sequence numbers of a connection from those at an earlier time and the counters at both times.
fn advance(connection: &mut Connection, then: &Counters, now: &Counters) {
    let (fins_then, fins_now) = (then.fins(), now.fins());
    let arrived = now.info.received_bytes.wrapping_sub(then.info.received_bytes) as u32;
    let received = connection.receive_end.wrapping_add(u32::from(fins_then.received)).wrapping_add(arrived);
    connection.receive_end = received.wrapping_sub(u32::from(fins_now.received));
    // The send queue begins at the first unacknowledged byte.
    let acknowledged = now.info.acknowledged_bytes.wrapping_sub(then.info.acknowledged_bytes) as u32;
    let written = (now.waiting as u32).wrapping_sub(then.waiting as u32).wrapping_add(acknowledged);
    let sent = connection.send_end.wrapping_add(u32::from(fins_then.sent)).wrapping_add(written);
    connection.send_end = sent.wrapping_sub(u32::from(fins_now.sent));
}

/// Reads a connection for the first time, without windows and timestamp. Sets `now` to the counters of the moment of the read.
/// Returns `None` if this kernel cannot do that, or if packets arrive all the time.
fn first(socket: BorrowedFd<'_>, now: &mut Counters, reader: &mut LiveReader) -> Result<Option<Connection>> {
    let reuse = socket_option::get_int(socket, REUSE_ADDRESS)?;
    for _ in 0..READS_MAX {
        let Some(sequences) = reader.sequences(socket, reuse)? else { return Ok(None) };
        let Some(after) = counters(socket)? else { return Ok(None) };
        if std::mem::replace(now, after) == after {
            return Ok(Some(begin(sequences, now)));
        }
    }
    Ok(None)
}

fn begin((received, sent): (u32, u32), now: &Counters) -> Connection {
    let (info, fins) = (&now.info, now.fins());
    Connection {
        receive_end: received.wrapping_sub(u32::from(fins.received)),
        send_end: sent.wrapping_sub(u32::from(fins.sent)),
        // With a small path MTU or a window of less than two segments, this is less than both sides have agreed on. A smaller
        // limit is safe.
        segment_limit: info.segment + if info.timestamps { TIMESTAMP_BYTES } else { 0 },
        scaling: info.scaling,
        send_scale: u32::from(info.send_scale),
        receive_scale: u32::from(info.receive_scale),
        selective_acknowledgement: info.selective_acknowledgement,
        timestamps: info.timestamps,
        ..Connection::default()
    }
}

/// Sets the windows. The kernel does not tell when it has changed a window; a window counts as changed with the newest byte,
/// and can so be larger than the peer knows. Returns `false` if the kernel does not tell the windows.
fn set_windows(connection: &mut Connection, now: &Counters) -> bool {
    let Some((send, receive)) = now.info.windows else { return false };
    let received = connection.receive_end.wrapping_add(u32::from(now.fins().received));
    (connection.window_send, connection.window_receive) = (send, receive);
    connection.window_send_max = connection.window_send_max.max(send);
    (connection.window_send_update, connection.window_receive_update) = (received, received);
    true
}

/// Reads the queues of a connection, which end at the sequence numbers of `connection`, without single calls in repair mode.
/// Returns the queues and their lengths, or `None` if this kernel cannot do that.
fn read_queues_live(
    socket: BorrowedFd<'_>,
    (streams, reader): (&mut Streams, &mut LiveReader),
    connection: &Connection,
    now: &Counters,
) -> Result<Option<(Vec<QueueParts>, [usize; 2])>> {
    let waiting = now.waiting.saturating_sub(usize::from(now.fins().waits));
    let unread = now.unread;
    let (received, unread) =
        streams.of(Direction::Received).update(connection.receive_end, unread, |new| {
            peek_last(unread, new, |skip, bytes| peek_behind(socket, skip, bytes))
        })?;
    let mut is_supported = true;
    let (written, waiting) = streams.of(Direction::Written).update(connection.send_end, waiting, |new| {
        let reuse = socket_option::get_int(socket, REUSE_ADDRESS)?;
        peek_last(waiting, new, |skip, bytes| {
            let peeked = reader.peek_send_queue(socket, reuse, skip, bytes)?;
            is_supported &= peeked.is_some();
            Ok(peeked.unwrap_or(0))
        })
    })?;
    let queues = vec![
        QueueParts { direction: Direction::Received, parts: received },
        QueueParts { direction: Direction::Written, parts: written },
    ];
    Ok(is_supported.then_some((queues, [unread, waiting])))
}

impl Counters {
    fn fins(&self) -> Fins {
        Fins::of(TcpState::from_number(self.info.state))
    }
}
