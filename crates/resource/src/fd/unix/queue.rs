//! Unread messages of a Unix socket.
//!
//! Owns: sending saved messages into a new socket, and finding the bytes of a stream to which descriptors in flight
//! belong.
//! Invariants: message boundaries are preserved. If the kernel shows the boundary to earlier bytes, descriptors in a
//! stream stay with the bytes with which they were sent. Otherwise, the descriptors are sent with the last of these
//! bytes, so they never arrive too early.
//! Does not: peek queues; `peek_queue` does.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::DescriptionId;
use sys::socket::{self, Credentials, Message, SocketAddress};
use sys::stand_in::{Act, perform};
use sys::{Errno, Error};

use super::super::peek_queue::Seen;
use super::super::socket_family::SOCK_STREAM;
use super::super::socket_options::{SEND_BUFFER, make_room};
use super::state::{NAME, Queued};
use crate::error::{ResourceError, Result};

/// Bytes added per message, since the kernel counts the overhead of its buffers.
const MESSAGE_OVERHEAD: usize = 1024;

/// Splits a stream before the last byte of each piece with descriptors, unless the pieces are whole messages. A peek
/// ends at descriptors, so a peek shows the end of their message, but not its start. The memory use of the sender's
/// messages shows whether a piece also contains earlier bytes.
pub(super) fn split_stream(seen: Vec<Seen>, sender: Option<BorrowedFd<'_>>) -> Result<Vec<Seen>> {
    let has_rights = seen.iter().any(|piece| !piece.rights.is_empty());
    if !has_rights || sender.is_some_and(|sender| takes_as_much(&seen, sender).unwrap_or(false)) {
        return Ok(seen);
    }
    let mut parted = Vec::with_capacity(2 * seen.len());
    for mut piece in seen {
        if !piece.rights.is_empty() && piece.bytes.len() > 1 {
            let last = piece.bytes.split_off(piece.bytes.len() - 1);
            let rights = std::mem::take(&mut piece.rights);
            let (from, credentials) = (piece.from.clone(), piece.credentials);
            parted.push(piece);
            parted.push(Seen { bytes: last, from, rights, credentials, destination: Vec::new() });
        } else {
            parted.push(piece);
        }
    }
    Ok(parted)
}

/// Reports whether these pieces, sent as one message each, use as much memory as the sender's messages.
fn takes_as_much(seen: &[Seen], sender: BorrowedFd<'_>) -> Result<bool> {
    let (from, _to) = socket::pair(SOCK_STREAM)?;
    let bytes: usize = seen.iter().map(|piece| 2 * piece.bytes.len() + MESSAGE_OVERHEAD).sum();
    make_room(&from, SEND_BUFFER, bytes)?;
    for piece in seen {
        socket::send(from.as_fd(), &Message { bytes: &piece.bytes, ..Message::default() })?;
    }
    Ok(socket::unacknowledged_bytes(from.as_fd())? == socket::unacknowledged_bytes(sender)?)
}

/// Sender and destination of queued messages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route<'a> {
    /// The socket that sends the messages.
    pub(super) from: BorrowedFd<'a>,
    /// The destination address; `None` for the peer of the sender.
    pub(super) to: Option<&'a SocketAddress>,
}

/// Sends queued messages again.
pub(super) fn fill(
    route: Route<'_>,
    messages: &[Queued],
    created: &HashMap<DescriptionId, OwnedFd>,
) -> Result<()> {
    let bytes: usize = messages.iter().map(|message| 2 * message.bytes.len() + MESSAGE_OVERHEAD).sum();
    if !messages.is_empty() {
        make_room(route.from, SEND_BUFFER, bytes)?;
    }
    for message in messages {
        let mut rights = Vec::with_capacity(message.rights.len());
        for id in &message.rights {
            let right = created.get(&DescriptionId(*id)).ok_or_else(|| {
                ResourceError::malformed(
                    NAME,
                    format!("description {id} is in flight in a message and is not in the image"),
                )
            })?;
            rights.push(right.as_fd());
        }
        send(route, message, &rights)?;
    }
    Ok(())
}

fn send(route: Route<'_>, message: &Queued, rights: &[BorrowedFd<'_>]) -> Result<()> {
    let mut rest = message.bytes.as_slice();
    let mut rights = rights;
    loop {
        let mut piece = Message { bytes: rest, to: route.to, rights, credentials: None };
        if let Some(sender) = message.sender {
            piece.credentials = Some(Credentials { pid: sender.pid, uid: sender.user, gid: sender.group });
        }
        let sent = send_as(route, piece)?;
        rest = &rest[sent..];
        rights = &[];
        if rest.is_empty() {
            return Ok(());
        }
    }
}

/// Sends a message with the credentials of the saved sender: from a helper process with the sender's pid. If this
/// fails, sends the message itself with as many of these credentials as the kernel permits.
fn send_as(route: Route<'_>, mut piece: Message<'_>) -> Result<usize> {
    let Some(sender) = piece.credentials else { return Ok(socket::send(route.from, &piece)?) };
    match perform(sender, &[], Act::Send { socket: route.from, message: piece }) {
        Ok(()) => return Ok(piece.bytes.len()),
        // A part of the message is already in the queue, so the message must not be sent again.
        Err(error) if error.errno == Errno::ENOBUFS => return Err(error.into()),
        Err(_) => {}
    }
    let is_refused = |error: &Error| error.errno == Errno::EPERM || error.errno == Errno::ESRCH;
    let pid = std::process::id() as i32;
    for credentials in [Some(sender), Some(Credentials { pid, ..sender })] {
        piece.credentials = credentials;
        match socket::send(route.from, &piece) {
            Err(error) if is_refused(&error) => {}
            outcome => return Ok(outcome?),
        }
    }
    Ok(socket::send(route.from, &Message { credentials: None, ..piece })?)
}

#[cfg(test)]
mod tests {
    use super::super::super::peek_queue::peek_all;
    use super::*;

    fn texts(seen: &[Seen]) -> Vec<(&[u8], usize)> {
        seen.iter().map(|one| (one.bytes.as_slice(), one.rights.len())).collect()
    }

    #[test]
    fn descriptors_in_a_stream_are_sent_with_the_end_of_their_message_and_never_before() {
        let with = |bytes, rights| Message { bytes, rights, ..Message::default() };
        let (left, right) = socket::pair(SOCK_STREAM).unwrap();
        let rights = [left.as_fd()];
        for message in [with(b"with", &rights), with(b"b", &rights), with(b"after", &[])] {
            socket::send(left.as_fd(), &message).unwrap();
        }
        let seen = split_stream(peek_all(right.as_fd(), SOCK_STREAM).unwrap(), Some(left.as_fd())).unwrap();
        let expected: [(&[u8], usize); 3] = [(b"with", 1), (b"b", 1), (b"after", 0)];
        assert_eq!(texts(&seen), expected);
        let (left, right) = socket::pair(SOCK_STREAM).unwrap();
        for message in [with(b"plain", &[]), with(b"with", &rights)] {
            socket::send(left.as_fd(), &message).unwrap();
        }
        let seen = split_stream(peek_all(right.as_fd(), SOCK_STREAM).unwrap(), Some(left.as_fd())).unwrap();
        let expected: [(&[u8], usize); 2] = [(b"plainwit", 0), (b"h", 1)];
        assert_eq!(texts(&seen), expected);
        assert_eq!(peek_all(right.as_fd(), SOCK_STREAM).unwrap().len(), 1);
    }
}
