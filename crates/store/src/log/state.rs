//! The newest state of a log: the pages, records and segments of the newest checkpoint. Each commit writes an index
//! part: the delta of one epoch, sometimes several merged deltas, and rarely a full index.
//!
//! Owns: `State`, and its changes by an epoch or by compaction, which moves pages; the choice of the next part. Also
//! owns the list of parts of the newest root (checkpoint description).
//! Invariants: `live` of a segment is the number of pages of the newest state that are stored in this segment. If all
//! parts of a root are applied in order, the result is the state of the checkpoint. The maximum number of parts of a
//! root is `2 × TIER_PARTS + 1`.
//! Does not: write the parts.
//!
//! Cost: the index entry of a changed page is written once in the delta of its epoch, and at most once in a merged
//! delta. An entry has about 10 bytes. A full index is written when the log has grown by 128 times the size of the
//! index. So full indexes are 0.8 % of the written bytes. A full index makes all earlier parts unneeded. Therefore a
//! segment that contains parts, but no live pages, is removed soon: of random pages, the log grows by a third of their
//! size meanwhile.

use std::collections::BTreeSet;

use image::{LogPartEncoder, LogPartRef, RecordKey, RecordSet, SpaceId};
use model::ByteCount;

use super::delta::{Delta, encode_pages};
use super::load::Loaded;
use super::records::RecordMap;
use super::segments::Segments;
use super::table::{PageContent, PageTable};

/// The maximum number of parts in tier 0 and in tier 1. Tier 0 contains the deltas of single epochs, tier 1 contains
/// merged deltas, and tier 2 contains the full index. When a tier is full, the next part replaces the parts of this
/// tier. Opening a checkpoint reads at most 65 parts.
const TIER_PARTS: usize = 32;

/// The growth of the log between two full indexes, as a multiple of the size of the last full index.
const FULL_SPACING: u64 = 128;

/// The number of changed pages that are collected before they are merged.
const LOOSE_PAGES_MAX: u64 = 1 << 15;

/// The minimum size of a full index that the calculation with `FULL_SPACING` assumes.
const FULL_BYTES_MIN: u64 = 4096;

/// Pages and records of the newest checkpoint. During a commit, the state already includes the epoch of this commit.
#[derive(Debug)]
pub(super) struct State {
    pub(super) pages: PageTable,
    pub(super) records: RecordMap,
    /// All segments of the log, including segments that only older checkpoints need.
    pub(super) segments: Segments,
}

impl State {
    /// Returns a state without pages and records.
    pub(super) fn empty(segments: Segments) -> Self {
        Self { pages: PageTable::default(), records: RecordMap::default(), segments }
    }

    /// Returns the state of a loaded checkpoint.
    pub(super) fn of(loaded: Loaded) -> Self {
        let Loaded { pages, segments, records } = loaded;
        Self { pages, records: RecordMap::of(&records.into_values().collect()), segments }
    }

    /// Applies the changes of an epoch.
    pub(super) fn apply(&mut self, delta: &Delta) {
        if delta.full {
            self.pages.clear();
            self.segments.leave_all();
        }
        for (space, range) in &delta.drops {
            self.pages.remove(*space, range.clone(), |content| self.segments.leave(content));
        }
        self.pages.merge(&delta.pages, |before, content| {
            before.into_iter().for_each(|before| self.segments.leave(before));
            self.segments.enter(content);
        });
    }

    /// Sets the new content of one page. The old content of the page is no longer live.
    pub(super) fn enter(&mut self, space: SpaceId, page: u64, content: PageContent) {
        if let Some(before) = self.pages.set(space, page, content) {
            self.segments.leave(before);
        }
        self.segments.enter(content);
    }

    /// Replaces the records, and returns the keys of the changed records.
    pub(super) fn set_records(&mut self, records: &RecordSet) -> BTreeSet<RecordKey> {
        let records = RecordMap::of(records);
        let changed = records.changes(&self.records);
        self.records = records;
        changed
    }
}

/// The parts of the newest checkpoint, and the changes that the next merged part will contain.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) parts: Vec<LogPartRef>,
    /// The changes since the last merged or full part, without those of `loose`.
    merged: Delta,
    /// The deltas that follow `merged`. Often a full part comes first, and they need not be merged.
    loose: Vec<Delta>,
    /// The number of pages in all of `loose`.
    loose_pages: u64,
    merged_records: BTreeSet<RecordKey>,
    full_bytes: u64,
    full_at: u64,
}

/// An encoded part that is not yet written.
#[derive(Debug)]
pub(super) struct NextPart {
    pub(super) bytes: Vec<u8>,
    tier: u32,
}

impl NextPart {
    /// Reports whether the part is a full index.
    pub(super) const fn is_full(&self) -> bool {
        self.tier == 2
    }
}

impl Parts {
    /// Chooses and encodes the next part: a delta, a merged delta or a full index. `delta` and `changed` are the
    /// changes since the previous part; the content of `delta` is taken. `appended` is the number of bytes that were
    /// appended to the log so far.
    pub(super) fn next(
        &mut self,
        state: &State,
        delta: &mut Delta,
        changed: &BTreeSet<RecordKey>,
        appended: ByteCount,
    ) -> image::Result<NextPart> {
        let place = |block_index| state.segments.place(block_index);
        let of_tier = |tier| self.parts.iter().filter(|part| part.tier == tier).count();
        let since_full = appended.get().saturating_sub(self.full_at);
        let due = since_full >= FULL_SPACING * self.full_bytes.max(FULL_BYTES_MIN);
        let merge = of_tier(0) >= TIER_PARTS;
        if delta.full || self.parts.is_empty() || due || merge && of_tier(1) >= TIER_PARTS {
            let mut part = LogPartEncoder::new(true);
            encode_pages(&state.pages, &mut part, place);
            state.records.encode_all(&mut part);
            let bytes = part.finish()?;
            (self.full_bytes, self.full_at) = (bytes.len() as u64, appended.get());
            return Ok(NextPart { bytes, tier: 2 });
        }
        let mut part = LogPartEncoder::new(false);
        self.merged_records.extend(changed.iter().cloned());
        if merge {
            self.loose.push(std::mem::take(delta));
            self.merge_loose();
            self.merged.encode(&mut part, place);
            state.records.encode(&self.merged_records, &mut part);
            return Ok(NextPart { bytes: part.finish()?, tier: 1 });
        }
        delta.encode(&mut part, place);
        state.records.encode(changed, &mut part);
        self.loose_pages += delta.pages.pages;
        self.loose.push(std::mem::take(delta));
        if self.loose_pages > self.merged.pages.pages.max(LOOSE_PAGES_MAX) {
            self.merge_loose();
        }
        Ok(NextPart { bytes: part.finish()?, tier: 0 })
    }

    fn merge_loose(&mut self) {
        self.loose.drain(..).for_each(|delta| self.merged.absorb(&delta));
        self.loose_pages = 0;
    }

    /// Records that the part was written to `blob`, and removes the parts that the new part replaces.
    pub(super) fn enter(&mut self, blob: image::Blob, part: &NextPart) {
        if part.tier > 0 {
            self.parts.retain(|earlier| earlier.tier >= part.tier && part.tier < 2);
            (self.merged, self.loose, self.loose_pages) = (Delta::default(), Vec::new(), 0);
            self.merged_records.clear();
        }
        self.parts.push(LogPartRef { blob, tier: part.tier });
    }
}
