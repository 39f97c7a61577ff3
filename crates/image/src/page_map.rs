//! The latest copy of every page while an image is being written.
//!
//! Owns: the rule that a later copy of a page supersedes an earlier one, page by page; cutting and joining
//! runs of pages without reading their bytes again, from the checksums of single pages.
//! Invariants: runs never overlap; what `index` gives keeps every rule of `PageIndex`.
//! Does not: hold page contents. Four bytes are kept for each stored page, and about a hundred for each run.

use std::collections::BTreeMap;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};

use crate::checksum::{Checksum, PageChecksum};
use crate::error::Result;
use crate::page_index::{EXTENT_PAGES_MAX, Extent, PageIndex, SegmentId, Source, SpaceId};

/// Which copy of each page counts.
#[derive(Clone, Debug, Default)]
pub struct PageMap {
    runs: BTreeMap<(SpaceId, Address), Run>,
}

#[derive(Clone, Debug)]
struct Run {
    pages: u64,
    copy: Copied,
}

#[derive(Clone, Debug)]
enum Copied {
    Zero,
    Stored { segment: SegmentId, offset: u64, checksums: Box<[PageChecksum]> },
}

impl PageMap {
    /// A map without pages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Pages from `start` on are now those at this place of a segment, with these checksums.
    pub fn store(
        &mut self,
        space: SpaceId,
        start: Address,
        segment: SegmentId,
        offset: ByteCount,
        checksums: &[PageChecksum],
    ) {
        let copy = Copied::Stored { segment, offset: offset.0, checksums: checksums.into() };
        self.insert(space, start, Run { pages: checksums.len() as u64, copy });
    }

    /// Pages from `start` on are now zero.
    pub fn zero(&mut self, space: SpaceId, start: Address, pages: PageCount) {
        self.insert(space, start, Run { pages: pages.0, copy: Copied::Zero });
    }

    /// Pages in this range are not part of the image any more.
    pub fn discard(&mut self, space: SpaceId, range: AddressRange) {
        self.cut(space, range.start);
        self.cut(space, range.end);
        let inside = (space, range.start)..(space, range.end.max(range.start));
        self.runs.extract_if(inside, |_, _| true).for_each(drop);
    }

    /// The index of the pages as they are now.
    ///
    /// # Errors
    ///
    /// `Malformed` when a page address or offset that was given keeps no rule of the format.
    pub fn index(&self) -> Result<PageIndex> {
        let mut extents: Vec<Extent> = Vec::with_capacity(self.runs.len());
        for (&(space, start), run) in &self.runs {
            match &run.copy {
                Copied::Zero => push_zero(&mut extents, space, start, run.pages),
                Copied::Stored { segment, offset, checksums } => {
                    push_stored(&mut extents, space, start, (*segment, *offset), checksums);
                }
            }
        }
        PageIndex::from_extents(extents)
    }

    fn insert(&mut self, space: SpaceId, start: Address, run: Run) {
        if run.pages == 0 {
            return;
        }
        let end = Address(start.0.saturating_add(run.pages.saturating_mul(PAGE_BYTES)));
        self.discard(space, AddressRange::new(start, end));
        self.runs.insert((space, start), run);
    }

    /// Makes a run that spans this address end there, and a second one begin.
    fn cut(&mut self, space: SpaceId, at: Address) {
        let Some((&(_, start), run)) = self.runs.range_mut((space, Address(0))..(space, at)).next_back()
        else {
            return;
        };
        let before = (at.0 - start.0) / PAGE_BYTES;
        if before >= run.pages {
            return;
        }
        let tail = Run { pages: run.pages - before, copy: run.copy.split_off(before) };
        run.pages = before;
        self.runs.insert((space, at), tail);
    }
}

impl Copied {
    fn split_off(&mut self, pages: u64) -> Self {
        match self {
            Self::Zero => Self::Zero,
            Self::Stored { segment, offset, checksums } => {
                let (head, tail) = checksums.split_at(pages as usize);
                let offset = *offset + pages * PAGE_BYTES;
                let tail = Self::Stored { segment: *segment, offset, checksums: tail.into() };
                *checksums = head.into();
                tail
            }
        }
    }
}

fn push_zero(extents: &mut Vec<Extent>, space: SpaceId, start: Address, pages: u64) {
    if let Some(last) = extents.last_mut()
        && last.source == Source::Zero
        && (last.space, last.range().end) == (space, start)
        && last.pages.0 + pages <= u64::from(u32::MAX)
    {
        last.pages.0 += pages;
        return;
    }
    extents.push(Extent { space, start, pages: PageCount(pages), source: Source::Zero });
}

/// Appends stored pages, first to the last extent where they continue it, then to new ones.
fn push_stored(
    extents: &mut Vec<Extent>,
    space: SpaceId,
    mut start: Address,
    (segment, mut offset): (SegmentId, u64),
    mut checksums: &[PageChecksum],
) {
    while !checksums.is_empty() {
        let room = extents.last().map_or(0, |last| room_behind(last, space, start, segment, offset));
        if room == 0 {
            let source = Source::Stored { segment, offset: ByteCount(offset), checksum: Checksum::default() };
            extents.push(Extent { space, start, pages: PageCount(0), source });
        }
        let room = if room == 0 { EXTENT_PAGES_MAX.0 as usize } else { room };
        let (now, later) = checksums.split_at(room.min(checksums.len()));
        if let Some(last) = extents.last_mut()
            && let Source::Stored { checksum, .. } = &mut last.source
        {
            *checksum = PageChecksum::join(*checksum, now);
            last.pages.0 += now.len() as u64;
        }
        start.0 += now.len() as u64 * PAGE_BYTES;
        offset += now.len() as u64 * PAGE_BYTES;
        checksums = later;
    }
}

/// How many pages an extent can take at its end, if these are the next in address and place.
fn room_behind(last: &Extent, space: SpaceId, start: Address, segment: SegmentId, offset: u64) -> usize {
    let follows = last.space == space
        && last.range().end == start
        && last.stored().is_some_and(|(of, bytes)| of == segment && bytes.end == offset);
    if follows { (EXTENT_PAGES_MAX.0 - last.pages.0) as usize } else { 0 }
}
