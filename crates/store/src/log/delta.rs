//! The changes of an epoch: removed ranges and new pages, and their encoding in an index part.
//!
//! Owns: `Delta`; merging two deltas; encoding pages as runs (consecutive pages in consecutive blocks).
//! Invariants: the removals of a delta apply before its pages, whatever the order of the calls was. The result equals
//! the result of the single calls in their order.
//! Does not: contain the bytes of pages.

use std::ops::Range;

use image::{LogPartEncoder, LogPlace, PageChecksum, SpaceId};
use model::{Address, AddressRange, PAGE_BYTES, PageCount};

use super::table::{BlockIndex, PageContent, PageTable};

/// The number of removed ranges that are collected before they are sorted and joined.
const DROPS_LOOSE_MAX: usize = 1024;

/// Changes relative to an earlier state.
#[derive(Clone, Debug, Default)]
pub(super) struct Delta {
    /// Whether the earlier state is removed completely.
    pub(super) full: bool,
    /// The removed ranges, in page numbers. The ranges are unsorted and may overlap.
    pub(super) drops: Vec<(SpaceId, Range<u64>)>,
    join_at: usize,
    /// The pages that are set after the removals.
    pub(super) pages: PageTable,
}

impl Delta {
    /// Returns a delta relative to an empty state.
    pub(super) fn full() -> Self {
        Self { full: true, ..Self::default() }
    }

    /// Sets the place of a page.
    pub(super) fn set(&mut self, space: SpaceId, page: u64, content: PageContent) {
        self.pages.set(space, page, content);
    }

    /// Sets the places of several pages.
    pub(super) fn set_all(&mut self, pages: impl IntoIterator<Item = (SpaceId, u64, PageContent)>) {
        self.pages.set_all(pages);
    }

    /// Removes the pages of a range. Calls `gone` with the content of each page of the delta that is removed.
    pub(super) fn drop_range(&mut self, space: SpaceId, pages: Range<u64>, gone: impl FnMut(PageContent)) {
        if pages.is_empty() {
            return;
        }
        self.pages.remove(space, pages.clone(), gone);
        if self.full {
            return;
        }
        self.drops.push((space, pages));
        if self.drops.len() >= self.join_at.max(DROPS_LOOSE_MAX) {
            self.join_drops();
            // Ranges that cannot be joined remain in the list. A new attempt at every call would cost quadratic time.
            self.join_at = 2 * self.drops.len();
        }
    }

    /// Merges a later delta into this delta.
    pub(super) fn absorb(&mut self, later: &Self) {
        if later.full {
            self.clone_from(later);
            return;
        }
        for (space, pages) in &later.drops {
            self.drop_range(*space, pages.clone(), |_| {});
        }
        self.pages.merge(&later.pages, |_, _| {});
    }

    /// Encodes the delta into a part.
    pub(super) fn encode(&mut self, part: &mut LogPartEncoder, place: impl Fn(BlockIndex) -> LogPlace) {
        self.join_drops();
        for (space, pages) in &self.drops {
            let range = AddressRange::new(Address(pages.start * PAGE_BYTES), Address(pages.end * PAGE_BYTES));
            part.dropped(*space, range);
        }
        encode_pages(&self.pages, part, place);
    }

    /// Sorts the removed ranges, and joins adjacent or overlapping ranges.
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

/// Encodes the pages of a table into a part, as runs.
pub(super) fn encode_pages(
    table: &PageTable,
    part: &mut LogPartEncoder,
    place: impl Fn(BlockIndex) -> LogPlace,
) {
    let mut run = RunJoiner { part, checksums: Vec::new(), open: None };
    table.for_each(|space, page, content| run.push(space, page, content, &place));
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
    at: Option<(BlockIndex, LogPlace)>,
}

impl RunJoiner<'_> {
    fn push(
        &mut self,
        space: SpaceId,
        page: u64,
        content: PageContent,
        place: impl Fn(BlockIndex) -> LogPlace,
    ) {
        let block_index = match content {
            PageContent::Zero => None,
            PageContent::At(block_index, _) => Some(block_index),
        };
        let continues = self.open.is_some_and(|run| {
            let next = match (run.at, block_index) {
                (None, None) => true,
                // Consecutive block indexes may belong to two segments; the places are then not consecutive.
                (Some((first, placed)), Some(block_index)) => {
                    u64::from(first.get()) + run.pages == u64::from(block_index.get())
                        && placed.segment == place(block_index).segment
                }
                _ => false,
            };
            next && (run.space, run.page + run.pages) == (space, page)
        });
        if !continues {
            self.flush();
            self.open = Some(OpenRun {
                space,
                page,
                pages: 0,
                at: block_index.map(|block_index| (block_index, place(block_index))),
            });
        }
        if let Some(run) = &mut self.open {
            run.pages += 1;
        }
        if let PageContent::At(_, checksum) = content {
            self.checksums.push(checksum);
        }
    }

    fn flush(&mut self) {
        let Some(run) = self.open.take() else { return };
        let start = Address(run.page * PAGE_BYTES);
        match run.at {
            None => self.part.zero(run.space, start, PageCount(run.pages)),
            Some((_, place)) => self.part.stored(run.space, start, place, &self.checksums),
        }
        self.checksums.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use image::{LogPart, LogSegment};
    use proptest::prelude::*;

    use super::*;

    type Pages = BTreeMap<(SpaceId, u64), PageContent>;

    #[derive(Clone, Debug)]
    enum Step {
        Set(u32, u64, u64, Option<u32>),
        Drop(u32, u64, u64),
        /// Ends the current delta and begins the next one.
        Next,
    }

    fn step() -> impl Strategy<Value = Step> {
        let (space, page) = (0..3_u32, prop_oneof![0..300_u64, (1_u64 << 36)..(1 << 36) + 40]);
        prop_oneof![
            6 => (space.clone(), page.clone(), 1..40_u64, prop::option::weighted(0.8, 0..5_000_u32))
                .prop_map(|(space, page, count, block_index)| Step::Set(space, page, count, block_index)),
            2 => (space, page, 1..200_u64).prop_map(|(space, page, count)| Step::Drop(space, page, count)),
            1 => Just(Step::Next),
        ]
    }

    /// Maps block indexes to segments of 64 blocks.
    fn place(block_index: BlockIndex) -> LogPlace {
        LogPlace { segment: LogSegment(block_index.get() / 64), block: block_index.get() % 64 }
    }

    fn apply(state: &mut Pages, part: &LogPart) {
        if part.full {
            state.clear();
        }
        for (space, range) in &part.dropped {
            let pages = range.start.get() / PAGE_BYTES..range.end.get() / PAGE_BYTES;
            state.retain(|(of, page), _| of != space || !pages.contains(page));
        }
        for (run, checksums) in part.runs() {
            for number in 0..run.pages.get() {
                let content = run.place.map_or(PageContent::Zero, |place| {
                    let block_index = BlockIndex::new(place.segment.0 * 64 + place.block + number as u32);
                    PageContent::At(block_index, checksums[number as usize])
                });
                state.insert((run.space, run.start.get() / PAGE_BYTES + number), content);
            }
        }
    }

    fn encoded(delta: &mut Delta) -> LogPart {
        let mut part = LogPartEncoder::new(delta.full);
        delta.encode(&mut part, place);
        LogPart::decode(&part.finish().unwrap()).unwrap()
    }

    proptest! {
        /// The result does not depend on how the calls are divided into deltas, or on how the deltas are merged.
        #[test]
        fn deltas_lead_where_their_calls_lead(steps in prop::collection::vec(step(), 1..60), full: bool) {
            let fresh = |full| if full { Delta::full() } else { Delta::default() };
            let base: Pages = (0..400).map(|page| ((SpaceId(1), page), PageContent::Zero)).collect();
            let mut model = if full { Pages::new() } else { base.clone() };
            let (mut one_by_one, mut joined, mut now) = (base.clone(), Delta::default(), fresh(full));
            for step in steps.into_iter().chain([Step::Next]) {
                match step {
                    Step::Set(space, first, count, block_index) => for page in first..first + count {
                        let number = (page - first) as u32;
                        let content = block_index.map_or(PageContent::Zero, |block_index| PageContent::At(BlockIndex::new(block_index + number), PageChecksum(number)));
                        now.set(SpaceId(space), page, content);
                        model.insert((SpaceId(space), page), content);
                    },
                    Step::Drop(space, first, count) => {
                        now.drop_range(SpaceId(space), first..first + count, |_| {});
                        model.retain(|(of, page), _| of.0 != space || !(first..first + count).contains(page));
                    }
                    Step::Next => {
                        joined.absorb(&now);
                        apply(&mut one_by_one, &encoded(&mut now));
                        prop_assert_eq!(&one_by_one, &model);
                        now = fresh(false);
                    }
                }
            }
            let mut at_once = base;
            apply(&mut at_once, &encoded(&mut joined));
            prop_assert_eq!(at_once, model);
        }
    }
}
