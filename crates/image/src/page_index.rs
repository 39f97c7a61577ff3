//! Encodes and decodes the *page index* of an image: the location of every page.
//!
//! The pages of an extent are all zero pages, or are stored consecutively in one segment.
//!
//! Owns: `Extent`, and the order and encoding of extents.
//! Invariants: extents are sorted by space and start, do not overlap, and begin and end on page boundaries. A stored
//! extent has at most `EXTENT_PAGES_MAX` pages, and one checksum over its bytes.
//! Does not: read a segment, or know the process or the object to which a space belongs.
//!
//! Encoding: the section *`index`* of `docs/format.md`.

use std::fmt;
use std::ops::Range;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};

use crate::checksum::Checksum;
use crate::error::{Error, Part, Result};
use crate::frame::{self, HEADER_BYTES, u32_at, u64_at};

/// The maximum number of pages of a stored extent: 1 MiB. To verify one page, a reader must read the whole extent,
/// because the checksum covers the extent.
pub const EXTENT_PAGES_MAX: PageCount = PageCount(256);

const EXTENT_BYTES: usize = 32;
const ZERO_SEGMENT: u32 = u32::MAX;

/// The number of an address space of the image, or of a memory object that several address spaces share.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SpaceId(pub u32);

/// The number of a page segment of the image. 2³² − 1 is not a valid segment number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SegmentId(pub u32);

/// The source of an extent's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Source {
    /// Every byte is zero, and nothing is stored.
    Zero,
    /// The bytes are stored in a segment.
    Stored {
        /// The segment with the bytes.
        segment: SegmentId,
        /// The offset of the first byte within the segment.
        offset: ByteCount,
        /// The checksum of all bytes of the extent.
        checksum: Checksum,
    },
}

/// Consecutive pages of one space, either all zero or stored consecutively in one segment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Extent {
    /// The address space or shared object.
    pub space: SpaceId,
    /// The address of the first page; in a shared object, the offset of the first page.
    pub start: Address,
    /// The number of pages.
    pub pages: PageCount,
    /// The source of the bytes of these pages.
    pub source: Source,
}

/// All extents of an image, sorted.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PageIndex {
    extents: Vec<Extent>,
}

impl Extent {
    /// Returns the addresses that the extent covers.
    #[must_use]
    pub const fn range(&self) -> AddressRange {
        AddressRange::new(self.start, Address(self.start.0 + self.pages.0 * PAGE_BYTES))
    }

    /// Returns the segment and the byte range of a stored extent; `None` for zero pages.
    #[must_use]
    pub fn stored(&self) -> Option<(SegmentId, Range<u64>)> {
        match self.source {
            Source::Zero => None,
            Source::Stored { segment, offset, .. } => {
                Some((segment, offset.0..offset.0 + self.pages.bytes().0))
            }
        }
    }
}

impl PageIndex {
    /// Sorts the extents, and returns a page index with them.
    ///
    /// # Errors
    ///
    /// Returns `Malformed` if an extent breaks a rule. The error contains the rule.
    pub fn from_extents(mut extents: Vec<Extent>) -> Result<Self> {
        extents.sort_unstable_by_key(|extent| (extent.space, extent.start));
        let mut before = None;
        for (place, extent) in extents.iter().enumerate() {
            check(before, extent).map_err(|what| malformed(place, what))?;
            before = Some(extent);
        }
        Ok(Self { extents })
    }

    /// Returns all extents, sorted by space and start.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Returns the extents of one space, sorted by start.
    #[must_use]
    pub fn of_space(&self, space: SpaceId) -> &[Extent] {
        let first = self.extents.partition_point(|extent| extent.space < space);
        let end = self.extents.partition_point(|extent| extent.space <= space);
        &self.extents[first..end]
    }

    /// Returns the extent with the page at an address; `None` when no extent covers the address.
    #[must_use]
    pub fn find(&self, space: SpaceId, address: Address) -> Option<&Extent> {
        let behind = self.extents.partition_point(|extent| (extent.space, extent.start) <= (space, address));
        let extent = self.extents[..behind].last()?;
        (extent.space == space && extent.range().contains(address)).then_some(extent)
    }

    /// Returns the offset of an extent in the index file, for error messages. `place` is the position of the extent in
    /// [`Self::extents`].
    #[must_use]
    pub const fn file_offset(place: usize) -> ByteCount {
        ByteCount((HEADER_BYTES + place * EXTENT_BYTES) as u64)
    }

    /// Returns the number of pages in all extents, including zero pages.
    #[must_use]
    pub fn pages(&self) -> PageCount {
        PageCount(self.extents.iter().map(|extent| extent.pages.0).fold(0, u64::saturating_add))
    }

    /// Returns the number of pages whose bytes are stored in a segment.
    #[must_use]
    pub fn stored_pages(&self) -> PageCount {
        let stored = self.extents.iter().filter(|extent| extent.source != Source::Zero);
        PageCount(stored.map(|extent| extent.pages.0).fold(0, u64::saturating_add))
    }

    /// Encodes the index as the content of its file.
    ///
    /// # Errors
    ///
    /// Returns `TooLarge` when there are 2³² extents or more.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let too_large = |_| Error::TooLarge { part: Part::Index, what: "the number of extents" };
        let items = u32::try_from(self.extents.len()).map_err(too_large)?;
        let mut file = frame::begin(self.extents.len() * EXTENT_BYTES);
        for extent in &self.extents {
            let (segment, offset, checksum) = match extent.source {
                Source::Zero => (ZERO_SEGMENT, 0, 0),
                Source::Stored { segment, offset, checksum } => (segment.0, offset.0, checksum.0),
            };
            file.extend_from_slice(&extent.space.0.to_le_bytes());
            file.extend_from_slice(&(extent.pages.0 as u32).to_le_bytes());
            file.extend_from_slice(&extent.start.0.to_le_bytes());
            file.extend_from_slice(&segment.to_le_bytes());
            file.extend_from_slice(&checksum.to_le_bytes());
            file.extend_from_slice(&offset.to_le_bytes());
        }
        Ok(frame::seal(Part::Index, items, file))
    }

    /// Verifies the content of an index file, then decodes the index.
    ///
    /// # Errors
    ///
    /// Returns an error for the first failed check, with the offset.
    pub fn decode(file: &[u8]) -> Result<Self> {
        let body = frame::open(Part::Index, file)?;
        let (entries, rest) = body.bytes.as_chunks::<EXTENT_BYTES>();
        if !rest.is_empty() || entries.len() as u64 != u64::from(body.items) {
            return Err(malformed(entries.len(), "another number of extents than the header counts"));
        }
        let mut extents: Vec<Extent> = Vec::with_capacity(entries.len());
        for (place, entry) in entries.iter().enumerate() {
            let extent = decode_extent(entry).map_err(|what| malformed(place, what))?;
            check(extents.last(), &extent).map_err(|what| malformed(place, what))?;
            extents.push(extent);
        }
        Ok(Self { extents })
    }
}

fn decode_extent(entry: &[u8; EXTENT_BYTES]) -> std::result::Result<Extent, &'static str> {
    let (segment, checksum, offset) = (u32_at(entry, 16), u32_at(entry, 20), u64_at(entry, 24));
    let source = match segment {
        ZERO_SEGMENT if checksum != 0 || offset != 0 => return Err("zero pages with a place in a segment"),
        ZERO_SEGMENT => Source::Zero,
        _ => Source::Stored {
            segment: SegmentId(segment),
            offset: ByteCount(offset),
            checksum: Checksum(checksum),
        },
    };
    Ok(Extent {
        space: SpaceId(u32_at(entry, 0)),
        start: Address(u64_at(entry, 8)),
        pages: PageCount(u64::from(u32_at(entry, 4))),
        source,
    })
}

/// Checks the rules for one extent, and that the extent is behind its predecessor `before`.
fn check(before: Option<&Extent>, extent: &Extent) -> std::result::Result<(), &'static str> {
    let Some(bytes) = extent.pages.0.checked_mul(PAGE_BYTES).filter(|_| extent.pages.0 <= u32::MAX.into())
    else {
        return Err("an extent too long");
    };
    if extent.pages.0 == 0 {
        return Err("an extent without pages");
    }
    if !extent.start.0.is_multiple_of(PAGE_BYTES) || extent.start.0.checked_add(bytes).is_none() {
        return Err("an extent outside any address space");
    }
    if let Source::Stored { segment, offset, .. } = extent.source {
        if segment.0 == ZERO_SEGMENT || extent.pages > EXTENT_PAGES_MAX {
            return Err("a stored extent too long");
        }
        if !offset.0.is_multiple_of(PAGE_BYTES) || offset.0.checked_add(bytes).is_none() {
            return Err("an extent outside any segment");
        }
    }
    let in_order = before.is_none_or(|before| {
        before.space < extent.space || (before.space == extent.space && before.range().end <= extent.start)
    });
    if in_order { Ok(()) } else { Err("extents that overlap or are out of order") }
}

fn malformed(place: usize, what: &'static str) -> Error {
    Error::Malformed { part: Part::Index, offset: PageIndex::file_offset(place), what }
}

impl fmt::Display for SpaceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for SegmentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
