//! A thread that receives jobs and returns results, for work for which no commit waits.
//!
//! Owns: the thread; the queues for jobs and for results.
//! Invariants: jobs are processed in the order of the queue. After the drop, no job is left.
//! Does not: know the content of the jobs.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use crate::error::Result;

/// The interface to a worker thread.
#[derive(Debug)]
pub(super) struct WorkerThread<J, D> {
    jobs: Option<SyncSender<J>>,
    done: Receiver<D>,
    handle: Option<JoinHandle<()>>,
}

impl<J: Send + 'static, D: Send + 'static> WorkerThread<J, D> {
    /// Starts a thread with this name. At most `waiting` jobs and `waiting` results can be queued; a further job or
    /// result blocks its sender. `work` receives each job and a function that sends a result. This function returns
    /// whether the receiver still exists.
    pub(super) fn start(
        name: &str,
        waiting: usize,
        mut work: impl FnMut(J, &mut dyn FnMut(D) -> bool) + Send + 'static,
    ) -> Result<Self> {
        let (jobs, receiver) = sync_channel(waiting);
        let (sender, done) = sync_channel(waiting);
        let thread = std::thread::Builder::new().name(name.to_owned());
        let handle = thread.spawn(move || {
            let mut report = |result| sender.send(result).is_ok();
            while let Ok(job) = receiver.recv() {
                work(job, &mut report);
            }
        });
        let handle = handle.map_err(|error| sys::Error::new("start a thread", error))?;
        Ok(Self { jobs: Some(jobs), done, handle: Some(handle) })
    }

    /// Sends a job to the thread. If the thread has panicked, the error appears when the caller waits for a result.
    pub(super) fn give(&self, job: J) {
        let _ = self.jobs.as_ref().map(|jobs| jobs.send(job));
    }

    /// Returns a result, if there is one now.
    pub(super) fn try_take(&self) -> Option<D> {
        self.done.try_recv().ok()
    }

    /// Waits for a result. Returns `None` if the thread has ended and no result is left.
    pub(super) fn take(&self) -> Option<D> {
        self.done.recv().ok()
    }

    /// Closes the queue for jobs, so that the thread ends after the last job.
    pub(super) fn close(&mut self) {
        self.jobs = None;
    }
}

impl<J, D> Drop for WorkerThread<J, D> {
    fn drop(&mut self) {
        self.jobs = None;
        while self.done.recv().is_ok() {}
        if let Some(handle) = self.handle.take() {
            // A panic was already detected by the caller that waited for a result.
            let _ = handle.join();
        }
    }
}
