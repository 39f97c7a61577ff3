//! What an epoch changes: ranges that went and pages that came, and their way into a part.
//!
//! Owns: `Delta`, joining two of them, writing pages as runs.
//! Invariants: what a delta drops is dropped before any of its pages is entered, whatever the order of calls
//! was, and the outcome is the same as that of the calls in their order.
//! Does not: hold page contents.

use std::ops::Range;

use image::{LogPartEncoder, LogPlace, PageChecksum, SpaceId};
use model::{Address, AddressRange, PAGE_BYTES, PageCount};

use super::table::{Cell, PageTable, Spot};

/// Dropped ranges that are gathered before they are sorted and joined.
const DROPS_LOOSE_MAX: usize = 1024;

/// Changes against an earlier state.
#[derive(Clone, Debug, Default)]
pub(super) struct Delta {
    /// Nothing of the earlier state counts.
    pub(super) full: bool,
    drops: Vec<(SpaceId, Range<u64>)>,
    join_at: usize,
    pages: PageTable,
}

impl Delta {
    /// A delta against nothing.
    pub(super) fn full() -> Self {
        Self { full: true, ..Self::default() }
    }

    /// Enters a page.
    pub(super) fn set(&mut self, space: SpaceId, page: u64, cell: Cell) {
        self.pages.set(space, page, cell);
    }

    /// Takes the pages in a range out.
    pub(super) fn drop_range(&mut self, space: SpaceId, pages: Range<u64>) {
        if pages.is_empty() {
            return;
        }
        self.pages.remove(space, pages.clone(), |_| {});
        if self.full {
            return;
        }
        self.drops.push((space, pages));
        if self.drops.len() >= self.join_at.max(DROPS_LOOSE_MAX) {
            self.join_drops();
            // Those that cannot be joined stay; looking again at every call would cost their square.
            self.join_at = 2 * self.drops.len();
        }
    }

    /// Goes on with a later delta.
    pub(super) fn absorb(&mut self, later: &Self) {
        if later.full {
            self.clone_from(later);
            return;
        }
        for (space, pages) in &later.drops {
            self.drop_range(*space, pages.clone());
        }
        for (space, page, cell) in later.pages.iter() {
            self.set(space, page, cell);
        }
    }

    /// The pages it brings.
    pub(super) const fn pages(&self) -> &PageTable {
        &self.pages
    }

    /// The ranges it drops, in no order; the same pages may be in several.
    pub(super) fn drops(&self) -> &[(SpaceId, Range<u64>)] {
        &self.drops
    }

    /// Writes it into a part.
    pub(super) fn encode(&mut self, part: &mut LogPartEncoder, place: impl Fn(Spot) -> LogPlace) {
        self.join_drops();
        for (space, pages) in &self.drops {
            let range = AddressRange::new(Address(pages.start * PAGE_BYTES), Address(pages.end * PAGE_BYTES));
            part.dropped(*space, range);
        }
        encode_pages(&self.pages, part, place);
    }

    /// Sorts the dropped ranges and joins those that touch.
    fn join_drops(&mut self) {
        self.drops.sort_unstable_by_key(|(space, pages)| (*space, pages.start));
        self.drops.dedup_by(|(space, later), (before_space, before)| {
            let joins = space == before_space && later.start <= before.end;
            if joins {
                before.end = before.end.max(later.end);
            }
            joins
        });
    }
}

/// Writes the pages of a table into a part, as runs.
pub(super) fn encode_pages(table: &PageTable, part: &mut LogPartEncoder, place: impl Fn(Spot) -> LogPlace) {
    let mut run = RunJoiner { part, checksums: Vec::new(), open: None };
    for (space, page, cell) in table.iter() {
        run.push(space, page, cell, &place);
    }
    run.flush();
}

struct RunJoiner<'a> {
    part: &'a mut LogPartEncoder,
    checksums: Vec<PageChecksum>,
    open: Option<OpenRun>,
}

#[derive(Clone, Copy)]
struct OpenRun {
    space: SpaceId,
    page: u64,
    pages: u64,
    spot: Option<Spot>,
    place: Option<LogPlace>,
}

impl RunJoiner<'_> {
    fn push(&mut self, space: SpaceId, page: u64, cell: Cell, place: impl Fn(Spot) -> LogPlace) {
        let spot = match cell {
            Cell::Zero => None,
            Cell::At(spot, _) => Some(spot),
        };
        let continues = self.open.is_some_and(|run| {
            let next = match (run.spot, spot) {
                (None, None) => true,
                // Spots of two segments may follow each other in number; places then do not.
                (Some(first), Some(spot)) => {
                    u64::from(first.get()) + run.pages == u64::from(spot.get())
                        && run.place.map(|place| place.segment) == Some(place(spot).segment)
                }
                _ => false,
            };
            next && (run.space, run.page + run.pages) == (space, page)
        });
        if !continues {
            self.flush();
            self.open = Some(OpenRun { space, page, pages: 0, spot, place: spot.map(place) });
        }
        if let Some(run) = &mut self.open {
            run.pages += 1;
        }
        if let Cell::At(_, checksum) = cell {
            self.checksums.push(checksum);
        }
    }

    fn flush(&mut self) {
        let Some(run) = self.open.take() else { return };
        let start = Address(run.page * PAGE_BYTES);
        match run.place {
            None => self.part.zero(run.space, start, PageCount(run.pages)),
            Some(place) => self.part.stored(run.space, start, place, &self.checksums),
        }
        self.checksums.clear();
    }
}
