//! Writes a log: one checkpoint after the other, while copiers continue.
//!
//! Owns: `LogWriter`, its epochs, their limits.
//! Invariants: a checkpoint becomes visible only when it is complete. One epoch is open at a time. While the pool has a
//! buffer, appending pages neither allocates nor waits for the device.
//! Does not: copy from a subject, or decide when the next checkpoint is due.

use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use image::{RecordSet, SpaceId};
use model::{AddressRange, PageCount, Sequence};
use sys::clock::Stopwatch;

use super::here::{Here, Ticket};
use super::open::{self, Opened};
use super::options::{LogOptions, LogThreads};
use super::queue::{EPOCHS_IN_FLIGHT_MAX, Finish, Order, Promise, Shared};
use super::ticket::{Completion, LogStatus, TicketState};
use crate::batch::PageBatch;
use crate::error::{Error, Result};
use crate::medium::{Lock, Medium};
use crate::meta::CommitMeta;
use crate::pool::locked;
use crate::sink::{Base, CheckpointSink, OpenCheckpoint, PageSink};

/// A log being written. Copiers on several threads may share it by reference.
#[derive(Debug)]
pub struct LogWriter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    here: Arc<Here>,
    directory: PathBuf,
    base: Option<Sequence>,
    last: AtomicU64,
    /// After the thread, so that no other writer starts before it has ended.
    _lock: Box<dyn Lock>,
}

/// A checkpoint being copied. Dropping it leaves the log as it was; its pages must then be copied again by the
/// next epoch.
#[derive(Debug)]
struct Epoch {
    shared: Arc<Shared>,
    here: Arc<Here>,
    sequence: Sequence,
    finished: bool,
}

impl LogWriter {
    /// Opens the log in this directory for writing, and makes it if it is not there. What earlier writers
    /// left unfinished is removed.
    ///
    /// # Errors
    ///
    /// `LogBusy` when another process writes it; what is wrong with its newest checkpoint; or `Io`.
    pub fn open_on(medium: &Arc<dyn Medium>, directory: &Path, options: LogOptions) -> Result<Self> {
        let Opened { writer_thread, lock, newest } = open::open(medium, directory, &options)?;
        let shared = Arc::clone(&writer_thread.shared);
        let base = newest.as_ref().map(|newest| newest.slot.sequence);
        let last = newest.and_then(|newest| newest.sequences().max());
        let here = Arc::new(Here::default());
        let thread = match options.threads {
            LogThreads::Own => {
                let thread = std::thread::Builder::new().name("undying-log".to_owned());
                let thread = thread.spawn(move || writer_thread.run());
                Some(thread.map_err(|error| sys::Error::new("start a thread", error))?)
            }
            LogThreads::Caller => {
                *locked(&here.0) = Some(writer_thread);
                None
            }
        };
        Ok(Self {
            shared,
            thread,
            here,
            directory: directory.to_path_buf(),
            base,
            last: AtomicU64::new(last.map_or(0, Sequence::get)),
            _lock: lock,
        })
    }

    /// The newest whole checkpoint when the log was opened. A subject that was restored from it can begin
    /// with `Base::Newest`; any other needs `Base::Nothing` first.
    #[must_use]
    pub const fn base(&self) -> Option<Sequence> {
        self.base
    }

    /// Leaves checkpoints behind that are newer than one: the subject goes on from an older state. Epochs that wait to
    /// be written are answered with `CalledOff`. The next epoch is a full one, and with its commit all newer ones are
    /// gone; those that the device has been given may become durable before, and cannot be called back.
    ///
    /// # Errors
    ///
    /// What went wrong with earlier epochs.
    pub fn void_above(&self, newest: Sequence) -> Result<()> {
        self.shared.is_void.store(true, Ordering::Release);
        self.shared.void_above(newest)
    }

    /// What went wrong with any epoch so far. A writer that has failed stays so.
    ///
    /// # Errors
    ///
    /// The first thing that did.
    pub fn check(&self) -> Result<()> {
        self.shared.check()
    }

    /// Makes present and later waits for a buffer end with `CalledOff`; with `false`, waiting is allowed again.
    pub fn call_off_waits(&self, called_off: bool) {
        self.shared.pool.call_off_waits(called_off);
    }

    /// Has these checkpoints stay restorable beside those that the policy keeps, from the next commit on and instead
    /// of those of an earlier call. Numbers of checkpoints that are not kept any more mean nothing.
    pub fn hold(&self, sequences: &[Sequence]) {
        sequences.clone_into(&mut locked(&self.shared.state).held);
    }

    /// Epochs that are finished and not yet durable.
    #[must_use]
    pub fn behind(&self) -> usize {
        locked(&self.shared.state).in_flight
    }

    /// A descriptor that becomes readable when an epoch has completed.
    #[must_use]
    pub fn event(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }

    /// The epochs that have completed since the last call, oldest first.
    #[must_use]
    pub fn take_completions(&self) -> Vec<Completion> {
        self.shared.take_completions()
    }

    /// The state after the newest commit.
    #[must_use]
    pub fn status(&self) -> LogStatus {
        locked(&self.shared.state).status.clone()
    }

    /// Completes all epochs that are under way, and ends the writer.
    ///
    /// # Errors
    ///
    /// The first thing that went wrong with any epoch.
    pub fn close(mut self) -> Result<()> {
        self.end();
        self.shared.check()
    }

    fn end(&mut self) {
        self.shared.close();
        if let Some(thread) = self.thread.take() {
            // A panic has failed the queue already.
            let _ = thread.join();
        }
        let writer_thread = locked(&self.here.0).take();
        if let Some(mut writer_thread) = writer_thread {
            // Its error has been given to every ticket and to the queue.
            let _ = writer_thread.drive();
            writer_thread.active_segment.background_writer.finish();
        }
    }
}

impl CheckpointSink for LogWriter {
    /// `None` while `EPOCHS_IN_FLIGHT_MAX` are under way: the store does not keep up, and waiting for `behind` to fall is
    /// better than memory that grows. One epoch is open at a time; a second one is an `Io` error.
    fn begin(&self, sequence: Sequence, base: Base) -> Result<Option<Box<dyn OpenCheckpoint>>> {
        self.shared.check()?;
        if self.behind() >= EPOCHS_IN_FLIGHT_MAX {
            return Ok(None);
        }
        let last = self.last.load(Ordering::Acquire);
        if sequence.get() <= last {
            return Err(Error::Exists(self.directory.with_file_name(sequence.to_string())));
        }
        if self.shared.is_open.swap(true, Ordering::AcqRel) {
            let busy = rustix::io::Errno::BUSY;
            return Err(sys::Error::path("begin a second epoch in", &self.directory, busy).into());
        }
        // A delta against nothing is a full one.
        let is_void = self.shared.is_void.load(Ordering::Acquire);
        let full = base == Base::Nothing || is_void || last == 0 && self.base.is_none();
        let (shared, here) = (Arc::clone(&self.shared), Arc::clone(&self.here));
        let epoch = Epoch { shared, here, sequence, finished: false };
        self.shared.pool.limit_waits(None);
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
    /// Waits until a buffer is free. One who already holds all of them, unappended, waits for ever.
    fn buffer(&self) -> Result<PageBatch> {
        self.shared.pool.take(|| self.here.drive())
    }

    /// Neither allocates nor waits.
    fn append(&self, batch: PageBatch) -> Result<()> {
        self.shared.order(Order::Pages(batch)).map(drop)
    }

    /// Beside those of the pool. Waits until what earlier pauses took beyond them is written.
    fn reserve(&self, count: usize) -> Result<Vec<PageBatch>> {
        self.shared.pool.reserve(|| self.here.drive(), count)
    }

    fn extend_reserve(&self) -> Result<PageBatch> {
        self.shared.pool.extend_reserve()
    }

    /// Neither allocates nor waits: this is the one to call while the subject is stopped.
    fn free_buffer(&self) -> Result<Option<PageBatch>> {
        self.shared.pool.take_free()
    }

    /// Beyond the pool and the reserve: the next `reserve` waits until it is written.
    fn spare(&self) -> Result<PageBatch> {
        self.shared.pool.spare()
    }

    fn put_back(&self, batch: PageBatch) {
        self.shared.pool.give_batch(batch);
    }

    fn buffer_pages(&self) -> PageCount {
        self.shared.pool.buffer_pages()
    }

    fn limit_waits(&self, wait_max: Option<Duration>) {
        self.shared.pool.limit_waits(wait_max);
    }

    fn discard(&self, space: SpaceId, range: AddressRange) -> Result<()> {
        const POLL: Duration = Duration::from_micros(20);
        while !self.shared.order(Order::Drop(space, range))? {
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl OpenCheckpoint for Epoch {
    /// Does not wait; writing goes on in the writer's threads. Records that are as they were in the checkpoint before are
    /// not written again.
    fn commit(mut self: Box<Self>, records: RecordSet, meta: CommitMeta) -> Result<Ticket> {
        let state = Arc::new(TicketState::new(self.sequence));
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
            // A writer that has failed forgets its epochs anyway.
            let _ = self.shared.order(Order::Abandon);
        }
        self.shared.is_open.store(false, Ordering::Release);
    }
}
