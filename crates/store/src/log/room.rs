//! Keeps a log within its maximum size: which old checkpoints are dropped, and when the writer waits for removals.
//!
//! Owns: the size of the log on the device, and its comparison with the maximum size.
//! Invariants: before the log grows by a segment beyond its maximum size, all old checkpoints that may be dropped are
//! dropped, and their segments are removed. Exception: while a stopped subject
//! waits for a buffer, nothing is awaited. An old checkpoint is dropped only after a newer checkpoint is durable.
//! Does not: fail a checkpoint. A checkpoint that does not fit is written nevertheless.
//!
//! The segments on the device are: those of the kept checkpoints, those of the open epoch, those that were created in
//! advance, and those whose removal is not complete.

use std::collections::BTreeSet;

use image::LogSegment;
use model::{ByteCount, PageCount, Sequence};

use super::layout::SEGMENT_BYTES_GROWN;
use super::options::SizeLimit;
use super::queue::{EPOCHS_IN_FLIGHT_MAX, Room};
use super::space;
use super::writer_thread::WriterThread;
use crate::error::Result;
use crate::lock::locked;

/// The next checkpoints are expected to be as large as the newest one. Room is kept for as many of them as can be in
/// flight, and for the open one, so that checkpoints need not wait for each other.
const EXPECTED_MAX: u64 = EPOCHS_IN_FLIGHT_MAX as u64 + 1;

/// More room than for one checkpoint is kept only if it is at most this part of the maximum size. Old checkpoints are
/// worth more than checkpoints that are written at the same time.
const EXPECTED_SHARE: u64 = 8;

/// A segment takes at most one of this many parts of the maximum size, unless all segments have their smallest size.
const SEGMENTS_MIN: u64 = 64;

impl WriterThread {
    /// Makes room for `blocks` blocks of the open epoch, if these need a further segment: drops old checkpoints, and
    /// waits until removed segments are gone. Returns without room if only the last checkpoints remain.
    pub(super) fn make_room(&mut self, blocks: u64) -> Result<()> {
        if self.active_segment.left() >= blocks {
            if self.active_segment.background_writer.ahead() == 0 {
                self.limit_ahead();
            }
            return Ok(());
        }
        let Some(max) = self.segments_max() else {
            self.limit_ahead();
            return Ok(());
        };
        let is_over = |writer: &mut Self| writer.occupied() + writer.coming() > max.get();
        // While a stopped subject waits for a buffer, nothing here waits: neither for the sync of `fit`, nor for a removal.
        let may_wait = |writer: &Self| !writer.shared.pool.is_hurried();
        if is_over(self) && may_wait(self) {
            self.fit(ByteCount(0))?;
        }
        let mut is_tight = is_over(self);
        while is_tight && may_wait(self) && self.active_segment.background_writer.await_removal() {
            is_tight = is_over(self);
        }
        self.epoch.iter_mut().for_each(|epoch| epoch.is_tight = is_tight);
        self.limit_ahead();
        Ok(())
    }

    /// Waits for removals while the log is larger than its maximum size.
    pub(super) fn await_removals(&mut self) {
        let Some(max) = self.segments_max() else { return };
        while self.occupied() + self.coming() > max.get()
            && self.active_segment.background_writer.await_removal()
        {}
    }

    /// Publishes the newest checkpoint again, without older checkpoints that do not fit and are no longer held. Removes
    /// their segments. Otherwise, the segments would exist beside the next checkpoint until its commit. `next` is the
    /// room for further checkpoints.
    pub(super) fn fit(&mut self, next: ByteCount) -> Result<()> {
        if !self.pending.is_empty() {
            self.settle()?;
        }
        let held = locked(&self.shared.state).kept.held.clone();
        let Some((commit, _)) = self.retention.newest.clone() else { return Ok(()) };
        let Some(newest) = self.retention.kept.pop_if(|kept| kept.sequence() == commit.sequence) else {
            return Ok(());
        };
        let before = self.retention.kept.len();
        self.fit_size(&held, next);
        if self.retention.kept.len() == before {
            self.retention.kept.push(newest);
            return Ok(());
        }
        self.publish(&self.root(&commit))?;
        self.settle()
    }

    /// Removes the oldest checkpoints that do not fit beside the newest checkpoint, the open epoch and `next` further
    /// bytes.
    pub(super) fn fit_size(&mut self, held: &[Sequence], next: ByteCount) {
        let segments = &self.state.segments;
        let stored = PageCount(self.state.pages.stored);
        self.status.size_max = self.retention.size.bytes(stored, self.retention.segment);
        let Some(max) = self.segments_max() else { return };
        let mut own = self.needed();
        let active = self.active_segment.place().map(|place| place.segment);
        let open = self.epoch.as_ref().map(|epoch| epoch.first);
        own.extend(active);
        own.extend(
            open.into_iter().flat_map(|first| segments.numbers.range(first..).map(|(number, _)| *number)),
        );
        let room = ByteCount(max.get().saturating_sub(next.get() + self.coming()));
        if self.retention.fit(room, &own, held, |segment| segments.length(segment)) {
            self.status.is_shortened = true;
        } else if self.retention.kept.len() + 1 >= self.retention.policy.count() {
            self.status.is_shortened = false;
        }
    }

    /// Returns the room that is kept for the next checkpoints if the newest checkpoint needed `written` bytes.
    pub(super) fn expected(&self, written: ByteCount) -> ByteCount {
        let share = self.segments_max().map_or(0, |max| max.get() / EXPECTED_SHARE);
        ByteCount((written.get() * EXPECTED_MAX).min(share).max(written.get()))
    }

    /// Returns the sizes of the log below which nothing must be dropped or awaited; `None` without a limit.
    pub(super) fn room(&self) -> Option<Room> {
        let max = self.segments_max()?.get().saturating_sub(self.coming());
        let written = self.retention.newest.as_ref().map(|newest| newest.1).unwrap_or_default();
        let fits_below = max.saturating_sub(self.expected(written).get());
        Some(Room { fits_below, begins_below: max.saturating_sub(2 * written.get()) })
    }

    /// Lets the size of new segments follow the size of the log: a segment has at most one of `SEGMENTS_MIN` parts of the
    /// maximum size. Each segment that is created is synced, and each old checkpoint can need a segment of its own.
    pub(super) fn adapt_segments(&mut self) {
        let stored = PageCount(self.state.pages.stored);
        let stated = |size: SizeLimit| size.bytes(stored, self.retention.segment);
        let max = stated(self.retention.size).or_else(|| stated(SizeLimit::OfPages)).unwrap_or_default();
        let most = (max.get() / SEGMENTS_MIN).min(SEGMENT_BYTES_GROWN);
        let mut length = self.retention.segment;
        while 2 * length.get() <= most {
            length += length;
        }
        let segments = &mut self.state.segments;
        // A size of the program between two lengths does not change the length again and again.
        let newest = segments.lengths.newest();
        let length = if length < newest && 2 * length.get() >= newest.get() { newest } else { length };
        let from = self.active_segment.background_writer.set_length(length);
        segments.lengths.set_from(from, length);
        let oldest = segments.numbers.keys().next().copied();
        oldest.into_iter().for_each(|oldest| segments.lengths.forget_before(oldest));
    }

    /// Sets how many segments are created in advance.
    pub(super) fn limit_ahead(&mut self) {
        let count = match self.segments_max() {
            Some(max) => {
                let segment = self.state.segments.lengths.newest().get();
                max.get().saturating_sub(self.occupied()) / segment
            }
            None => u64::MAX,
        };
        self.active_segment.background_writer.limit_ahead(count);
    }

    /// Returns the segments of the newest state, and of its index parts.
    pub(super) fn needed(&self) -> BTreeSet<LogSegment> {
        let live = self.state.segments.iter().filter(|state| state.live > 0).map(|state| state.number);
        let indexes = self.parts.parts.iter().flat_map(|part| space::segments_of(&part.blob));
        live.chain(indexes).collect()
    }

    /// Returns the maximum size of all segments. While a checkpoint that is larger than the newest one is being written,
    /// the limit is that for the larger one.
    fn segments_max(&self) -> Option<ByteCount> {
        let open = self.epoch.as_ref().map_or(0, |epoch| epoch.pages_used());
        let stored = PageCount(self.state.pages.stored.max(open));
        self.retention.size.segments_bytes(stored, self.retention.segment)
    }

    /// Returns the bytes of all segments on the device that are or were in use.
    fn occupied(&mut self) -> u64 {
        self.state.segments.disk().get() + self.active_segment.background_writer.removing().get()
    }

    /// Returns the bytes of the segments that were created in advance, or of the one that is created next.
    fn coming(&self) -> u64 {
        self.active_segment.background_writer.ahead().max(1) * self.state.segments.lengths.newest().get()
    }
}
