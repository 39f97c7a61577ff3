//! The ptrace(2) requests that attach to, stop, resume and detach a thread.
//!
//! Owns: the options of a tracee, and the function that calls ptrace(2) for every request.
//! Does not: record which stop a thread is in.
//!
//! Man page: ptrace(2)
//! Since: Linux 5.4 (PTRACE_SEIZE 3.4)
//! Probe: `features::REGISTRY` entry "ptrace"
//! Fallback: none; without ptrace no thread can be stopped

use libc::c_void;
use model::{Signal, Tid};

use crate::error::{Errno, Error, Result};

/// A set of PTRACE_O_* options of a tracee. The clients of a tracer combine the options that they need.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Options(u64);

impl Options {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// PTRACE_O_TRACESYSGOOD: system call stops differ from stops by SIGTRAP.
    pub const SYSCALL_GOOD: Self = Self(libc::PTRACE_O_TRACESYSGOOD as u64);
    /// PTRACE_O_TRACECLONE: a thread that creates a thread stops, and the new thread is traced and stops.
    pub const CLONE: Self = Self(libc::PTRACE_O_TRACECLONE as u64);
    /// PTRACE_O_TRACEFORK: a process that forks stops, and the child is traced and stops.
    pub const FORK: Self = Self(libc::PTRACE_O_TRACEFORK as u64);
    /// PTRACE_O_TRACEVFORK: a process that calls vfork(2) stops, and the child is traced and stops.
    pub const VFORK: Self = Self(libc::PTRACE_O_TRACEVFORK as u64);
    /// PTRACE_O_TRACEEXEC: a process that calls execve(2) stops before the new program runs.
    pub const EXEC: Self = Self(libc::PTRACE_O_TRACEEXEC as u64);
    /// PTRACE_O_TRACESECCOMP: a thread stops where a seccomp filter returns SECCOMP_RET_TRACE.
    pub const SECCOMP: Self = Self(libc::PTRACE_O_TRACESECCOMP as u64);
    /// PTRACE_O_TRACEEXIT: an exiting thread stops before the kernel releases its resources.
    pub const EXIT: Self = Self(libc::PTRACE_O_TRACEEXIT as u64);
    /// PTRACE_O_SUSPEND_SECCOMP: the seccomp filters of the tracee are suspended while the tracee is traced.
    pub const SUSPEND_SECCOMP: Self = Self(1 << 21);
    /// PTRACE_O_EXITKILL: the kernel kills the tracee when the tracer exits. Used for processes under construction.
    pub const EXIT_KILL: Self = Self(libc::PTRACE_O_EXITKILL as u64);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn with(self, others: Self) -> Self {
        Self(self.0 | others.0)
    }

    /// Returns this set without the options in `others`.
    #[must_use]
    pub const fn without(self, others: Self) -> Self {
        Self(self.0 & !others.0)
    }
}

/// Attaches to a running thread without stopping it.
pub fn seize(tid: Tid, options: Options) -> Result<()> {
    request("attach with ptrace", libc::PTRACE_SEIZE, tid, 0, options.0 as usize).map(drop)
}

/// Changes the options of a stopped tracee.
pub fn set_options(tid: Tid, options: Options) -> Result<()> {
    request("set the trace options", libc::PTRACE_SETOPTIONS, tid, 0, options.0 as usize).map(drop)
}

/// Asks a seized thread to stop. The stop is reported by [`wait`](super::wait).
pub fn interrupt(tid: Tid) -> Result<()> {
    request("request a stop", libc::PTRACE_INTERRUPT, tid, 0, 0).map(drop)
}

/// Resumes a stopped tracee. Delivers `signal`, if given.
pub fn resume(tid: Tid, signal: Option<Signal>) -> Result<()> {
    request("resume the execution", libc::PTRACE_CONT, tid, 0, signal.map_or(0, Signal::get) as usize)
        .map(drop)
}

/// Keeps a tracee in its group stop, and makes the kernel report further events.
pub fn listen(tid: Tid) -> Result<()> {
    request("keep the group stop", libc::PTRACE_LISTEN, tid, 0, 0).map(drop)
}

/// Resumes a stopped tracee until its next entry into or return from a system call. Delivers `signal`, if given.
pub fn resume_to_syscall(tid: Tid, signal: Option<Signal>) -> Result<()> {
    let signal = signal.map_or(0, Signal::get) as usize;
    request("continue to a system call", libc::PTRACE_SYSCALL, tid, 0, signal).map(drop)
}

/// Resumes a stopped tracee for the execution of one instruction.
pub fn single_step(tid: Tid) -> Result<()> {
    request("execute an instruction", libc::PTRACE_SINGLESTEP, tid, 0, 0).map(drop)
}

/// Detaches from a stopped tracee, and resumes the tracee. Delivers `signal`, if given.
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
    // SAFETY: every caller passes plain numbers, or pointers to live buffers of the size that the request defines.
    // The kernel validates the tid.
    let result = unsafe { libc::ptrace(code, tid.get(), address as *mut c_void, data as *mut c_void) };
    if result == -1 { Err(Error::thread(operation, tid, Errno::last())) } else { Ok(result) }
}
