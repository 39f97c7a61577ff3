//! Removes zero pages from a buffer, and computes the checksums of the other pages.
//!
//! Owns: the check for zero pages; `Packed`, the list of the pages in a buffer after packing.
//! Invariants: the order of the pages does not change, so that a later copy of a page replaces an earlier copy. A
//! checksum is computed from the same bytes that are stored.
//! Does not: write pages.

use image::{PageChecksum, SpaceId};
use model::PAGE_BYTES;
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
    let Packed { pages, stored } = packed;
    pages.clear();
    *stored = pack_each(buffer, pieces, |piece, page, content, _| {
        pages.push((piece.space, page, content.map(|(_, checksum)| checksum)));
        content.is_some()
    });
}

/// The bytes of a page that is not a zero page, and their checksum.
type Content<'a> = Option<(&'a [u8; PAGE], PageChecksum)>;

/// Moves the pages of a buffer that must be stored to its front, and returns their number. Calls `is_stored` with each
/// page: its piece, its number, its content, and the number of pages at the front so far. `is_stored` reports whether the
/// page must be stored, which is never true for a zero page.
pub(crate) fn pack_each(
    buffer: &mut PageBuffer,
    pieces: &[Piece],
    mut is_stored: impl FnMut(&Piece, u64, Content<'_>, u32) -> bool,
) -> u32 {
    let mut stored = 0;
    for piece in pieces {
        let first = piece.start.get() / PAGE_BYTES;
        for number in 0..piece.pages.get() {
            let from = (piece.at.get() + number) as usize * PAGE;
            let page = &buffer[from..].as_chunks::<PAGE>().0[0];
            let content = if is_zero(page) { None } else { Some((page, PageChecksum::of(page))) };
            if is_stored(piece, first + number, content, stored) {
                let to = stored as usize * PAGE;
                if to != from {
                    buffer.copy_within(from..from + PAGE, to);
                }
                stored += 1;
            }
        }
    }
    stored
}

/// Reports whether every byte is zero. Most non-zero pages have a non-zero byte in the first block. The check reads
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
