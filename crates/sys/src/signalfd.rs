//! Creates signalfd(2) descriptors.
//!
//! Owns: signalfd4(2).
//! Invariants: returned descriptors are owned and close-on-exec.
//! Does not: read the signals (`signal::take`); block the signals; a signalfd alone does not prevent the delivery of a signal.
//!
//! Man page: signalfd(2)
//! Since: Linux 2.6.27
//! Probe: none; `doctor` refuses older kernels
//! Fallback: none

use std::os::fd::OwnedFd;

use crate::error::{Error, Result, owned};

/// Size of the kernel's signal set in bytes.
const SET_BYTES: usize = 8;

/// Creates a descriptor for the signals of a set. Bit 0 stands for signal 1.
pub fn create(signals: u64) -> Result<OwnedFd> {
    create_with(signals, libc::SFD_CLOEXEC)
}

/// Creates a non-blocking descriptor for the signals of a set. Bit 0 stands for signal 1.
pub fn create_nonblocking(signals: u64) -> Result<OwnedFd> {
    create_with(signals, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
}

fn create_with(signals: u64, flags: i32) -> Result<OwnedFd> {
    // SAFETY: the kernel reads SET_BYTES bytes at the address of `signals`, which outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const signals, SET_BYTES, flags) };
    // SAFETY: the kernel returned a new descriptor without another owner.
    unsafe { owned(result) }.map_err(|errno| Error::new("create a signalfd", errno))
}
