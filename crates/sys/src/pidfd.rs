//! Handles on processes, and duplicates of their descriptors.
//!
//! Owns: pidfd_open(2), pidfd_getfd(2).
//! Invariants: returned descriptors are owned and close-on-exec.
//! Does not: tell what a duplicated descriptor refers to.
//!
//! Man page: pidfd_open(2), pidfd_getfd(2)
//! Since: Linux 5.6
//! Probe: `features::REGISTRY` entry "pidfd"
//! Fallback: none; older kernels are refused by `doctor`

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use model::{Fd, Pid};

use crate::error::{Errno, Error, Result};

/// A handle on a process that can never mean a later one with the same number.
pub fn open(pid: Pid) -> Result<OwnedFd> {
    // SAFETY: pidfd_open takes plain numbers.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_open, pid.get(), 0) };
    if result < 0 {
        return Err(Error::process("open a handle", pid, Errno::last()));
    }
    // SAFETY: the kernel returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// A duplicate of descriptor `fd` of the process; both share one open file description.
pub fn duplicate(handle: BorrowedFd<'_>, pid: Pid, fd: Fd) -> Result<OwnedFd> {
    // SAFETY: pidfd_getfd takes plain numbers; the handle is open for the whole call.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_getfd, handle.as_raw_fd(), fd.get(), 0) };
    if result < 0 {
        return Err(Error::descriptor("duplicate", pid, fd, Errno::last()));
    }
    // SAFETY: the kernel returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}
