//! One traced thread, as a type that shows whether it runs or is stopped.
//!
//! Owns: the transitions between the two, and the reason of a stop.
//! Invariants: registers can be reached through `Thread<Stopped>` only; resuming consumes it. A handle cannot move to
//! another OS thread, because ptrace is bound to the thread that attached.
//! Does not: stop whole trees; `freeze` does.

use std::marker::PhantomData;

use model::{Pid, Signal, Tid};
use sys::ptrace::{self, Options, Stop, WaitStatus};
use sys::{Errno, Error, Result};

use crate::procfs;
use crate::steps;
use crate::tracer;

/// The thread runs, or is about to.
#[derive(Debug)]
pub struct Running(());

/// The thread stands still in an event stop, from which it can be steered.
#[derive(Debug)]
pub struct Stopped {
    /// The stop signal when the whole process had been stopped by one (SIGSTOP and relatives).
    pub group_stop: Option<Signal>,
}

/// A thread that this OS thread traces.
#[derive(Debug)]
pub struct Thread<State> {
    tid: Tid,
    pid: Pid,
    pub(crate) options: Options,
    pub(crate) state: State,
    bound_to_tracer: PhantomData<*const ()>,
}

/// What came of waiting for a stop.
#[derive(Debug)]
pub(crate) enum StopOutcome {
    /// It stands.
    Stopped(Thread<Stopped>),
    /// It stands at the creation of another task of this number; that one is attached too.
    Created(Thread<Running>, Tid),
    /// It ended first.
    Gone,
    /// Not yet.
    Pending(Thread<Running>),
}

impl<State> Thread<State> {
    /// The thread's number.
    pub fn tid(&self) -> Tid {
        self.tid
    }

    /// The process it belongs to.
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

    /// A thread that is attached already: by an earlier step, or by the kernel with the options of its creator.
    pub(crate) fn attached(pid: Pid, tid: Tid, options: Options) -> Self {
        tracer::attached(tid);
        Self { tid, pid, options, state: Running(()), bound_to_tracer: PhantomData }
    }

    /// The thread that was created with this number: the kernel has attached it because its creator is. `None` when it
    /// has been reaped, or is known already.
    pub(crate) fn adopted(tid: Tid, options: Options) -> Option<Self> {
        let text = procfs::read(format!("/proc/{tid}/status")).ok()?;
        let pid = Pid(procfs::status_line(&text, "Tgid")?.parse().ok()?);
        (!tracer::is_attached(tid)).then(|| Self::attached(pid, tid, options))
    }

    /// Asks the thread to stop.
    pub fn interrupt(&self) -> Result<()> {
        ptrace::interrupt(self.tid)
    }

    /// Looks once whether the thread has come to a stop. After an error it stays attached.
    pub(crate) fn look(self) -> std::result::Result<StopOutcome, (Self, Error)> {
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
            // Killed while it stood: the next look takes its end.
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
        // Any other stop cancels the request to stop, so it is made again before going on.
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
    /// The stop signal when the process had been stopped by one before.
    pub fn group_stop(&self) -> Option<Signal> {
        self.state.group_stop
    }

    /// Gives it other options.
    pub(crate) fn set_options(&mut self, options: Options) -> Result<()> {
        ptrace::set_options(self.tid, options)?;
        self.options = options;
        Ok(())
    }

    /// Lets the thread go on, still attached. The end of one that was killed meanwhile is seen by the next look.
    pub fn resume(self) -> Result<Thread<Running>> {
        tracer::with_calls(|calls| calls.goes_on(self.pid, self.tid));
        let is_held = self.state.group_stop.is_some();
        match if is_held { ptrace::listen(self.tid) } else { ptrace::resume(self.tid, None) } {
            Err(error) if error.errno != Errno::ESRCH => {
                tracer::lose(self.tid);
                Err(error)
            }
            _ => Ok(self.with(Running(()))),
        }
    }

    /// Lets the thread go for good; a thread that has died meanwhile is not an error.
    pub fn detach(self) -> Result<()> {
        tracer::with_calls(|calls| calls.goes_on(self.pid, self.tid));
        match ptrace::detach(self.tid, None) {
            Err(error) if error.errno == Errno::ESRCH => {
                tracer::note_end(self.pid, self.tid);
                Ok(())
            }
            outcome => {
                tracer::detached(self.tid);
                outcome
            }
        }
    }
}
