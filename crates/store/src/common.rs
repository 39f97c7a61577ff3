//! Finds the pages that two address spaces of an image have in common: pages at the same address with the same content.
//!
//! Owns: the comparison of two spaces by the places and checksums of their pages.
//! Invariants: pages at the same place of a segment have the same content. Pages with the same checksum can differ.
//! Does not: read pages.

use image::{Extent, PageIndex, Source, SpaceId};
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, RangeSet};

use crate::log::table::{PageContent, PageTable};
use crate::reader::ImageReader;

/// The pages of a range that two address spaces have in common.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CommonPages {
    /// Pages that both spaces have at the same place of a segment. Their content is the same.
    pub same_place: RangeSet,
    /// Pages that both spaces have with the same checksum, at different places. Their content is probably the same.
    pub same_checksum: RangeSet,
}

impl CommonPages {
    /// Reports whether the spaces have no page in common.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.same_place.is_empty() && self.same_checksum.is_empty()
    }
}

impl ImageReader {
    /// Returns the stored pages of a range that two spaces have in common. Zero pages are left out. An image contains
    /// one checksum for each extent, so that pages in extents of different lengths are not compared.
    #[must_use]
    pub fn common_pages(&self, one: SpaceId, other: SpaceId, range: AddressRange) -> CommonPages {
        let mut common = of_extents(self.index(), one, other, range);
        if let Some(table) = self.page_table() {
            let pages = of_table(table, one, other, range);
            let elsewhere = pages.difference(&common.same_place);
            common.same_checksum = elsewhere.collect();
        }
        common
    }
}

/// Compares the extents of two spaces.
fn of_extents(index: &PageIndex, one: SpaceId, other: SpaceId, range: AddressRange) -> CommonPages {
    let inside = |space| {
        let extents = index.of_space(space);
        let first = extents.partition_point(|extent| extent.range().end <= range.start);
        extents[first..].iter().take_while(|extent| extent.start < range.end).peekable()
    };
    let (mut ones, mut others) = (inside(one), inside(other));
    let (mut same_place, mut same_checksum) = (Vec::new(), Vec::new());
    while let (Some(first), Some(second)) = (ones.peek(), others.peek()) {
        let both = first.range().intersection(second.range()).and_then(|both| both.intersection(range));
        if let Some(both) = both {
            if are_at_one_place(first, second) {
                same_place.push(both);
            } else if have_one_checksum(first, second) {
                same_checksum.push(both);
            }
        }
        if first.range().end <= second.range().end {
            ones.next();
        } else {
            others.next();
        }
    }
    CommonPages { same_place: same_place.into(), same_checksum: same_checksum.into() }
}

/// Reports whether equal addresses of two extents are at equal places of a segment.
fn are_at_one_place(one: &Extent, other: &Extent) -> bool {
    let (Some((segment, bytes)), Some((other_segment, other_bytes))) = (one.stored(), other.stored()) else {
        return false;
    };
    segment == other_segment
        && bytes.start.wrapping_sub(one.start.get()) == other_bytes.start.wrapping_sub(other.start.get())
}

fn have_one_checksum(one: &Extent, other: &Extent) -> bool {
    let checksum = |extent: &Extent| match extent.source {
        Source::Zero => None,
        Source::Stored { checksum, .. } => Some(checksum),
    };
    one.range() == other.range() && checksum(one).is_some() && checksum(one) == checksum(other)
}

/// Compares the checksums of the pages of two spaces.
fn of_table(table: &PageTable, one: SpaceId, other: SpaceId, range: AddressRange) -> RangeSet {
    let pages = range.start.get() / PAGE_BYTES..range.end.get() / PAGE_BYTES;
    let mut others = table.within(other, pages.clone()).peekable();
    let mut common = Vec::new();
    for (page, content) in table.within(one, pages) {
        while others.next_if(|(other, _)| *other < page).is_some() {}
        let Some((_, other)) = others.next_if(|(other, _)| *other == page) else { continue };
        if let (PageContent::At(_, checksum), PageContent::At(_, same)) = (content, other)
            && checksum == same
        {
            let start = Address(page * PAGE_BYTES);
            common.push(AddressRange::new(start, start + ByteCount(PAGE_BYTES)));
        }
    }
    common.into()
}

#[cfg(test)]
mod tests {
    use image::{Checksum, PageChecksum, SegmentId};
    use model::PageCount;

    use super::*;
    use crate::log::table::BlockIndex;

    const ONE: SpaceId = SpaceId(1);
    const OTHER: SpaceId = SpaceId(2);

    fn range(first: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(first * PAGE_BYTES), Address(end * PAGE_BYTES))
    }

    fn extent(space: SpaceId, first: u64, end: u64, place: Option<(u64, u32)>) -> Extent {
        let source = place.map_or(Source::Zero, |(page, checksum)| Source::Stored {
            segment: SegmentId(0),
            offset: ByteCount(page * PAGE_BYTES),
            checksum: Checksum(checksum),
        });
        Extent { space, start: Address(first * PAGE_BYTES), pages: PageCount(end - first), source }
    }

    #[test]
    fn pages_at_one_place_and_extents_with_one_checksum_are_common() {
        let extents = vec![
            extent(ONE, 10, 20, Some((100, 1))),
            extent(ONE, 20, 24, None),
            extent(ONE, 30, 34, Some((200, 2))),
            extent(ONE, 40, 44, Some((300, 3))),
            extent(OTHER, 12, 16, Some((102, 4))),
            extent(OTHER, 17, 24, Some((400, 5))),
            extent(OTHER, 30, 34, Some((500, 2))),
            extent(OTHER, 40, 43, Some((600, 3))),
        ];
        let index = PageIndex::from_extents(extents).unwrap();
        let common = of_extents(&index, ONE, OTHER, range(0, 100));
        assert_eq!(common.same_place.as_slice(), [range(12, 16)]);
        assert_eq!(common.same_checksum.as_slice(), [range(30, 34)]);
        let part = of_extents(&index, ONE, OTHER, range(13, 31));
        assert_eq!(part.same_place.as_slice(), [range(13, 16)]);
        assert_eq!(part.same_checksum.as_slice(), [range(30, 31)]);
    }

    #[test]
    fn a_table_of_pages_is_compared_page_by_page() {
        let mut table = PageTable::default();
        for page in 5..300 {
            let place = |block: u64, checksum: u64| {
                PageContent::At(BlockIndex::new(block as u32), PageChecksum(checksum as u32))
            };
            table.set(ONE, page, place(page, page));
            if page % 50 != 0 {
                table.set(OTHER, page, place(1000 + page, page + u64::from(page == 260)));
            }
        }
        table.set(ONE, 270, PageContent::Zero);
        let common = of_table(&table, ONE, OTHER, range(120, 280));
        let expected = [range(120, 150), range(151, 200), range(201, 250), range(251, 260), range(261, 270)];
        assert_eq!(common.as_slice(), [&expected[..], &[range(271, 280)]].concat());
    }
}
