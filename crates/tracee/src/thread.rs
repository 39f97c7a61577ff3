//! One traced thread, as a type that says whether it runs or stands.
//!
//! Owns: the transitions between the two, and what a stop was.
//! Invariants: registers can be reached through `Thread<Stopped>` alone; resuming consumes it. A handle cannot
//! move to another OS thread, because ptrace is bound to the one that attached.
//! Does not: stop whole trees; `freeze` does.

use std::marker::PhantomData;
use std::time::{Duration, Instant};

use model::{Pid, Signal, Tid};
use sys::ptrace::{self, WaitStatus};
use sys::{Errno, Error, Result};

use crate::reaper;
use crate::steps;
use crate::urgency::is_urgent;
use crate::waits;

/// PTRACE_EVENT_STOP.
pub(crate) const EVENT_STOP: i32 = 128;
/// A stop at a system call, with PTRACE_O_TRACESYSGOOD.
pub(crate) const SYSCALL_STOP: Signal = Signal(5 | 0x80);
/// SIGTRAP.
pub(crate) const TRAP: Signal = Signal(5);

/// ECHILD: nothing of that number is ours to wait for.
const NO_SUCH_CHILD: Errno = Errno(10);

/// How long a wait spins before it starts to sleep: waking a halted virtual CPU costs more than this.
const SPIN: Duration = Duration::from_micros(300);
/// How long one sleep between looks lasts then.
const NAP: Duration = Duration::from_micros(50);

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
    state: State,
    bound_to_tracer: PhantomData<*const ()>,
}

/// The same for a tracer with real-time priority: what it waits for may need this very processor, and does not get it
/// by a yield.
const SPIN_URGENT: Duration = Duration::from_micros(10);
/// How long such a tracer sleeps between looks; with its priority, the kernel adds no slack.
const NAP_URGENT: Duration = Duration::from_micros(5);

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
        Thread { tid: self.tid, pid: self.pid, state, bound_to_tracer: PhantomData }
    }
}

impl Thread<Running> {
    /// Attaches to a thread without stopping it.
    pub fn seize(pid: Pid, tid: Tid, options: u64) -> Result<Self> {
        ptrace::seize(tid, options)?;
        Ok(Self::attached(pid, tid))
    }

    /// A thread that the kernel attached on its own because its creator is traced.
    pub(crate) fn attached(pid: Pid, tid: Tid) -> Self {
        Self { tid, pid, state: Running(()), bound_to_tracer: PhantomData }
    }

    /// Asks the thread to stop.
    pub fn interrupt(&self) -> Result<()> {
        ptrace::interrupt(self.tid)
    }

    /// Looks once whether the thread has come to a stop.
    pub(crate) fn look(self) -> Result<StopOutcome> {
        let status = match reaper::look(self.pid, self.tid) {
            Ok(Some(status)) => status,
            Ok(None) => return Ok(StopOutcome::Pending(self)),
            Err(error) if error.errno == NO_SUCH_CHILD => return Ok(StopOutcome::Gone),
            Err(error) => return Err(error),
        };
        match self.judge(status) {
            // Killed while it stood: the next look takes its end.
            Err((thread, error)) if error.errno == Errno::ESRCH => Ok(StopOutcome::Pending(thread)),
            Err((_, error)) => Err(error),
            Ok(outcome) => Ok(outcome),
        }
    }

    fn judge(self, status: WaitStatus) -> std::result::Result<StopOutcome, (Self, Error)> {
        const CREATIONS: [i32; 3] = [1, 2, 3];
        let WaitStatus::Stopped { signal, event } = status else {
            return Ok(StopOutcome::Gone);
        };
        steps::reach("stop seen");
        if event == EVENT_STOP {
            if let Err(error) = waits::hide_stop(self.pid, self.tid) {
                return Err((self, error));
            }
            steps::reach("stop judged");
            let group_stop = (signal != TRAP).then_some(signal);
            return Ok(StopOutcome::Stopped(self.with(Stopped { group_stop })));
        }
        // Any other stop cancels the request to stop, so it is made again before going on.
        let injected = (event == 0 && signal != SYSCALL_STOP).then_some(signal);
        let go_on = || {
            let created = if CREATIONS.contains(&event) { ptrace::event_message(self.tid)? } else { 0 };
            self.interrupt()?;
            steps::reach("stop about to be left");
            ptrace::resume(self.tid, injected)?;
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

    /// Notes that the process has been stopped by a signal since, or goes on again.
    pub(crate) fn set_group_stop(&mut self, signal: Option<Signal>) {
        self.state.group_stop = signal;
    }

    /// Lets the thread go on, still attached.
    pub fn resume(self) -> Result<Thread<Running>> {
        waits::goes_on(self.pid, self.tid);
        if self.state.group_stop.is_some() {
            ptrace::listen(self.tid)?;
        } else {
            ptrace::resume(self.tid, None)?;
        }
        Ok(self.with(Running(())))
    }

    /// Lets the thread go for good; a thread that has died meanwhile is not an error.
    pub fn detach(self) -> Result<()> {
        waits::goes_on(self.pid, self.tid);
        match ptrace::detach(self.tid, None) {
            Err(error) if error.errno == Errno::ESRCH => {
                reaper::bury(self.pid, self.tid);
                Ok(())
            }
            outcome => outcome,
        }
    }
}

/// Waits in small steps up to a limit: spinning first, then sleeping.
pub(crate) struct Waiter {
    started: Instant,
    limit: Duration,
}

impl Waiter {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { started: Instant::now(), limit }
    }

    /// How long it has been waiting.
    pub(crate) fn waited(&self) -> Duration {
        self.started.elapsed()
    }

    /// One step; false once the limit has passed.
    pub(crate) fn pause(&mut self) -> bool {
        let waited = self.started.elapsed();
        match is_urgent() {
            true if waited < SPIN_URGENT => std::hint::spin_loop(),
            true if waited < SPIN => std::thread::sleep(NAP_URGENT),
            false if waited < SPIN => std::thread::yield_now(),
            _ => std::thread::sleep(NAP),
        }
        waited < self.limit
    }
}
