//! The worker threads that help the tracer inside the pause.
//!
//! Owns: the decision whether there are workers, and the choice of their processors. Unless the user chooses
//! processors, the workers use those of the tracer and of the subject. The processors of the subject are idle while the
//! subject is stopped.
//! Invariants: without workers, a pause takes longer and has the same result.
//! Does not: know the work of the workers.

use std::num::NonZeroUsize;
use std::sync::Arc;

use model::{PageCount, Pid, Tid};
use sys::scheduling;
use tracee::WorkerPool;

use super::super::before::Before;
use super::spaces::Spaces;

/// Workers are started for this number of files of `/proc` that each pause reads.
const FILES_MIN: usize = 128;

/// The calling thread.
const SELF: Tid = Tid(0);

impl Spaces {
    /// Prepares the reads and scans that the workers do in parallel with the tracer. Must not be called
    /// inside the pause.
    pub(super) fn prepare_workers(&mut self, before: &mut Before) {
        before.threads.files.fit();
        let watched = self.tracked.values().fold(PageCount(0), |sum, one| sum + one.covered.pages());
        if watched.bytes() >= track::AHEAD_MIN || before.threads.files.len() >= FILES_MIN {
            self.start_workers(before);
        }
        if let Some(Some(worker_pool)) = self.worker_pool.get() {
            // Frees the memory of the work of the last pause.
            worker_pool.dismiss();
            self.tracked.values_mut().for_each(|one| one.tracker.prepare_scan(track::AHEAD_MIN));
            before.threads.files.prepare_ahead();
            before.descriptors.info.prepare_ahead();
        }
    }

    /// Starts the workers, if it was not yet tried.
    pub(super) fn start_workers(&self, before: &Before) {
        self.worker_pool.get_or_init(|| self.start_worker_pool(before.processes.roots.first()));
    }

    fn start_worker_pool(&self, root: Pid) -> Option<Arc<WorkerPool>> {
        let workers = NonZeroUsize::new(self.tuning.copiers.get() - 1)?;
        let processors = match &*self.tuning.processors {
            [] => union(affinity(SELF), &affinity(Tid(root.get()))),
            chosen => chosen.to_vec(),
        };
        // On a single processor, workers and tracer would only take turns.
        let count: u32 = union(affinity(SELF), &processors).iter().map(|word| word.count_ones()).sum();
        if count > 1 { WorkerPool::new(workers, &processors).ok().map(Arc::new) } else { None }
    }

    /// Begins to read files and to scan on the workers, in the order in which the tracer needs the results.
    pub(super) fn begin_ahead(&mut self, before: &mut Before) {
        let Some(Some(worker_pool)) = self.worker_pool.get() else { return };
        before.descriptors.info.begin_ahead(worker_pool);
        before.threads.files.begin_ahead(worker_pool);
        self.tracked.values_mut().for_each(|one| one.tracker.post_scan(worker_pool, track::AHEAD_MIN));
        // If threads of the subject must answer queries, they need a processor, and workers yield to them. If
        // no thread had to answer in the last pause, the workers get real-time priority.
        if before.threads.are_silent {
            worker_pool.raise_priority();
        }
        worker_pool.begin();
    }
}

/// Returns the affinity mask of a thread. The mask is empty if it cannot be read.
fn affinity(tid: Tid) -> Vec<u64> {
    scheduling::affinity(tid).unwrap_or_default()
}

fn union(mut one: Vec<u64>, other: &[u64]) -> Vec<u64> {
    one.resize(one.len().max(other.len()), 0);
    one.iter_mut().zip(other).for_each(|(word, more)| *word |= more);
    one
}
