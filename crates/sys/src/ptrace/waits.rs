//! Waits for tracees and children, and decodes why a tracee or child stopped or ended.
//!
//! Owns: the decoding of wait(2) statuses into typed stops.
//! Invariants: only [`wait`], [`poll`], [`take_end`] and [`await_end`] *consume* a wait status: the next wait does
//! not report the same status. All other functions leave the status unread, so the next wait reports the status
//! again.
//! Does not: set a deadline; `wait_timer` interrupts a wait.
//!
//! Man page: wait(2), ptrace(2)
//! Since: Linux 5.4 (waitid(2) with __WALL 4.7)
//! Probe: `features::REGISTRY` entry "ptrace"
//! Fallback: none; a tracer learns of a stop only by waiting

use std::mem::MaybeUninit;

use model::{Signal, Tid};

use super::requests::request;
use crate::error::{Errno, Error, Result};

/// A change of state of a tracee or child, as wait(2) reports the change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitStatus {
    /// The tracee or child exited with this status.
    Exited(i32),
    /// The tracee or child was killed by this signal.
    Killed(Signal),
    /// The tracee or child is stopped.
    Stopped(Stop),
}

/// The reason why a tracee is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// The tracer interrupted the tracee, or the tracee is a new thread or process that was attached at its
    /// creation.
    Event,
    /// A signal stopped the whole process of the tracee (group-stop).
    Group(Signal),
    /// This signal is about to be delivered (signal-delivery-stop).
    Delivery(Signal),
    /// The tracee enters or leaves a system call.
    Syscall,
    /// The tracee created a thread or process. [`event_message`] returns the tid of the new thread or process.
    Creation,
    /// The process of the tracee has called execve(2). [`event_message`] returns the former tid of the tracee.
    Exec,
    /// A seccomp filter has stopped a system call. [`event_message`] returns the data of the filter.
    Seccomp,
    /// The tracee exits. [`event_message`] returns the exit status.
    Exit,
    /// Another event, with its PTRACE_EVENT_* number.
    Other(i32),
}

impl Stop {
    /// Returns the signal of a signal-delivery-stop. The tracer must resume the tracee with this signal, or the
    /// signal is lost.
    #[must_use]
    pub const fn carried(self) -> Option<Signal> {
        if let Self::Delivery(signal) = self { Some(signal) } else { None }
    }

    const fn decode(signal: i32, event: i32) -> Self {
        const SYSCALL: i32 = libc::SIGTRAP | 0x80;
        match (event, signal) {
            (0, SYSCALL) => Self::Syscall,
            (0, _) => Self::Delivery(Signal(signal)),
            (libc::PTRACE_EVENT_STOP, libc::SIGTRAP) => Self::Event,
            (libc::PTRACE_EVENT_STOP, _) => Self::Group(Signal(signal)),
            (libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE, _) => {
                Self::Creation
            }
            (libc::PTRACE_EVENT_EXIT, _) => Self::Exit,
            (libc::PTRACE_EVENT_EXEC, _) => Self::Exec,
            (libc::PTRACE_EVENT_SECCOMP, _) => Self::Seccomp,
            (event, _) => Self::Other(event),
        }
    }
}

/// Reads the number that came with the last event stop: the tid of a new thread or process, or an exit status.
pub fn event_message(tid: Tid) -> Result<u64> {
    let mut message: libc::c_ulong = 0;
    request("read the event message", libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut message) as usize)?;
    Ok(message)
}

/// Waits for the next change of one tracee or child, and consumes the wait status.
pub fn wait(tid: Tid) -> Result<WaitStatus> {
    loop {
        match wait_with(tid, libc::__WALL) {
            Ok(Some(status)) => return Ok(status),
            Ok(None) => {}
            Err(error) if error.errno == Errno(libc::EINTR) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Consumes the wait status of one tracee or child without blocking; `None` if no change has happened.
pub fn poll(tid: Tid) -> Result<Option<WaitStatus>> {
    wait_with(tid, libc::__WALL | libc::WNOHANG)
}

/// Returns the status of a tracee that is stopped or has ended, without consuming the status.
///
/// This matters if the tracer dies during a signal-delivery-stop. If the status was not consumed, the kernel
/// delivers the signal. If the status was consumed, the kernel no longer stores the signal, and the signal is lost.
pub fn peek(tid: Tid) -> Result<Option<WaitStatus>> {
    inspect(libc::P_PID, tid, libc::WNOHANG).map(|seen| seen.map(|(_, status)| status))
}

/// Blocks until a tracee of the calling thread is stopped or has ended. Does not consume the status. Returns `None`
/// when a signal interrupted the wait.
pub fn await_change(tid: Tid) -> Result<Option<WaitStatus>> {
    await_one(libc::P_PID, tid).map(|seen| seen.map(|(_, status)| status))
}

/// Blocks until any tracee or child of the calling thread is stopped or has ended. Does not consume the status.
/// Returns `None` when a signal interrupted the wait.
pub fn await_any() -> Result<Option<Tid>> {
    await_one(libc::P_ALL, Tid(0)).map(|seen| seen.map(|(tid, _)| tid))
}

/// Reports whether the calling thread has tracees or children.
#[must_use]
pub fn has_tracees() -> bool {
    // ECHILD means that the thread has no tracees and no children. Any other error is treated like ECHILD.
    inspect(libc::P_ALL, Tid(0), libc::WNOHANG | libc::__WNOTHREAD).is_ok()
}

/// Reaps a task (a tracee or child of this process) if the task has ended. Returns whether the task has ended.
///
/// The status of a stop is not consumed. Without the check, waitpid(2) would consume such a status: waitpid(2)
/// reports the stops of a tracee even to a caller that asks only for ends.
pub fn take_end(tid: Tid) -> Result<bool> {
    match peek(tid)? {
        Some(WaitStatus::Exited(_) | WaitStatus::Killed(_)) => poll(tid).map(|_| true),
        _ => Ok(false),
    }
}

/// Blocks until a task (a tracee or child of this process) has ended, and reaps the task. Returns false when the
/// task is stopped, or when a signal interrupted the wait.
pub fn await_end(tid: Tid) -> Result<bool> {
    match inspect(libc::P_PID, tid, 0) {
        Ok(_) => take_end(tid),
        Err(error) if error.errno.0 == libc::EINTR => Ok(false),
        Err(error) => Err(error),
    }
}

fn await_one(kind: libc::idtype_t, tid: Tid) -> Result<Option<(Tid, WaitStatus)>> {
    match inspect(kind, tid, libc::__WNOTHREAD) {
        Err(error) if error.errno.0 == libc::EINTR => Ok(None),
        outcome => outcome,
    }
}

fn inspect(kind: libc::idtype_t, tid: Tid, flags: libc::c_int) -> Result<Option<(Tid, WaitStatus)>> {
    let mut information = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WEXITED | libc::WSTOPPED | libc::WNOWAIT | libc::__WALL | flags;
    // SAFETY: `information` is writable for one siginfo_t. The kernel checks the tid.
    let result = unsafe { libc::waitid(kind, tid.get() as libc::id_t, information.as_mut_ptr(), flags) };
    Errno::check(result).map_err(|errno| Error::thread("wait for a change", tid, errno))?;
    // SAFETY: `information` was zeroed, and any bytes are a valid siginfo_t.
    let information = unsafe { information.assume_init() };
    // SAFETY: the fields are those of a siginfo_t for a change of a child. All bytes were initialised before the
    // call.
    let (changed, status) = unsafe { (information.si_pid(), information.si_status()) };
    let seen = match information.si_code {
        _ if changed == 0 => return Ok(None),
        libc::CLD_TRAPPED | libc::CLD_STOPPED => {
            WaitStatus::Stopped(Stop::decode(status & 0xff, status >> 8))
        }
        libc::CLD_EXITED => WaitStatus::Exited(status),
        _ => WaitStatus::Killed(Signal(status & 0x7f)),
    };
    Ok(Some((Tid(changed), seen)))
}

fn wait_with(tid: Tid, flags: libc::c_int) -> Result<Option<WaitStatus>> {
    let mut status = MaybeUninit::<libc::c_int>::uninit();
    // SAFETY: `status` is writable for one int. The kernel fills `status` when it returns a pid.
    let result = unsafe { libc::waitpid(tid.get(), status.as_mut_ptr(), flags) };
    match result {
        0 => Ok(None),
        -1 => Err(Error::thread("wait for a change", tid, Errno::last())),
        // SAFETY: waitpid returned a pid, so the kernel wrote the status.
        _ => Ok(Some(decode(unsafe { status.assume_init() }))),
    }
}

fn decode(status: libc::c_int) -> WaitStatus {
    if libc::WIFEXITED(status) {
        WaitStatus::Exited(libc::WEXITSTATUS(status))
    } else if libc::WIFSIGNALED(status) {
        WaitStatus::Killed(Signal(libc::WTERMSIG(status)))
    } else {
        WaitStatus::Stopped(Stop::decode(libc::WSTOPSIG(status), status >> 16))
    }
}
