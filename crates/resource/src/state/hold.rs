//! Blocking signals in a process under construction.
//!
//! Owns: blocking every signal in all threads of a stub process.
//! Invariants: a signal from a restored timer stays pending until the threads run. Without the block, the stub would
//! receive and lose it.
//! Does not: set the signal masks with which the threads continue; the engine does, last.

use sys::ptrace;
use tracee::{Stub, procfs};

use crate::error::Result;

/// The kernel ignores SIGKILL and SIGSTOP in a mask.
const EVERY_SIGNAL: u64 = u64::MAX;

/// Blocks all signals in one stub thread.
pub(super) fn in_thread(stub: &Stub) -> Result<()> {
    Ok(ptrace::set_signal_mask(stub.tid(), EVERY_SIGNAL)?)
}

/// Blocks all signals in every thread of a stub's process. A process-directed signal goes to any thread that does not
/// block it.
pub(super) fn in_process(stub: &Stub) -> Result<()> {
    for tid in procfs::threads(stub.pid())? {
        ptrace::set_signal_mask(tid, EVERY_SIGNAL)?;
    }
    Ok(())
}
