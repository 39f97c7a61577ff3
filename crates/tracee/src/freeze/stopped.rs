//! A tree of which every thread is stopped, and why a tree is not.
//!
//! Owns: resuming and killing what was stopped.
//! Invariants: dropping a stopped tree resumes every thread of it.
//! Does not: stop anything; `attempt` does.

use std::time::Instant;

use model::{Pid, Signal, Tid};
use sys::ptrace::{self, WaitStatus};
use sys::{Errno, Error};

use super::release;
use crate::thread::{Stopped, Thread};
use crate::tracer;

const KILL: Signal = Signal(9);

/// Why a tree could not be stopped.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// The root process ended meanwhile.
    #[error("pid {0} ended while it was being stopped")]
    Ended(Pid),
    /// A thread did not stop in time, attempt after attempt.
    #[error("thread {tid} of pid {pid} did not stop (in {place})")]
    Stuck {
        /// Its process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// The kernel function it waits in.
        place: String,
    },
    /// Another program traces a process of the tree.
    #[error("pid {pid} is already traced by pid {tracer}")]
    Traced {
        /// The traced process.
        pid: Pid,
        /// Its tracer.
        tracer: Pid,
    },
    /// The tree grew faster than it could be stopped.
    #[error("the process tree of pid {0} grows faster than it can be stopped")]
    Growing(Pid),
    /// A kernel call failed.
    #[error(transparent)]
    Kernel(#[from] Error),
}

/// One process with all its threads stopped, leader first.
#[derive(Debug)]
pub struct StoppedProcess {
    /// Its number.
    pub pid: Pid,
    /// Its threads; never empty.
    pub threads: Vec<Thread<Stopped>>,
}

/// A tree of which every thread is stopped.
#[derive(Debug)]
pub struct StoppedTree {
    /// Living processes, parents first.
    pub processes: Vec<StoppedProcess>,
    /// Processes that ended and wait to be reaped by a parent in the tree.
    pub zombies: Vec<Pid>,
    /// Before the first thread stopped, by a millisecond at most. A thread in a call that cannot be interrupted stops
    /// later than it is told to.
    pub began: Instant,
}

impl StoppedTree {
    /// The stopped process of a number.
    #[must_use]
    pub fn process(&self, pid: Pid) -> Option<&StoppedProcess> {
        self.processes.iter().find(|process| process.pid == pid)
    }

    /// Lets every thread go on, detached.
    pub fn resume(mut self) -> Result<(), Error> {
        self.detach_all()
    }

    /// Kills every process. The end of every thread has been taken afterwards: only then are their parents told.
    pub fn kill(mut self) -> Result<(), Error> {
        for process in &self.processes {
            match sys::signal::send(process.pid, KILL) {
                Err(error) if error.errno != Errno::ESRCH => return Err(error),
                _ => {}
            }
        }
        for process in &self.processes {
            // The kernel reports a leader's end only when its other threads have been waited for.
            for thread in process.threads.iter().rev() {
                await_end(thread.tid())?;
            }
        }
        // Nobody is left to be let go.
        self.processes.clear();
        Ok(())
    }

    fn detach_all(&mut self) -> Result<(), Error> {
        let mut outcome = Ok(());
        for thread in self.processes.drain(..).flat_map(|process| process.threads) {
            if let Err(error) = thread.detach() {
                outcome = Err(error);
            }
        }
        // Before ends are taken: a list of threads is read whole only if none of them goes meanwhile.
        release::detach_strays();
        tracer::take_ends();
        outcome
    }
}

/// Waits until a thread that was killed has ended.
fn await_end(tid: Tid) -> Result<(), Error> {
    loop {
        match ptrace::wait(tid) {
            Ok(WaitStatus::Stopped(_)) => {}
            Ok(_) => return Ok(()),
            Err(error) if matches!(error.errno, Errno::ECHILD | Errno::ESRCH) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

impl Drop for StoppedTree {
    fn drop(&mut self) {
        // Nobody is left to report to; a thread that cannot be detached has died.
        let _ = self.detach_all();
    }
}
