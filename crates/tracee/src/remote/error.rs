//! The error type of remote calls.
//!
//! Owns: `RemoteError`.
//! Does not: advise the user; the crates above do.

use model::{Pid, Signal, Tid};
use sys::{Errno, Error};

use crate::arch::numbers::Named;

/// An error of a remote call.
#[derive(Debug, thiserror::Error)]
pub enum RemoteError {
    /// The system call itself failed.
    #[error("{call} in thread {tid} failed: {errno}", call = Named(*number))]
    Refused {
        /// The thread that made the call.
        tid: Tid,
        /// Number of the system call.
        number: i64,
        /// Error number of the kernel.
        errno: Errno,
    },
    /// The program's code lacks the instruction sequences for a remote call.
    #[error("pid {0} has no `syscall; ret` and signal restorer in its code")]
    NoGadget(Pid),
    /// The process has no memory that is provably unused.
    #[error("thread {0} has no unused stack for a signal frame")]
    NoStack(Tid),
    /// The thread runs 32-bit code.
    #[error("thread {0} runs 32-bit code, in which no remote system call can be made")]
    Foreign(Tid),
    /// The thread received a signal that cannot be blocked.
    #[error("thread {tid} met signal {signal} during a remote system call")]
    Signalled {
        /// The thread.
        tid: Tid,
        /// The signal.
        signal: Signal,
    },
    /// A chain of calls ended early.
    #[error("thread {tid} left a chain of system calls at link {link}")]
    Broken {
        /// The thread.
        tid: Tid,
        /// Index of the first call without a result, counted from 0.
        link: usize,
    },
    /// The thread ended.
    #[error("thread {0} ended during a remote system call")]
    Ended(Tid),
    /// A request of the tracer failed.
    #[error(transparent)]
    Kernel(#[from] Error),
}
