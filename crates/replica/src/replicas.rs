//! One replica.
//!
//! Owns: the process of a replica, and how it goes on after a stop that is no meeting.
//! Does not: decide what a stop means.

use std::time::Duration;

use model::{Pid, Signal, Tid};
use sys::ptrace::{self, Registers, SiginfoBytes};
use tracee::ProcessMemory;

use crate::error::Result;

/// How a replica runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    /// To its next meeting.
    ToMeeting,
    /// To the end of the call in which it is stopped.
    ToReturn,
}

/// Why a replica is stopped, or has ended.
#[derive(Clone, Debug)]
pub(crate) enum Arrival {
    /// It begins a system call, which is not executed yet. `foreign`: a call of another architecture.
    Call { registers: Registers, foreign: bool },
    /// It has executed the call.
    Return(Registers),
    /// A signal is about to be delivered.
    Signal { signal: Signal, information: Box<SiginfoBytes>, registers: Registers },
    /// It has exited with this status.
    Exited(i32),
    /// It was killed by this signal.
    Killed(Signal),
}

impl Arrival {
    /// Returns the kind of the arrival for people.
    pub(crate) fn shown(&self) -> String {
        match self {
            Self::Call { registers, .. } => {
                format!("calls {}", crate::calls::name(registers.orig_rax as i64))
            }
            Self::Return(_) => "returns from a call".to_owned(),
            Self::Signal { signal, registers, .. } => {
                format!("gets signal {signal} at {:#x}", registers.rip)
            }
            Self::Exited(status) => format!("exits with status {status}"),
            Self::Killed(signal) => format!("is killed by signal {signal}"),
        }
    }
}

/// One copy of the program: a process with one thread.
#[derive(Debug)]
pub(crate) struct Replica {
    pid: Pid,
    pub(crate) memory: ProcessMemory,
    mode: Mode,
    /// Its processor time at the last meeting.
    used_before: Duration,
    /// The process was reaped. Its pid can belong to another process.
    pub(crate) has_ended: bool,
}

impl Replica {
    /// Takes over a stopped process that this thread traces.
    pub(crate) fn new(pid: Pid) -> Result<Self> {
        Ok(Self {
            pid,
            memory: ProcessMemory::open(pid)?,
            mode: Mode::ToMeeting,
            used_before: Duration::ZERO,
            has_ended: false,
        })
    }

    pub(crate) const fn pid(&self) -> Pid {
        self.pid
    }

    pub(crate) const fn tid(&self) -> Tid {
        self.pid.leader()
    }

    /// Resumes the replica, with a signal if it is stopped at the delivery of one.
    pub(crate) fn resume(&mut self, mode: Mode, signal: Option<Signal>) -> Result<()> {
        self.mode = mode;
        self.go_on(signal)
    }

    /// Resumes the replica after a stop that is no meeting.
    pub(crate) fn go_on(&self, signal: Option<Signal>) -> Result<()> {
        match self.mode {
            Mode::ToMeeting => ptrace::resume(self.tid(), signal)?,
            Mode::ToReturn => ptrace::resume_to_syscall(self.tid(), signal)?,
        }
        Ok(())
    }

    /// Returns the processor time since the last call of [`Self::begin_interval`].
    pub(crate) fn used(&self) -> Duration {
        self.processor_time().saturating_sub(self.used_before)
    }

    pub(crate) fn begin_interval(&mut self) {
        self.used_before = self.processor_time();
    }

    /// Returns the processor time of the replica; zero if it has ended.
    fn processor_time(&self) -> Duration {
        let path = format!("/proc/{0}/task/{0}/schedstat", self.pid);
        let text = tracee::procfs::read_text(path).unwrap_or_default();
        let nanoseconds = text.split(' ').next().and_then(|word| word.parse().ok());
        Duration::from_nanos(nanoseconds.unwrap_or(0))
    }
}
