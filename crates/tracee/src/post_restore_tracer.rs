//! Traces a restored process tree that already runs. If this program dies before the tree is detached, the
//! kernel kills the tree.
//!
//! Owns: the threads of the tree from their first instruction until they are detached. Also the *fd holder*:
//! a helper process that keeps descriptors open until the tree has died.
//! Invariants: the caller is notified before a process that the tree creates runs. If this program is killed,
//! every thread of the tree is killed before the fd holder closes a descriptor. This order holds even if the
//! fd holder is killed at the same time.
//! Does not: know which descriptors the fd holder has, or why the tree is traced.
//!
//! If this program is killed, the kernel closes its files before it kills its tracees. In this short time,
//! the tree still runs. Therefore the fd holder has duplicates of the descriptors that must stay open while
//! the tree runs.
//!
//! The fd holder must die last. The tracer attaches to the fd holder first, and the kernel adds each further
//! tracee at the front of the tracer's list. When the tracer dies, the kernel kills the tracees in the order
//! of this list (exit_ptrace, Linux 6.18). If another process kills the fd holder, the fd holder stops at its
//! exit with all files open, until the tracer resumes it.

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

/// Maximum time for which a wait blocks if no thread changes. After this time, the caller can do other work.
const TICK: Duration = Duration::from_millis(1);
/// Maximum time for which a wait blocks while threads are being detached. A leader that has ended before the
/// other threads of its process can delay the detaching.
const TICK_LONG: Duration = Duration::from_millis(10);
/// Maximum number of processes that are created until one has a pid that the tree does not need.
const NUMBERS_MAX: usize = 64;
const KILL: Signal = Signal(9);

/// A helper process that does nothing but keep the descriptors open that it has inherited.
#[derive(Debug)]
pub struct FdHolder {
    tid: Tid,
}

impl FdHolder {
    /// Creates an fd holder whose tid is not in `taken`. Must be called before the calling thread attaches to
    /// threads that must die before the fd holder.
    ///
    /// # Errors
    ///
    /// Fails if no process can be created, or if all tried tids are in `taken`.
    pub fn spawn(taken: &HashSet<Tid>) -> Result<Self, RemoteError> {
        // Processes with unsuitable tids stay alive until the end of the loop, so that no tid occurs twice.
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

    /// Returns the pid of the fd holder.
    #[must_use]
    pub fn pid(&self) -> Pid {
        Pid(self.tid.get())
    }
}

impl Drop for FdHolder {
    /// Kills the fd holder. Descriptors that only the fd holder had open are closed when this function
    /// returns.
    fn drop(&mut self) {
        // If the signal or the wait fails, the fd holder has already ended.
        let _ = sys::signal::send(self.pid(), KILL);
        while let Ok(WaitStatus::Stopped(_)) = ptrace::wait(self.tid) {
            let _ = ptrace::resume(self.tid, None);
        }
        tracer::detached(self.tid);
    }
}

/// Traced threads that run.
#[derive(Debug, Default)]
pub struct PostRestoreTracer {
    running: Vec<Thread<Running>>,
    /// New threads whose first stop was not handled yet.
    new_threads: HashSet<Tid>,
}

impl PostRestoreTracer {
    /// Resumes a thread, and continues to trace it. `signal` is the stop signal if the process was in a group
    /// stop.
    ///
    /// # Errors
    ///
    /// Fails if the thread has ended.
    pub fn take(&mut self, stub: Stub, signal: Option<Signal>) -> Result<(), Error> {
        self.running.push(stub.run(signal)?);
        Ok(())
    }

    /// Reports whether every thread has ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Handles stops and ends of the threads, and adds the threads and processes that they create. Calls
    /// `on_new_process` before a new process runs. If no thread has stopped or ended, blocks for at most a
    /// millisecond.
    ///
    /// # Errors
    ///
    /// Returns the error of a kernel call for a thread that is still alive.
    pub fn round(&mut self, on_new_process: &dyn Fn()) -> Result<(), Error> {
        let before = self.running.len();
        if self.inspect_all(on_new_process, |thread| thread.resume().map(Some))?
            || before != self.running.len()
        {
            return Ok(());
        }
        self.await_change(TICK)
    }

    /// Detaches every thread as soon as the thread is stopped. If a leader has ended before the other threads, this
    /// function waits until the whole process has ended.
    ///
    /// # Errors
    ///
    /// Fails like `round`.
    pub fn release(mut self, on_new_process: &dyn Fn()) -> Result<(), Error> {
        // Threads are detached one after the other. If this process dies before all threads are detached, the
        // switch kills the whole tree, so that no part of the tree survives alone.
        let pids: BTreeSet<Pid> = self.running.iter().map(Thread::pid).collect();
        let switch = DeadManSwitch::arm(pids)?;
        let mut asked = HashSet::new();
        loop {
            for thread in &self.running {
                if asked.insert(thread.tid()) {
                    // If the thread has ended, the scan below notices this.
                    let _ = thread.interrupt();
                }
            }
            self.inspect_all(on_new_process, |thread| thread.detach().map(|()| None))?;
            if self.running.is_empty() {
                break;
            }
            self.await_change(TICK_LONG)?;
        }
        switch.disarm();
        tracer::reap_ended();
        Ok(())
    }

    /// Kills every process, and returns when all processes have ended.
    pub fn kill(mut self) {
        while !self.running.is_empty() {
            for thread in &self.running {
                // If the thread has ended, the scan below notices this.
                let _ = sys::signal::send(thread.pid(), KILL);
            }
            let resume = |thread: Thread<Stopped>| thread.resume().map(Some);
            // After an error, the remaining threads stay in the list. They are killed and inspected again in
            // the next round.
            let _ = self.inspect_all(&|| (), resume);
            if self.await_change(TICK).is_err() {
                std::thread::sleep(TICK);
            }
        }
    }

    /// Blocks until a thread is stopped or has ended, or until `tick` has passed.
    fn await_change(&self, tick: Duration) -> Result<(), Error> {
        if self.running.is_empty() {
            return Ok(());
        }
        let ticks = Ticks::start(tick)?;
        let changed = ptrace::await_any();
        drop(ticks);
        match changed {
            // The change is the end of a child that is not traced here, or the last stop of the fd holder.
            // The status is not consumed, so the next wait would return immediately.
            Ok(Some(tid)) if !self.running.iter().any(|thread| thread.tid() == tid) => {
                std::thread::sleep(tick);
            }
            Err(error) if error.errno != Errno::ECHILD => return Err(error),
            _ => {}
        }
        Ok(())
    }

    /// Inspects each thread once, and calls `step` for each stopped thread. Returns whether a thread has
    /// stopped or ended, or has created a thread.
    fn inspect_all(
        &mut self,
        on_new_process: &dyn Fn(),
        mut step: impl FnMut(Thread<Stopped>) -> Result<Option<Thread<Running>>, Error>,
    ) -> Result<bool, Error> {
        let (mut happened, mut outcome) = (false, Ok(()));
        let mut left = std::mem::take(&mut self.running).into_iter();
        while let Some(thread) = left.next() {
            let (pid, tid, options) = (thread.pid(), thread.tid(), thread.options);
            match thread.check_stop() {
                Ok(StopOutcome::Pending(thread)) => self.running.push(thread),
                Ok(StopOutcome::Stopped(stopped)) => {
                    happened = true;
                    if self.new_threads.remove(&tid) && tid == pid.leader() {
                        on_new_process();
                    }
                    match step(stopped) {
                        Ok(thread) => self.running.extend(thread),
                        Err(error) => outcome = Err(error),
                    }
                }
                Ok(StopOutcome::Created(thread, created)) => {
                    happened = true;
                    self.running.push(thread);
                    if let Some(new) = Thread::adopted(created, options) {
                        self.new_threads.insert(created);
                        self.running.push(new);
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
