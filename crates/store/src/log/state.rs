//! The newest state of a log: its pages and records, and the segments of the log.
//!
//! Owns: `State`, how an epoch and moved pages change it.
//! Invariants: `live` of a segment is the number of pages of the state that lie in it.
//! Does not: say how a state becomes parts; `index` does.

use std::collections::BTreeSet;

use image::{RecordKey, RecordSet, SpaceId};

use super::delta::Delta;
use super::load::Loaded;
use super::records::RecordMap;
use super::segments::Segments;
use super::table::{Cell, PageTable};

/// Pages and records of the newest checkpoint, and of the epoch that is being committed.
#[derive(Debug)]
pub(super) struct State {
    pages: PageTable,
    records: RecordMap,
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
        Self { pages, records: RecordMap::of(&records.into_set()), segments }
    }

    /// Its pages.
    pub(super) const fn pages(&self) -> &PageTable {
        &self.pages
    }

    /// Its records.
    pub(super) const fn records(&self) -> &RecordMap {
        &self.records
    }

    /// Enters what an epoch has changed.
    pub(super) fn apply(&mut self, delta: &Delta) {
        if delta.full {
            self.pages.clear();
            self.segments.leave_all();
        }
        for (space, range) in delta.drops() {
            self.pages.remove(*space, range.clone(), |cell| self.segments.leave(cell));
        }
        for (space, page, cell) in delta.pages().iter() {
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
