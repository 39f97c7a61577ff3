//! The deferred pages: pages that a tracker has reported as dirty and that are not copied yet. A tracker
//! finds the written pages of one process.
//!
//! Owns: the set of these pages, and the order in which they are copied (by rising address).
//! Invariants: a page leaves the set when it is taken for copying, or when its content is void (unmapped,
//! discarded, zero or a guard region). Taking pages does not allocate memory.
//! Does not: copy pages.

use model::{Address, AddressRange, PAGE_BYTES, PageCount, RangeSet};
use track::DirtyRange;

/// The deferred pages of one address space.
#[derive(Debug, Default)]
pub(super) struct Deferred {
    /// Sorted by address and disjoint. The ranges before index `next` are taken.
    ranges: Vec<AddressRange>,
    next: usize,
    pub(super) pages: PageCount,
}

impl Deferred {
    /// Adds the pages of a scan that must be read, and removes the other pages of the scan. If two ranges
    /// overlap, the later one is valid.
    pub(super) fn note(&mut self, found: &[DirtyRange]) {
        let is_rising = found.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start);
        let mut set = self.take_set();
        if is_rising {
            let void = found.iter().filter(|found| !found.content.must_read()).map(|found| found.range);
            let mut all: Vec<AddressRange> = if set.is_empty() {
                Vec::from(set)
            } else {
                let void: RangeSet = void.collect();
                set.difference(&void).collect()
            };
            all.extend(found.iter().filter(|found| found.content.must_read()).map(|found| found.range));
            set = RangeSet::from(all);
        } else {
            for one in found {
                if one.content.must_read() {
                    set.insert(one.range);
                } else {
                    set.remove(one.range);
                }
            }
        }
        self.put_set(set);
    }

    pub(super) fn extend(&mut self, ranges: impl Iterator<Item = AddressRange>) {
        let mut ranges = ranges.peekable();
        if ranges.peek().is_none() {
            return;
        }
        let mut all = Vec::from(self.take_set());
        all.extend(ranges);
        self.put_set(RangeSet::from(all));
    }

    /// Removes pages whose content is void.
    pub(super) fn forget(&mut self, range: AddressRange) {
        if self.pages == PageCount(0) {
            return;
        }
        let mut set = self.take_set();
        set.remove(range);
        self.put_set(set);
    }

    /// Takes pages from the start of the first range, at most `most`. Returns `None` if the set is empty.
    pub(super) fn take(&mut self, most: PageCount) -> Option<AddressRange> {
        let first = self.ranges.get_mut(self.next)?;
        let start = first.start;
        let end = Address(start.get() + most.get().min(first.pages().get()) * PAGE_BYTES);
        first.start = end;
        if first.is_empty() {
            self.next += 1;
        }
        let taken = AddressRange::new(start, end);
        self.pages = PageCount(self.pages.get() - taken.pages().get());
        Some(taken)
    }

    fn take_set(&mut self) -> RangeSet {
        let mut ranges = std::mem::take(&mut self.ranges);
        ranges.drain(..self.next);
        self.next = 0;
        RangeSet::from(ranges)
    }

    fn put_set(&mut self, set: RangeSet) {
        self.pages = set.pages();
        self.ranges = set.into();
    }
}

#[cfg(test)]
mod tests {
    use track::Content;

    use super::*;

    fn pages(first: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(first << 12), Address(end << 12))
    }

    fn dirty(first: u64, end: u64, content: Content) -> DirtyRange {
        DirtyRange { range: pages(first, end), content }
    }

    fn take_all(deferred: &mut Deferred, most: u64) -> Vec<AddressRange> {
        std::iter::from_fn(|| deferred.take(PageCount(most))).collect()
    }

    #[test]
    fn pages_are_taken_once_and_rise() {
        let mut deferred = Deferred::default();
        deferred.note(&[dirty(8, 12, Content::Present), dirty(20, 21, Content::Unknown)]);
        assert_eq!(deferred.take(PageCount(3)), Some(pages(8, 11)));
        deferred.note(&[dirty(9, 10, Content::Present), dirty(20, 22, Content::Swapped)]);
        assert_eq!(deferred.pages, PageCount(4));
        assert_eq!(take_all(&mut deferred, 8), [pages(9, 10), pages(11, 12), pages(20, 22)]);
        assert_eq!((deferred.pages, deferred.take(PageCount(1))), (PageCount(0), None));
    }

    #[test]
    fn void_pages_are_not_copied() {
        let mut deferred = Deferred::default();
        deferred.extend([pages(1, 9)].into_iter());
        deferred.note(&[dirty(2, 3, Content::Absent), dirty(4, 5, Content::Guard)]);
        deferred.forget(pages(7, 20));
        assert_eq!(take_all(&mut deferred, 9), [pages(1, 2), pages(3, 4), pages(5, 7)]);
    }

    #[test]
    fn the_later_of_two_overlapping_ranges_counts() {
        let mut deferred = Deferred::default();
        deferred.note(&[
            dirty(4, 8, Content::Present),
            dirty(5, 6, Content::Absent),
            dirty(1, 2, Content::Absent),
            dirty(1, 2, Content::Unknown),
        ]);
        assert_eq!(take_all(&mut deferred, 9), [pages(1, 2), pages(4, 5), pages(6, 8)]);
    }
}
