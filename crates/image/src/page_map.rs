//! The map of the latest copy of every page, built while an image is being written.
//!
//! Owns: the rule that a later copy of a page supersedes an earlier copy. Splitting and joining of runs: the checksums
//! of single pages are combined, so that no page is read again.
//! Invariants: runs never overlap. The result of `index` satisfies every rule of `PageIndex`.
//! Does not: hold page contents. The map holds four bytes for each stored page, and about a hundred bytes for each run.

use std::collections::BTreeMap;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};

use crate::checksum::{Checksum, PageChecksum};
use crate::error::Result;
use crate::page_index::{EXTENT_PAGES_MAX, Extent, PageIndex, SegmentId, Source, SpaceId};

/// A map from the address of each page to the page's latest copy.
#[derive(Clone, Debug, Default)]
pub struct PageMap {
    runs: BTreeMap<(SpaceId, Address), Run>,
}

#[derive(Clone, Debug)]
struct Run {
    pages: u64,
    copy: Copied,
}

/// Consecutive stored pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoredRun {
    /// The address space or shared object.
    pub space: SpaceId,
    /// The address of the first page.
    pub start: Address,
    /// The offset of the first page in the segment.
    pub offset: ByteCount,
    /// The checksums of the pages.
    pub checksums: Vec<PageChecksum>,
}

#[derive(Clone, Debug)]
enum Copied {
    Zero,
    Stored { segment: SegmentId, offset: u64, checksums: Box<[PageChecksum]> },
}

impl PageMap {
    /// Returns a map without pages.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Records that the pages from `start` on are stored in `segment` at `offset`, with these checksums.
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

    /// Records that the pages from `start` on are zero.
    pub fn zero(&mut self, space: SpaceId, start: Address, pages: PageCount) {
        self.insert(space, start, Run { pages: pages.0, copy: Copied::Zero });
    }

    /// Removes the pages of this range from the image.
    pub fn discard(&mut self, space: SpaceId, range: AddressRange) {
        self.cut(space, range.start);
        self.cut(space, range.end);
        let inside = (space, range.start)..(space, range.end.max(range.start));
        self.runs.extract_if(inside, |_, _| true).for_each(drop);
    }

    /// Returns the runs of all stored pages.
    #[must_use]
    pub fn stored(&self) -> Vec<StoredRun> {
        let stored = |(&(space, start), run): (&(SpaceId, Address), &Run)| match &run.copy {
            Copied::Zero => None,
            Copied::Stored { offset, checksums, .. } => {
                Some(StoredRun { space, start, offset: ByteCount(*offset), checksums: checksums.to_vec() })
            }
        };
        self.runs.iter().filter_map(stored).collect()
    }

    /// Returns the index of all current pages.
    ///
    /// # Errors
    ///
    /// Returns `Malformed` when the caller has passed a page address or an offset that breaks a rule of the format.
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

    /// Splits a run that spans this address into two runs: the second run begins at the address.
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

/// Appends stored pages: first to the last extent, if the pages continue this extent, then to new extents.
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

/// Returns how many pages the last extent can still take; 0 when the given pages do not continue this extent.
fn room_behind(last: &Extent, space: SpaceId, start: Address, segment: SegmentId, offset: u64) -> usize {
    let follows = last.space == space
        && last.range().end == start
        && last.stored().is_some_and(|(of, bytes)| of == segment && bytes.end == offset);
    if follows { (EXTENT_PAGES_MAX.0 - last.pages.0) as usize } else { 0 }
}
