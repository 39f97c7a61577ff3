//! The newest state of a log: its pages, records and segments. Each commit encodes the changes as an index part. A part
//! is usually the delta of one epoch, sometimes several merged deltas, and rarely a full index.
//!
//! Owns: `State`, and how an epoch and moved pages change the state; the parts of the newest root (checkpoint
//! description); the choice of the next part.
//! Invariants: `live` of a segment is the number of pages of the newest state in the segment. Applying the parts of a
//! root in order gives the state of the checkpoint. A root has at most `2 × TIER_PARTS + 1` parts.
//! Does not: write the parts.
//!
//! Cost: the index entry of a changed page is written once in the delta of its epoch, and at most once in a merged
//! delta. An entry has about 10 bytes. A full index is due when the log has grown by 64 times the size of the index
//! (1.6 %). Therefore the parts refer only to a recent piece of the log, and a segment that only a part needs is
//! removed soon.

use std::collections::BTreeSet;

use image::{LogPartEncoder, LogPartRef, RecordKey, RecordSet, SpaceId};
use model::ByteCount;

use super::delta::{Delta, encode_pages};
use super::load::Loaded;
use super::records::RecordMap;
use super::segments::Segments;
use super::table::{PageContent, PageTable};

/// The number of parts in one tier before they are merged. Tier 0 contains the deltas of single epochs, tier 1 contains
/// merged deltas, and tier 2 contains the full index. Opening a checkpoint reads at most 65 parts.
const TIER_PARTS: usize = 32;

/// A full index is due when the log has grown by the size of the last full index, multiplied by this number.
const FULL_SPACING: u64 = 64;

/// The minimum size that is assumed for a full index. A full index below this size costs no more than a delta.
const FULL_BYTES_MIN: u64 = 4096;

/// Pages and records of the newest checkpoint, including the epoch that is being committed.
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
        for (space, page, content) in delta.pages.iter() {
            self.enter(space, page, content);
        }
    }

    /// Sets the place of one page.
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

/// The parts of the newest checkpoint, and the content of the next merged part.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) parts: Vec<LogPartRef>,
    /// All changes since the last merged or full part.
    merged: Delta,
    merged_records: BTreeSet<RecordKey>,
    full_bytes: u64,
    full_at: u64,
}

/// A part that will be written.
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
    /// Encodes the part that describes the changes from the previous state to this state. `appended` is the number of
    /// bytes in the log.
    pub(super) fn next(
        &mut self,
        state: &State,
        delta: &mut Delta,
        changed: &BTreeSet<RecordKey>,
        appended: ByteCount,
    ) -> image::Result<NextPart> {
        // A full part clears `merged` and `merged_records`, so the changes need not be added.
        if !delta.full {
            self.merged.absorb(delta);
            self.merged_records.extend(changed.iter().cloned());
        }
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
        if merge {
            self.merged.encode(&mut part, place);
            state.records.encode(&self.merged_records, &mut part);
            return Ok(NextPart { bytes: part.finish()?, tier: 1 });
        }
        delta.encode(&mut part, place);
        state.records.encode(changed, &mut part);
        Ok(NextPart { bytes: part.finish()?, tier: 0 })
    }

    /// Records that the part was written to `blob`.
    pub(super) fn enter(&mut self, blob: image::Blob, part: &NextPart) {
        if part.tier > 0 {
            self.parts.retain(|earlier| earlier.tier >= part.tier && part.tier < 2);
            self.merged = Delta::default();
            self.merged_records.clear();
        }
        self.parts.push(LogPartRef { blob, tier: part.tier });
    }
}
