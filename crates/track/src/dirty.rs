//! Collects the result of scans: the dirty pages, which have changed since the previous scan.
//!
//! Owns: the list of dirty ranges. All scans use the same list, so that its memory is allocated only once.
//! Invariants: adding a range allocates memory only if the list becomes longer than it ever was.
//! Does not: contain page contents.

use std::num::NonZeroU64;

use model::{Address, AddressRange, PAGE_BYTES, PageCount};

/// Initial capacity of the list, in ranges (1.5 MiB). A busy server dirties 50,000 scattered pages in a tenth
/// of a second.
const ROOM: usize = 65_536;

/// The content of a page at the time of the scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// The scan has not inspected the page, so the page must be read. The page can contain only zeros. If the
    /// page is a guard region, the read fails with EFAULT.
    Unknown,
    /// The page has content of the process, and is in memory.
    Present,
    /// The page has content of the process, and is swapped out.
    Swapped,
    /// The page is the shared zero page of the kernel.
    Zero,
    /// No page exists at the address. In a private file mapping, a read returns the content of the file. In
    /// other memory, a read returns zeros.
    Absent,
    /// The page is a guard region (MADV_GUARD_INSTALL): an access raises SIGSEGV.
    Guard,
}

impl Content {
    /// Reports whether the page must be read to know its content.
    #[must_use]
    pub const fn must_read(self) -> bool {
        matches!(self, Self::Unknown | Self::Present | Self::Swapped)
    }
}

/// Adjacent dirty pages with the same content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirtyRange {
    /// Addresses of the pages.
    pub range: AddressRange,
    /// Content of the pages.
    pub content: Content,
}

/// The dirty pages that one or more scans have found.
#[derive(Debug)]
pub struct DirtyPages {
    ranges: Vec<DirtyRange>,
    /// The old list, while [`Self::widen`] or [`Self::take_out`] builds a new list.
    previous: Vec<DirtyRange>,
    replaced: Vec<AddressRange>,
    /// Length of the longest list so far, updated by [`Self::clear`].
    longest: usize,
}

impl DirtyPages {
    /// Creates an empty list with its initial capacity.
    #[must_use]
    pub fn new() -> Self {
        Self {
            ranges: Vec::with_capacity(ROOM),
            previous: Vec::new(),
            replaced: Vec::with_capacity(16),
            longest: 0,
        }
    }

    /// Returns the dirty ranges in the order in which they were found. If two ranges overlap, the content of
    /// the range that was found last is valid.
    #[must_use]
    pub fn ranges(&self) -> &[DirtyRange] {
        &self.ranges
    }

    /// Returns the ranges in which the process has created new mappings since the last call of
    /// [`Tracker::cover`](crate::Tracker::cover). The dirty ranges include the pages of these ranges. `cover`
    /// should be called again, because a new mapping can have another class than the old one.
    #[must_use]
    pub fn replaced(&self) -> &[AddressRange] {
        &self.replaced
    }

    /// Returns the number of pages in all ranges. A page in two ranges counts twice.
    #[must_use]
    pub fn pages(&self) -> PageCount {
        self.ranges.iter().fold(PageCount(0), |sum, dirty| sum + dirty.range.pages())
    }

    /// Returns the number of pages whose content must be read. A page in two ranges counts twice.
    #[must_use]
    pub fn pages_to_read(&self) -> PageCount {
        let read = self.ranges.iter().filter(|dirty| dirty.content.must_read());
        read.fold(PageCount(0), |sum, dirty| sum + dirty.range.pages())
    }

    /// Reports whether the scans found no change.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.replaced.is_empty()
    }

    /// Empties the list and keeps its capacity. Never allocates memory.
    pub fn clear(&mut self) {
        self.longest = self.longest.max(self.ranges.len());
        self.ranges.clear();
        self.replaced.clear();
    }

    /// Empties the list, and reserves twice the length of the longest list so far, so that the next scan
    /// allocates no memory. Must not be called inside a pause.
    pub fn make_room(&mut self) {
        self.clear();
        self.ranges.reserve(2 * self.longest);
    }

    /// Expands the pages that must be read to aligned groups of `group` pages. A group is clipped to the
    /// range in `within` that contains the start of the dirty range. `within` must be sorted. Expanded ranges
    /// have [`Content::Unknown`].
    pub fn widen(&mut self, group: NonZeroU64, within: &[AddressRange]) {
        if group == NonZeroU64::MIN {
            return;
        }
        let bytes = PageCount(group.get()).bytes().get();
        // End of the last added group. While the addresses rise, no group below this address is added a
        // second time. When the addresses decrease, `done` is reset.
        let mut done = Address(0);
        let mut last = Address(0);
        self.previous.clear();
        std::mem::swap(&mut self.ranges, &mut self.previous);
        for index in 0..self.previous.len() {
            let DirtyRange { range, content } = self.previous[index];
            if range.start < last {
                done = Address(0);
            }
            last = range.start;
            if !content.must_read() {
                self.push(range, content);
                continue;
            }
            let bounds = within.partition_point(|bounds| bounds.end <= range.start);
            let bounds =
                within.get(bounds).filter(|bounds| bounds.contains(range.start)).copied().unwrap_or(range);
            let start = Address(range.start.get() / bytes * bytes).max(bounds.start).max(done);
            let end = Address(range.end.get().next_multiple_of(bytes)).min(bounds.end).max(range.end);
            if start < end {
                self.push(AddressRange::new(start, end), Content::Unknown);
                done = end;
            }
        }
    }

    /// Removes `pages` from the ranges that must be read, and calls `taken` for each removed page. `pages`
    /// must be sorted.
    pub fn take_out(&mut self, pages: &[Address], mut taken: impl FnMut(Address)) {
        if pages.is_empty() {
            return;
        }
        self.previous.clear();
        std::mem::swap(&mut self.ranges, &mut self.previous);
        for index in 0..self.previous.len() {
            let DirtyRange { range, content } = self.previous[index];
            let mut start = range.start;
            let first = pages.partition_point(|page| *page < range.start);
            let within = pages[first..].iter().take_while(|page| **page < range.end && content.must_read());
            for page in within {
                if start < *page {
                    self.push(AddressRange::new(start, *page), content);
                }
                taken(*page);
                start = Address(page.get() + PAGE_BYTES);
            }
            if start < range.end {
                self.push(AddressRange::new(start, range.end), content);
            }
        }
    }

    pub(crate) fn push(&mut self, range: AddressRange, content: Content) {
        match self.ranges.last_mut() {
            Some(last) if last.range.end == range.start && last.content == content => {
                last.range.end = range.end;
            }
            _ => self.ranges.push(DirtyRange { range, content }),
        }
    }

    pub(crate) fn push_replaced(&mut self, range: AddressRange) {
        self.replaced.push(range);
    }
}

impl FromIterator<(AddressRange, Content)> for DirtyPages {
    fn from_iter<I: IntoIterator<Item = (AddressRange, Content)>>(found: I) -> Self {
        let mut dirty = Self::new();
        found.into_iter().for_each(|(range, content)| dirty.push(range, content));
        dirty
    }
}

impl Default for DirtyPages {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages(first: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(first << 12), Address(end << 12))
    }

    #[test]
    fn pages_are_read_in_groups_that_end_with_their_mapping() {
        let mut dirty = DirtyPages::new();
        for (range, content) in [
            (pages(5, 6), Content::Present),
            (pages(6, 7), Content::Absent),
            (pages(7, 8), Content::Unknown),
            (pages(17, 18), Content::Unknown),
            (pages(3, 4), Content::Unknown),
        ] {
            dirty.push(range, content);
        }
        dirty.widen(NonZeroU64::new(8).unwrap(), &[pages(2, 12), pages(17, 19)]);
        let found: Vec<_> = dirty.ranges().iter().map(|dirty| (dirty.range, dirty.content)).collect();
        let wanted = [
            (pages(2, 8), Content::Unknown),
            (pages(6, 7), Content::Absent),
            (pages(17, 19), Content::Unknown),
            (pages(2, 8), Content::Unknown),
        ];
        assert_eq!(found, wanted);
        dirty.widen(NonZeroU64::MIN, &[]);
        assert_eq!(dirty.ranges().len(), wanted.len());
    }

    #[test]
    fn pages_are_taken_out_of_what_is_to_be_read() {
        let mut dirty: DirtyPages = [
            (pages(10, 14), Content::Present),
            (pages(2, 5), Content::Unknown),
            (pages(5, 6), Content::Absent),
        ]
        .into_iter()
        .collect();
        let mut taken = Vec::new();
        let wanted = [2, 5, 7, 11, 12, 13].map(|page| Address(page << 12));
        dirty.take_out(&wanted, |page| taken.push(page.get() >> 12));
        assert_eq!(taken, [11, 12, 13, 2]);
        let left: Vec<_> = dirty.ranges().iter().map(|dirty| (dirty.range, dirty.content)).collect();
        let expected = [
            (pages(10, 11), Content::Present),
            (pages(3, 5), Content::Unknown),
            (pages(5, 6), Content::Absent),
        ];
        assert_eq!(left, expected);
    }

    #[test]
    fn neighbours_of_the_same_content_are_joined() {
        let mut dirty = DirtyPages::new();
        dirty.push(pages(1, 2), Content::Unknown);
        dirty.push(pages(2, 4), Content::Unknown);
        dirty.push(pages(4, 5), Content::Absent);
        dirty.push(pages(6, 7), Content::Absent);
        assert_eq!(dirty.ranges().len(), 3);
        assert_eq!((dirty.pages(), dirty.pages_to_read()), (PageCount(5), PageCount(3)));
        assert!(dirty.ranges()[0].content.must_read() && !dirty.ranges()[1].content.must_read());
        dirty.clear();
        assert!(dirty.is_empty());
    }
}
