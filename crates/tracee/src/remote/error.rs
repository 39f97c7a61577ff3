//! Why a remote call did not give a result.
//!
//! Owns: `RemoteError`.
//! Does not: advise; the crates above do.

use model::{Pid, Signal, Tid};
use sys::{Errno, Error};

use crate::arch::numbers::Named;

/// Why a remote call did not give a result.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The kernel refused the call itself.
    #[error("{call} in thread {tid} failed: {errno}", call = Named(*number))]
    Refused {
        /// The thread that made it.
        tid: Tid,
        /// The number of the call.
        number: i64,
        /// The kernel's answer.
        errno: Errno,
    },
    /// The program's code has no instruction sequence to make a call with and come back.
    #[error("pid {0} has no `syscall; ret` and signal restorer in its code")]
    NoGadget(Pid),
    /// There is no memory that is provably unused.
    #[error("thread {0} has no unused stack for a signal frame")]
    NoStack(Tid),
    /// The thread runs 32-bit code.
    #[error("thread {0} runs 32-bit code, in which no remote system call can be made")]
    Foreign(Tid),
    /// The thread met a signal that no mask holds back.
    #[error("thread {tid} met signal {signal} during a remote system call")]
    Signalled {
        /// The thread.
        tid: Tid,
        /// The signal.
        signal: Signal,
    },
    /// A chain of calls ended before its end.
    #[error("thread {tid} left a chain of system calls at link {link}")]
    Broken {
        /// The thread.
        tid: Tid,
        /// The first call without result, from 0.
        link: usize,
    },
    /// The thread ended.
    #[error("thread {0} ended during a remote system call")]
    Ended(Tid),
    /// A tracing step failed.
    #[error(transparent)]
    Kernel(#[from] Error),
}
