//! Messages that wait in a Unix socket.
//!
//! Owns: looking at all of them without taking any, and putting them into a new socket.
//! Invariants: borders of messages are kept; descriptors in flight stay with the byte they were sent with; the
//! program's own peek offset is set again.
//! Does not: see messages without any bytes that were looked at before (the kernel passes over them), or
//! out-of-band bytes.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::DescriptionId;
use sys::socket::{self, Credentials, Message, Peeked, SocketAddress};
use sys::socket_option;
use sys::{Errno, Error};

use super::super::socket_events::events;
use super::super::socket_options::{PEEK_OFFSET, SEND_BUFFER, make_room};
use super::state::{Queued, SOCK_STREAM};
use super::NAME;
use crate::error::{ResourceError, Result};

/// The first size of the buffer for one look; messages that are longer make it grow.
const LOOK_BYTES: usize = 64 * 1024;
/// No message and no queue is longer than the largest buffer a socket can have.
const LOOK_BYTES_MAX: usize = 1 << 30;
/// The kernel accounts for messages with their administration.
const MESSAGE_OVERHEAD: usize = 1024;

/// A message with duplicates of the descriptors in it.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) bytes: Vec<u8>,
    pub(super) from: SocketAddress,
    pub(super) rights: Vec<OwnedFd>,
    pub(super) credentials: Option<Credentials>,
}

/// Looks at everything in a socket's queue; `kind` is SOCK_STREAM …
pub(super) fn look(socket: BorrowedFd<'_>, kind: i32) -> Result<Vec<Seen>> {
    let offset = socket_option::get_int(socket, PEEK_OFFSET)?;
    let outcome = look_from_start(socket, kind);
    socket_option::set_int(socket, PEEK_OFFSET, offset)?;
    outcome
}

fn look_from_start(socket: BorrowedFd<'_>, kind: i32) -> Result<Vec<Seen>> {
    let mut seen = Vec::new();
    let mut buffer = vec![0; LOOK_BYTES];
    let mut position = 0;
    while let Some(peeked) = look_at(socket, position, &mut buffer)? {
        let length = peeked.length;
        if length == 0 && (kind == SOCK_STREAM || is_at_end(socket, kind)?) {
            break;
        }
        if peeked.truncated && buffer.len() < LOOK_BYTES_MAX {
            buffer.resize(buffer.len() * 2, 0);
            continue;
        }
        let plain = if kind == SOCK_STREAM && !peeked.rights.is_empty() {
            bytes_before_rights(socket, position, length)?
        } else {
            0
        };
        let bytes = &buffer[..length];
        if plain > 0 {
            seen.push(Seen {
                bytes: bytes[..plain].to_vec(),
                from: SocketAddress::default(),
                rights: Vec::new(),
                credentials: peeked.credentials,
            });
        }
        seen.push(Seen {
            bytes: bytes[plain..].to_vec(),
            from: peeked.from,
            rights: peeked.rights,
            credentials: peeked.credentials,
        });
        position += length;
    }
    Ok(seen)
}

fn look_at(socket: BorrowedFd<'_>, position: usize, buffer: &mut [u8]) -> Result<Option<Peeked>> {
    let offset = i32::try_from(position).unwrap_or(i32::MAX);
    socket_option::set_int(socket, PEEK_OFFSET, offset)?;
    match socket::peek(socket, buffer) {
        // Not connected, so nothing can have arrived.
        Err(error) if error.errno == Errno::EINVAL || error.errno.0 == ENOTCONN => Ok(None),
        // A reset that waits to be told: it comes before the bytes.
        Err(error) if error.errno.0 == ECONNRESET => Ok(socket::peek(socket, buffer)?),
        outcome => Ok(outcome?),
    }
}

const ENOTCONN: i32 = 107;
const ECONNRESET: i32 = 104;

/// Whether nothing is no empty message, but the end: a connection whose peer sends no more.
fn is_at_end(socket: BorrowedFd<'_>, kind: i32) -> Result<bool> {
    const SOCK_SEQPACKET: i32 = 5;
    Ok(kind == SOCK_SEQPACKET && events(socket)?.contains(rustix::event::PollFlags::RDHUP))
}

/// How many bytes of a stream come before the piece that descriptors travel with: the longest look that does
/// not bring them.
fn bytes_before_rights(socket: BorrowedFd<'_>, position: usize, length: usize) -> Result<usize> {
    let mut buffer = vec![0; length];
    let (mut without, mut with) = (0, length);
    while without + 1 < with {
        let middle = without + (with - without) / 2;
        let brings = look_at(socket, position, &mut buffer[..middle])?
            .is_some_and(|peeked| !peeked.rights.is_empty());
        if brings { with = middle } else { without = middle }
    }
    Ok(without)
}

/// Where queued messages come from and go to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Way<'a> {
    /// The socket that sends them.
    pub(super) from: BorrowedFd<'a>,
    /// The address they are sent to; the sender's peer if `None`.
    pub(super) to: Option<&'a SocketAddress>,
}

/// Sends queued messages again.
pub(super) fn fill(
    way: Way<'_>,
    messages: &[Queued],
    created: &HashMap<DescriptionId, OwnedFd>,
) -> Result<()> {
    let bytes: usize = messages.iter().map(|message| 2 * message.bytes.len() + MESSAGE_OVERHEAD).sum();
    if !messages.is_empty() {
        make_room(way.from, SEND_BUFFER, bytes)?;
    }
    for message in messages {
        let mut rights = Vec::with_capacity(message.rights.len());
        for id in &message.rights {
            let right = created.get(&DescriptionId(*id)).ok_or_else(|| ResourceError::Malformed {
                kind: NAME,
                why: format!("description {id} travels in a message and is not in the image"),
            })?;
            rights.push(right.as_fd());
        }
        send(way, message, &rights)?;
    }
    Ok(())
}

fn send(way: Way<'_>, message: &Queued, rights: &[BorrowedFd<'_>]) -> Result<()> {
    let mut rest = message.bytes.as_slice();
    let mut rights = rights;
    loop {
        let mut piece = Message { bytes: rest, to: way.to, rights, credentials: None };
        if let Some(sender) = message.sender {
            piece.credentials =
                Some(Credentials { pid: sender.pid, uid: sender.user, gid: sender.group });
        }
        let sent = send_as(way, piece)?;
        rest = &rest[sent..];
        rights = &[];
        if rest.is_empty() {
            return Ok(());
        }
    }
}

/// Sends in the name of the first sender as far as that is possible: its process may not exist now.
fn send_as(way: Way<'_>, mut piece: Message<'_>) -> Result<usize> {
    let is_refused = |error: &Error| error.errno == Errno::EPERM || error.errno == Errno::ESRCH;
    match socket::send(way.from, &piece) {
        Err(error) if is_refused(&error) && piece.credentials.is_some() => {
            let pid = std::process::id() as i32;
            piece.credentials = piece.credentials.map(|wanted| Credentials { pid, ..wanted });
        }
        outcome => return Ok(outcome?),
    }
    match socket::send(way.from, &piece) {
        Err(error) if is_refused(&error) => {
            Ok(socket::send(way.from, &Message { credentials: None, ..piece })?)
        }
        outcome => Ok(outcome?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCK_SEQPACKET: i32 = 5;

    fn texts(seen: &[Seen]) -> Vec<(&[u8], usize)> {
        seen.iter().map(|one| (one.bytes.as_slice(), one.rights.len())).collect()
    }

    #[test]
    fn borders_and_long_messages_are_seen_and_nothing_is_taken() {
        let (left, right) = socket::pair(SOCK_SEQPACKET).unwrap();
        let long = vec![9; LOOK_BYTES + 1];
        for bytes in [b"one".as_slice(), b"", b"three", &long] {
            socket::send(left.as_fd(), &Message { bytes, ..Message::default() }).unwrap();
        }
        socket_option::set_int(right.as_fd(), PEEK_OFFSET, 2).unwrap();
        let seen = look(right.as_fd(), SOCK_SEQPACKET).unwrap();
        let expected: [(&[u8], usize); 4] = [(b"one", 0), (b"", 0), (b"three", 0), (&long, 0)];
        assert_eq!(texts(&seen), expected);
        assert_eq!(socket_option::get_int(right.as_fd(), PEEK_OFFSET).unwrap(), 2);
        socket_option::set_int(right.as_fd(), PEEK_OFFSET, -1).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(socket::peek(right.as_fd(), &mut buffer).unwrap().unwrap().length, 3);
    }

    #[test]
    fn descriptors_stay_with_their_byte_in_a_stream() {
        let (left, right) = socket::pair(SOCK_STREAM).unwrap();
        let rights = [left.as_fd()];
        let with = |bytes, rights| Message { bytes, rights, ..Message::default() };
        for message in [with(b"plain", &[]), with(b"with", &rights), with(b"after", &[]), with(b"b", &rights)] {
            socket::send(left.as_fd(), &message).unwrap();
        }
        let seen = look(right.as_fd(), SOCK_STREAM).unwrap();
        let expected: [(&[u8], usize); 4] = [(b"plain", 0), (b"with", 1), (b"after", 0), (b"b", 1)];
        assert_eq!(texts(&seen), expected);
        drop(left);
        drop(seen);
        assert_eq!(look(right.as_fd(), SOCK_STREAM).unwrap().len(), 4);
    }
}
