//! The result of a scan.
//!
//! Owns: the list of dirty ranges, reused from scan to scan.
//! Invariants: filling it allocates only when it becomes longer than ever before.
//! Does not: hold page contents.

use std::num::NonZeroU64;

use model::{Address, AddressRange, PAGE_BYTES, PageCount};

/// Ranges there is room for from the start (1.5 MiB): 50,000 scattered pages, what a busy server dirties in a
/// tenth of a second, fit without growing.
const ROOM: usize = 65_536;

/// What a page held when it was looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// Not looked at: read it. It may be all zeros, and reading fails with EFAULT if it is a guard region.
    Unknown,
    /// Own content, in memory.
    Present,
    /// Own content, swapped out.
    Swapped,
    /// The page of zeros.
    Zero,
    /// Nothing: it reads as zero, or, in a private mapping of a file, as the file.
    Absent,
    /// A guard region: touching it is a fault.
    Guard,
}

impl Content {
    /// Whether the page must be read to know its content.
    #[must_use]
    pub const fn must_read(self) -> bool {
        matches!(self, Self::Unknown | Self::Present | Self::Swapped)
    }
}

/// Pages that changed, next to each other and alike.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirtyRange {
    /// Where they are.
    pub range: AddressRange,
    /// What they held.
    pub content: Content,
}

/// What one or several scans found.
#[derive(Debug)]
pub struct DirtyPages {
    ranges: Vec<DirtyRange>,
    /// What was found, while it is widened or parted.
    narrow: Vec<DirtyRange>,
    replaced: Vec<AddressRange>,
    /// Most ranges there were.
    most: usize,
}

impl DirtyPages {
    /// An empty list with room.
    #[must_use]
    pub fn new() -> Self {
        Self {
            ranges: Vec::with_capacity(ROOM),
            narrow: Vec::new(),
            replaced: Vec::with_capacity(16),
            most: 0,
        }
    }

    /// What changed, in the order in which it was found. Where two of them overlap, the later one holds.
    #[must_use]
    pub fn ranges(&self) -> &[DirtyRange] {
        &self.ranges
    }

    /// Ranges in which something was mapped anew since the areas were told. Their content is reported as ever; the
    /// areas should be told again, since they may be of another kind now.
    #[must_use]
    pub fn replaced(&self) -> &[AddressRange] {
        &self.replaced
    }

    /// Pages in all ranges; those in two of them count twice.
    #[must_use]
    pub fn pages(&self) -> PageCount {
        self.ranges.iter().fold(PageCount(0), |sum, dirty| sum + dirty.range.pages())
    }

    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.replaced.is_empty()
    }

    /// Empties the list and keeps its room: never allocates.
    pub fn clear(&mut self) {
        self.most = self.most.max(self.ranges.len());
        self.ranges.clear();
        self.replaced.clear();
    }

    /// Outside of a pause: makes room for twice of what was ever found, so that the next scan does not have to.
    pub fn make_room(&mut self) {
        self.clear();
        self.ranges.reserve(2 * self.most);
    }

    /// Has pages that must be read read in aligned groups, as far as these lie in the same one of some rising ranges.
    pub fn widen(&mut self, group: NonZeroU64, within: &[AddressRange]) {
        if group == NonZeroU64::MIN {
            return;
        }
        let bytes = PageCount(group.get()).bytes().get();
        // Groups up to here were added, since the list last rose.
        let mut done = Address(0);
        let mut last = Address(0);
        self.narrow.clear();
        std::mem::swap(&mut self.ranges, &mut self.narrow);
        for index in 0..self.narrow.len() {
            let DirtyRange { range, content } = self.narrow[index];
            if range.start < last {
                done = Address(0);
            }
            last = range.start;
            if !content.must_read() {
                self.push(range, content);
                continue;
            }
            let home = within.partition_point(|home| home.end <= range.start);
            let home = within.get(home).filter(|home| home.contains(range.start)).copied().unwrap_or(range);
            let start = Address(range.start.get() / bytes * bytes).max(home.start).max(done);
            let end = Address(range.end.get().next_multiple_of(bytes)).min(home.end).max(range.end);
            if start < end {
                self.push(AddressRange::new(start, end), Content::Unknown);
                done = end;
            }
        }
    }

    /// Takes pages out, as far as they are to be read, and tells which were among them.
    pub fn take_out(&mut self, pages: &[Address], mut taken: impl FnMut(Address)) {
        if pages.is_empty() {
            return;
        }
        self.narrow.clear();
        std::mem::swap(&mut self.ranges, &mut self.narrow);
        for index in 0..self.narrow.len() {
            let DirtyRange { range, content } = self.narrow[index];
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
    fn pages_are_read_in_groups_that_end_with_their_area() {
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
        assert_eq!(dirty.pages(), PageCount(5));
        assert!(dirty.ranges()[0].content.must_read() && !dirty.ranges()[1].content.must_read());
        dirty.clear();
        assert!(dirty.is_empty());
    }
}
