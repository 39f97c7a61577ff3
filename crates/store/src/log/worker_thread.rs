//! A thread that takes jobs and returns results, for work that no commit waits for.
//!
//! Owns: the thread, the queues to it and back.
//! Invariants: jobs are done in their order. When it is dropped, no job is left.
//! Does not: know the work.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::error::Result;

/// The way to such a thread.
#[derive(Debug)]
pub(super) struct WorkerThread<J, D> {
    jobs: Option<SyncSender<J>>,
    done: Receiver<D>,
    handle: Option<JoinHandle<()>>,
}

impl<J: Send + 'static, D: Send + 'static> WorkerThread<J, D> {
    /// Starts a thread of this name. At most this many jobs, and as many results, can be queued; a further one blocks its
    /// sender. The work gets each job with a function for its results, which returns whether there is still a receiver.
    pub(super) fn start(
        name: &str,
        waiting: usize,
        mut work: impl FnMut(J, &mut dyn FnMut(D) -> bool) + Send + 'static,
    ) -> Result<Self> {
        let (jobs, receiver) = sync_channel(waiting);
        let (sender, done) = sync_channel(waiting);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let handle = thread.spawn(move || {
            let mut tell = |result| sender.send(result).is_ok();
            while let Ok(job) = receiver.recv() {
                work(job, &mut tell);
            }
        });
        let handle = handle.map_err(|error| sys::Error::new("start a thread", error))?;
        Ok(Self { jobs: Some(jobs), done, handle: Some(handle) })
    }

    /// Gives it a job. A thread that is gone has panicked; waiting for its results says so.
    pub(super) fn give(&self, job: J) {
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }

    /// A result, if there is one now.
    pub(super) fn try_take(&self) -> Option<D> {
        self.done.try_recv().ok()
    }

    /// A result, waiting for it; `None` when none will come.
    pub(super) fn take(&self) -> Option<D> {
        self.done.recv().ok()
    }

    /// Gives no more jobs.
    pub(super) fn close(&mut self) {
        self.jobs = None;
    }
}

impl<J, D> Drop for WorkerThread<J, D> {
    fn drop(&mut self) {
        self.jobs = None;
        while self.done.recv().is_ok() {}
        if let Some(handle) = self.handle.take() {
            // A panic has been noticed where its results were waited for.
            let _ = handle.join();
        }
    }
}
