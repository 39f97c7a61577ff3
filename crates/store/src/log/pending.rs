//! A checkpoint between its last write and the sync.
//!
//! Owns: what its ticket will be told.
//! Does not: sync.

use std::time::{Duration, Instant};

use image::Commit;
use model::{ByteCount, PageCount};

use super::queue::Promise;
use super::ticket::LogCommitted;
use crate::writer::WriteTimings;

/// A checkpoint that is written and not synced.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) promise: Promise,
    pub(super) commit: Commit,
    pub(super) written: u64,
    pub(super) moved: u64,
    pub(super) hash: Duration,
    pub(super) write: Duration,
    pub(super) begun: Instant,
}

impl Pending {
    /// Answers its ticket, now that it is durable.
    pub(super) fn settle(self, sync: Duration) {
        let committed = LogCommitted {
            sequence: self.commit.sequence,
            commit: self.commit,
            written: ByteCount(self.written),
            moved: PageCount(self.moved),
            timings: WriteTimings {
                hash: self.hash,
                compress: Duration::ZERO,
                write: self.write + sync,
                commit: self.begun.elapsed(),
            },
        };
        self.promise.answer(Ok(committed));
    }
}
