//! The threads that help the tracer inside the pause.
//!
//! Owns: whether there are any, and their processors: those that the user has chosen; else those of the tracer, and
//! those of the subject, which are idle while it is stopped.
//! Invariants: without these threads, a pause takes longer and has the same result.
//! Does not: know their work.

use std::num::NonZeroUsize;
use std::sync::Arc;

use model::{PageCount, Pid, Tid};
use sys::scheduling;
use tracee::WorkerPool;

use super::super::before::Before;
use super::spaces::Spaces;

/// The calling thread.
const SELF: Tid = Tid(0);

impl Spaces {
    /// Has all that is read and scanned beside what the tracer does ready. Not inside the pause.
    pub(super) fn gather(&mut self, before: &mut Before) {
        let watched = self.tracked.values().fold(PageCount(0), |sum, one| sum + one.covered.pages());
        if watched.bytes() >= track::AHEAD_MIN {
            self.worker_pool.get_or_init(|| self.start_worker_pool(before.processes.root));
        }
        if let Some(Some(worker_pool)) = self.worker_pool.get() {
            // Memory of the last time is given back here.
            worker_pool.dismiss();
            self.tracked.values_mut().for_each(|one| one.tracker.prepare_scan(track::AHEAD_MIN));
            before.threads.files.prepare_ahead();
            before.descriptors.info.prepare_ahead();
        }
    }

    fn start_worker_pool(&self, root: Pid) -> Option<Arc<WorkerPool>> {
        let members = NonZeroUsize::new(self.tuning.copiers.get() - 1)?;
        let processors = match &*self.tuning.processors {
            [] => union(affinity(SELF), &affinity(Tid(root.get()))),
            chosen => chosen.to_vec(),
        };
        // On one processor they would only take turns.
        let count: u32 = union(affinity(SELF), &processors).iter().map(|word| word.count_ones()).sum();
        if count > 1 { WorkerPool::new(members, &processors).ok().map(Arc::new) } else { None }
    }

    /// Has files read and scans begun beside what the tracer does, in the order in which it needs them.
    pub(super) fn begin_ahead(&mut self, before: &mut Before) {
        let Some(Some(worker_pool)) = self.worker_pool.get() else { return };
        before.descriptors.info.begin_ahead(worker_pool);
        before.threads.files.begin_ahead(worker_pool);
        self.tracked.values_mut().for_each(|one| one.tracker.post_scan(worker_pool, track::AHEAD_MIN));
        // Threads that have to be asked need a processor, which members give up for them.
        if before.threads.are_silent {
            worker_pool.hurry();
        }
        worker_pool.begin();
    }
}

/// None where it cannot be told.
fn affinity(tid: Tid) -> Vec<u64> {
    scheduling::affinity(tid).unwrap_or_default()
}

fn union(mut one: Vec<u64>, other: &[u64]) -> Vec<u64> {
    one.resize(one.len().max(other.len()), 0);
    one.iter_mut().zip(other).for_each(|(word, more)| *word |= more);
    one
}
