//! The present poll(2) events of a socket.
//!
//! Owns: one poll(2) call with a timeout of zero. The call does not change the socket.
//! Does not: wait for events.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::Error;

use crate::error::Result;

/// Returns the present events: readable, hung up, in error, closed by the peer, urgent byte.
pub(crate) fn events(socket: impl AsFd) -> Result<PollFlags> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut polled =
        [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN | PollFlags::PRI | PollFlags::RDHUP)];
    poll(&mut polled, Some(&now)).map_err(|errno| Error::new("poll a socket", errno))?;
    Ok(polled[0].revents())
}
