//! A stop of one thread of an attached tree, with its reason.
//!
//! Owns: the translation of stops into typed reasons, and the resumption of a thread after each of them.
//! Invariants: a signal that is about to be delivered is delivered, unless the client replaces it. A thread in a group
//! stop stays in the group stop. The kernel says whether a stop is an entry or an exit of a system call.
//! Does not: wait for stops; `attach` does.

use std::marker::PhantomData;

use model::{Pid, Signal, Tid};
use sys::ptrace::{self, CallPhase, Stop};
use sys::{Error, Result};

/// Why a thread is stopped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StopKind {
    /// The tracer has asked for the stop, or the thread is new, or a group stop has ended.
    Event,
    /// A signal stopped the whole process.
    Group(Signal),
    /// This signal is about to be delivered.
    Delivery(Signal),
    /// The thread enters the system call with this number.
    SyscallEntry(i64),
    /// The thread leaves a system call with this result. Errors are negative.
    SyscallExit(i64),
    /// A seccomp filter has stopped the system call with this number. Contains the data of the filter, too.
    Seccomp(i64, u64),
    /// The thread has created this thread or process, which is attached, too.
    Created(Tid),
    /// The process has called execve(2) in the thread that had this tid.
    Exec(Tid),
    /// The thread exits with this wait status.
    Exiting(i32),
    /// Another event, with its PTRACE_EVENT_* number.
    Other(i32),
}

/// How far a thread runs when it is resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Continue {
    /// To the next stop of another kind than a system call.
    Freely,
    /// At most to the next entry or exit of a system call.
    ToSyscall,
}

/// A stopped thread of an attached tree. If the value is dropped, the thread stays stopped until the tree is detached.
#[derive(Debug)]
pub struct ThreadStop {
    /// The process of the thread.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// The reason.
    pub kind: StopKind,
    /// The number of stops of the thread so far. A value of an earlier stop has no effect.
    pub(crate) serial: u64,
    pub(crate) bound_to_tracer: PhantomData<*const ()>,
}

impl StopKind {
    /// Reads the reason of a stop of a thread.
    pub(crate) fn of(tid: Tid, stop: Stop) -> Result<Self> {
        Ok(match stop {
            Stop::Event => Self::Event,
            Stop::Group(signal) => Self::Group(signal),
            Stop::Delivery(signal) => Self::Delivery(signal),
            Stop::Creation => Self::Created(Tid(ptrace::event_message(tid)? as i32)),
            Stop::Exec => Self::Exec(Tid(ptrace::event_message(tid)? as i32)),
            Stop::Exit => Self::Exiting(ptrace::event_message(tid)? as i32),
            Stop::Other(event) => Self::Other(event),
            Stop::Syscall | Stop::Seccomp => match ptrace::call_phase(tid)? {
                CallPhase::Entry(number) => Self::SyscallEntry(number),
                CallPhase::Exit(result) => Self::SyscallExit(result),
                CallPhase::Seccomp(number) => Self::Seccomp(number, ptrace::event_message(tid)?),
                CallPhase::Outside => Self::Other(0),
            },
        })
    }

    /// Reports whether a client can read and change the whole state of the thread, and make remote calls in it.
    #[must_use]
    pub const fn is_quiet(self) -> bool {
        matches!(self, Self::Event | Self::Group(_))
    }

    /// Returns the signal that must be delivered when the thread is resumed.
    #[must_use]
    pub const fn carried(self) -> Option<Signal> {
        if let Self::Delivery(signal) = self { Some(signal) } else { None }
    }

    pub(crate) fn leave(
        self,
        tid: Tid,
        how: Continue,
        signal: Option<Signal>,
    ) -> std::result::Result<(), Error> {
        match (self, how) {
            (Self::Group(_), _) => ptrace::listen(tid),
            (_, Continue::Freely) => ptrace::resume(tid, signal),
            (_, Continue::ToSyscall) => ptrace::resume_to_syscall(tid, signal),
        }
    }
}
