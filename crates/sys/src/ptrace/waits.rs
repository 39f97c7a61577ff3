//! Waiting for tracees and children, and what they stopped or ended for.
//!
//! Owns: decoding of wait(2) statuses into typed stops.
//! Invariants: only [`wait`], [`poll`], [`take_end`] and [`await_end`] take a change; all others leave it in place.
//! Does not: set a deadline; `wait_timer` interrupts a wait.
//!
//! Man page: wait(2), ptrace(2)
//! Since: Linux 5.4 (waitid(2) with __WALL 4.7)
//! Probe: `features::REGISTRY` entry "ptrace"
//! Fallback: none; a stop is seen by waiting only

use std::mem::MaybeUninit;

use model::{Signal, Tid};

use super::requests::request;
use crate::error::{Errno, Error, Result};

/// A change of a tracee or child, as wait(2) reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WaitStatus {
    /// It exited with this status.
    Exited(i32),
    /// It was killed by this signal.
    Killed(Signal),
    /// It is stopped.
    Stopped(Stop),
}

/// Why a tracee is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stop {
    /// It was interrupted, or is a new thread that was attached with its creator.
    Event,
    /// A signal has stopped its whole process.
    Group(Signal),
    /// A signal is about to be delivered.
    Delivery(Signal),
    /// It enters or leaves a system call.
    Syscall,
    /// It has created a thread or process; [`event_message`] gives its tid.
    Creation,
    /// It exits; [`event_message`] gives the status.
    Exit,
    /// Another event, by its PTRACE_EVENT number.
    Other(i32),
}

impl Stop {
    /// The signal that the tracee must be resumed with, so that none is lost.
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
            (event, _) => Self::Other(event),
        }
    }
}

/// The number that came with the last event stop: tid of a new thread or process, exit status.
pub fn event_message(tid: Tid) -> Result<u64> {
    let mut message: libc::c_ulong = 0;
    request("read the event message", libc::PTRACE_GETEVENTMSG, tid, 0, (&raw mut message) as usize)?;
    Ok(message)
}

/// Waits for the next change of one tracee or child.
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

/// Takes the change of one tracee or child, if there is one already.
pub fn poll(tid: Tid) -> Result<Option<WaitStatus>> {
    wait_with(tid, libc::__WALL | libc::WNOHANG)
}

/// Reports whether a tracee is stopped or has ended, and takes neither.
///
/// A stop that was taken carries no signal any more: if the tracer dies at this moment, the signal that the
/// tracee stopped at is lost. The signal of an untaken stop is delivered.
pub fn peek(tid: Tid) -> Result<Option<WaitStatus>> {
    inspect(libc::P_PID, tid, libc::WNOHANG).map(|seen| seen.map(|(_, status)| status))
}

/// Blocks until a tracee of the calling thread is stopped or has ended, and takes neither; `None` when a signal
/// interrupted the wait.
pub fn await_change(tid: Tid) -> Result<Option<WaitStatus>> {
    await_one(libc::P_PID, tid).map(|seen| seen.map(|(_, status)| status))
}

/// Blocks until any tracee or child of the calling thread is stopped or has ended, and takes neither; `None` when a
/// signal interrupted the wait.
pub fn await_any() -> Result<Option<Tid>> {
    await_one(libc::P_ALL, Tid(0)).map(|seen| seen.map(|(tid, _)| tid))
}

/// Whether the calling thread has tracees, or children.
#[must_use]
pub fn has_tracees() -> bool {
    // Errors other than ECHILD tell nothing.
    inspect(libc::P_ALL, Tid(0), libc::WNOHANG | libc::__WNOTHREAD).is_ok()
}

/// Takes the end of a tracee or child of this process when it has ended; whether it has. A stop stays untaken: wait(2)
/// reports the stops of a tracee even where only ends are asked for.
pub fn take_end(tid: Tid) -> Result<bool> {
    match peek(tid)? {
        Some(WaitStatus::Exited(_) | WaitStatus::Killed(_)) => poll(tid).map(|_| true),
        _ => Ok(false),
    }
}

/// Blocks until a tracee or child of this process has ended, and takes its end; false when it is stopped, or a signal
/// interrupted the wait.
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
    // SAFETY: `information` is writable for one siginfo_t; the kernel checks the number.
    let result = unsafe { libc::waitid(kind, tid.get() as libc::id_t, information.as_mut_ptr(), flags) };
    if result == -1 {
        return Err(Error::thread("wait for a change", tid, Errno::last()));
    }
    // SAFETY: it was zeroed, and any bytes are a valid siginfo_t.
    let information = unsafe { information.assume_init() };
    // SAFETY: the fields of a child's change; all bytes are initialised whatever the kernel filled in.
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
    // SAFETY: `status` is writable for one int; the kernel fills it when it returns a pid.
    let result = unsafe { libc::waitpid(tid.get(), status.as_mut_ptr(), flags) };
    match result {
        0 => Ok(None),
        -1 => Err(Error::thread("wait for a change", tid, Errno::last())),
        // SAFETY: waitpid returned a pid, so it wrote the status.
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
