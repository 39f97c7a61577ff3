//! What poll says of a socket at once.
//!
//! Owns: one poll without waiting, which changes nothing in the socket.
//! Does not: wait.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::Error;

use crate::error::Result;

/// Readable, hung up, in error, finished by the peer, or with an urgent byte.
pub(crate) fn events(socket: impl AsFd) -> Result<PollFlags> {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let mut asked =
        [PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN | PollFlags::PRI | PollFlags::RDHUP)];
    poll(&mut asked, Some(&now)).map_err(|errno| Error::new("poll a socket", errno))?;
    Ok(asked[0].revents())
}
