//! Creates and reads signalfd(2) descriptors.
//!
//! Owns: signalfd4(2).
//! Invariants: returned descriptors are owned and close-on-exec.
//! Does not: block the signals; a signalfd alone does not prevent the delivery of a signal.
//!
//! Man page: signalfd(2)
//! Since: Linux 2.6.27
//! Probe: none; `doctor` refuses older kernels
//! Fallback: none

use std::mem::offset_of;
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};

use model::{Pid, Signal};

use crate::error::{Errno, Error, Result};

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
    if result < 0 {
        return Err(Error::new("create a signalfd", Errno::last()));
    }
    // SAFETY: the kernel returned a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(result as i32) })
}

/// A signal that was read from a signalfd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Received {
    /// The signal.
    pub signal: Signal,
    /// The origin of the signal (`si_code`). Above zero, the kernel sent the signal.
    pub code: i32,
    /// The pid of the sender, if a process sent the signal.
    pub sender: Pid,
}

const _: () = assert!(size_of::<libc::signalfd_siginfo>() == 128);
const _: () = assert!(offset_of!(libc::signalfd_siginfo, ssi_code) == 8);
const _: () = assert!(offset_of!(libc::signalfd_siginfo, ssi_pid) == 12);

/// Reads and removes the next pending signal. Returns `None` if a non-blocking descriptor has no signal.
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
