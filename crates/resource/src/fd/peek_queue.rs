//! Reads the unread messages of a socket without consuming them (MSG_PEEK).
//!
//! Owns: reading all messages in the receive queue.
//! Invariants: message boundaries are preserved. The program's own peek offset (SO_PEEK_OFF) is restored.
//! Does not: read out-of-band bytes, or empty messages that the program has already peeked; the kernel skips these
//! messages.

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::PollFlags;
use sys::Errno;
use sys::socket::{self, Credentials, Peeked, SocketAddress};
use sys::socket_option;

use super::socket_events::events;
use super::socket_family::{SOCK_SEQPACKET, SOCK_STREAM};
use super::socket_options::PEEK_OFFSET;
use crate::error::Result;

/// Initial size of the peek buffer in bytes. The buffer grows for longer messages.
const PEEK_BYTES: usize = 64 * 1024;
/// Maximum size of the peek buffer in bytes. No message or queue exceeds the largest socket buffer.
const PEEK_BYTES_MAX: usize = 1 << 30;

/// A message, with duplicates of the descriptors that it carries.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) bytes: Vec<u8>,
    pub(crate) from: SocketAddress,
    pub(crate) rights: Vec<OwnedFd>,
    pub(crate) credentials: Option<Credentials>,
    /// The destination address, if the socket receives destination addresses; otherwise empty.
    pub(crate) destination: Vec<u8>,
}

/// Peeks all messages in the queue of a socket. `kind` is the socket type (SOCK_STREAM and so on).
pub(crate) fn peek_all(socket: BorrowedFd<'_>, kind: i32) -> Result<Vec<Seen>> {
    if !events(socket)?.contains(PollFlags::IN) {
        return Ok(Vec::new());
    }
    let offset = socket_option::get_int(socket, PEEK_OFFSET)?;
    let outcome = peek_from_start(socket, kind);
    socket_option::set_int(socket, PEEK_OFFSET, offset)?;
    outcome
}

fn peek_from_start(socket: BorrowedFd<'_>, kind: i32) -> Result<Vec<Seen>> {
    let mut seen = Vec::new();
    let mut buffer = vec![0; PEEK_BYTES];
    let mut position = 0;
    while let Some(peeked) = peek_at(socket, position, &mut buffer)? {
        let length = peeked.length;
        if length == 0 && (kind == SOCK_STREAM || is_at_end(socket, kind)?) {
            break;
        }
        if peeked.truncated && buffer.len() < PEEK_BYTES_MAX {
            buffer.resize(buffer.len() * 2, 0);
            continue;
        }
        seen.push(Seen {
            bytes: buffer[..length].to_vec(),
            from: peeked.from,
            rights: peeked.rights,
            credentials: peeked.credentials,
            destination: peeked.destination,
        });
        position += length;
    }
    Ok(seen)
}

fn peek_at(socket: BorrowedFd<'_>, position: usize, buffer: &mut [u8]) -> Result<Option<Peeked>> {
    let offset = i32::try_from(position).unwrap_or(i32::MAX);
    socket_option::set_int(socket, PEEK_OFFSET, offset)?;
    match socket::peek(socket, buffer) {
        // An unconnected socket has no message.
        Err(error) if error.errno == Errno::EINVAL || error.errno.0 == ENOTCONN => Ok(None),
        // The kernel reports a pending reset before the bytes. A second call peeks the bytes.
        Err(error) if error.errno.0 == ECONNRESET => Ok(socket::peek(socket, buffer)?),
        outcome => Ok(outcome?),
    }
}

const ENOTCONN: i32 = 107;
const ECONNRESET: i32 = 104;

/// Reports whether an empty read means the end of the connection, and not an empty message.
fn is_at_end(socket: BorrowedFd<'_>, kind: i32) -> Result<bool> {
    Ok(kind == SOCK_SEQPACKET && events(socket)?.contains(PollFlags::RDHUP))
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use sys::socket::Message;

    fn texts(seen: &[Seen]) -> Vec<(&[u8], usize)> {
        seen.iter().map(|one| (one.bytes.as_slice(), one.rights.len())).collect()
    }

    #[test]
    fn boundaries_and_long_messages_are_read_and_none_is_consumed() {
        let (left, right) = socket::pair(SOCK_SEQPACKET).unwrap();
        let long = vec![9; PEEK_BYTES + 1];
        for bytes in [b"one".as_slice(), b"", b"three", &long] {
            socket::send(left.as_fd(), &Message { bytes, ..Message::default() }).unwrap();
        }
        socket_option::set_int(right.as_fd(), PEEK_OFFSET, 2).unwrap();
        let seen = peek_all(right.as_fd(), SOCK_SEQPACKET).unwrap();
        let expected: [(&[u8], usize); 4] = [(b"one", 0), (b"", 0), (b"three", 0), (&long, 0)];
        assert_eq!(texts(&seen), expected);
        assert_eq!(socket_option::get_int(right.as_fd(), PEEK_OFFSET).unwrap(), 2);
        socket_option::set_int(right.as_fd(), PEEK_OFFSET, -1).unwrap();
        let mut buffer = [0; 8];
        assert_eq!(socket::peek(right.as_fd(), &mut buffer).unwrap().unwrap().length, 3);
    }
}
