//! A checkpoint between its last write and the sync.
//!
//! Owns: what its ticket will be told.
//! Does not: sync.

use std::time::Duration;

use sys::clock::Stopwatch;

use super::queue::Promise;
use super::ticket::LogCommitted;

/// A checkpoint that is written and not synced.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) promise: Promise,
    /// The answer, apart from what the sync takes.
    pub(super) written: LogCommitted,
    /// When `finish` was called.
    pub(super) begun: Stopwatch,
}

impl Pending {
    /// Answers its ticket, now that it is durable.
    pub(super) fn settle(self, sync: Duration) {
        let mut committed = self.written;
        committed.timings.write += sync;
        committed.timings.commit = self.begun.elapsed();
        self.promise.answer(Ok(committed));
    }
}
