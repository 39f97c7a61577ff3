//! One traced thread, as a type that shows whether the thread runs or is stopped.
//!
//! Owns: the transitions between the two states, and the reason of a stop.
//! Invariants: only `Thread<Stopped>` gives access to registers, and resuming consumes it. A handle cannot
//! move to another OS thread, because only the thread that attached can use ptrace.
//! Does not: stop whole trees; `freeze` does.

use std::marker::PhantomData;

use model::{Pid, Signal, Tid};
use sys::ptrace::{self, Options, Stop, WaitStatus};
use sys::{Errno, Error, Result};

use crate::procfs;
use crate::steps;
use crate::tracer;

/// The thread runs, or will run immediately.
#[derive(Debug)]
pub struct Running(());

/// The thread is in an event stop, in which a tracer can control it.
#[derive(Debug)]
pub struct Stopped {
    /// The stop signal, if the whole process was in a group stop (by SIGSTOP or another stop signal).
    pub group_stop: Option<Signal>,
}

/// A thread that the calling OS thread traces.
#[derive(Debug)]
pub struct Thread<State> {
    tid: Tid,
    pid: Pid,
    pub(crate) options: Options,
    pub(crate) state: State,
    bound_to_tracer: PhantomData<*const ()>,
}

#[derive(Debug)]
pub(crate) enum StopOutcome {
    /// The thread is stopped.
    Stopped(Thread<Stopped>),
    /// The thread has created a task with this tid, and was resumed. The kernel has attached the new task,
    /// too.
    Created(Thread<Running>, Tid),
    /// The thread has ended.
    Gone,
    /// The thread is not stopped yet.
    Pending(Thread<Running>),
}

impl<State> Thread<State> {
    /// Returns the tid of the thread.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// Returns the pid of the thread's process.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    fn with<Next>(self, state: Next) -> Thread<Next> {
        let Self { tid, pid, options, .. } = self;
        Thread { tid, pid, options, state, bound_to_tracer: PhantomData }
    }
}

impl Thread<Running> {
    /// Attaches to a thread without stopping it.
    pub fn seize(pid: Pid, tid: Tid, options: Options) -> Result<Self> {
        ptrace::seize(tid, options)?;
        Ok(Self::attached(pid, tid, options))
    }

    /// Returns the handle of a thread that is already attached, either by an earlier step or by the kernel,
    /// with the options of its creator.
    pub(crate) fn attached(pid: Pid, tid: Tid, options: Options) -> Self {
        tracer::attached(tid);
        Self { tid, pid, options, state: Running(()), bound_to_tracer: PhantomData }
    }

    /// Returns the handle of a new thread that the kernel has attached because its creator is attached.
    /// Returns `None` if the thread was reaped, or if a handle already exists.
    pub(crate) fn adopted(tid: Tid, options: Options) -> Option<Self> {
        let text = procfs::read(format!("/proc/{tid}/status")).ok()?;
        let pid = Pid(procfs::status_line(&text, "Tgid")?.parse().ok()?);
        (!tracer::is_attached(tid)).then(|| Self::attached(pid, tid, options))
    }

    /// Asks the thread to stop.
    pub fn interrupt(&self) -> Result<()> {
        ptrace::interrupt(self.tid)
    }

    /// Checks once whether the thread is stopped. After an error, the thread stays attached.
    pub(crate) fn check_stop(self) -> std::result::Result<StopOutcome, (Self, Error)> {
        let stop = match tracer::inspect(self.pid, self.tid) {
            Ok(Some(WaitStatus::Stopped(stop))) => stop,
            Ok(Some(_)) => return Ok(StopOutcome::Gone),
            Ok(None) => return Ok(StopOutcome::Pending(self)),
            Err(error) if error.errno == Errno::ECHILD => return Ok(StopOutcome::Gone),
            Err(error) => {
                tracer::attached(self.tid);
                return Err((self, error));
            }
        };
        match self.judge(stop) {
            // The thread was killed during its stop. The next check reaps it.
            Err((thread, error)) if error.errno == Errno::ESRCH => Ok(StopOutcome::Pending(thread)),
            outcome => outcome,
        }
    }

    fn judge(self, stop: Stop) -> std::result::Result<StopOutcome, (Self, Error)> {
        steps::reach("stop seen");
        let group_stop = if let Stop::Group(signal) = stop { Some(signal) } else { None };
        if stop == Stop::Event || group_stop.is_some() {
            if let Err(error) = tracer::with_calls(|calls| calls.hide_stop(self.pid, self.tid)) {
                return Err((self, error));
            }
            steps::reach("stop judged");
            return Ok(StopOutcome::Stopped(self.with(Stopped { group_stop })));
        }
        // Every other stop cancels the request to stop, so the request is repeated before the thread is
        // resumed.
        let go_on = || {
            let created = if stop == Stop::Creation { ptrace::event_message(self.tid)? } else { 0 };
            self.interrupt()?;
            steps::reach("stop about to be left");
            ptrace::resume(self.tid, stop.carried())?;
            steps::reach("stop left");
            Ok(created)
        };
        match go_on() {
            Ok(0) => Ok(StopOutcome::Pending(self)),
            Ok(created) => Ok(StopOutcome::Created(self, Tid(created as i32))),
            Err(error) => Err((self, error)),
        }
    }
}

impl Thread<Stopped> {
    /// Returns the stop signal if the process was in a group stop.
    pub fn group_stop(&self) -> Option<Signal> {
        self.state.group_stop
    }

    /// Sets whether the kernel kills the process if this process ends.
    pub(crate) fn set_end_with_tracer(&mut self, ends: bool) -> Result<()> {
        let options = if ends {
            self.options.with(Options::EXIT_KILL)
        } else {
            self.options.without(Options::EXIT_KILL)
        };
        self.set_options(options)
    }

    /// Sets other ptrace options.
    pub(crate) fn set_options(&mut self, options: Options) -> Result<()> {
        ptrace::set_options(self.tid, options)?;
        self.options = options;
        Ok(())
    }

    /// Resumes the thread, and continues to trace it. If the thread was killed meanwhile, the next check
    /// notices this.
    pub fn resume(self) -> Result<Thread<Running>> {
        tracer::with_calls(|calls| calls.before_resume(self.pid, self.tid));
        let is_held = self.state.group_stop.is_some();
        match if is_held { ptrace::listen(self.tid) } else { ptrace::resume(self.tid, None) } {
            Err(error) if error.errno != Errno::ESRCH => {
                tracer::record_lost(self.tid);
                Err(error)
            }
            _ => Ok(self.with(Running(()))),
        }
    }

    /// Resumes and detaches the thread. It is no error if the thread has died meanwhile.
    pub fn detach(self) -> Result<()> {
        tracer::with_calls(|calls| calls.before_resume(self.pid, self.tid));
        match ptrace::detach(self.tid, None) {
            Err(error) if error.errno == Errno::ESRCH => {
                tracer::record_end(self.pid, self.tid);
                Ok(())
            }
            outcome => {
                tracer::detached(self.tid);
                outcome
            }
        }
    }
}
