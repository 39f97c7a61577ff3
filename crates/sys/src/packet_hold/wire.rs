//! Messages of nfnetlink.
//!
//! Owns: attributes, headers, a socket that takes requests and reads their acknowledgements.
//! Invariants: a request is over when the kernel has acknowledged each of its messages, or refused one.
//! Does not: know what the messages mean.
//!
//! Man page: netlink(7); include/uapi/linux/netfilter/nfnetlink.h
//! Since: Linux 3.13 for batches
//! Probe: that of `packet_hold`
//! Fallback: that of `packet_hold`

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};

use crate::error::{Errno, Error, Result};

const REQUEST: u16 = 1;
const ACKNOWLEDGE: u16 = 4;
const NESTED: u16 = 0x8000;
const NLMSG_ERROR: u16 = 2;
const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const VERSION: u8 = 0;
/// `nlmsghdr` and `nfgenmsg`.
pub(super) const HEADER_BYTES: usize = 16 + 4;
/// The kernel answers before a request returns; more than enough.
const ANSWER: Duration = Duration::from_secs(2);
/// Bytes of one reading of the socket.
pub(super) const PIECE_BYTES: usize = 64 * 1024;

/// Attributes of a message.
#[derive(Clone, Debug, Default)]
pub(super) struct Attributes(Vec<u8>);

impl Attributes {
    pub(super) fn bytes(mut self, kind: u16, value: &[u8]) -> Self {
        self.0.extend(((4 + value.len()) as u16).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        self.0.extend(value);
        self.0.resize(self.0.len().next_multiple_of(4), 0);
        self
    }

    /// In the order of the network, as nearly all of them are.
    pub(super) fn word(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(super) fn half(self, kind: u16, value: u16) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    pub(super) fn text(self, kind: u16, value: &str) -> Self {
        self.bytes(kind, &[value.as_bytes(), b"\0"].concat())
    }

    pub(super) fn nest(self, kind: u16, inner: Self) -> Self {
        self.bytes(kind | NESTED, &inner.0)
    }
}

/// A request to one part of netfilter.
#[derive(Clone, Debug)]
pub(super) struct Message {
    /// The part, and what it is asked.
    pub(super) kind: (u8, u8),
    /// Flags beside those of any request.
    pub(super) flags: u16,
    /// An address family, or none.
    pub(super) family: u8,
    /// The number of a queue.
    pub(super) resource: u16,
    pub(super) body: Attributes,
}

impl Message {
    fn write(&self, to: &mut Vec<u8>, flags: u16, sequence: u32) {
        let kind = u16::from(self.kind.0) << 8 | u16::from(self.kind.1);
        header(to, kind, flags | self.flags, sequence, (self.family, self.resource), &self.body.0);
    }
}

fn header(to: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, of: (u8, u16), body: &[u8]) {
    to.extend(((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend((REQUEST | flags).to_ne_bytes());
    to.extend(sequence.to_ne_bytes());
    to.extend([0; 4]);
    to.extend([of.0, VERSION]);
    to.extend(of.1.to_be_bytes());
    to.extend(body);
}

/// A socket of nfnetlink.
#[derive(Debug)]
pub(super) struct Wire {
    socket: OwnedFd,
    name: &'static str,
}

impl Wire {
    /// `name` says in errors what it is for.
    pub(super) fn open(name: &'static str) -> Result<Self> {
        let failed = |errno| Error::new(name, errno);
        let flags = SocketFlags::CLOEXEC;
        let socket =
            socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(NETFILTER)).map_err(failed)?;
        bind(&socket, &SocketAddrNetlink::new(0, 0)).map_err(failed)?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER)).map_err(failed)?;
        Ok(Self { socket, name })
    }

    /// Sends a message that is not acknowledged.
    pub(super) fn send(&self, message: &Message) -> Result<()> {
        let mut bytes = Vec::new();
        message.write(&mut bytes, 0, 0);
        self.send_bytes(&bytes)
    }

    fn send_bytes(&self, bytes: &[u8]) -> Result<()> {
        let kernel = SocketAddrNetlink::new(0, 0);
        sendto(&self.socket, bytes, SendFlags::empty(), &kernel)
            .map_err(|errno| self.failed(errno.into()))?;
        Ok(())
    }

    /// Sends one message, and waits for its acknowledgement. To be called before anything else arrives here.
    pub(super) fn request(&self, message: &Message) -> Result<()> {
        let mut bytes = Vec::new();
        message.write(&mut bytes, ACKNOWLEDGE, 1);
        self.send_bytes(&bytes)?;
        self.acknowledged(1)
    }

    /// Has all messages done, or none.
    pub(super) fn transact(&self, part: u8, messages: &[Message]) -> Result<()> {
        let mut bytes = Vec::new();
        let edge = (0, u16::from(part));
        header(&mut bytes, BATCH_BEGIN, 0, 0, edge, &[]);
        for (message, sequence) in messages.iter().zip(1..) {
            message.write(&mut bytes, ACKNOWLEDGE, sequence);
        }
        header(&mut bytes, BATCH_END, 0, 0, edge, &[]);
        self.send_bytes(&bytes)?;
        self.acknowledged(messages.len())
    }

    fn acknowledged(&self, mut count: usize) -> Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut outcome = Ok(());
        while count > 0 {
            let length = self.receive(&mut piece, RecvFlags::empty())?;
            for (kind, message) in messages(&piece[..length]) {
                let code =
                    message.get(16..20).and_then(|code| code.try_into().ok()).map_or(0, i32::from_ne_bytes);
                if kind == NLMSG_ERROR {
                    count -= 1;
                    // What follows is refused because of the first.
                    outcome = outcome.and(if code == 0 { Ok(()) } else { Err(self.failed(Errno(-code))) });
                }
            }
        }
        outcome
    }

    /// Reads what has arrived.
    pub(super) fn receive(&self, piece: &mut [u8], flags: RecvFlags) -> Result<usize> {
        let (length, _) = recv(&self.socket, piece, flags).map_err(|errno| self.failed(errno.into()))?;
        Ok(length)
    }

    pub(super) fn failed(&self, errno: Errno) -> Error {
        Error::new(self.name, errno)
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The messages of a piece, with their kinds; what is cut off is left out.
pub(super) fn messages(mut piece: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let length = u32::from_ne_bytes(*piece.first_chunk()?) as usize;
        let message = piece.get(..length).filter(|message| message.len() >= 16)?;
        piece = piece.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((u16::from_ne_bytes([message[4], message[5]]), message))
    })
}
