//! Threads that all logs of a process share. An idle log uses no thread.
//!
//! Owns: the threads, and the queue of tasks that wait for a thread.
//! Invariants: each task gets a thread of its own, so that a task that waits for a slow device delays no other task. If
//! no thread can be started, the task waits until another task has ended. A thread without a task ends after `IDLE_MAX`.
//! Does not: know what a task does.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use model::Tid;
use sys::scheduling::{self, Attributes};

use crate::error::Result;
use crate::lock::locked;

/// The time after which a thread without a task ends. Checkpoints of a busy log follow each other faster. A new thread
/// costs some 50 µs, while the subject runs.
const IDLE_MAX: Duration = Duration::from_secs(1);

/// The thread id that means the calling thread.
const SELF: Tid = Tid(0);

/// Work for a thread.
pub(crate) trait Task: Send + Sync {
    /// Does the work that is due now.
    fn run(&self);
}

/// Calls the function if this value is dropped during a panic. The function can end the waits of threads that wait for the
/// panicking thread.
pub(crate) struct OnPanic<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnPanic<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)();
        }
    }
}

/// The threads. They end when the last clone is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Threads(Arc<Handle>);

#[derive(Debug)]
struct Handle(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: &'static str,
    nice: i32,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    tasks: VecDeque<Arc<dyn Task>>,
    threads: usize,
    /// The number of threads that run a task.
    running: usize,
    is_closed: bool,
}

impl Threads {
    /// Returns a set of threads with this name and this nice value. The first thread is started by `start`.
    pub(crate) fn new(name: &'static str, nice: i32) -> Self {
        let inner = Inner { name, nice, state: Mutex::default(), changed: Condvar::new() };
        Self(Arc::new(Handle(Arc::new(inner))))
    }

    /// Makes sure that there is a thread. One thread stays, so that every task is run, even if no further thread can be
    /// started.
    pub(crate) fn start(&self) -> Result<()> {
        let inner = &self.0.0;
        let mut state = locked(&inner.state);
        if state.threads == 0 { inner.start(&mut state) } else { Ok(()) }
    }

    /// Makes a thread run the task once.
    pub(crate) fn run(&self, task: Arc<dyn Task>) {
        let inner = &self.0.0;
        let mut state = locked(&inner.state);
        state.tasks.push_back(task);
        if state.tasks.len() > state.threads - state.running {
            // Without a further thread, the task waits for one of the others.
            let _ = inner.start(&mut state);
        }
        drop(state);
        inner.changed.notify_one();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        locked(&self.0.state).is_closed = true;
        self.0.changed.notify_all();
    }
}

impl Inner {
    fn start(self: &Arc<Self>, state: &mut State) -> Result<()> {
        let inner = Arc::clone(self);
        let thread = std::thread::Builder::new().name(self.name.to_owned());
        let started = thread.spawn(move || inner.work());
        started.map_err(|error| sys::Error::new("start a thread", error))?;
        state.threads += 1;
        Ok(())
    }

    fn work(&self) {
        if self.nice != 0 {
            // If the priority cannot be set, the work is still correct, but can delay other threads.
            let _ =
                scheduling::set_attributes(SELF, &Attributes { nice: self.nice, ..Attributes::default() });
        }
        let mut state = locked(&self.state);
        loop {
            if let Some(task) = state.tasks.pop_front() {
                state.running += 1;
                drop(state);
                // The task reports its panic to those who wait for the task.
                let _ = catch_unwind(AssertUnwindSafe(|| task.run()));
                drop(task);
                state = locked(&self.state);
                state.running -= 1;
                continue;
            }
            if state.is_closed {
                break;
            }
            let waited = self.changed.wait_timeout(state, IDLE_MAX).unwrap_or_else(PoisonError::into_inner);
            state = waited.0;
            if waited.1.timed_out() && state.tasks.is_empty() && state.threads > 1 {
                break;
            }
        }
        state.threads -= 1;
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("threads", &self.threads)
            .field("running", &self.running)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A task that reports its start, and waits until it may end.
    struct Waiting(Mutex<Sender<()>>, Mutex<Receiver<()>>);

    impl Task for Waiting {
        fn run(&self) {
            locked(&self.0).send(()).unwrap();
            let _ = locked(&self.1).recv();
        }
    }

    #[test]
    fn a_task_that_waits_delays_no_other_and_a_panic_ends_no_thread() {
        let threads = Threads::new("test", 0);
        threads.start().unwrap();
        let (started, starts) = channel();
        let mut ends = Vec::new();
        for _ in 0..3 {
            let (end, ended) = channel();
            threads.run(Arc::new(Waiting(Mutex::new(started.clone()), Mutex::new(ended))));
            ends.push(end);
        }
        (0..3).for_each(|_| starts.recv_timeout(Duration::from_secs(20)).unwrap());
        drop(ends);
        let (gone, nobody) = channel();
        drop(nobody);
        threads.run(Arc::new(Waiting(Mutex::new(gone), Mutex::new(channel().1))));
        let (_end, ended) = channel();
        threads.run(Arc::new(Waiting(Mutex::new(started), Mutex::new(ended))));
        starts.recv_timeout(Duration::from_secs(20)).unwrap();
        // The first three tasks may not have ended yet.
        assert!(locked(&threads.0.0.state).threads <= 5);
    }
}
