//! Netlink sockets and messages, as all netlink protocols use them.
//!
//! Owns: headers, attributes, errors, and a socket that sends and receives messages.
//! Invariants: a message or attribute that is not complete is reported as such, and never parsed in part.
//! Does not: interpret messages, or count sequence numbers.
//!
//! Man page: netlink(7)
//! Since: Linux 2.2
//! Probe: those of the calling modules
//! Fallback: those of the calling modules

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use crate::error::{Errno, Error, Result};

/// NLM_F_REQUEST, which every request has.
pub(crate) const REQUEST: u16 = 1;
/// NLM_F_ACK: the kernel answers also if the request succeeds.
pub(crate) const ACKNOWLEDGE: u16 = 4;
/// NLM_F_DUMP: the reply consists of several messages, and ends with [`DONE`].
pub(crate) const DUMP: u16 = 0x300;
/// The types of messages that all protocols use.
pub(crate) const ERROR: u16 = 2;
pub(crate) const DONE: u16 = 3;
/// NLA_F_NESTED.
const NESTED: u16 = 0x8000;
/// Length of `nlmsghdr`.
pub(crate) const HEADER_BYTES: usize = 16;
/// Size of a buffer for one receive call. The kernel sends at most 32 KiB at once.
pub(crate) const PIECE_BYTES: usize = 64 * 1024;

/// A netlink socket.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    socket: OwnedFd,
    name: &'static str,
}

impl NetlinkSocket {
    /// Opens a socket. `name` describes the purpose of the socket in errors.
    pub(crate) fn open(protocol: Protocol, flags: SocketFlags, name: &'static str) -> Result<Self> {
        let flags = flags | SocketFlags::CLOEXEC;
        socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(protocol))
            .map(|socket| Self { socket, name })
            .map_err(|errno| Error::new(name, errno))
    }

    pub(crate) fn send(&self, bytes: &[u8]) -> Result<()> {
        let kernel = SocketAddrNetlink::new(0, 0);
        let sent = sendto(&self.socket, bytes, SendFlags::empty(), &kernel);
        sent.map(drop).map_err(|errno| self.failed(errno))
    }

    /// Receives messages into `piece`, and returns their total length in bytes.
    pub(crate) fn receive(&self, piece: &mut [u8], flags: RecvFlags) -> Result<usize> {
        let received = recv(&self.socket, piece, flags);
        received.map(|(length, _)| length).map_err(|errno| self.failed(errno))
    }

    pub(crate) fn failed(&self, errno: impl Into<Errno>) -> Error {
        Error::new(self.name, errno.into())
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Appends a message.
pub(crate) fn write(to: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, body: &[u8]) {
    to.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(flags.to_ne_bytes());
    to.extend(sequence.to_ne_bytes());
    to.extend([0; 4]);
    to.extend(body);
}

/// A received message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received<'a> {
    pub(crate) kind: u16,
    pub(crate) sequence: u32,
    /// The message with its header.
    pub(crate) bytes: &'a [u8],
}

impl Received<'_> {
    /// Returns the errno in a message of type [`ERROR`], or `None` for an acknowledgement.
    pub(crate) fn errno(&self) -> Option<Errno> {
        let code = word(self.bytes, HEADER_BYTES).cast_signed();
        (code != 0).then_some(Errno(-code))
    }
}

/// Returns the messages in `piece`. The last item is `None` if a message is incomplete.
pub(crate) fn messages(mut piece: &[u8]) -> impl Iterator<Item = Option<Received<'_>>> {
    std::iter::from_fn(move || {
        let rest = std::mem::take(&mut piece);
        if rest.len() < HEADER_BYTES {
            return None;
        }
        let length = word(rest, 0) as usize;
        let Some(bytes) = rest.get(..length).filter(|_| length >= HEADER_BYTES) else { return Some(None) };
        piece = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        let kind = u16::from_ne_bytes([bytes[4], bytes[5]]);
        Some(Some(Received { kind, sequence: word(bytes, 8), bytes }))
    })
}

/// Passes every attribute to `read`. Returns whether all attributes were complete.
pub(crate) fn each_attribute(mut rest: &[u8], mut read: impl FnMut(u16, &[u8])) -> bool {
    while rest.len() >= 4 {
        let length = usize::from(u16::from_ne_bytes([rest[0], rest[1]]));
        let Some(value) = rest.get(4..length) else { return false };
        read(u16::from_ne_bytes([rest[2], rest[3]]), value);
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    true
}

/// Returns a 32-bit number in the byte order of the host; 0 if the bytes end before it.
pub(crate) fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// The encoded attributes of a message.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attributes(pub(crate) Vec<u8>);

impl Attributes {
    pub(crate) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// Appends a 32-bit attribute in network byte order, which nearly all attributes of netfilter use.
    pub(crate) fn word(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(crate) fn half(self, kind: u16, value: u16) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(crate) fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, &[value.as_bytes(), b"\0"].concat())
    }

    pub(crate) fn nest(self, kind: u16, inner: Self) -> Self {
        self.bytes(kind | NESTED, &inner.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_incomplete_message_or_attribute_is_reported() {
        let mut piece = Vec::new();
        write(&mut piece, 7, REQUEST, 5, b"body");
        write(&mut piece, ERROR, 0, 6, &(-22_i32).to_ne_bytes());
        let found: Vec<_> = messages(&piece).map(|found| found.map(|one| (one.kind, one.sequence))).collect();
        assert_eq!(found, [Some((7, 5)), Some((ERROR, 6))]);
        assert_eq!(messages(&piece).flatten().last().unwrap().errno(), Some(Errno::EINVAL));
        assert!(messages(&piece[..piece.len() - 1]).last().unwrap().is_none());
        let attributes = Attributes::default().half(1, 2).text(3, "four").0;
        assert!(each_attribute(&attributes, |_, _| ()) && !each_attribute(&attributes[..15], |_, _| ()));
    }
}
