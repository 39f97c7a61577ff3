//! System calls on Unix sockets in a restore: calls with the credentials of the original caller, and calls that must
//! not block.
//!
//! Owns: calls by a helper process with the saved credentials (SO_PEERCRED), and non-blocking calls.
//! Does not: decide the order in which sockets are built.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::net::Shutdown;
use sys::Error;
use sys::socket::{self, SocketAddress};
use sys::stand_in::{Act, perform};

use super::state::{Maker, State};
use crate::error::Result;

pub(super) fn new(state: &State) -> Result<OwnedFd> {
    let socket = state.family.create()?;
    state.options.apply_early(&socket, state.family)?;
    Ok(socket)
}

/// Creates two connected sockets with the saved credentials.
pub(super) fn pair(state: &State) -> Result<(OwnedFd, OwnedFd)> {
    let (first, second) = (state.family.create()?, state.family.create()?);
    let act = Act::Pair { kind: state.family.kind, first: first.as_fd(), second: second.as_fd() };
    if perform_as(state.maker(), act) { Ok((first, second)) } else { Ok(socket::pair(state.family.kind)?) }
}

pub(super) fn listen(socket: BorrowedFd<'_>, backlog: i32, maker: Option<Maker<'_>>) -> Result<()> {
    if perform_as(maker, Act::Listen { socket, backlog }) {
        return Ok(());
    }
    Ok(rustix::net::listen(socket, backlog).map_err(|errno| Error::new("listen", errno))?)
}

/// Performs a call with the saved credentials. Reports whether the call succeeded. The call fails without the
/// privilege to choose pids, or if the pid is in use. The caller then performs the call without the saved
/// credentials.
fn perform_as(maker: Option<Maker<'_>>, act: Act<'_>) -> bool {
    maker.is_some_and(|maker| perform(maker.credentials, maker.groups, act).is_ok())
}

pub(super) fn shut(socket: BorrowedFd<'_>, halves: u32) -> Result<()> {
    let how = match halves {
        1 => Shutdown::Read,
        2 => Shutdown::Write,
        3 => Shutdown::Both,
        _ => return Ok(()),
    };
    Ok(rustix::net::shutdown(socket, how).map_err(|errno| Error::new("shut a Unix socket", errno))?)
}

/// Runs `act` while the socket is non-blocking, so that no call blocks. Usually, the waiting clients fit into the
/// queue of a new listener. A call would block forever if the limit of the system is lower now, or if a record is
/// forged.
fn without_waiting<T>(socket: BorrowedFd<'_>, act: impl FnOnce() -> Result<T>) -> Result<T> {
    let failed = |errno| Error::new("change the flags of a socket", errno);
    let flags = fcntl_getfl(socket).map_err(failed)?;
    fcntl_setfl(socket, flags | OFlags::NONBLOCK).map_err(failed)?;
    let outcome = act();
    fcntl_setfl(socket, flags).map_err(failed)?;
    outcome
}

/// Accepts the connection that was just made.
pub(super) fn accept(listener: BorrowedFd<'_>) -> Result<OwnedFd> {
    without_waiting(listener, || Ok(socket::accept(listener)?))
}

pub(super) fn connect_to(
    socket: BorrowedFd<'_>,
    address: &SocketAddress,
    maker: Option<Maker<'_>>,
) -> Result<()> {
    without_waiting(socket, || {
        if perform_as(maker, Act::Connect { socket, address }) {
            return Ok(());
        }
        Ok(socket::connect(socket, address)?)
    })
}
