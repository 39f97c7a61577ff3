//! Leaving zero pages out of a buffer, and the checksums of the others.
//!
//! Owns: which pages are zero, `Packed`, the list of what a buffer holds after packing.
//! Invariants: pages come out in the order in which they were pushed, so that the later copy of a page counts;
//! a checksum is computed from the very bytes that are stored.
//! Does not: write.

use image::{PageChecksum, PageMap, SegmentId, SpaceId};
use model::{Address, ByteCount, PAGE_BYTES, PageCount};
use sys::page_buffer::PageBuffer;

use crate::batch::Piece;

const PAGE: usize = PAGE_BYTES as usize;

/// What is in a buffer: each page with its space and number, and the checksum of one that is stored.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    pub(crate) pages: Vec<(SpaceId, u64, Option<PageChecksum>)>,
    /// Pages that are stored, at the front of the buffer.
    pub(crate) stored: u32,
}

/// Moves the pages of a buffer that are not zero to its front, and lists all of them.
pub(crate) fn pack(buffer: &mut PageBuffer, pieces: &[Piece], packed: &mut Packed) {
    packed.pages.clear();
    packed.stored = 0;
    for piece in pieces {
        let first = piece.start.get() / PAGE_BYTES;
        for number in 0..piece.pages.get() {
            let from = (piece.at.get() + number) as usize * PAGE;
            let (page, _) = buffer[from..].as_chunks::<PAGE>();
            let checksum = if is_zero(&page[0]) { None } else { Some(PageChecksum::of(&page[0])) };
            packed.pages.push((piece.space, first + number, checksum));
            if checksum.is_some() {
                let to = packed.stored as usize * PAGE;
                if to != from {
                    buffer.copy_within(from..from + PAGE, to);
                }
                packed.stored += 1;
            }
        }
    }
}

/// As `pack`, and enters all pages into the map, as those that follow at `end` of a segment. Gives how many pages are
/// stored.
pub(crate) fn pack_into(
    map: &mut PageMap,
    segment: SegmentId,
    mut end: u64,
    buffer: &mut PageBuffer,
    pieces: &[Piece],
) -> PageCount {
    let mut packed = Packed::default();
    pack(buffer, pieces, &mut packed);
    let runs = packed.pages.chunk_by(|(space, page, checksum), (of, next, other)| {
        (space, page + 1, checksum.is_some()) == (of, *next, other.is_some())
    });
    for run in runs {
        let (space, first, _) = run[0];
        let start = Address(first * PAGE_BYTES);
        let checksums: Vec<PageChecksum> = run.iter().filter_map(|(.., checksum)| *checksum).collect();
        if checksums.is_empty() {
            map.zero(space, start, PageCount(run.len() as u64));
        } else {
            map.store(space, start, segment, ByteCount(end), &checksums);
            end += checksums.len() as u64 * PAGE_BYTES;
        }
    }
    PageCount(u64::from(packed.stored))
}

/// Whether every byte is zero. Most pages that are not show it in their first bytes; the others are read in
/// blocks that compile to vector instructions.
fn is_zero(page: &[u8; PAGE]) -> bool {
    let (blocks, _) = page.as_chunks::<128>();
    blocks.iter().all(|block| block.iter().fold(0, |any, byte| any | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_zero_only_if_every_byte_is() {
        let mut page = [0; PAGE];
        assert!(is_zero(&page));
        for place in 0..PAGE {
            page[place] = 1;
            assert!(!is_zero(&page), "byte {place}");
            page[place] = 0;
        }
    }
}
