//! Removes zero pages from a buffer, and computes the checksums of the other pages.
//!
//! Owns: the check for zero pages; `Packed`, the list of the pages in a buffer after packing.
//! Invariants: the order of the pages does not change, so that a later copy of a page replaces an earlier copy. A
//! checksum is computed from the same bytes that are stored.
//! Does not: write pages.

use image::{PageChecksum, PageMap, SegmentId, SpaceId};
use model::{Address, ByteCount, PAGE_BYTES, PageCount};
use sys::page_buffer::PageBuffer;

use crate::batch::Piece;

const PAGE: usize = PAGE_BYTES as usize;

/// The content of a packed buffer: each page with its address space, its page number, and the checksum of a stored
/// page.
#[derive(Debug, Default)]
pub(crate) struct Packed {
    pub(crate) pages: Vec<(SpaceId, u64, Option<PageChecksum>)>,
    /// The number of stored pages, which are at the front of the buffer.
    pub(crate) stored: u32,
}

/// Moves the non-zero pages of a buffer to its front, and lists all pages.
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

/// Packs a buffer as `pack` does, and enters all pages into the page map. The stored pages follow each other at offset
/// `end` of the segment. Returns the number of stored pages.
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

/// Reports whether every byte is zero. Most non-zero pages have a non-zero byte in the first block. The check reads
/// blocks that compile to vector instructions.
pub(crate) fn is_zero(page: &[u8; PAGE]) -> bool {
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
