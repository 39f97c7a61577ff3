//! The result of an epoch that was given to the writer, and the status of a log.
//!
//! Owns: the ticket of a finished epoch, and its result; `LogStatus`.
//! Does not: order or write.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use model::{ByteCount, PageCount, Sequence};
use sys::clock::Deadline;

use crate::error::Result;
use crate::meta::WriteTimings;
use crate::pool::locked;

/// A checkpoint that is durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogCommitted {
    /// Its number.
    pub sequence: Sequence,
    /// Its commit record.
    pub commit: image::Commit,
    /// Bytes written for it: pages, index, records, root and slot, and pages moved to keep the log short.
    pub written: ByteCount,
    /// Of these, pages that were moved.
    pub moved: PageCount,
    /// How long writing it took; `commit` counts from the call of `finish`.
    pub timings: WriteTimings,
}

impl LogCommitted {
    /// Of a checkpoint, as an image or in memory, for which nothing was written but its own bytes.
    pub(crate) const fn alone(commit: image::Commit, timings: WriteTimings) -> Self {
        let (sequence, written) = (commit.sequence, commit.bytes);
        Self { sequence, commit, written, moved: PageCount(0), timings }
    }
}

/// The state of a log after its newest commit.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LogStatus {
    /// Checkpoints that can be restored, rising.
    pub kept: Vec<Sequence>,
    /// Pages of the newest one, zero pages included.
    pub pages: PageCount,
    /// Of these, pages that are stored.
    pub stored: PageCount,
    /// Segments that something refers to, the one being written included.
    pub segments: usize,
    /// Of these, segments that are compressed.
    pub compressed: usize,
    /// Bytes that they take on the device.
    pub disk: ByteCount,
    /// Bytes written since the writer was opened.
    pub written: ByteCount,
    /// Pages moved since then, to keep the log short.
    pub moved: PageCount,
    /// Syncs since then.
    pub syncs: u64,
    /// Full indexes written since then.
    pub full_indexes: u64,
}

/// What became of an epoch.
pub type Completion = (Sequence, Result<LogCommitted>);

/// An answer that is still to come.
#[derive(Debug)]
pub(super) struct TicketState {
    pub(super) sequence: Sequence,
    answer: Mutex<Option<Result<LogCommitted>>>,
    answered: Condvar,
}

impl TicketState {
    pub(super) fn new(sequence: Sequence) -> Self {
        Self { sequence, answer: Mutex::new(None), answered: Condvar::new() }
    }

    /// The answer, if there is one.
    pub(super) fn get(&self) -> Option<Result<LogCommitted>> {
        locked(&self.answer).clone()
    }

    /// The answer, waiting for it at most so long.
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
