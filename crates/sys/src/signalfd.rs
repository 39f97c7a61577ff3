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

use std::mem::offset_of;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use model::{Pid, Signal};

use crate::error::{Errno, Error, Result};

/// Bytes of the kernel's signal set.
const SET_BYTES: usize = 8;

/// A descriptor for the signals of a set: bit 0 is signal 1.
pub fn create(signals: u64) -> Result<OwnedFd> {
    create_with(signals, libc::SFD_CLOEXEC)
}

/// The same, for reading without waiting.
pub fn create_nonblocking(signals: u64) -> Result<OwnedFd> {
    create_with(signals, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)
}

fn create_with(signals: u64, flags: i32) -> Result<OwnedFd> {
    // SAFETY: the kernel reads SET_BYTES bytes at the address of `signals`, which outlives the call.
    let result = unsafe { libc::syscall(libc::SYS_signalfd4, -1, &raw const signals, SET_BYTES, flags) };
    if result < 0 {
        return Err(Error::new("create a signalfd", Errno::last()));
    }
    // SAFETY: the kernel returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// A signal as a signalfd tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// Which.
    pub signal: Signal,
    /// Where it came from, as `si_code`: above zero, the kernel itself.
    pub code: i32,
    /// Who sent it, when it was a process.
    pub sender: Pid,
}

const _: () = assert!(size_of::<libc::signalfd_siginfo>() == 128);
const _: () = assert!(offset_of!(libc::signalfd_siginfo, ssi_code) == 8);
const _: () = assert!(offset_of!(libc::signalfd_siginfo, ssi_pid) == 12);

/// Takes the next signal out of a signalfd; `None` when a non-blocking one has none.
pub fn read(signals: BorrowedFd<'_>) -> Result<Option<Received>> {
    let mut bytes = [0_u8; size_of::<libc::signalfd_siginfo>()];
    let length = match rustix::io::retry_on_intr(|| rustix::io::read(signals, &mut bytes)) {
        Ok(length) => length,
        Err(rustix::io::Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(Error::new("read a signal", errno)),
    };
    if length != bytes.len() {
        return Err(Error::new("read a signal", Errno::SHORT));
    }
    let word = |at: usize| i32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    Ok(Some(Received {
        signal: Signal(word(offset_of!(libc::signalfd_siginfo, ssi_signo))),
        code: word(offset_of!(libc::signalfd_siginfo, ssi_code)),
        sender: Pid(word(offset_of!(libc::signalfd_siginfo, ssi_pid))),
    }))
}
