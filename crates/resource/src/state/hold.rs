//! Holding signals back in a process under construction.
//!
//! Owns: blocking every signal in all threads of a stub process.
//! Invariants: a signal that a restored timer sends before the threads run stays pending; unblocked, it would be
//! delivered to a stub and be gone.
//! Does not: set the masks that threads go on with; the engine does, last.

use sys::ptrace;
use tracee::{Stub, procfs};

use crate::error::Result;

/// The kernel leaves SIGKILL and SIGSTOP out by itself.
const EVERY_SIGNAL: u64 = u64::MAX;

/// Blocks all signals in one stub thread.
pub(super) fn in_thread(stub: &Stub) -> Result<()> {
    Ok(ptrace::set_signal_mask(stub.tid(), EVERY_SIGNAL)?)
}

/// Blocks all signals in every thread of a stub's process; whoever does not block one may take it.
pub(super) fn in_process(stub: &Stub) -> Result<()> {
    for tid in procfs::threads(stub.pid())? {
        ptrace::set_signal_mask(tid, EVERY_SIGNAL)?;
    }
    Ok(())
}
