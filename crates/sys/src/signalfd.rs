//! Descriptors that signals are read from.
//!
//! Owns: signalfd4(2).
//! Invariants: returned descriptors are owned and close-on-exec.
//! Does not: block the signals; a signalfd alone does not keep them from being delivered.
//!
//! Man page: signalfd(2)
//! Since: Linux 2.6.27
//! Probe: none; older kernels are refused by `doctor`
//! Fallback: none

use std::os::fd::{FromRawFd, OwnedFd};

use crate::error::{Errno, Error, Result};

/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;

/// A descriptor for the signals of a set: bit 0 is signal 1.
pub fn create(signals: u64) -> Result<OwnedFd> {
    // SAFETY: the kernel reads SET_BYTES bytes at the address of `signals`, which outlives the call.
    let result = unsafe {
        libc::syscall(libc::SYS_signalfd4, -1, &raw const signals, SET_BYTES, libc::SFD_CLOEXEC)
    };
    if result < 0 {
        return Err(Error::new("create a signalfd", Errno::last()));
    }
    // SAFETY: the kernel returned a new descriptor that nobody else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}
