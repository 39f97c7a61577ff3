//! The connection of a probe to a socket.
//!
//! Owns: the socket until it is connected, and the delay before a retry if the kernel reports no event.
//! Invariants: no call blocks. A connection of a socket to itself is treated as a refused connection.
//! Does not: limit the duration; the attempt does.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno as RawErrno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, getpeername, getsockname, socket_with,
    sockopt,
};
use sys::Errno;

use crate::interest::{Handle, Interest};

/// Delay between two attempts to connect to a Unix socket whose backlog is full. The kernel reports no event when the
/// backlog has space again.
const RETRY_AFTER: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Dial {
    target: Target,
    state: State,
}

#[derive(Debug)]
enum Target {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

#[derive(Debug)]
enum State {
    /// `connect` must be called, but not before this time.
    Idle(Option<Instant>),
    /// The kernel is establishing the connection.
    InProgress(OwnedFd),
}

/// The state of the connection after a call of `advance`.
#[derive(Debug)]
pub(super) enum Progress {
    Waiting,
    Connected(OwnedFd),
    Failed(Errno),
    /// The socket cannot be created.
    NoSocket(Errno),
}

impl Dial {
    pub(super) fn tcp(address: SocketAddr) -> Self {
        Self { target: Target::Tcp(address), state: State::Idle(None) }
    }

    pub(super) fn unix(path: &Path) -> Self {
        Self { target: Target::Unix(path.to_owned()), state: State::Idle(None) }
    }

    /// Returns the target as text for messages.
    pub(super) fn name(&self) -> String {
        match &self.target {
            Target::Tcp(address) => address.to_string(),
            Target::Unix(path) => path.display().to_string(),
        }
    }

    pub(super) fn handle(&self) -> Option<Handle<'_>> {
        match &self.state {
            State::Idle(_) => None,
            State::InProgress(socket) => Some((socket.as_fd(), Interest::Writable)),
        }
    }

    /// Returns the time at which `advance` must be called without an event.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.state {
            State::Idle(retry) => *retry,
            State::InProgress(_) => None,
        }
    }

    /// Advances as far as possible without blocking.
    pub(super) fn advance(&mut self, now: Instant) -> Progress {
        let outcome = match &self.state {
            State::Idle(Some(retry)) if now < *retry => Ok(None),
            State::Idle(_) => match self.socket() {
                Ok(socket) => self.connect(socket, now),
                Err(errno) => return Progress::NoSocket(errno.into()),
            },
            State::InProgress(socket) => match is_settled(socket) {
                Ok(false) => Ok(None),
                Ok(true) => self.settle(),
                Err(errno) => Err(errno),
            },
        };
        match outcome {
            Ok(Some(socket)) if is_itself(&socket) => Progress::Failed(RawErrno::CONNREFUSED.into()),
            Ok(Some(socket)) => Progress::Connected(socket),
            Ok(None) => Progress::Waiting,
            Err(errno) => Progress::Failed(errno.into()),
        }
    }

    fn socket(&self) -> rustix::io::Result<OwnedFd> {
        let family = match &self.target {
            Target::Tcp(SocketAddr::V4(_)) => AddressFamily::INET,
            Target::Tcp(SocketAddr::V6(_)) => AddressFamily::INET6,
            Target::Unix(_) => AddressFamily::UNIX,
        };
        socket_with(family, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None)
    }

    fn connect(&mut self, socket: OwnedFd, now: Instant) -> rustix::io::Result<Option<OwnedFd>> {
        let outcome = match &self.target {
            Target::Tcp(address) => connect(&socket, address),
            Target::Unix(path) => connect(&socket, &SocketAddrUnix::new(path)?),
        };
        match outcome {
            Ok(()) => return Ok(Some(socket)),
            Err(RawErrno::INPROGRESS) => self.state = State::InProgress(socket),
            Err(RawErrno::AGAIN) if matches!(self.target, Target::Unix(_)) => {
                self.state = State::Idle(Some(now + RETRY_AFTER));
            }
            Err(errno) => return Err(errno),
        }
        Ok(None)
    }

    /// Removes and returns the socket if the connection has succeeded. Returns the error if the connection has failed.
    fn settle(&mut self) -> rustix::io::Result<Option<OwnedFd>> {
        match std::mem::replace(&mut self.state, State::Idle(None)) {
            State::Idle(_) => Ok(None),
            State::InProgress(socket) => {
                sockopt::socket_error(&socket)??;
                Ok(Some(socket))
            }
        }
    }
}

fn is_settled(socket: &OwnedFd) -> rustix::io::Result<bool> {
    let mut asked = [PollFd::new(socket, PollFlags::OUT)];
    Ok(poll(&mut asked, Some(&Timespec::default()))? > 0)
}

/// Reports whether the socket is connected to itself. This happens if no socket listens on a local port, and the kernel
/// chooses the same port as the local port of the connection.
fn is_itself(socket: &OwnedFd) -> bool {
    let own = getsockname(socket).ok().and_then(|own| SocketAddr::try_from(own).ok());
    let peer = getpeername(socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
    own.is_some() && own == peer
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use rustix::net::bind;

    use super::*;

    #[test]
    fn a_connection_of_a_socket_to_itself_is_known() {
        let new =
            || socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
        let own = new();
        bind(&own, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
        let address = SocketAddr::try_from(getsockname(&own).unwrap()).unwrap();
        assert!(!is_itself(&own));
        connect(&own, &address).unwrap();
        assert!(is_itself(&own));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = new();
        connect(&other, &listener.local_addr().unwrap()).unwrap();
        assert!(!is_itself(&other));
    }
}
