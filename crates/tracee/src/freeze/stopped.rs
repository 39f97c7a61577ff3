//! Represents a process tree whose threads are all stopped, and the reasons why a tree could not be stopped.
//!
//! A *stray* is a task that the kernel has attached to the tracer, but that no tracee has reported to the tracer.
//!
//! Owns: the options for attaching to a subject's threads; resuming and killing a stopped tree.
//! Invariants: dropping a stopped tree resumes and detaches every thread of the tree. Threads and processes
//! that resumed threads create are detached, too. A running thread must stop before it can be detached.
//! Does not: stop a tree; `attempt` does.

use std::time::{Duration, Instant};

use model::{Pid, Signal, Tid};
use sys::ptrace::{self, Options, WaitStatus};
use sys::{Errno, Error};

use crate::procfs::Stat;
use crate::thread::{Running, StopOutcome, Stopped, Thread};
use crate::tracer::{self, Waiter};
use crate::tree::Roots;

/// Ptrace options with which the threads of a subject are attached.
pub(crate) const OPTIONS: Options =
    Options::SYSCALL_GOOD.with(Options::CLONE).with(Options::FORK).with(Options::VFORK);
/// Timeout for running threads to stop. A thread that does not stop in this time is detached at the next stop
/// of the tree, or when the tracer ends.
const LIMIT: Duration = Duration::from_secs(10);
/// Maximum number of scans for strays. A further scan is necessary only if a stray has created another stray
/// and has ended.
const STRAY_ROUNDS_MAX: usize = 16;
const KILL: Signal = Signal(9);

/// The reason why a tree could not be stopped.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// A process ended while the tree was being stopped.
    #[error("pid {0} ended while it was being stopped")]
    Ended(Pid),
    /// A thread did not stop in time, in any attempt.
    #[error("thread {tid} of pid {pid} did not stop (in {place})")]
    Stuck {
        /// The process of the thread.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// The kernel function in which the thread waits.
        place: String,
    },
    /// Another program traces a process of the tree.
    #[error("pid {pid} is already traced by pid {tracer}")]
    Traced {
        /// The traced process.
        pid: Pid,
        /// The tracer of the process.
        tracer: Pid,
    },
    /// The tree grew faster than it could be stopped.
    #[error("the process tree of pid {0} grows faster than it can be stopped")]
    Growing(Pid),
    /// A kernel call failed.
    #[error(transparent)]
    Kernel(#[from] Error),
}

/// A process whose threads are all stopped.
#[derive(Debug)]
pub struct StoppedProcess {
    /// Pid of the process.
    pub pid: Pid,
    /// Threads of the process, with the leader first. Never empty.
    pub threads: Vec<Thread<Stopped>>,
    /// The stat of the process, if it was read while all threads were stopped.
    pub stat: Option<Stat>,
}

/// A tree whose threads are all stopped.
#[derive(Debug)]
pub struct StoppedTree {
    /// The root processes.
    pub roots: Roots,
    /// Processes that have not ended: the roots first, and parents before their children.
    pub processes: Vec<StoppedProcess>,
    /// Processes that have ended and that a parent in the tree has not reaped.
    pub zombies: Vec<Pid>,
    /// A time at most a millisecond before the stop of the first thread. The request to stop can be much
    /// earlier, because a thread in an uninterruptible call stops only at the end of the call.
    pub began: Instant,
}

impl StoppedTree {
    /// Returns the stopped process with this pid.
    #[must_use]
    pub fn process(&self, pid: Pid) -> Option<&StoppedProcess> {
        self.processes.iter().find(|process| process.pid == pid)
    }

    /// Fails with [`FreezeError::Ended`] if a process was killed after the stop. If this function succeeds,
    /// all data that the caller has read before is the data at the stop. A killed thread writes to its memory
    /// when it ends (CLONE_CHILD_CLEARTID, robust futexes), but this function detects the kill already before
    /// the first write.
    pub fn confirm(&self) -> Result<(), FreezeError> {
        // A fatal signal wakes all threads of a process at once, so the check of one thread is sufficient.
        let firsts = self.processes.iter().filter_map(|process| process.threads.first());
        for thread in firsts {
            match ptrace::event_message(thread.tid()) {
                Err(error) if error.errno == Errno::ESRCH => return Err(FreezeError::Ended(thread.pid())),
                outcome => outcome.map(drop)?,
            }
        }
        Ok(())
    }

    /// Sets whether the kernel kills every process if this process ends. A caller that changes the tree sets this, because
    /// a half-changed tree must not run. If this process ends during the call, and a process is killed, the roots are
    /// killed, too.
    pub fn end_with_tracer(&mut self, ends: bool) -> Result<(), Error> {
        let mut threads: Vec<_> =
            self.processes.iter_mut().flat_map(|process| &mut process.threads).collect();
        if !ends {
            threads.reverse();
        }
        for thread in threads {
            match thread.set_end_with_tracer(ends) {
                // The thread was killed.
                Err(error) if error.errno == Errno::ESRCH => {}
                outcome => outcome?,
            }
        }
        Ok(())
    }

    /// Resumes and detaches every thread.
    pub fn resume(mut self) -> Result<(), Error> {
        self.detach_all()
    }

    /// Kills every process and reaps every thread. The kernel notifies the parents only after all threads are
    /// reaped. A child of this program stays a zombie, and keeps its pid, until this program reaps it as the parent.
    pub fn kill(mut self) -> Result<(), Error> {
        for process in &self.processes {
            match sys::signal::send(process.pid, KILL) {
                Err(error) if error.errno != Errno::ESRCH => return Err(error),
                _ => {}
            }
        }
        for process in &self.processes {
            // The kernel reports the end of a leader only after the other threads of the process are reaped.
            for thread in process.threads.iter().rev() {
                if tracer::is_child(process.pid, thread.tid()) {
                    await_zombie(thread.tid())?;
                } else {
                    await_end(thread.tid())?;
                }
                // A restored process can get the same number.
                tracer::record_lost(thread.tid());
            }
        }
        // No thread is left to resume.
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
        // The scan for strays must happen before threads are reaped: if a thread disappears during the scan,
        // the list of threads can be incomplete.
        detach_strays();
        tracer::reap_ended();
        outcome
    }
}

/// Waits until a killed thread has ended.
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

/// Waits until a killed child of this program has ended. Does not reap the child.
fn await_zombie(tid: Tid) -> Result<(), Error> {
    loop {
        match ptrace::await_change(tid) {
            Ok(Some(WaitStatus::Stopped(_))) => std::thread::yield_now(),
            Ok(None) => {}
            Ok(Some(_)) => return Ok(()),
            Err(error) if matches!(error.errno, Errno::ECHILD | Errno::ESRCH) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

pub(crate) fn detach_strays() {
    let attached = |(pid, tid): (Pid, Tid)| Thread::attached(pid, tid, OPTIONS);
    // A stray that has ended may have created another stray.
    for _ in 0..STRAY_ROUNDS_MAX {
        let strays: Vec<_> = tracer::strays().into_iter().map(attached).collect();
        if strays.is_empty() {
            return;
        }
        detach_running(strays);
    }
}

/// Interrupts running threads, and detaches each when it stops.
pub(crate) fn detach_running(mut pending: Vec<Thread<Running>>) {
    for thread in &pending {
        // If the thread has ended, the loop below notices this.
        let _ = thread.interrupt();
    }
    let (mut waiter, mut is_in_time) = (Waiter::new(LIMIT), true);
    loop {
        for thread in std::mem::take(&mut pending) {
            let (pid, tid) = (thread.pid(), thread.tid());
            match thread.check_stop() {
                Ok(StopOutcome::Stopped(stopped)) => drop(stopped.detach()),
                Ok(StopOutcome::Created(thread, created)) => {
                    pending.extend([Some(thread), Thread::adopted(created, OPTIONS)].into_iter().flatten());
                }
                Ok(StopOutcome::Gone) => {}
                Ok(StopOutcome::Pending(thread)) | Err((thread, _))
                    if is_in_time && !tracer::has_ended_unreported(pid, tid, waiter.waited()) =>
                {
                    pending.push(thread);
                }
                _ => tracer::record_end(pid, tid),
            }
        }
        tracer::reap_ended();
        let Some(first) = pending.first().map(Thread::tid) else { return };
        is_in_time = matches!(waiter.block(first), Ok(true));
    }
}

impl Drop for StoppedTree {
    fn drop(&mut self) {
        // No caller can receive an error. An error means that the thread has died.
        let _ = self.detach_all();
    }
}
