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
use sys::wait_timer::Ticks;
use sys::{Errno, Error, Result};

use crate::reaper;
use crate::steps;
use crate::waits;

/// PTRACE_EVENT_STOP.
pub(crate) const EVENT_STOP: i32 = 128;
/// A stop at a system call, with PTRACE_O_TRACESYSGOOD.
pub(crate) const SYSCALL_STOP: Signal = Signal(5 | 0x80);
/// SIGTRAP.
pub(crate) const TRAP: Signal = Signal(5);

/// ECHILD: nothing of that number is ours to wait for.
const NO_SUCH_CHILD: Errno = Errno(10);

/// How often a wait comes back to see what the kernel does not report: a limit that has passed, the end of a leader
/// before that of its other threads.
const TICK: Duration = Duration::from_millis(1);

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

/// Blocks until a traced thread is stopped, and leaves the stop untaken; `None` when the thread has ended.
///
/// # Errors
///
/// ETIMEDOUT, with this operation, when it does neither within the limit.
pub(crate) fn await_stop(
    (pid, tid): (Pid, Tid),
    limit: Duration,
    operation: &'static str,
) -> Result<Option<(Signal, i32)>> {
    let mut waiter = Waiter::new(limit);
    loop {
        match reaper::look(pid, tid)? {
            Some(WaitStatus::Stopped { signal, event }) => return Ok(Some((signal, event))),
            Some(_) => return Ok(None),
            None if reaper::has_ended_unseen(pid, tid, waiter.waited()) => {
                reaper::bury(pid, tid);
                return Ok(None);
            }
            None if waiter.block(tid)? => {}
            None => return Err(Error::thread(operation, tid, Errno::ETIMEDOUT)),
        }
    }
}

/// Waits in the kernel for changes of traced threads, up to a limit.
///
/// The tracer must not spin or sleep instead: with its real-time priority it keeps the processor that a tracee may need
/// to come to its stop. A stop wakes a tracer that blocks at once.
pub(crate) struct Waiter {
    started: Instant,
    limit: Duration,
    ticks: Option<Ticks>,
}

impl Waiter {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { started: Instant::now(), limit, ticks: None }
    }

    /// How long it has been waiting.
    pub(crate) fn waited(&self) -> Duration {
        self.started.elapsed()
    }

    /// Blocks until a thread is stopped or has ended, a millisecond at most; false once the limit has passed.
    pub(crate) fn block(&mut self, tid: Tid) -> Result<bool> {
        if self.ticks.is_none() {
            self.ticks = Some(Ticks::start(TICK)?);
        }
        match ptrace::await_change(tid) {
            // Whoever inspects it next meets the same.
            Err(error) if error.errno != NO_SUCH_CHILD => return Err(error),
            _ => {}
        }
        Ok(self.waited() < self.limit)
    }
}
