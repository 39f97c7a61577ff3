//! A userfaultfd that acts on another process and that only we hold.
//!
//! Owns: its creation in the process by remote calls, and the duplicate.
//! Invariants: the process's own descriptor is closed before its threads go on, also when a step fails.
//! Does not: watch anything yet.

use std::os::fd::{AsFd, OwnedFd};

use model::{Fd, Pid};
use sys::userfaultfd::{self, Discards, Mode};
use tracee::RemoteSession;
use tracee::arch::numbers::{CLOSE, USERFAULTFD};

use crate::error::TrackError;

/// Creates one in the process of a stopped thread.
pub(crate) fn userfaultfd(
    pid: Pid,
    session: &mut RemoteSession<'_>,
    mode: Mode,
    discards: Discards,
) -> Result<OwnedFd, TrackError> {
    // Where the kernel lifts the protection by itself, no fault is ever handed to us: no privilege is needed.
    let who = if mode == Mode::Sync { 0 } else { userfaultfd::USER_MODE_ONLY };
    let number = session.call(USERFAULTFD, [who | userfaultfd::CREATE_FLAGS, 0, 0, 0, 0, 0])?;
    let handle = sys::pidfd::open(pid);
    let duplicate = handle.and_then(|handle| sys::pidfd::duplicate(handle.as_fd(), pid, Fd(number as i32)));
    session.call(CLOSE, [number, 0, 0, 0, 0, 0])?;
    let duplicate = duplicate?;
    userfaultfd::begin(duplicate.as_fd(), mode, discards)?;
    Ok(duplicate)
}
