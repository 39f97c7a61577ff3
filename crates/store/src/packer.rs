//! Leaving zero pages out of a buffer, and entering all of its pages into the map of an image.
//!
//! Owns: which pages are zero, the checksums of the others, their places.
//! Invariants: a page's checksum is computed from the very bytes that are stored.
//! Does not: write.

use image::{PageChecksum, PageMap, SegmentId};
use model::{Address, ByteCount, PAGE_BYTES, PageCount};
use sys::page_buffer::PageBuffer;

use crate::batch::Piece;

const PAGE: usize = PAGE_BYTES as usize;

/// Moves the pages of a buffer that are not zero to its front and enters all pages into the map, as those that follow
/// at `end` of a segment. Gives how many pages are stored.
pub(crate) fn pack_into(
    map: &mut PageMap,
    segment: SegmentId,
    end: u64,
    buffer: &mut PageBuffer,
    pieces: &[Piece],
) -> PageCount {
    let mut packer = Packer { map, segment, segment_end: end, packed: 0 };
    for piece in pieces {
        packer.pack(buffer, piece);
    }
    PageCount(packer.packed)
}

/// Moves the non-zero pages of a buffer to its front and enters all pages into the map.
struct Packer<'a> {
    map: &'a mut PageMap,
    segment: SegmentId,
    segment_end: u64,
    packed: u64,
}

impl Packer<'_> {
    fn pack(&mut self, buffer: &mut PageBuffer, piece: &Piece) {
        let mut checksums: Vec<PageChecksum> = Vec::with_capacity(piece.pages.get() as usize);
        let mut zeros = 0;
        for number in 0..piece.pages.get() {
            let from = (piece.at.get() + number) as usize * PAGE;
            let (page, _) = buffer[from..].as_chunks::<PAGE>();
            if is_zero(&page[0]) {
                self.enter(piece, number, &mut checksums);
                zeros += 1;
                continue;
            }
            self.enter_zeros(piece, number, &mut zeros);
            checksums.push(PageChecksum::of(&page[0]));
            let to = self.packed as usize * PAGE;
            if to != from {
                buffer.copy_within(from..from + PAGE, to);
            }
            self.packed += 1;
        }
        self.enter(piece, piece.pages.get(), &mut checksums);
        self.enter_zeros(piece, piece.pages.get(), &mut zeros);
    }

    /// Enters the stored pages that end before page `end` of the piece, the last ones packed.
    fn enter(&mut self, piece: &Piece, end: u64, checksums: &mut Vec<PageChecksum>) {
        if checksums.is_empty() {
            return;
        }
        let count = checksums.len() as u64;
        let offset = self.segment_end + (self.packed - count) * PAGE_BYTES;
        self.map.store(
            piece.space,
            page_address(piece, end - count),
            self.segment,
            ByteCount(offset),
            checksums,
        );
        checksums.clear();
    }

    /// Enters the zero pages that end before page `end` of the piece.
    fn enter_zeros(&mut self, piece: &Piece, end: u64, zeros: &mut u64) {
        if *zeros > 0 {
            self.map.zero(piece.space, page_address(piece, end - *zeros), PageCount(*zeros));
        }
        *zeros = 0;
    }
}

fn page_address(piece: &Piece, number: u64) -> Address {
    piece.start + PageCount(number).bytes()
}

/// Whether every byte is zero. Most pages that are not show it in their first bytes; the others are read in
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
