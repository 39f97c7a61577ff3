//! The newest state of a log: its pages and records, and the segments of the log; how it becomes parts: a delta mostly,
//! merged ones now and then, everything rarely.
//!
//! Owns: `State`, how an epoch and moved pages change it; the parts of the newest root, the choice of the next part.
//! Invariants: `live` of a segment is the number of pages of the state that lie in it. The parts of a root add up to its
//! state; there are at most `2 × TIER_PARTS` and one.
//! Does not: write them.
//!
//! Cost: a page that changes is entered once in its epoch's delta and at most once in a merged one, about 10
//! bytes each time. A full index is due after 64 times its own size was appended to the log, 1.6 %; parts
//! then reach back over at most that much, and a segment that only a part keeps is soon given back.

use std::collections::BTreeSet;

use image::{LogPartEncoder, LogPartRef, RecordKey, RecordSet, SpaceId};
use model::ByteCount;

use super::delta::{Delta, encode_pages};
use super::load::Loaded;
use super::records::RecordMap;
use super::segments::Segments;
use super::table::{Cell, PageTable};

/// Parts of one tier before they are merged: opening a checkpoint reads 65 parts at most.
const TIER_PARTS: usize = 32;

/// Bytes appended to the log for each byte of the full index before the next is due.
const FULL_SPACING: u64 = 64;

/// Below this size a full index is as cheap as a delta.
const FULL_BYTES_MIN: u64 = 4096;

/// Pages and records of the newest checkpoint, and of the epoch that is being committed.
#[derive(Debug)]
pub(super) struct State {
    pub(super) pages: PageTable,
    pub(super) records: RecordMap,
    /// All of the log, with those that older checkpoints alone need.
    pub(super) segments: Segments,
}

impl State {
    /// Without pages and records.
    pub(super) fn empty(segments: Segments) -> Self {
        Self { pages: PageTable::default(), records: RecordMap::default(), segments }
    }

    /// That of a checkpoint.
    pub(super) fn of(loaded: Loaded) -> Self {
        let Loaded { pages, segments, records } = loaded;
        Self { pages, records: RecordMap::of(&records.into_values().collect()), segments }
    }

    /// Enters what an epoch has changed.
    pub(super) fn apply(&mut self, delta: &Delta) {
        if delta.full {
            self.pages.clear();
            self.segments.leave_all();
        }
        for (space, range) in &delta.drops {
            self.pages.remove(*space, range.clone(), |cell| self.segments.leave(cell));
        }
        for (space, page, cell) in delta.pages.iter() {
            self.enter(space, page, cell);
        }
    }

    /// Enters one page.
    pub(super) fn enter(&mut self, space: SpaceId, page: u64, cell: Cell) {
        if let Some(before) = self.pages.set(space, page, cell) {
            self.segments.leave(before);
        }
        self.segments.enter(cell);
    }

    /// Replaces the records; the keys of those that have changed.
    pub(super) fn set_records(&mut self, records: &RecordSet) -> BTreeSet<RecordKey> {
        let records = RecordMap::of(records);
        let changed = records.changes(&self.records);
        self.records = records;
        changed
    }
}

/// The parts of the newest checkpoint, and what the next merged one must say.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) parts: Vec<LogPartRef>,
    /// All changes since the last part that is not a single delta.
    merged: Delta,
    merged_records: BTreeSet<RecordKey>,
    full_bytes: u64,
    full_at: u64,
}

/// A part to be written.
#[derive(Debug)]
pub(super) struct NextPart {
    pub(super) bytes: Vec<u8>,
    tier: u32,
}

impl NextPart {
    /// Whether it says everything.
    pub(super) const fn is_full(&self) -> bool {
        self.tier == 2
    }
}

impl Parts {
    /// Encodes the part that takes the state before to this one; `appended` is the length of the log so far.
    pub(super) fn next(
        &mut self,
        state: &State,
        delta: &mut Delta,
        changed: &BTreeSet<RecordKey>,
        appended: ByteCount,
    ) -> image::Result<NextPart> {
        // A part that says everything empties both.
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

    /// The part was written here.
    pub(super) fn enter(&mut self, blob: image::Blob, part: &NextPart) {
        if part.tier > 0 {
            self.parts.retain(|earlier| earlier.tier >= part.tier && part.tier < 2);
            self.merged = Delta::default();
            self.merged_records.clear();
        }
        self.parts.push(LogPartRef { blob, tier: part.tier });
    }
}
