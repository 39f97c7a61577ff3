//! The result of a finished epoch, and the status of a log.
//!
//! Owns: the ticket of a finished epoch and its result; `LogStatus`.
//! Does not: queue orders, or write to the log.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use model::{ByteCount, PageCount, Sequence};
use sys::clock::Deadline;

use crate::error::Result;
use crate::lock::locked;
use crate::meta::WriteTimings;

/// A durable checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogCommitted {
    /// The sequence number.
    pub sequence: Sequence,
    /// The commit record.
    pub commit: image::Commit,
    /// The number of bytes written for the checkpoint: pages, index, records, the blocks that publish the checkpoint,
    /// and pages moved by compaction.
    pub written: ByteCount,
    /// The number of pages moved by compaction. `written` includes the moved pages.
    pub moved: PageCount,
    /// The durations of the steps. `commit` starts at the call of `OpenCheckpoint::commit`.
    pub timings: WriteTimings,
}

impl LogCommitted {
    /// Returns the result for a checkpoint outside of a log. Only the bytes of the checkpoint itself were written.
    #[must_use]
    pub const fn alone(commit: image::Commit, timings: WriteTimings) -> Self {
        let (sequence, written) = (commit.sequence, commit.bytes);
        Self { sequence, commit, written, moved: PageCount(0), timings }
    }
}

/// The state of a log after its newest commit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogStatus {
    /// The checkpoints that can be restored, by increasing sequence number.
    pub kept: Vec<Sequence>,
    /// The number of pages in the newest checkpoint, including zero pages.
    pub pages: PageCount,
    /// The number of stored pages in the newest checkpoint. Zero pages are not stored.
    pub stored: PageCount,
    /// The number of referenced segments, including the segment that is being written.
    pub segments: usize,
    /// The number of compressed segments.
    pub compressed: usize,
    /// The size of all segments on the device.
    pub disk: ByteCount,
    /// The maximum size, for the newest checkpoint. `None`: no limit.
    pub size_max: Option<ByteCount>,
    /// Whether fewer checkpoints are kept than the retention policy keeps, because of the maximum size.
    pub is_shortened: bool,
    /// The number of bytes written since the writer was opened.
    pub written: ByteCount,
    /// The number of pages moved by compaction since the writer was opened.
    pub moved: PageCount,
    /// The number of bytes written for the newest checkpoint.
    pub newest_written: ByteCount,
    /// The number of copies that were written to the place of an earlier copy, since the writer was opened.
    pub reused: PageCount,
    /// The number of syncs since the writer was opened.
    pub syncs: u64,
    /// The number of full indexes written since the writer was opened.
    pub full_indexes: u64,
}

/// The sequence number of an epoch, and its result.
pub type Completion = (Sequence, Result<LogCommitted>);

/// The shared state of a ticket.
#[derive(Debug)]
pub(super) struct TicketState {
    pub(super) sequence: Sequence,
    answer: Mutex<Option<Result<LogCommitted>>>,
    answered: Condvar,
}

impl TicketState {
    pub(super) fn new(sequence: Sequence) -> Arc<Self> {
        Arc::new(Self { sequence, answer: Mutex::new(None), answered: Condvar::new() })
    }

    /// Returns the result, if the ticket is completed.
    pub(super) fn get(&self) -> Option<Result<LogCommitted>> {
        locked(&self.answer).clone()
    }

    /// Waits for the result, at most for `timeout`.
    pub(super) fn wait(&self, timeout: Option<Duration>) -> Option<Result<LogCommitted>> {
        let deadline = timeout.map(Deadline::after);
        let mut answer = locked(&self.answer);
        while answer.is_none() {
            answer = match deadline.map(Deadline::left) {
                Some(Duration::ZERO) => return None,
                Some(left) => {
                    self.answered.wait_timeout(answer, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.answered.wait(answer).unwrap_or_else(PoisonError::into_inner),
            };
        }
        answer.clone()
    }

    pub(super) fn set(&self, result: Result<LogCommitted>) {
        *locked(&self.answer) = Some(result);
        self.answered.notify_all();
    }
}
