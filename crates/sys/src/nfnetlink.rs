//! Messages of nfnetlink, the netlink protocol of netfilter.
//!
//! Owns: headers of netfilter, and a socket that sends requests and receives their acknowledgements.
//! Invariants: a request ends when the kernel has acknowledged or refused each of its messages, or has refused
//! the whole batch.
//! Does not: interpret messages.
//!
//! Man page: netlink(7); include/uapi/linux/netfilter/nfnetlink.h
//! Since: Linux 3.13 for batches
//! Probe: that of `packet_hold`
//! Fallback: that of the calling module

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::net::netlink::{NETFILTER, SocketAddrNetlink};
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SocketFlags, bind};

use crate::error::Result;
use crate::netlink::{self, ACKNOWLEDGE, Attributes, NetlinkSocket, PIECE_BYTES, REQUEST, messages};

const BATCH_BEGIN: u16 = 0x10;
const BATCH_END: u16 = 0x11;
const VERSION: u8 = 0;
/// The sequence number of the messages that begin and end a batch. The kernel uses it to refuse a batch as a
/// whole, for example without nf_tables. It then sends no other acknowledgement.
const BATCH_EDGE: u32 = 0;
/// Length of `nlmsghdr` and `nfgenmsg`.
pub(crate) const HEADER_BYTES: usize = netlink::HEADER_BYTES + 4;
/// Receive timeout of the socket. The kernel answers before the send call returns, so this timeout is
/// generous.
const ANSWER: Duration = Duration::from_secs(2);
/// The highest bits of all ports, and their mask.
const PORTS: u32 = 0x4000_0000;
const PORTS_MASK: u32 = 0xc000_0000;
/// The distance between the first ports of two processes whose ids follow each other.
const PORTS_OF_PROCESS: u32 = 1 << 8;

/// A request to one subsystem of netfilter.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    /// The number of the subsystem, and the number of the request.
    pub(crate) kind: (u8, u8),
    /// Flags in addition to the flags of every request.
    pub(crate) flags: u16,
    /// The address family; 0 for requests without a family.
    pub(crate) family: u8,
    /// The queue number; 0 for requests without a queue.
    pub(crate) resource: u16,
    pub(crate) body: Attributes,
}

impl Message {
    fn write(&self, to: &mut Vec<u8>, flags: u16, sequence: u32) {
        let kind = u16::from(self.kind.0) << 8 | u16::from(self.kind.1);
        header(to, kind, flags | self.flags, sequence, (self.family, self.resource), &self.body.0);
    }
}

/// Appends a message with an address family and a resource number.
fn header(to: &mut Vec<u8>, kind: u16, flags: u16, sequence: u32, of: (u8, u16), body: &[u8]) {
    let part = of.1.to_be_bytes();
    netlink::write(to, kind, REQUEST | flags, sequence, &[&[of.0, VERSION], &part[..], body].concat());
}

/// An nfnetlink socket. A receive call waits for at most [`ANSWER`].
#[derive(Debug)]
pub(crate) struct Wire(pub(crate) NetlinkSocket);

impl Wire {
    /// Opens a socket. `name` describes the purpose of the socket in errors.
    pub(crate) fn open(name: &'static str) -> Result<Self> {
        let socket = NetlinkSocket::open(NETFILTER, SocketFlags::empty(), name)?;
        bind_anew(&socket).map_err(|errno| socket.failed(errno))?;
        sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(ANSWER))
            .map_err(|errno| socket.failed(errno))?;
        Ok(Self(socket))
    }

    /// Sends a message without asking for an acknowledgement.
    pub(crate) fn send(&self, message: &Message) -> Result<()> {
        let mut bytes = Vec::new();
        message.write(&mut bytes, 0, 0);
        self.0.send(&bytes)
    }

    /// Sends one message, and waits for its acknowledgement. Must be called before other messages can arrive
    /// at this socket.
    pub(crate) fn request(&self, message: &Message) -> Result<()> {
        let mut bytes = Vec::new();
        message.write(&mut bytes, ACKNOWLEDGE, 1);
        self.0.send(&bytes)?;
        self.acknowledged(1)
    }

    /// Sends messages as one batch, and waits for their acknowledgements. The kernel executes all messages of
    /// the batch or none.
    pub(crate) fn transact(&self, part: u8, messages: &[Message]) -> Result<()> {
        let mut bytes = Vec::new();
        let edge = (0, u16::from(part));
        header(&mut bytes, BATCH_BEGIN, 0, BATCH_EDGE, edge, &[]);
        for (message, sequence) in messages.iter().zip(1..) {
            message.write(&mut bytes, ACKNOWLEDGE, sequence);
        }
        header(&mut bytes, BATCH_END, 0, BATCH_EDGE, edge, &[]);
        self.0.send(&bytes)?;
        self.acknowledged(messages.len())
    }

    fn acknowledged(&self, mut count: usize) -> Result<()> {
        let mut piece = vec![0; PIECE_BYTES];
        let mut outcome = Ok(());
        while count > 0 {
            let length = self.0.receive(&mut piece, RecvFlags::empty())?;
            for message in messages(&piece[..length]).flatten().filter(|one| one.kind == netlink::ERROR) {
                let verdict = message.errno().map_or(Ok(()), |errno| Err(self.0.failed(errno)));
                if message.sequence == BATCH_EDGE {
                    return verdict;
                }
                count -= 1;
                // Later errors are consequences of the first error, so only the first error is kept.
                outcome = outcome.and(verdict);
            }
        }
        outcome
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Binds a socket to a port that no socket of this process had before.
///
/// The kernel removes the tables and queues of a closed socket by its port. Before that, the port is free: with a port of the
/// kernel's choice, which is the process id for one socket of each process, a new socket can get it and lose its tables
/// (netlink_release and nft_rcv_nl_event, Linux 6.18).
fn bind_anew(socket: &NetlinkSocket) -> rustix::io::Result<()> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The kernel chooses process ids, which are below 2^22, and numbers just below 2^32.
        let port =
            PORTS | std::process::id().wrapping_mul(PORTS_OF_PROCESS).wrapping_add(number) & !PORTS_MASK;
        match bind(socket, &SocketAddrNetlink::new(port, 0)) {
            Err(rustix::io::Errno::ADDRINUSE) => {}
            outcome => return outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Errno;

    #[test]
    fn a_batch_that_is_refused_as_a_whole_is_not_waited_for() {
        const NO_SUBSYSTEM: u8 = 200;
        let wire = Wire::open("try").unwrap();
        let empty = Attributes::default();
        let message = Message { kind: (NO_SUBSYSTEM, 0), flags: 0, family: 0, resource: 0, body: empty };
        let error = wire.transact(NO_SUBSYSTEM, &[message.clone(), message]).unwrap_err();
        // Without CAP_NET_ADMIN, the kernel checks this first.
        assert!([Errno::EINVAL, Errno::EPERM].contains(&error.errno), "{error}");
    }
}
