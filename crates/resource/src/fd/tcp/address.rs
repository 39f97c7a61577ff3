//! Binds a TCP socket to its saved address.
//!
//! Owns: bind(2) and listen(2) while closed connections still occupy the address; destroying these connections, or
//! waiting until they have ended.
//! Invariants: a socket that a process holds is never destroyed. SO_REUSEADDR has its saved value afterwards. Every
//! wait has a limit, and the error names the occupant of the address.
//! Does not: build connections; `connection` does.

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use model::Inode;
use sys::clock::Deadline;
use sys::sock_diag::{SockDiag, TcpSocket, TcpSocketOfPort};
use sys::socket::{self, SocketAddress};
use sys::socket_option;
use sys::tcp_repair::State as TcpState;
use sys::{Errno, Error};

use super::super::inet_address::{parse_plain, show};
use super::super::socket_family::{AF_INET, AF_INET6};
use super::super::socket_options::REUSE_ADDRESS;
use super::state::State;
use crate::error::{ResourceError, Result};

const EADDRINUSE: i32 = 98;
const EADDRNOTAVAIL: i32 = 99;
/// Interval between two attempts.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Timeouts, by the type of socket that occupies an address.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Timeout for a socket of a process. A killed process closes its sockets within this time.
    held: Duration,
    /// Timeout for a closed socket with bytes that its peer has not acknowledged. After the timeout, the socket is
    /// reset.
    unsent: Duration,
    /// Timeout for a socket in TIME_WAIT or FIN_WAIT_2 that cannot be destroyed. The kernel drops such a socket after
    /// 60 seconds.
    ended: Duration,
}

const LIMITS: Limits = Limits {
    held: Duration::from_millis(300),
    unsent: Duration::from_secs(5),
    ended: Duration::from_secs(65),
};

/// Binds a socket to its saved address.
pub(super) fn bind(socket: BorrowedFd<'_>, state: &State) -> Result<()> {
    Claim { socket, state, backlog: None, bound: false, limits: LIMITS }.run()
}

/// Binds a listener to its saved address, and listens. SO_REUSEADDR is set during both calls, since connections of
/// the address may still exist.
pub(super) fn bind_and_listen(socket: BorrowedFd<'_>, state: &State, backlog: u32) -> Result<()> {
    let reuse = state.options.int(REUSE_ADDRESS).unwrap_or(0);
    socket_option::set_int(socket, REUSE_ADDRESS, 1)?;
    Claim { socket, state, backlog: Some(backlog), bound: false, limits: LIMITS }.run()?;
    Ok(socket_option::set_int(socket, REUSE_ADDRESS, reuse)?)
}

/// Listens with a backlog.
pub(super) fn listen(socket: BorrowedFd<'_>, backlog: u32) -> Result<()> {
    let backlog = i32::try_from(backlog).unwrap_or(i32::MAX);
    Ok(rustix::net::listen(socket, backlog).map_err(|errno| Error::new("listen", errno))?)
}

/// Destroys a closed connection between two addresses, if no process holds its socket. Without the permission to
/// destroy it, the caller waits until the connection has ended.
pub(super) fn end_remains(local: &SocketAddress, peer: &SocketAddress) {
    let Ok(diag) = SockDiag::open() else { return };
    if let Ok(Some(socket)) = diag.tcp_socket(local, peer)
        && has_ended(socket)
    {
        let _ = diag.destroy_tcp(socket, local, peer);
    }
}

/// Returns the error for an address to which a socket cannot be bound.
pub(super) fn refused(state: &State, error: ResourceError) -> ResourceError {
    match error {
        ResourceError::Kernel(error) if error.errno.0 == EADDRINUSE => in_use(
            state,
            "another socket has this address",
            "end the program that uses this address (`ss -tlnp`), then restore again",
        ),
        ResourceError::Kernel(error) if error.errno.0 == EADDRNOTAVAIL => in_use(
            state,
            "this machine does not have the address",
            "add the address to the machine (`ip address add`), then restore again",
        ),
        other => other,
    }
}

fn in_use(state: &State, why: &str, fix: &str) -> ResourceError {
    let path = format!("TCP {}", show(&state.local()));
    ResourceError::File { path, why: why.to_owned(), fix: fix.to_owned() }
}

/// A socket that is being bound to its address.
struct Claim<'a> {
    socket: BorrowedFd<'a>,
    state: &'a State,
    /// The backlog of a listener; `None` for other sockets.
    backlog: Option<u32>,
    bound: bool,
    limits: Limits,
}

impl Claim<'_> {
    fn run(mut self) -> Result<()> {
        let Limits { held, unsent, ended } = self.limits;
        let [held, unsent, ended] = [held, unsent, ended].map(Deadline::after);
        loop {
            match self.attempt() {
                Err(ResourceError::Kernel(error)) if error.errno.0 == EADDRINUSE => {}
                outcome => return outcome.map_err(|error| refused(self.state, error)),
            }
            let diag = SockDiag::open()?;
            let holders = self.holders(&diag)?;
            if holders.is_empty() || holders.iter().any(|one| !has_ended(one.socket)) {
                if held.has_passed() {
                    return Err(refused(self.state, Error::new("bind a socket", Errno(EADDRINUSE)).into()));
                }
            } else if ended.has_passed() {
                return Err(in_use(
                    self.state,
                    "closed connections still occupy the address (TIME-WAIT, FIN-WAIT)",
                    "wait a minute until `ss -tan` no longer lists them, or restore as root",
                ));
            } else {
                end(&diag, &holders, unsent.has_passed());
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn attempt(&mut self) -> Result<()> {
        if !self.bound {
            socket::bind(self.socket, &self.state.local())?;
            self.bound = true;
        }
        self.backlog.map_or(Ok(()), |backlog| listen(self.socket, backlog))
    }

    /// Returns the other sockets that occupy the address.
    fn holders(&self, diag: &SockDiag) -> Result<Vec<TcpSocketOfPort>> {
        let Some(wanted) = parse_plain(&self.state.local()) else { return Ok(Vec::new()) };
        let own = rustix::fs::fstat(self.socket).map_err(|errno| Error::new("inspect a socket", errno))?;
        let mut found = diag.tcp_sockets_of_port(AF_INET, wanted.port())?;
        // A kernel without IPv6 has no IPv6 sockets and returns an error.
        found.extend(diag.tcp_sockets_of_port(AF_INET6, wanted.port()).unwrap_or_default());
        found.retain(|one| {
            one.socket.inode != Inode(own.st_ino)
                && parse_plain(&one.local).is_some_and(|other| overlap(wanted, other))
        });
        Ok(found)
    }
}

/// Destroys the sockets that may be destroyed now. Ignores failures, since the caller waits for the remaining
/// sockets.
fn end(diag: &SockDiag, holders: &[TcpSocketOfPort], is_late: bool) {
    for one in holders {
        let is_finished =
            matches!(TcpState::from_number(one.socket.state), Some(TcpState::TimeWait | TcpState::FinWait2));
        if is_finished || is_late {
            let _ = diag.destroy_tcp(one.socket, &one.local, &one.peer);
        }
    }
}

/// Reports whether a process has closed this socket, and only the kernel still finishes the connection.
fn has_ended(socket: TcpSocket) -> bool {
    let state = TcpState::from_number(socket.state);
    socket.inode == Inode(0)
        && matches!(
            state,
            Some(
                TcpState::FinWait1
                    | TcpState::FinWait2
                    | TcpState::Closing
                    | TcpState::LastAck
                    | TcpState::TimeWait
            )
        )
}

fn overlap(one: SocketAddr, other: SocketAddr) -> bool {
    let (one, other) = (one.ip(), other.ip());
    one == other || one.is_unspecified() || other.is_unspecified()
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, OwnedFd};

    use super::super::super::socket_family::Family;
    use super::super::super::test_support::alone;
    use super::*;

    /// Returns a listener, and a client whose connection the listener's side has closed first. SO_REUSEADDR is not
    /// set.
    fn listener_with_ended_connection() -> (TcpListener, TcpStream) {
        let listener = socket::create(AF_INET, 1, 0).unwrap();
        let any = super::super::super::inet_address::encode("127.0.0.1:0".parse().unwrap());
        socket::bind(listener.as_fd(), &any).unwrap();
        listen(listener.as_fd(), 1).unwrap();
        let listener = TcpListener::from(listener);
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        drop(listener.accept().unwrap());
        (listener, client)
    }

    fn state_of(listener: &TcpListener) -> State {
        let local = socket::local(listener.as_fd()).unwrap().0;
        State { family: Family::of(listener).unwrap(), local, ..State::default() }
    }

    fn claim(state: &State, limits: Limits) -> (OwnedFd, Result<()>) {
        let socket = state.family.create().unwrap();
        let claim = Claim { socket: socket.as_fd(), state, backlog: Some(1), bound: false, limits };
        let outcome = claim.run();
        (socket, outcome)
    }

    /// Checks the outcome of a bind. Without SOCK_DESTROY or CAP_NET_ADMIN, the bind waits for closed connections
    /// until its timeout, and the error names these connections.
    fn assert_taken(outcome: Result<()>) {
        if let Err(error) = outcome {
            assert!(!may_destroy() && error.to_string().contains("TIME-WAIT"), "{error}");
            println!("unsupported: SOCK_DESTROY");
        }
    }

    /// Reports whether privileges and kernel permit SOCK_DESTROY. Tries to destroy a listener.
    fn may_destroy() -> bool {
        const EOPNOTSUPP: i32 = 95;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let diag = SockDiag::open().unwrap();
        let own = diag.tcp_sockets_of_port(AF_INET, listener.local_addr().unwrap().port()).unwrap();
        let outcome = diag.destroy_tcp(own[0].socket, &own[0].local, &own[0].peer);
        crate::fd::sockets::may_repair() && !outcome.is_err_and(|error| error.errno.0 == EOPNOTSUPP)
    }

    #[test]
    fn an_address_is_taken_from_closed_connections() {
        let _alone = alone();
        for finished in [true, false] {
            let (listener, client) = listener_with_ended_connection();
            let state = state_of(&listener);
            drop(listener);
            // The connection is in FIN_WAIT_2 while the client is open, and in TIME_WAIT afterwards.
            let _open = (!finished).then_some(client);
            let (_socket, outcome) = claim(&state, Limits { ended: Duration::from_millis(500), ..LIMITS });
            assert_taken(outcome);
        }
    }

    #[test]
    fn an_address_of_a_process_is_waited_for_and_never_taken() {
        let _alone = alone();
        let (listener, _client) = listener_with_ended_connection();
        let state = state_of(&listener);
        let limits = Limits { held: Duration::from_millis(30), ..LIMITS };
        let error = claim(&state, limits).1.unwrap_err().to_string();
        assert!(error.contains("another socket") && error.contains(&show(&state.local())), "{error}");
        TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let closer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(50));
            drop(listener);
        });
        let (held, ended) = (Duration::from_secs(5), Duration::from_secs(10));
        let outcome = claim(&state, Limits { held, ended, ..LIMITS }).1;
        closer.join().unwrap();
        assert_taken(outcome);
    }
}
