//! Blocks signals in a stub.
//!
//! Owns: blocking every signal in the threads of a process under construction.
//! Invariants: a signal from a restored timer stays pending until the threads run. Without the block, the stub would
//! receive the signal, and the restored program would lose the signal.
//! Does not: set the signal masks with which the threads continue. The engine sets these masks last.

use sys::ptrace;
use tracee::{Stub, procfs};

use crate::error::Result;

/// The mask of all signals. The kernel ignores SIGKILL and SIGSTOP in a mask.
const EVERY_SIGNAL: u64 = u64::MAX;

/// Blocks all signals in one thread of a stub.
pub(super) fn in_thread(stub: &Stub) -> Result<()> {
    Ok(ptrace::set_signal_mask(stub.tid(), EVERY_SIGNAL)?)
}

/// Blocks all signals in every thread of a stub. All threads need the block, because the kernel delivers a
/// process-directed signal to any thread that does not block the signal.
pub(super) fn in_process(stub: &Stub) -> Result<()> {
    for tid in procfs::threads(stub.pid())? {
        ptrace::set_signal_mask(tid, EVERY_SIGNAL)?;
    }
    Ok(())
}
