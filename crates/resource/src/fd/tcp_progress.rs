//! Progress of a program on a TCP connection: the number of bytes that the program has read and written.
//!
//! Owns: the progress counters of a connection, and finding the kept socket (held while the subject is dead) of a
//! saved connection.
//! Invariants: a kept socket replaces a saved connection only if the program has neither read nor written since the
//! checkpoint. Data that has arrived since then is still in the socket. The peer has received nothing that the
//! program sent after the checkpoint.
//! Does not: keep sockets while a subject is dead; the caller of the restore does.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use prost::Message;
use sys::Error;
use sys::socket;
use sys::tcp_repair::{self, Info, State as TcpState};

use crate::error::Result;

/// Maximum number of reads of the counters while packets arrive.
const TRIES: u32 = 8;

/// The number of bytes that a program has read from a connection and written to it.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Progress {
    /// SO_COOKIE, which identifies the socket until the next boot.
    #[prost(fixed64, tag = "1")]
    pub(crate) cookie: u64,
    #[prost(uint64, tag = "2")]
    read: u64,
    #[prost(uint64, tag = "3")]
    written: u64,
}

impl Progress {
    /// Computes the counters after TCP_INFO was read into `info`. A packet that arrives after this read makes the
    /// counters too low. Such counters never equal later counters.
    pub(super) fn after(info: &Info, socket: BorrowedFd<'_>, cookie: u64) -> Result<Self> {
        let (unread, unacknowledged) =
            (socket::readable_bytes(socket)?, socket::unacknowledged_bytes(socket)?);
        // The kernel counts the FIN as a byte.
        let received = info.received_bytes - u64::from(has_ended(info));
        Ok(Self {
            cookie,
            read: received.saturating_sub(unread as u64),
            written: info.acknowledged_bytes + unacknowledged as u64,
        })
    }

    /// Returns the counters of a connection on which no packet arrives during the call.
    #[cfg(test)]
    pub(crate) fn of(socket: BorrowedFd<'_>) -> Result<Self> {
        Self::after(&tcp_repair::info(socket)?, socket, socket::cookie(socket)?)
    }

    /// Returns TCP_INFO and the exact counters; `None` while packets keep arriving.
    pub(super) fn exact(socket: BorrowedFd<'_>) -> Result<Option<(Info, Self)>> {
        let cookie = socket::cookie(socket)?;
        for _ in 0..TRIES {
            let info = tcp_repair::info(socket)?;
            let progress = Self::after(&info, socket, cookie)?;
            if tcp_repair::info(socket)? == info {
                return Ok(Some((info, progress)));
            }
        }
        Ok(None)
    }
}

/// Reports whether the peer has sent a FIN.
fn has_ended(info: &Info) -> bool {
    TcpState::from_number(info.state) == Some(TcpState::CloseWait)
}

/// Reports whether a connection in this state can be kept: its sending direction is open.
pub(super) fn is_open(state: Option<TcpState>) -> bool {
    matches!(state, Some(TcpState::Established | TcpState::CloseWait))
}

/// Returns the kept socket of a saved connection.
pub(super) fn find(kept: &[Arc<OwnedFd>], saved: Progress) -> Option<&Arc<OwnedFd>> {
    kept.iter().find(|socket| socket::cookie(socket.as_fd()).is_ok_and(|own| own == saved.cookie))
}

/// Returns a duplicate of the kept socket of a saved connection, if the program has neither read nor written since
/// the checkpoint.
pub(super) fn keep(kept: &[Arc<OwnedFd>], saved: Progress) -> Result<Option<OwnedFd>> {
    let Some(socket) = find(kept, saved) else { return Ok(None) };
    let is_unchanged = Progress::exact(socket.as_fd())?
        .is_some_and(|(info, progress)| progress == saved && is_open(TcpState::from_number(info.state)));
    let copy = || socket.try_clone().map_err(|error| Error::new("duplicate a connection", error));
    Ok(is_unchanged.then(copy).transpose()?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, peer)
    }

    fn progress(socket: &TcpStream) -> Progress {
        Progress::exact(socket.as_fd()).unwrap().unwrap().1
    }

    #[test]
    fn arriving_data_is_no_progress_until_it_is_read() {
        let (mut own, mut peer) = pair();
        let first = progress(&own);
        peer.write_all(b"question").unwrap();
        await_readable(&own);
        assert_eq!(progress(&own), first);
        own.read_exact(&mut [0; 3]).unwrap();
        let second = progress(&own);
        assert_ne!(second, first);
        assert_eq!(second.read, first.read + 3);
        own.write_all(b"answer").unwrap();
        assert_eq!(progress(&own).written, second.written + 6);
        peer.read_exact(&mut [0; 6]).unwrap();
        assert_eq!(progress(&own).written, second.written + 6, "an acknowledgement is no progress");
    }

    #[test]
    fn the_fin_of_the_peer_is_no_progress() {
        let (own, peer) = pair();
        let first = progress(&own);
        peer.shutdown(Shutdown::Write).unwrap();
        await_readable(&own);
        assert_eq!(progress(&own), first);
        assert_eq!((&own).read(&mut [0]).unwrap(), 0);
        assert_eq!(progress(&own), first, "the end of file can be read again");
    }

    #[test]
    fn a_socket_is_kept_only_without_reads_and_writes() {
        let (mut own, mut peer) = pair();
        let (other, _far) = pair();
        let idle: [Arc<OwnedFd>; 2] = [Arc::new(other.into()), Arc::new(own.try_clone().unwrap().into())];
        let is_kept = |saved: Progress| keep(&idle, saved).unwrap().is_some();
        let first = progress(&own);
        peer.write_all(b"unread").unwrap();
        await_readable(&own);
        assert!(is_kept(first), "arrived data is still in it");
        assert!(keep(&idle[..1], first).unwrap().is_none(), "another one");
        own.read_exact(&mut [0; 1]).unwrap();
        assert!(!is_kept(first), "the program has read");
        let second = progress(&own);
        own.write_all(b"x").unwrap();
        assert!(!is_kept(second), "the program has written");
        let third = progress(&own);
        assert!(is_kept(third));
        own.shutdown(Shutdown::Write).unwrap();
        assert!(!is_kept(third), "the program has ended its half");
    }

    fn await_readable(socket: &TcpStream) {
        let mut waiting = [PollFd::new(socket, PollFlags::IN)];
        poll(&mut waiting, None).unwrap();
    }
}
