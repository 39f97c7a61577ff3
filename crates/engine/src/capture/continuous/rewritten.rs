//! Blocks of memory that the subject (a protected process tree) rewrites from one checkpoint to the next.
//!
//! The first write to a protected page costs a page fault. If the subject writes to most pages of a block before each
//! checkpoint, the faults only show what is known. Then the block is left *loose*: its pages are not protected, and the next
//! scan reports them all. Copying the pages of a block that have not changed costs less than the faults of the others.
//!
//! Owns: the choice of the loose blocks of one process.
//! Invariants: only blocks of anonymous memory that two successive checkpoints have found rewritten are loose. In each
//! checkpoint, a part of them is protected, and shows whether the subject still rewrites them. If it does not, no block
//! is loose any more.
//! Does not: protect pages; the tracker does.

use model::{Address, AddressRange, PAGE_BYTES};
use sys::scratch::HUGE_PAGE_BYTES;
use track::DirtyPages;

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
        let counts = &mut self.counts;
        let most = counts.capacity();
        for found in dirty.ranges().iter().filter(|found| found.content.must_read()) {
            let (mut page, end) = (found.range.start.get() / PAGE_BYTES, found.range.end.get() / PAGE_BYTES);
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

    /// Ends a checkpoint. Returns the blocks that should be loose until the next one, sorted by address. `anonymous` are the
    /// anonymous mappings, sorted by address.
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
            let is_whole = |block: Address| {
                let mapping = anonymous.partition_point(|mapping| mapping.end <= block);
                anonymous.get(mapping).is_some_and(|mapping| {
                    mapping.start <= block && mapping.end.get() - block.get() >= HUGE_PAGE_BYTES
                })
            };
            let is_protected = |block: Address| {
                (block.get() / HUGE_PAGE_BYTES).wrapping_add(self.turn).is_multiple_of(PROTECTED_SHARE)
            };
            let chosen = now.iter().copied().filter(|block| is_in(&before, block) && is_whole(*block));
            self.loose = chosen.filter(|block| !is_protected(*block)).collect();
        }
        self.before = now;
        let range = |block: &Address| AddressRange::new(*block, Address(block.get() + HUGE_PAGE_BYTES));
        self.loose.iter().map(range).collect()
    }
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
    fn only_whole_blocks_of_anonymous_mappings_are_loose() {
        let mut rewritten = Rewritten::default();
        let all: DirtyPages =
            [(AddressRange::new(block(2), block(30)), Content::Unknown)].into_iter().collect();
        let part =
            AddressRange::new(Address(block(4).get() + PAGE_BYTES), Address(block(9).get() - PAGE_BYTES));
        let mut seen = Vec::new();
        for _ in 0..8 {
            rewritten.note(&all);
            seen.extend(rewritten.learn(&[part, AddressRange::new(block(20), block(21))]));
        }
        seen.sort_unstable_by_key(|range| range.start);
        seen.dedup();
        assert_eq!(seen, [5, 6, 7, 20].map(|number| pages(number, BLOCK_PAGES)));
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
