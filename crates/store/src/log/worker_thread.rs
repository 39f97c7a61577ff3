//! Jobs for which no commit waits. They run one after the other, in threads that all logs of the process share.
//!
//! Owns: the queues for jobs and for results.
//! Invariants: jobs are processed in the order of the queue. After the drop, no job is left.
//! Does not: know the content of the jobs, or own a thread.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::lock::locked;
use crate::threads::{OnPanic, Task, Threads};

/// The interface to a worker.
#[derive(Debug)]
pub(super) struct Worker<J, D> {
    threads: Threads,
    queue: Arc<Queue<J, D>>,
    /// The maximum number of queued jobs; a further job blocks its sender.
    waiting_max: usize,
}

/// Receives a job and a function that reports a result. A job reports at most a few results.
type Work<J, D> = Box<dyn FnMut(J, &mut dyn FnMut(D)) + Send>;

struct Queue<J, D> {
    state: Mutex<State<J, D>>,
    changed: Condvar,
    work: Mutex<Work<J, D>>,
}

struct State<J, D> {
    jobs: VecDeque<J>,
    done: VecDeque<D>,
    is_running: bool,
    /// Whether a job has panicked. No further job is accepted.
    is_dead: bool,
}

impl<J: Send + 'static, D: Send + 'static> Worker<J, D> {
    /// Returns a worker that processes jobs with `work`.
    pub(super) fn new(
        threads: &Threads,
        waiting_max: usize,
        work: impl FnMut(J, &mut dyn FnMut(D)) + Send + 'static,
    ) -> Self {
        let (jobs, done) = (VecDeque::new(), VecDeque::new());
        let state = Mutex::new(State { jobs, done, is_running: false, is_dead: false });
        let queue = Queue { state, changed: Condvar::new(), work: Mutex::new(Box::new(work)) };
        Self { threads: threads.clone(), queue: Arc::new(queue), waiting_max }
    }

    /// Queues a job. If a job has panicked, the error appears when the caller waits for a result.
    pub(super) fn give(&self, job: J) {
        let mut state = self.queue.wait(|state| state.jobs.len() < self.waiting_max || state.is_dead);
        if state.is_dead {
            return;
        }
        state.jobs.push_back(job);
        if !std::mem::replace(&mut state.is_running, true) {
            drop(state);
            self.threads.run(Arc::clone(&self.queue) as Arc<dyn Task>);
        }
    }

    /// Returns a result, if there is one now.
    pub(super) fn try_take(&self) -> Option<D> {
        locked(&self.queue.state).done.pop_front()
    }

    /// Waits for a result. Returns `None` if no job is left.
    pub(super) fn take(&self) -> Option<D> {
        self.queue.wait(|state| !state.done.is_empty() || !state.is_running).done.pop_front()
    }
}

impl<J, D> Queue<J, D> {
    /// Waits until `is_reached` returns true.
    fn wait(&self, is_reached: impl Fn(&State<J, D>) -> bool) -> std::sync::MutexGuard<'_, State<J, D>> {
        let waited = self.changed.wait_while(locked(&self.state), |state| !is_reached(state));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    fn change<T>(&self, change: impl FnOnce(&mut State<J, D>) -> T) -> T {
        let changed = change(&mut locked(&self.state));
        self.changed.notify_all();
        changed
    }
}

impl<J: Send, D: Send> Task for Queue<J, D> {
    fn run(&self) {
        // Ends the waits for this worker.
        let _guard = OnPanic(|| {
            self.change(|state| {
                (state.is_running, state.is_dead) = (false, true);
                state.jobs.clear();
            });
        });
        let mut work = locked(&self.work);
        let next = |state: &mut State<J, D>| {
            let job = state.jobs.pop_front();
            state.is_running = job.is_some();
            job
        };
        while let Some(job) = self.change(next) {
            work(job, &mut |done| self.change(|state| state.done.push_back(done)));
        }
    }
}

impl<J, D> Drop for Worker<J, D> {
    fn drop(&mut self) {
        drop(self.queue.wait(|state| !state.is_running));
    }
}

impl<J, D> fmt::Debug for Queue<J, D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}
