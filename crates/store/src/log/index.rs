//! How the newest state becomes parts: a delta mostly, merged ones now and then, everything rarely.
//!
//! Owns: the parts of the newest root, the choice of the next part.
//! Invariants: the parts of a root add up to its state; there are at most `2 × TIER_PARTS` and one.
//! Does not: write them.
//!
//! Cost: a page that changes is entered once in its epoch's delta and at most once in a merged one, about 10
//! bytes each time. A full index is due after 64 times its own size was appended to the log, 1.6 %; parts
//! then reach back over at most that much, and a segment that only a part keeps is soon given back.

use std::collections::BTreeSet;

use image::{LogPartEncoder, LogPartRef, RecordKey};
use model::ByteCount;

use super::delta::{Delta, encode_pages};
use super::state::State;
use image::Result;

/// Parts of one tier before they are merged: opening a checkpoint reads 65 parts at most.
const TIER_PARTS: usize = 32;

/// Bytes appended to the log for each byte of the full index before the next is due.
const FULL_SPACING: u64 = 64;

/// Below this size a full index is as cheap as a delta.
const FULL_BYTES_MIN: u64 = 4096;

/// The parts of the newest checkpoint, and what the next merged one must say.
#[derive(Debug, Default)]
pub(super) struct Parts {
    parts: Vec<LogPartRef>,
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
    ) -> Result<NextPart> {
        // A part that says everything empties both.
        if !delta.full {
            self.merged.absorb(delta);
            self.merged_records.extend(changed.iter().cloned());
        }
        let place = |spot| state.segments.place(spot);
        let of_tier = |tier| self.parts.iter().filter(|part| part.tier == tier).count();
        let since_full = appended.get().saturating_sub(self.full_at);
        let due = since_full >= FULL_SPACING * self.full_bytes.max(FULL_BYTES_MIN);
        let merge = of_tier(0) >= TIER_PARTS;
        if delta.full || self.parts.is_empty() || due || merge && of_tier(1) >= TIER_PARTS {
            let mut part = LogPartEncoder::new(true);
            encode_pages(state.pages(), &mut part, place);
            state.records().encode_all(&mut part);
            let bytes = part.finish()?;
            (self.full_bytes, self.full_at) = (bytes.len() as u64, appended.get());
            return Ok(NextPart { bytes, tier: 2 });
        }
        let mut part = LogPartEncoder::new(false);
        if merge {
            self.merged.encode(&mut part, place);
            state.records().encode(&self.merged_records, &mut part);
            return Ok(NextPart { bytes: part.finish()?, tier: 1 });
        }
        delta.encode(&mut part, place);
        state.records().encode(changed, &mut part);
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

    /// All of them.
    pub(super) fn all(&self) -> &[LogPartRef] {
        &self.parts
    }
}
