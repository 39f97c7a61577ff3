//! Builds the page index of a checkpoint from the table of its pages.
//!
//! Owns: joining consecutive pages to extents. The checksums of the pages are combined, so that no page is read again.
//! Invariants: a page joins the extent of the page before it whenever the format allows it.
//! Does not: read pages, or decide in which segment a page is stored.

use image::{EXTENT_PAGES_MAX, Extent, PageChecksum, PageIndex, SegmentId, Source, SpaceId};
use model::{Address, ByteCount, PAGE_BYTES, PageCount};

use crate::log::table::{BlockIndex, PageContent, PageTable};

/// Returns the index of all pages of a table. `place` returns the segment of a block, and the offset of the block in this
/// segment.
pub(crate) fn index(
    pages: &PageTable,
    mut place: impl FnMut(BlockIndex) -> (SegmentId, ByteCount),
) -> image::Result<PageIndex> {
    let mut extents: Vec<Extent> = Vec::new();
    for (space, page, content) in pages.iter() {
        let start = Address(page * PAGE_BYTES);
        let (source, checksum) = match content {
            PageContent::Zero => (Source::Zero, None),
            PageContent::At(block_index, checksum) => {
                let (segment, offset) = place(block_index);
                let joined = PageChecksum::join(image::Checksum::default(), &[checksum]);
                (Source::Stored { segment, offset, checksum: joined }, Some(checksum))
            }
        };
        if !extents.last_mut().is_some_and(|last| extend(last, space, start, source, checksum)) {
            extents.push(Extent { space, start, pages: PageCount(1), source });
        }
    }
    PageIndex::from_extents(extents)
}

/// Adds a page to an extent if the page follows directly in the address space and in the segment. Returns false
/// otherwise.
fn extend(
    last: &mut Extent,
    space: SpaceId,
    start: Address,
    source: Source,
    page: Option<PageChecksum>,
) -> bool {
    if (last.space, last.range().end) != (space, start) {
        return false;
    }
    match (&mut last.source, source, page) {
        (Source::Zero, Source::Zero, _) if last.pages.get() < u64::from(u32::MAX) => {}
        (
            Source::Stored { segment, offset, checksum },
            Source::Stored { segment: of, offset: at, .. },
            Some(page),
        ) if *segment == of
            && offset.get() + last.pages.bytes().get() == at.get()
            && last.pages < EXTENT_PAGES_MAX =>
        {
            *checksum = PageChecksum::join(*checksum, &[page]);
        }
        _ => return false,
    }
    last.pages += PageCount(1);
    true
}

#[cfg(test)]
mod tests {
    use image::Checksum;
    use proptest::prelude::*;

    use super::*;

    const PAGE: usize = PAGE_BYTES as usize;

    /// The content of block `block`, which is never a zero page.
    fn content(block: u32) -> [u8; PAGE] {
        [(block % 255 + 1) as u8; PAGE]
    }

    proptest! {
        /// Each step stores pages, adds zero pages or removes pages. Every 100 blocks belong to one segment.
        #[test]
        fn the_last_copy_of_a_page_counts(
            steps in prop::collection::vec((0..3_u8, 0..2_u32, 0..700_u64, 0..400_u64), 0..40),
        ) {
            let (mut table, mut next) = (PageTable::default(), 0);
            for (what, space, page, pages) in steps {
                if what == 2 {
                    table.remove(SpaceId(space), page..page + pages, |_| {});
                    continue;
                }
                for page in page..page + pages {
                    let stored = PageContent::At(BlockIndex::new(next), PageChecksum::of(&content(next)));
                    next += u32::from(what == 0);
                    table.set(SpaceId(space), page, if what == 0 { stored } else { PageContent::Zero });
                }
            }
            let index = index(&table, |block| {
                (SegmentId(block.get() / 100), ByteCount(u64::from(block.get() % 100) * PAGE_BYTES))
            });
            let mut found = Vec::new();
            for extent in index.unwrap().extents() {
                let mut bytes = Vec::new();
                for number in 0..extent.pages.get() {
                    let page = extent.start.get() / PAGE_BYTES + number;
                    let block = extent.stored().map(|(segment, place)| {
                        segment.0 * 100 + (place.start / PAGE_BYTES + number) as u32
                    });
                    bytes.extend(block.into_iter().flat_map(content));
                    found.push((extent.space, page, block));
                }
                if let Source::Stored { checksum, .. } = extent.source {
                    prop_assert_eq!(Checksum::of(&bytes), checksum, "{:?}", extent);
                }
            }
            let expected = table.iter().map(|(space, page, content)| match content {
                PageContent::Zero => (space, page, None),
                PageContent::At(block, _) => (space, page, Some(block.get())),
            });
            prop_assert_eq!(found, expected.collect::<Vec<_>>());
        }
    }

    #[test]
    fn neighbours_become_one_extent_up_to_the_limit() {
        let mut table = PageTable::default();
        for page in 0..600_u32 {
            table.set(SpaceId(1), page.into(), PageContent::At(BlockIndex::new(page), PageChecksum(page)));
        }
        let place = |block: BlockIndex| (SegmentId(0), ByteCount(u64::from(block.get()) * PAGE_BYTES));
        let pages: Vec<u64> =
            index(&table, place).unwrap().extents().iter().map(|extent| extent.pages.get()).collect();
        assert_eq!(pages, [256, 256, 88]);
    }
}
