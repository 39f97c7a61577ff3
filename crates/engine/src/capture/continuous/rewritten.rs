//! Blocks of memory that the subject rewrites from one checkpoint to the next.
//!
//! The first write to a protected page costs a page fault. If the subject writes to most pages of a block before each
//! checkpoint, the faults only show what is known. Then the block is left *loose*: its pages are not protected, and the
//! next scan reports them all. Copying the pages of a block that have not changed costs less than the faults of the
//! others.
//!
//! Owns: the choice of the loose blocks of one process, at a checkpoint and between two checkpoints.
//! Invariants: after a checkpoint, only anonymous memory in blocks that two successive checkpoints have found rewritten
//! is loose. In each checkpoint, a part of them is protected, and shows whether the subject still rewrites them. If it
//! does not, no block is loose any more. Between two checkpoints, blocks become loose that will probably be found
//! rewritten.
//! Does not: protect pages; the tracker does.

use std::time::Duration;

use model::{Address, AddressRange, PAGE_BYTES, RangeSet};
use sys::pagemap::PageRegions;
use sys::scratch::HUGE_PAGE_BYTES;
use track::{DirtyPages, Loosener};

/// Pages of a block. The kernel has one page table for each block, and at most one huge page.
const BLOCK_PAGES: u64 = HUGE_PAGE_BYTES / PAGE_BYTES;
/// A block counts as rewritten from this number of changed pages on. The fault of a changed page costs the subject as much
/// as the copy of an unchanged page costs it and this process.
const REWRITTEN_FROM: u64 = BLOCK_PAGES * 3 / 4;
/// One of this many blocks is protected.
const PROTECTED_SHARE: u64 = 4;
/// The number of blocks for which there is room in each scan. The program can have more mappings at the next scan.
const COUNTS_MIN: u64 = 1024;
/// The same for the memory of the list: 1 MiB.
const COUNTS_MAX: u64 = 65_536;
/// Fewer protected blocks do not show what the subject does.
const PROTECTED_MIN: usize = 2;

/// The blocks of one process. All lists are sorted by address.
#[derive(Debug)]
pub(super) struct Rewritten {
    /// The numbers of changed pages in blocks that the first scan of this checkpoint has found. A block can occur several
    /// times.
    counts: Vec<(u64, u64)>,
    /// Whether this checkpoint has been scanned.
    is_scanned: bool,
    /// Blocks that the checkpoint before has found rewritten.
    before: Vec<Address>,
    /// Blocks among `before` that are not protected since that checkpoint.
    loose: Vec<Address>,
    /// Number of checkpoints. Decides which blocks are protected.
    turn: u64,
}

impl Default for Rewritten {
    fn default() -> Self {
        let counts = Vec::with_capacity(COUNTS_MIN as usize);
        Self { counts, is_scanned: false, before: Vec::new(), loose: Vec::new(), turn: 0 }
    }
}

impl Rewritten {
    /// Records the first scan of a checkpoint. Ignores further scans. Does not allocate: what does not fit is not recorded.
    pub(super) fn note(&mut self, dirty: &DirtyPages) {
        if std::mem::replace(&mut self.is_scanned, true) {
            return;
        }
        let most = self.counts.capacity();
        for found in dirty.ranges().iter().filter(|found| found.content.must_read()) {
            count(&mut self.counts, found.range, most);
        }
    }

    /// Returns the blocks that the first scan has found rewritten.
    fn take_found(&mut self) -> Vec<Address> {
        self.is_scanned = false;
        self.counts.sort_unstable();
        let same_block = self.counts.chunk_by(|one, other| one.0 == other.0);
        let rewritten =
            same_block.filter(|parts| parts.iter().map(|part| part.1).sum::<u64>() >= REWRITTEN_FROM);
        let found = rewritten.map(|parts| Address(parts[0].0 * HUGE_PAGE_BYTES)).collect();
        self.counts.clear();
        found
    }

    /// Ends a checkpoint. Returns the memory that should be loose until the next one, sorted by address: the parts of the
    /// loose blocks that are in `anonymous`, the anonymous mappings, sorted by address.
    pub(super) fn learn(&mut self, anonymous: &[AddressRange]) -> Vec<AddressRange> {
        // Without a scan, nothing was copied.
        let mut now = self.take_found();
        let blocks: u64 = anonymous.iter().map(|mapping| mapping.len().get() / HUGE_PAGE_BYTES).sum();
        self.counts.reserve(blocks.clamp(COUNTS_MIN, COUNTS_MAX) as usize);
        let before = std::mem::take(&mut self.before);
        let loose = std::mem::take(&mut self.loose);
        self.turn += 1;
        let is_loose = |block: &Address| loose.binary_search(block).is_ok();
        let is_in = |list: &[Address], block: &Address| list.binary_search(block).is_ok();
        let shown: Vec<&Address> = before.iter().filter(|block| !is_loose(block)).collect();
        let again = shown.iter().filter(|block| is_in(&now, block)).count();
        if !loose.is_empty() && (shown.len() < PROTECTED_MIN || 2 * again < shown.len()) {
            // Loose blocks are always found. Only the protected ones show something.
            now.retain(|block| !is_loose(block));
        } else {
            let is_protected = |block: Address| {
                (block.get() / HUGE_PAGE_BYTES).wrapping_add(self.turn).is_multiple_of(PROTECTED_SHARE)
            };
            let chosen = now.iter().copied().filter(|block| is_in(&before, block));
            self.loose = chosen.filter(|block| !is_protected(*block)).collect();
        }
        self.before = now;
        parts(&self.loose, anonymous)
    }
}

/// Returns the parts of blocks that are in mappings. A request to the kernel must not extend beyond a mapping. Both lists and
/// the result are sorted by address.
fn parts(blocks: &[Address], mappings: &[AddressRange]) -> Vec<AddressRange> {
    let mut parts = Vec::new();
    let mut mappings = mappings.iter().peekable();
    for block in blocks {
        let end = Address(block.get() + HUGE_PAGE_BYTES);
        while mappings.next_if(|mapping| mapping.end <= *block).is_some() {}
        while let Some(mapping) = mappings.peek().filter(|mapping| mapping.start < end) {
            parts.push(AddressRange::new(mapping.start.max(*block), mapping.end.min(end)));
            if mapping.end > end {
                break;
            }
            mappings.next();
        }
    }
    parts
}

/// Adds the pages of a range to the numbers of pages in blocks. Ignores pages for which the list has not enough room.
fn count(counts: &mut Vec<(u64, u64)>, range: AddressRange, most: usize) {
    let (mut page, end) = (range.start.get() / PAGE_BYTES, range.end.get() / PAGE_BYTES);
    while page < end {
        let block = page / BLOCK_PAGES;
        let next = end.min((block + 1) * BLOCK_PAGES);
        let is_full = counts.len() == most;
        match counts.last_mut() {
            Some((last, count)) if *last == block => *count += next - page,
            _ if is_full => return,
            _ => counts.push((block, next - page)),
        }
        page = next;
    }
}

/// Looks for rewritten blocks of one process between two checkpoints.
#[derive(Debug)]
pub(super) struct Looks {
    /// The memory to look at. Consists of whole blocks.
    memory: RangeSet,
    /// The last look: its time after the checkpoint, and the numbers of changed pages in blocks, sorted by address.
    last: Option<(Duration, Vec<(u64, u64)>)>,
}

impl Looks {
    /// Prepares to look at anonymous mappings, without the blocks that are loose already. Returns `None` if no block is left.
    pub(super) fn new(mappings: impl Iterator<Item = AddressRange>, loose: &[AddressRange]) -> Option<Self> {
        let whole = mappings.filter_map(|mapping| {
            let start = mapping.start.get().next_multiple_of(HUGE_PAGE_BYTES);
            let end = mapping.end.get() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
            (start < end).then(|| AddressRange::new(Address(start), Address(end)))
        });
        let mut memory: RangeSet = whole.collect();
        loose.iter().for_each(|block| memory.remove(*block));
        (!memory.is_empty()).then_some(Self { memory, last: None })
    }

    /// Looks, at a time after the checkpoint. Returns the blocks that the subject will probably have rewritten at the end of
    /// the interval, sorted by address. Does not look at them again.
    pub(super) fn take(
        &mut self,
        loosener: &Loosener,
        regions: &mut PageRegions,
        at: Duration,
        interval: Duration,
    ) -> Vec<AddressRange> {
        let mut counts = Vec::new();
        for range in self.memory.as_slice() {
            // The program may have unmapped the range.
            let _ = loosener.changed(*range, regions, |found| count(&mut counts, found, usize::MAX));
        }
        self.judge(counts, at, interval)
    }

    /// Judges the numbers of changed pages in blocks, sorted by address.
    fn judge(&mut self, counts: Vec<(u64, u64)>, at: Duration, interval: Duration) -> Vec<AddressRange> {
        let last = self.last.take();
        let is_rewritten = |&&(block, changed): &&(u64, u64)| {
            let before = last.as_ref().map(|(then, counts)| {
                let found = counts.binary_search_by_key(&block, |(block, _)| *block);
                (*then, found.map_or(0, |index| counts[index].1))
            });
            expected(before, (at, changed), interval) >= REWRITTEN_FROM as f64
        };
        let block = |(block, _): &(u64, u64)| {
            let start = block * HUGE_PAGE_BYTES;
            AddressRange::new(Address(start), Address(start + HUGE_PAGE_BYTES))
        };
        let chosen: Vec<AddressRange> = counts.iter().filter(is_rewritten).map(block).collect();
        chosen.iter().for_each(|block| self.memory.remove(*block));
        self.last = Some((at, counts));
        chosen
    }
}

/// Returns how many pages of a block will have changed at the end of an interval. `before` and `now` are the times of two
/// looks and the numbers of changed pages then. Between the looks, each unchanged page was written with some probability in
/// each unit of time; the result supposes that this probability stays. Without an earlier look, it supposes nothing: the
/// changed pages can be a part that the subject writes all the time.
fn expected(before: Option<(Duration, u64)>, now: (Duration, u64), end: Duration) -> f64 {
    let unchanged = |changed: u64| BLOCK_PAGES.saturating_sub(changed) as f64;
    let (at, left) = (now.0.as_secs_f64(), unchanged(now.1));
    let at_end = match before {
        Some((then, changed)) if now.1 > changed => {
            let then = then.as_secs_f64();
            left * (left / unchanged(changed)).powf((end.as_secs_f64() - at).max(0.0) / (at - then))
        }
        _ => left,
    };
    BLOCK_PAGES as f64 - at_end
}

#[cfg(test)]
mod tests {
    use model::PageCount;
    use track::Content;

    use super::*;

    const BLOCKS: u64 = 32;

    fn block(number: u64) -> Address {
        Address(number * HUGE_PAGE_BYTES)
    }

    fn pages(number: u64, count: u64) -> AddressRange {
        AddressRange::new(block(number), Address(block(number).get() + count * PAGE_BYTES))
    }

    fn block_range(number: u64) -> AddressRange {
        pages(number, BLOCK_PAGES)
    }

    fn memory() -> Vec<AddressRange> {
        vec![AddressRange::new(block(8), block(8 + BLOCKS))]
    }

    /// One checkpoint of a subject that has written to `count` pages of each block. Loose blocks are found completely.
    fn checkpoint(rewritten: &mut Rewritten, count: u64) -> Vec<AddressRange> {
        let found = (8..8 + BLOCKS).map(|number| {
            let is_loose = rewritten.loose.contains(&block(number));
            (pages(number, if is_loose { BLOCK_PAGES } else { count }), Content::Present)
        });
        rewritten.note(&found.filter(|(range, _)| !range.is_empty()).collect());
        rewritten.learn(&memory())
    }

    #[test]
    fn blocks_that_are_rewritten_twice_are_loose_in_turns() {
        let mut rewritten = Rewritten::default();
        assert_eq!(checkpoint(&mut rewritten, BLOCK_PAGES), [], "new memory is found completely");
        let mut protected = vec![0; BLOCKS as usize];
        for _ in 0..PROTECTED_SHARE {
            let loose = checkpoint(&mut rewritten, REWRITTEN_FROM);
            assert_eq!(loose.len() as u64, BLOCKS - BLOCKS / PROTECTED_SHARE);
            for number in 0..BLOCKS {
                protected[number as usize] += u32::from(!loose.contains(&pages(8 + number, BLOCK_PAGES)));
            }
        }
        assert!(protected.iter().all(|count| *count == 1), "{protected:?}");
    }

    #[test]
    fn a_subject_that_stops_writing_has_no_loose_blocks_any_more() {
        for then in [0, REWRITTEN_FROM - 1] {
            let mut rewritten = Rewritten::default();
            for _ in 0..5 {
                checkpoint(&mut rewritten, BLOCK_PAGES);
            }
            assert_eq!(checkpoint(&mut rewritten, then), []);
            assert_eq!(checkpoint(&mut rewritten, then), []);
            assert_eq!(checkpoint(&mut rewritten, BLOCK_PAGES), [], "one checkpoint shows too little");
            assert_ne!(checkpoint(&mut rewritten, BLOCK_PAGES), []);
        }
    }

    #[test]
    fn a_checkpoint_without_a_scan_ends_it() {
        let mut rewritten = Rewritten::default();
        for _ in 0..3 {
            checkpoint(&mut rewritten, BLOCK_PAGES);
        }
        assert_eq!(rewritten.learn(&memory()), []);
        assert_eq!(checkpoint(&mut rewritten, BLOCK_PAGES), []);
    }

    #[test]
    fn only_anonymous_mappings_are_loose() {
        let mut rewritten = Rewritten::default();
        let all: DirtyPages =
            [(AddressRange::new(block(2), block(30)), Content::Unknown)].into_iter().collect();
        let part =
            AddressRange::new(Address(block(4).get() + PAGE_BYTES), Address(block(9).get() - PAGE_BYTES));
        let mut seen = Vec::new();
        for _ in 0..8 {
            rewritten.note(&all);
            seen.extend(rewritten.learn(&[
                part,
                pages(20, 100),
                AddressRange::new(pages(20, 200).end, block(21)),
            ]));
        }
        seen.sort_unstable_by_key(|range| range.start);
        seen.dedup();
        let whole = [5, 6, 7].map(|number| pages(number, BLOCK_PAGES));
        let first = AddressRange::new(part.start, block(5));
        let last = AddressRange::new(block(8), part.end);
        let others = [pages(20, 100), AddressRange::new(pages(20, 200).end, block(21))];
        assert_eq!(seen, [&[first][..], &whole, &[last], &others].concat());
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn blocks_that_fill_up_are_expected_to_be_rewritten() {
        // A random writer that has written to 30 % of the pages in a second has written to 76 % after four.
        let third = BLOCK_PAGES * 3 / 10;
        let pages =
            expected(Some((SECOND, third)), (2 * SECOND, third + (BLOCK_PAGES - third) * 3 / 10), 4 * SECOND);
        assert!((pages - BLOCK_PAGES as f64 * 0.76).abs() < 2.0, "{pages}");
        assert_eq!(expected(Some((SECOND, 9)), (2 * SECOND, BLOCK_PAGES), 4 * SECOND), BLOCK_PAGES as f64);
    }

    #[test]
    fn pages_that_are_written_all_the_time_promise_nothing() {
        let hot = (SECOND, REWRITTEN_FROM - 1);
        assert!(expected(None, hot, 100 * SECOND) < REWRITTEN_FROM as f64);
        let again = (2 * SECOND, REWRITTEN_FROM - 1);
        assert!(expected(Some(hot), again, 100 * SECOND) < REWRITTEN_FROM as f64);
        // The program has discarded some of them.
        assert!(expected(Some(hot), (2 * SECOND, 1), 100 * SECOND) < REWRITTEN_FROM as f64);
    }

    #[test]
    fn each_look_chooses_the_blocks_that_the_looks_before_have_left() {
        let memory = [AddressRange::new(Address(block(8).get() + PAGE_BYTES), block(20)), block_range(30)];
        let mut looks = Looks::new(memory.into_iter(), &[block_range(10)]).unwrap();
        let left = [
            AddressRange::new(block(9), block(10)),
            AddressRange::new(block(11), block(20)),
            block_range(30),
        ];
        assert_eq!(looks.memory.as_slice(), left);
        let chosen = looks.judge(vec![(9, REWRITTEN_FROM), (11, 50), (30, 50)], SECOND, 8 * SECOND);
        assert_eq!(chosen, [block_range(9)]);
        let chosen = looks.judge(vec![(11, 51), (12, 100), (30, 150)], 2 * SECOND, 8 * SECOND);
        assert_eq!(chosen, [block_range(12), block_range(30)]);
        let left = [block_range(11), AddressRange::new(block(13), block(20))];
        assert_eq!(looks.memory.as_slice(), left);
        assert!(Looks::new([block_range(5)].into_iter(), &[block_range(5)]).is_none());
    }

    #[test]
    fn pages_that_are_found_in_parts_and_out_of_order_count_together() {
        let mut rewritten = Rewritten::default();
        let half = |number: u64, second: bool| {
            let start = block(number) + PageCount(if second { BLOCK_PAGES / 2 } else { 0 }).bytes();
            AddressRange::new(start, start + PageCount(BLOCK_PAGES / 2).bytes())
        };
        let parts = [half(9, true), half(8, false), half(9, false), half(10, true)];
        let found: DirtyPages = parts.into_iter().map(|range| (range, Content::Present)).collect();
        rewritten.note(&found);
        // Only the first scan counts.
        rewritten.note(&[(pages(20, BLOCK_PAGES), Content::Present)].into_iter().collect());
        assert_eq!(rewritten.take_found(), [block(9)]);
    }
}
