//! Builds TCP sockets whose connection has ended: by the peer's FIN, by a reset, or by the death of the process that
//! held the socket.
//!
//! Owns: creating such sockets through a connection of this process to itself.
//! Invariants: the program observes a lost peer. It first reads the unread bytes, then end of file or ECONNRESET.
//! poll(2) reports readable and hung up. A call on the socket never blocks forever.
//! Does not: keep the addresses of the ended connection.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::Shutdown;
use sys::Error;
use sys::clock::Deadline;
use sys::socket::{self, Message, SocketAddress};
use sys::socket_option::{self, SocketOption};

use super::super::inet_address::encode;
use super::super::socket_family::{AF_INET6, Family, SOL_SOCKET};
use super::super::socket_options::{Options, RECEIVE_BUFFER, SEND_BUFFER, make_room};
use crate::error::Result;

/// Timeout for a packet from this process to itself.
const PACKET_TIMEOUT: Duration = Duration::from_secs(2);
const ROOM_EXTRA: usize = 256 * 1024;
const LINGER: SocketOption = SocketOption { level: SOL_SOCKET, number: 13, name: "SO_LINGER" };

/// How the connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The connection was reset: the next call returns ECONNRESET.
    Reset,
    /// The peer has sent its FIN.
    Finished {
        /// Set when this end is shut down for writing too.
        both: bool,
    },
}

/// Builds a socket whose connection has ended, with bytes that can still be read.
pub(super) fn build(family: Family, options: &Options, received: &[u8], end: End) -> Result<OwnedFd> {
    let listener = family.create()?;
    let address = bind_to_loopback(listener.as_fd(), family)?;
    rustix::net::listen(&listener, 1).map_err(|errno| Error::new("listen on the loopback address", errno))?;
    let ours = family.create()?;
    make_room(&ours, RECEIVE_BUFFER, 2 * received.len() + ROOM_EXTRA)?;
    socket::connect(ours.as_fd(), &address)?;
    let peer = socket::accept(listener.as_fd())?;
    make_room(&peer, SEND_BUFFER, 2 * received.len() + ROOM_EXTRA)?;
    let mut rest = received;
    while !rest.is_empty() {
        let sent = socket::send(peer.as_fd(), &Message { bytes: rest, ..Message::default() })?;
        rest = &rest[sent..];
    }
    await_bytes(&ours, received.len())?;
    if end == End::Reset {
        reset_when_closed(peer.as_fd())?;
    }
    drop(peer);
    await_event(&ours, if end == End::Reset { PollFlags::HUP } else { PollFlags::RDHUP })?;
    if end == (End::Finished { both: true }) {
        rustix::net::shutdown(&ours, Shutdown::Write)
            .map_err(|errno| Error::new("shut a TCP socket", errno))?;
    }
    options.apply_early(&ours, family)?;
    options.apply_late(&ours, family)?;
    Ok(ours)
}

/// Sets SO_LINGER so that closing the socket resets its connection.
pub(super) fn reset_when_closed(socket: BorrowedFd<'_>) -> Result<()> {
    Ok(socket_option::set(socket, LINGER, &[1, 0, 0, 0, 0, 0, 0, 0])?)
}

fn bind_to_loopback(listener: BorrowedFd<'_>, family: Family) -> Result<SocketAddress> {
    let hosts: &[&str] =
        if family.domain == AF_INET6 { &["[::1]:0", "[::ffff:127.0.0.1]:0"] } else { &["127.0.0.1:0"] };
    let mut outcome = Ok(());
    for host in hosts {
        let address = encode(host.parse().expect("a literal address is well-formed"));
        outcome = socket::bind(listener, &address);
        if outcome.is_ok() {
            break;
        }
    }
    outcome?;
    Ok(socket::local(listener)?)
}

fn await_bytes(socket: &OwnedFd, count: usize) -> Result<()> {
    let deadline = Deadline::after(PACKET_TIMEOUT);
    while socket::readable_bytes(socket.as_fd())? < count && !deadline.has_passed() {
        await_event(socket, PollFlags::IN)?;
        std::thread::yield_now();
    }
    Ok(())
}

fn await_event(socket: &OwnedFd, event: PollFlags) -> Result<()> {
    let limit = Timespec { tv_sec: PACKET_TIMEOUT.as_secs() as i64, tv_nsec: 0 };
    poll(&mut [PollFd::new(socket, event)], Some(&limit))
        .map_err(|errno| Error::new("wait for a packet on the loopback connection", errno))?;
    Ok(())
}
