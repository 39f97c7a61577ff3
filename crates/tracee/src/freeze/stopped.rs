//! A tree of which every thread is stopped, why a tree is not, and detaching: threads that run have to stop first.
//!
//! Owns: the options that a subject's threads are attached with; resuming and killing what was stopped.
//! Invariants: dropping a stopped tree resumes every thread of it; what a thread creates meanwhile is detached as well.
//! Does not: stop anything; `attempt` does.

use std::time::{Duration, Instant};

use model::{Pid, Signal, Tid};
use sys::ptrace::{self, Options, WaitStatus};
use sys::{Errno, Error};

use crate::thread::{Running, StopOutcome, Stopped, Thread};
use crate::tracer::{self, Waiter};

/// Options a subject's threads are seized with while they are being stopped.
pub(crate) const OPTIONS: Options =
    Options::SYSCALL_GOOD.with(Options::CLONE).with(Options::FORK).with(Options::VFORK);
/// How long the threads may take to stop. One that does not is detached when the tree is stopped again, or the tracer
/// ends.
const LIMIT: Duration = Duration::from_secs(10);
/// Times strays are looked for: each time there is one only if the one before has ended while it created another.
const STRAY_ROUNDS_MAX: usize = 16;
const KILL: Signal = Signal(9);

/// Why a tree could not be stopped.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// A process ended meanwhile.
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

    /// Fails with [`FreezeError::Ended`] if a process was killed since it was stopped. What was read of the tree
    /// before is as it was when it stopped: a thread that is killed writes to its memory as it ends
    /// (CLONE_CHILD_CLEARTID, robust futexes), but only after this is seen.
    pub fn confirm(&self) -> Result<(), FreezeError> {
        // A signal that kills wakes all threads of a process at once, so that one of them tells.
        let firsts = self.processes.iter().filter_map(|process| process.threads.first());
        for thread in firsts {
            match ptrace::event_message(thread.tid()) {
                Err(error) if error.errno == Errno::ESRCH => return Err(FreezeError::Ended(thread.pid())),
                outcome => outcome.map(drop)?,
            }
        }
        Ok(())
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
        // No thread is left to be resumed.
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
        detach_strays();
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

/// Detaches what the kernel has attached and no tracee has reported.
pub(super) fn detach_strays() {
    let attached = |(pid, tid): (Pid, Tid)| Thread::attached(pid, tid, OPTIONS);
    // A stray that ends may have been at the creation of another one.
    for _ in 0..STRAY_ROUNDS_MAX {
        let strays: Vec<_> = tracer::strays().into_iter().map(attached).collect();
        if strays.is_empty() {
            return;
        }
        detach_running(strays);
    }
}

/// Detaches threads as soon as they stop.
pub(super) fn detach_running(mut pending: Vec<Thread<Running>>) {
    for thread in &pending {
        // One that has ended is noticed below.
        let _ = thread.interrupt();
    }
    let (mut waiter, mut is_in_time) = (Waiter::new(LIMIT), true);
    loop {
        for thread in std::mem::take(&mut pending) {
            let (pid, tid) = (thread.pid(), thread.tid());
            match thread.look() {
                Ok(StopOutcome::Stopped(stopped)) => drop(stopped.detach()),
                Ok(StopOutcome::Created(thread, created)) => {
                    pending.extend([Some(thread), Thread::adopted(created, OPTIONS)].into_iter().flatten());
                }
                Ok(StopOutcome::Gone) => {}
                Ok(StopOutcome::Pending(thread)) | Err((thread, _))
                    if is_in_time && !tracer::has_ended_unseen(pid, tid, waiter.waited()) =>
                {
                    pending.push(thread);
                }
                _ => tracer::note_end(pid, tid),
            }
        }
        tracer::take_ends();
        let Some(first) = pending.first().map(Thread::tid) else { return };
        is_in_time = matches!(waiter.block(first), Ok(true));
    }
}

impl Drop for StoppedTree {
    fn drop(&mut self) {
        // There is no caller to report to; a thread that cannot be detached has died.
        let _ = self.detach_all();
    }
}
