//! Watching what a restored tree does to files from its first instruction on.
//!
//! Owns: installing the filter of a watched subject in the first stub, and handing its listener on.
//! Invariants: no filter judges a call of a process under construction: that is suspended in the first stub before the
//! filter is there, and inherited by every stub that is made from it. No stub keeps the listener.
//! Does not: answer calls; the receiver must do so when the tree runs.

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};

use model::Fd;
use sys::seccomp_listener::{FLAGS, FLAGS_INTERRUPTIBLE, FilterProgram, SET_FILTER};
use sys::{Errno, pidfd};
use tracee::arch::numbers as nr;
use tracee::{ProcessMemory, RemoteError, Stub};

use crate::error::Result;

/// Bytes of `struct sock_fprog`: count, address.
const PROGRAM_BYTES: usize = 16;

/// The filter that a restored tree gets.
pub struct FilterInstall {
    /// Its instructions.
    pub program: FilterProgram,
    /// Receives the listener, while the tree is under construction. An error ends the restore.
    pub listener: Box<dyn FnOnce(OwnedFd) -> sys::Result<()> + Send>,
}

impl fmt::Debug for FilterInstall {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("FilterInstall").finish_non_exhaustive()
    }
}

/// Installs the filter in the first stub.
///
/// # Errors
///
/// EPERM without CAP_SYS_ADMIN, or if this program is in a sandbox itself.
pub(super) fn install(filter: FilterInstall, stub: &mut Stub) -> Result<()> {
    stub.suspend_seccomp()?;
    let memory = ProcessMemory::open(stub.pid())?;
    let code = filter.program.bytes();
    let mut bytes = vec![0_u8; PROGRAM_BYTES];
    let count = (code.len() / sys::seccomp::INSTRUCTION_BYTES) as u16;
    bytes[..2].copy_from_slice(&count.to_ne_bytes());
    let at = stub.data().start.get() + PROGRAM_BYTES as u64;
    bytes[8..].copy_from_slice(&at.to_ne_bytes());
    bytes.extend_from_slice(&code);
    let mut set =
        |flags| stub.call_with(&memory, nr::SECCOMP, &bytes, |at| [SET_FILTER, flags, at.get(), 0, 0, 0]);
    let number = match set(FLAGS) {
        Err(RemoteError::Refused { errno: Errno::EINVAL, .. }) => set(FLAGS_INTERRUPTIBLE)?,
        outcome => outcome?,
    };
    let handle = pidfd::open(stub.pid())?;
    let listener = pidfd::duplicate(handle.as_fd(), stub.pid(), Fd(number as i32))?;
    stub.call(nr::CLOSE, [number, 0, 0, 0, 0, 0])?;
    Ok((filter.listener)(listener)?)
}
