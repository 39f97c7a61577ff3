//! A restored tree that runs and is still held: should this program die, the kernel kills it.
//!
//! Owns: the threads from their first instruction until they are detached, those that they create meanwhile, and the
//! fd holder, a process of ours that holds descriptors for longer than this program lives.
//! Invariants: no process that is born meanwhile runs before the caller has been asked; when this program is killed,
//! with or without the fd holder, the kernel kills every thread of the tree before it lets the fd holder close anything.
//! Does not: know what the fd holder keeps, or why the tree is held.
//!
//! A process that is killed closes its files first and detaches from its tracees later. Descriptors that must stay
//! open while the tree can still run are therefore held by the fd holder too. It is the first thread that is seized
//! and the last in the list of tracees, and so the last that a dying tracer kills (exit_ptrace, Linux 6.18: new ones
//! are put in front). If another process kills it, it stops at its exit, with all its files open, until its tracer
//! resumes it.

use std::collections::{BTreeSet, HashSet};
use std::time::Duration;

use model::{Pid, Signal, Tid};
use sys::clone::WantedPid;
use sys::dead_man::DeadManSwitch;
use sys::ptrace::{self, Options, WaitStatus};
use sys::wait_timer::Ticks;
use sys::{Errno, Error};

use crate::remote::RemoteError;
use crate::stub::Stub;
use crate::thread::{Running, StopOutcome, Stopped, Thread};
use crate::tracer;

/// How often a wait comes back without a change, for the caller to see to other things.
const TICK: Duration = Duration::from_millis(1);
/// The same for a thread that cannot be detached yet, because its leader has ended before it.
const TICK_LONG: Duration = Duration::from_millis(10);
/// Numbers tried until one is not among those that the tree needs.
const NUMBERS_MAX: usize = 64;
const KILL: Signal = Signal(9);

/// A process that does nothing but hold the descriptors it was born with.
#[derive(Debug)]
pub struct FdHolder {
    tid: Tid,
}

impl FdHolder {
    /// Makes one, with a number that is none of these. Nothing may have been seized before by this thread that is to
    /// be killed before the fd holder.
    ///
    /// # Errors
    ///
    /// Why there is no process, or that all numbers tried are among `taken`.
    pub fn spawn(taken: &HashSet<Tid>) -> Result<Self, RemoteError> {
        // Kept until there is one that fits, so that no number comes twice.
        let mut others = Vec::new();
        for _ in 0..NUMBERS_MAX {
            let mut stub = Stub::spawn(WantedPid::Any)?;
            let fd_holder = Self { tid: stub.tid() };
            if taken.contains(&fd_holder.tid) {
                others.push(fd_holder);
                continue;
            }
            stub.add_options(Options::EXIT)?;
            return Ok(fd_holder);
        }
        Err(Error::new("find a free process number", Errno::EEXIST).into())
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid(self.tid.get())
    }
}

impl Drop for FdHolder {
    /// Ends it; all that only it has held is closed when this returns.
    fn drop(&mut self) {
        // It has ended already where this fails, and where a wait does.
        let _ = sys::signal::send(self.pid(), KILL);
        while let Ok(WaitStatus::Stopped(_)) = ptrace::wait(self.tid) {
            let _ = ptrace::resume(self.tid, None);
        }
        tracer::detached(self.tid);
    }
}

/// Threads that run and are held.
#[derive(Debug, Default)]
pub struct PostRestoreTracer {
    running: Vec<Thread<Running>>,
    /// Created, and not seen to stand yet.
    unborn: HashSet<Tid>,
}

impl PostRestoreTracer {
    /// Lets a thread run, with a stop signal when its process was stopped by one.
    ///
    /// # Errors
    ///
    /// That it has ended.
    pub fn take(&mut self, stub: Stub, signal: Option<Signal>) -> Result<(), Error> {
        self.running.push(stub.run(signal)?);
        Ok(())
    }

    /// Whether every thread has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Serves what the threads stop for: signals, births, ends. Before a new process runs, `born` is called; blocks
    /// for a millisecond at most when there was nothing to do.
    ///
    /// # Errors
    ///
    /// What the kernel said about a thread that still lives.
    pub fn round(&mut self, born: &dyn Fn()) -> Result<(), Error> {
        let before = self.running.len();
        if self.look_at_all(born, |thread| thread.resume().map(Some))? || before != self.running.len() {
            return Ok(());
        }
        self.await_change(TICK)
    }

    /// Lets every thread go for good, each as soon as it stands. A process whose leader has ended before its other
    /// threads can only be waited for.
    ///
    /// # Errors
    ///
    /// As for `round`.
    pub fn release(mut self, born: &dyn Fn()) -> Result<(), Error> {
        // They are detached one after the other: a death of this process in between must not leave half a tree.
        let pids: BTreeSet<Pid> = self.running.iter().map(Thread::pid).collect();
        let switch = DeadManSwitch::arm(pids)?;
        let mut asked = HashSet::new();
        loop {
            for thread in &self.running {
                if asked.insert(thread.tid()) {
                    // One that has ended is noticed below.
                    let _ = thread.interrupt();
                }
            }
            self.look_at_all(born, |thread| thread.detach().map(|()| None))?;
            if self.running.is_empty() {
                break;
            }
            self.await_change(TICK_LONG)?;
        }
        switch.disarm();
        tracer::take_ends();
        Ok(())
    }

    /// Kills every process, and returns when they have ended.
    pub fn kill(mut self) {
        while !self.running.is_empty() {
            for thread in &self.running {
                // One that has ended is noticed below.
                let _ = sys::signal::send(thread.pid(), KILL);
            }
            let resume = |thread: Thread<Stopped>| thread.resume().map(Some);
            // An error leaves threads in the list that are killed and looked at again.
            let _ = self.look_at_all(&|| (), resume);
            if self.await_change(TICK).is_err() {
                std::thread::sleep(TICK);
            }
        }
    }

    /// Blocks until a thread is stopped or has ended, or a tick has passed.
    fn await_change(&self, tick: Duration) -> Result<(), Error> {
        if self.running.is_empty() {
            return Ok(());
        }
        let ticks = Ticks::start(tick)?;
        let changed = ptrace::await_any();
        drop(ticks);
        match changed {
            // Nothing takes the end of a child that is none of the threads, or the last stop of the fd holder.
            Ok(Some(tid)) if !self.running.iter().any(|thread| thread.tid() == tid) => {
                std::thread::sleep(tick);
            }
            Err(error) if error.errno != Errno::ECHILD => return Err(error),
            _ => {}
        }
        Ok(())
    }

    /// Looks at each thread once, and does `step` with those that stand. Whether anything had happened.
    fn look_at_all(
        &mut self,
        born: &dyn Fn(),
        mut step: impl FnMut(Thread<Stopped>) -> Result<Option<Thread<Running>>, Error>,
    ) -> Result<bool, Error> {
        let (mut happened, mut outcome) = (false, Ok(()));
        let mut left = std::mem::take(&mut self.running).into_iter();
        while let Some(thread) = left.next() {
            let (pid, tid, options) = (thread.pid(), thread.tid(), thread.options);
            match thread.look() {
                Ok(StopOutcome::Pending(thread)) => self.running.push(thread),
                Ok(StopOutcome::Stopped(stopped)) => {
                    happened = true;
                    if self.unborn.remove(&tid) && tid == pid.leader() {
                        born();
                    }
                    match step(stopped) {
                        Ok(thread) => self.running.extend(thread),
                        Err(error) => outcome = Err(error),
                    }
                }
                Ok(StopOutcome::Created(thread, created)) => {
                    happened = true;
                    self.running.push(thread);
                    if let Some(born) = Thread::adopted(created, options) {
                        self.unborn.insert(created);
                        self.running.push(born);
                    }
                }
                Ok(StopOutcome::Gone) => happened = true,
                Err((thread, error)) => {
                    self.running.push(thread);
                    outcome = Err(error);
                }
            }
            if outcome.is_err() {
                self.running.extend(left);
                break;
            }
        }
        outcome.map(|()| happened)
    }
}
