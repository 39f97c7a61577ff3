//! Writes the checkpoints of a subject to a log. Copiers (threads that copy pages of the subject) fill buffers for the
//! open epoch. Meanwhile, a writer thread writes the buffers that are already full.
//!
//! Owns: `LogWriter`; the open epoch; the limit of the number of epochs in flight.
//! Invariants: a checkpoint becomes visible only when all data of the checkpoint is written. At most one epoch is open.
//! While the pool has a free buffer, appending pages neither allocates nor waits for the device.
//! Does not: copy from a subject, or decide when the next checkpoint is due.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use image::RecordSet;
use model::Sequence;
use sys::clock::Stopwatch;

use super::here::{Here, Ticket};
use super::open::{self, Opened};
use super::options::{LogOptions, LogThreads};
use super::queue::{EPOCHS_IN_FLIGHT_MAX, Finish, Order, Promise, Shared};
use super::ticket::{Completion, LogStatus, TicketState};
use super::writer_task::WriterTask;
use crate::batch::PageChange;
use crate::error::{Error, Result};
use crate::lock::locked;
use crate::medium::{Lock, Medium};
use crate::meta::CommitMeta;
use crate::pool::{Drive, PagePool};
use crate::scheduler::{Urgency, Urgent};
use crate::sink::{Base, CheckpointSink, OpenCheckpoint, PageSink};
use crate::threads::Task;

/// Writes a log. Several threads may share the writer by reference.
#[derive(Debug)]
pub struct LogWriter {
    shared: Arc<Shared>,
    /// The writer, if threads of the process run it.
    task: Option<Arc<WriterTask>>,
    here: Arc<Here>,
    directory: PathBuf,
    base: Option<Sequence>,
    last: AtomicU64,
    /// The lock of the log directory. `end` waits for the writer before this field is dropped. Therefore two writers
    /// never write the same log.
    _lock: Box<dyn Lock>,
}

/// The open epoch. If the value is dropped without `commit`, the log does not contain the checkpoint. The next epoch
/// must copy the pages of the dropped epoch again.
#[derive(Debug)]
struct Epoch {
    shared: Arc<Shared>,
    here: Arc<Here>,
    sequence: Sequence,
    finished: bool,
    _urgent: Option<Urgent>,
}

impl LogWriter {
    /// Opens the log in this directory for writing, and creates the log if it does not exist. Removes files that
    /// earlier writers have not finished.
    ///
    /// # Errors
    ///
    /// Returns `LogBusy` if another process is writing the log, an error if the newest checkpoint is damaged, or `Io`.
    pub fn open_on(medium: &Arc<dyn Medium>, directory: &Path, options: LogOptions) -> Result<Self> {
        let Opened { writer_thread, lock, newest } = open::open(medium, directory, &options)?;
        let shared = Arc::clone(&writer_thread.shared);
        let base = newest.as_ref().map(|newest| newest.slot.sequence);
        let last = newest.and_then(|newest| newest.sequences().max());
        let here = Arc::new(Here::default());
        let task = match options.threads {
            LogThreads::Own => {
                let task = WriterTask::new(writer_thread);
                let weak: Weak<dyn Task> = Arc::downgrade(&task) as Weak<WriterTask>;
                let _ = shared.task.set((options.service.writers.clone(), weak));
                Some(task)
            }
            LogThreads::Caller => {
                *locked(&here.0) = Some(writer_thread);
                let driver: Weak<dyn Drive> = Arc::downgrade(&here) as Weak<Here>;
                shared.pool.set_driver(driver);
                None
            }
        };
        Ok(Self {
            shared,
            task,
            here,
            directory: directory.to_path_buf(),
            base,
            last: AtomicU64::new(last.map_or(0, Sequence::get)),
            _lock: lock,
        })
    }

    /// Returns the checkpoint that was the newest complete checkpoint when the log was opened. If the subject was
    /// restored from this checkpoint, the first epoch may use `Base::Newest`. Otherwise, the first epoch must use
    /// `Base::Nothing`.
    #[must_use]
    pub const fn base(&self) -> Option<Sequence> {
        self.base
    }

    /// Invalidates all checkpoints that are newer than `newest`, because the subject continues from an older state. The
    /// tickets of queued epochs are completed with `CalledOff`. The next epoch is a full checkpoint, and the commit of
    /// this epoch removes the invalidated checkpoints. Until this commit, epochs whose writes are already in flight may
    /// still become durable.
    ///
    /// # Errors
    ///
    /// Returns an error of an earlier epoch.
    pub fn void_above(&self, newest: Sequence) -> Result<()> {
        self.shared.is_void.store(true, Ordering::Release);
        self.shared.void_above(newest)
    }

    /// Checks whether an epoch has failed. After the first failure, all following epochs fail.
    ///
    /// # Errors
    ///
    /// Returns the first error of any epoch.
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// With `true`, cancels all present and future waits for buffers: these waits fail with `CalledOff`. With `false`,
    /// allows waits again.
    pub fn call_off_waits(&self, called_off: bool) {
        self.shared.pool.call_off_waits(called_off);
    }

    /// Sets the checkpoints that are kept in addition to the checkpoints of the retention policy. The list replaces the
    /// list of the previous call, and takes effect with the next commit. Sequence numbers of checkpoints that no longer
    /// exist are ignored. If the log would exceed its maximum size with the next checkpoint, checkpoints that are no longer
    /// held are removed now.
    pub fn hold(&self, sequences: &[Sequence]) {
        if self.shared.hold(sequences) {
            // After a failed write, the next commit reports the error.
            let _ = self.shared.order(Order::Fit);
        }
    }

    /// Makes the next commit keep only the `count` newest checkpoints, including its own, and the checkpoints of
    /// [`Self::hold`]. Later commits follow the retention policy again.
    pub fn keep_newest_once(&self, count: usize) {
        locked(&self.shared.state).kept.newest_once = Some(count.max(1));
    }

    /// Returns the number of epochs that are committed by the caller but not yet durable.
    #[must_use]
    pub fn behind(&self) -> usize {
        locked(&self.shared.state).in_flight
    }

    /// Returns a descriptor that becomes readable when the ticket of an epoch is completed.
    #[must_use]
    pub fn event(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }

    /// Returns the results of the epochs that have completed since the previous call, oldest first.
    #[must_use]
    pub fn take_completions(&self) -> Vec<Completion> {
        self.shared.take_completions()
    }

    /// Returns the state of the log after the newest commit.
    #[must_use]
    pub fn status(&self) -> LogStatus {
        locked(&self.shared.state).status.clone()
    }

    /// Completes all epochs in progress, and ends the writer.
    ///
    /// # Errors
    ///
    /// Returns the first error of any epoch.
    pub fn close(mut self) -> Result<()> {
        self.end();
        self.shared.check()
    }

    fn end(&mut self) {
        let writer = match self.task.take() {
            Some(task) => task.take(),
            None => locked(&self.here.0).take(),
        };
        if let Some(mut writer) = writer {
            // `drive` has already reported the error to every ticket and to the queue.
            let _ = writer.drive();
            writer.active_segment.background_writer.finish();
        }
    }
}

impl CheckpointSink for LogWriter {
    /// Returns `None` while `EPOCHS_IN_FLIGHT_MAX` epochs are in flight. This limits the memory usage if the store is
    /// slow. The caller should wait until `behind` decreases. While an epoch is open, a second `begin` fails with `Io`.
    fn begin(
        &self,
        sequence: Sequence,
        base: Base,
        urgency: Urgency,
    ) -> Result<Option<Box<dyn OpenCheckpoint>>> {
        self.shared.check()?;
        if self.behind() >= EPOCHS_IN_FLIGHT_MAX {
            return Ok(None);
        }
        if !self.shared.has_room() {
            self.here.drive()?;
            if self.task.is_some() && !self.shared.await_room()? {
                return Ok(None);
            }
        }
        let last = self.last.load(Ordering::Acquire);
        if sequence.get() <= last {
            return Err(Error::Exists(self.directory.with_file_name(sequence.to_string())));
        }
        if self.shared.is_open.swap(true, Ordering::AcqRel) {
            let busy = rustix::io::Errno::BUSY;
            return Err(sys::Error::path("begin a second epoch in", &self.directory, busy).into());
        }
        // Without a previous checkpoint, every page is new, so the checkpoint is full.
        let is_void = self.shared.is_void.load(Ordering::Acquire);
        let full = base == Base::Nothing || is_void || last == 0 && self.base.is_none();
        let (shared, here) = (Arc::clone(&self.shared), Arc::clone(&self.here));
        let urgent = (urgency == Urgency::Final).then(|| shared.io.urgent());
        let epoch = Epoch { shared, here, sequence, finished: false, _urgent: urgent };
        self.shared.pool.limit_waits(None);
        self.shared.pool.prepare()?;
        self.shared.order(Order::Begin { sequence, full })?;
        self.last.store(sequence.get(), Ordering::Release);
        Ok(Some(Box::new(epoch)))
    }
}

impl Drop for LogWriter {
    fn drop(&mut self) {
        self.end();
    }
}

impl PageSink for Epoch {
    fn pool(&self) -> &PagePool {
        &self.shared.pool
    }

    /// Queues a change. Neither allocates nor waits, except while too many discards are queued.
    fn apply(&self, change: PageChange) -> Result<()> {
        const POLL: Duration = Duration::from_micros(20);
        let PageChange::Discard(space, range) = change else {
            return self.shared.order(Order::Change(change)).map(drop);
        };
        while !self.shared.order(Order::Change(PageChange::Discard(space, range)))? {
            self.here.drive()?;
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl OpenCheckpoint for Epoch {
    /// Queues the checkpoint for the writer, and returns without waiting. Records that have not changed since the
    /// previous checkpoint are not written again.
    fn commit(mut self: Box<Self>, records: RecordSet, meta: CommitMeta) -> Result<Ticket> {
        let state = TicketState::new(self.sequence);
        let promise = Promise { shared: Arc::clone(&self.shared), ticket: Arc::clone(&state) };
        let finish = Finish { records, meta, promise, begun: Stopwatch::start() };
        self.shared.order(Order::Finish(Box::new(finish)))?;
        self.finished = true;
        self.shared.is_void.store(false, Ordering::Release);
        Ok(Ticket { state, here: Arc::clone(&self.here) })
    }
}

impl Drop for Epoch {
    fn drop(&mut self) {
        if !self.finished {
            // An error is ignored: `order` fails only after the writer has failed, and a failed writer commits no
            // epoch.
            let _ = self.shared.order(Order::Abandon);
        }
        self.shared.is_open.store(false, Ordering::Release);
    }
}
