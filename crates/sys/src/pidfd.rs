//! Handles on processes, and duplicates of their descriptors.
//!
//! Owns: pidfd_open(2), pidfd_getfd(2), the request PIDFD_GET_INFO.
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

/// Size of `struct pidfd_info` as of Linux 6.13 (PIDFD_INFO_SIZE_VER0).
const INFO_BYTES: usize = 64;
/// _IOWR(0xff, 11, struct pidfd_info) of that size.
const PIDFD_GET_INFO: libc::c_ulong = 0xc040_ff0b;
/// Ask for the exit code, and whether it was given.
const INFO_EXIT: u64 = 1 << 3;
/// Where the exit code stands in the structure.
const EXIT_CODE_AT: usize = 60;

/// The wait status of a process that has ended and was reaped by somebody; `None` where the kernel does not tell
/// (it does since Linux 6.15) or the process still waits to be reaped.
#[must_use]
pub fn exit_code(handle: BorrowedFd<'_>) -> Option<i32> {
    let mut information = [0_u64; INFO_BYTES / 8];
    information[0] = INFO_EXIT;
    // SAFETY: the request number says that the structure has INFO_BYTES bytes, which `information` has; the
    // kernel writes no more, and any bytes are valid numbers.
    let result = unsafe { libc::ioctl(handle.as_raw_fd(), PIDFD_GET_INFO, information.as_mut_ptr()) };
    let known = result == 0 && information[0] & INFO_EXIT != 0;
    known.then(|| (information[EXIT_CODE_AT / 8] >> 32) as i32)
}
