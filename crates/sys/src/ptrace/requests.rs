//! Attaching to a thread, stopping, resuming and leaving it.
//!
//! Owns: the options of a tracee, and the call of ptrace(2) for all requests.
//! Does not: know which stop a thread is in.
//!
//! Man page: ptrace(2)
//! Since: Linux 5.4 (PTRACE_SEIZE 3.4)
//! Probe: `features::REGISTRY` entry "ptrace"
//! Fallback: none; without ptrace nothing can be stopped

use libc::c_void;
use model::{Signal, Tid};

use crate::error::{Errno, Error, Result};

/// Options of a tracee, composed of what the clients of its tracer need.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options(u64);

impl Options {
    /// No option.
    pub const NONE: Self = Self(0);
    /// Syscall stops are distinguished from stops by SIGTRAP.
    pub const SYSCALL_GOOD: Self = Self(libc::PTRACE_O_TRACESYSGOOD as u64);
    /// A thread that creates a thread stops, and so does the new one.
    pub const CLONE: Self = Self(libc::PTRACE_O_TRACECLONE as u64);
    /// A process that forks stops, and so does the child.
    pub const FORK: Self = Self(libc::PTRACE_O_TRACEFORK as u64);
    /// The same for vfork.
    pub const VFORK: Self = Self(libc::PTRACE_O_TRACEVFORK as u64);
    /// An exiting thread stops while everything it owns is still there.
    pub const EXIT: Self = Self(libc::PTRACE_O_TRACEEXIT as u64);
    /// The tracee's seccomp filters are suspended while it is traced.
    pub const SUSPEND_SECCOMP: Self = Self(1 << 21);
    /// The kernel kills the tracee when the tracer ends; for processes under construction.
    pub const EXIT_KILL: Self = Self(libc::PTRACE_O_EXITKILL as u64);

    /// Both sets.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// This set without the others.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }
}

/// Attaches to a running thread without stopping it.
pub fn seize(tid: Tid, options: Options) -> Result<()> {
    request("take control", libc::PTRACE_SEIZE, tid, 0, options.0 as usize).map(drop)
}

/// Changes the stop options of a stopped tracee.
pub fn set_options(tid: Tid, options: Options) -> Result<()> {
    request("set the trace options", libc::PTRACE_SETOPTIONS, tid, 0, options.0 as usize).map(drop)
}

/// Asks a seized thread to stop; the stop arrives through [`wait`](super::wait).
pub fn interrupt(tid: Tid) -> Result<()> {
    request("request a stop", libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

/// Resumes a stopped tracee, with a signal or without.
pub fn resume(tid: Tid, signal: Option<Signal>) -> Result<()> {
    request("resume the execution", libc::PTRACE_CONT, tid, 0, signal.map_or(0, Signal::get) as usize)
        .map(drop)
}

/// Leaves a group-stopped tracee stopped, and has further events reported.
pub fn listen(tid: Tid) -> Result<()> {
    request("keep the group stop", libc::PTRACE_LISTEN, tid, 0, 0).map(drop)
}

/// Resumes a stopped tracee until it enters or leaves a system call, with a signal or without.
pub fn resume_to_syscall(tid: Tid, signal: Option<Signal>) -> Result<()> {
    let signal = signal.map_or(0, Signal::get) as usize;
    request("continue to a system call", libc::PTRACE_SYSCALL, tid, 0, signal).map(drop)
}

/// Resumes a stopped tracee for one instruction.
pub fn single_step(tid: Tid) -> Result<()> {
    request("execute an instruction", libc::PTRACE_SINGLESTEP, tid, 0, 0).map(drop)
}

/// Detaches from a stopped tracee, which runs on, with a signal or without.
pub fn detach(tid: Tid, signal: Option<Signal>) -> Result<()> {
    request("end the tracing", libc::PTRACE_DETACH, tid, 0, signal.map_or(0, Signal::get) as usize).map(drop)
}

pub(super) fn request(
    operation: &'static str,
    code: libc::c_uint,
    tid: Tid,
    address: usize,
    data: usize,
) -> Result<i64> {
    // SAFETY: every caller passes either plain numbers or pointers to live buffers of the size that the
    // request defines; the kernel validates the tid.
    let result = unsafe { libc::ptrace(code, tid.get(), address as *mut c_void, data as *mut c_void) };
    if result == -1 { Err(Error::thread(operation, tid, Errno::last())) } else { Ok(result) }
}
