//! Threads that put load on a program, and their progress.
//!
//! Owns: `Load`, `Ticker`.
//! Invariants: a worker that ends before it is told to has failed; each must make progress between two deaths.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use super::problem::{Context, Outcome, Problem};
use super::{LIMIT, POLL};

/// Steps that every worker makes between two deaths: proof that the program serves it again.
const STEPS_BETWEEN_DEATHS: u64 = 3;

/// Everything that works on one program.
#[derive(Default)]
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    workers: Vec<Worker>,
}

struct Worker {
    name: String,
    progress: Arc<AtomicU64>,
    thread: JoinHandle<Outcome>,
}

/// A worker's own view: when to stop, and how far it is.
#[derive(Clone)]
pub(crate) struct Ticker {
    stop: Arc<AtomicBool>,
    progress: Arc<AtomicU64>,
}

impl Ticker {
    /// Whether to go on.
    pub(crate) fn goes_on(&self) -> bool {
        !self.stop.load(Ordering::Relaxed)
    }

    /// One more step is done and checked.
    pub(crate) fn tick(&self) {
        self.progress.fetch_add(1, Ordering::Relaxed);
    }
}

impl Load {
    /// Starts a worker.
    pub(crate) fn add(&mut self, name: &str, work: impl FnOnce(&Ticker) -> Outcome + Send + 'static) {
        let ticker = Ticker { stop: Arc::clone(&self.stop), progress: Arc::default() };
        let progress = Arc::clone(&ticker.progress);
        let thread = thread::spawn(move || work(&ticker));
        self.workers.push(Worker { name: name.to_owned(), progress, thread });
    }

    /// Waits until every worker has made progress; fails when one has failed or stands still.
    pub(crate) fn wait_progress(&mut self) -> Outcome {
        let seen = |worker: &Worker| worker.progress.load(Ordering::Relaxed);
        let goals: Vec<u64> = self.workers.iter().map(|worker| seen(worker) + STEPS_BETWEEN_DEATHS).collect();
        let deadline = Instant::now() + LIMIT;
        loop {
            self.fail_if_one_ended()?;
            let late = self.workers.iter().zip(&goals).find(|(worker, goal)| seen(worker) < **goal);
            let Some((worker, _)) = late else { return Ok(()) };
            if Instant::now() >= deadline {
                let name = &worker.name;
                return Err(Problem::new(format!("{name} stands still at step {}", seen(worker))));
            }
            thread::sleep(POLL);
        }
    }

    /// Lets every worker end; fails when one has failed.
    pub(crate) fn finish(mut self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        self.workers.drain(..).try_for_each(Worker::join)
    }

    fn fail_if_one_ended(&mut self) -> Outcome {
        let Some(index) = self.workers.iter().position(|worker| worker.thread.is_finished()) else {
            return Ok(());
        };
        let worker = self.workers.swap_remove(index);
        let name = worker.name.clone();
        worker.join()?;
        Err(Problem::new(format!("{name} ended too early")))
    }
}

impl Worker {
    fn join(self) -> Outcome {
        match self.thread.join() {
            Ok(result) => result.context(&self.name),
            Err(_) => Err(Problem::new(format!("{} panicked", self.name))),
        }
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        // A test that fails elsewhere does not wait for its workers; they end by themselves.
        self.stop.store(true, Ordering::Relaxed);
    }
}
