//! Leaving zero pages out of a buffer, and the checksums of the others.
//!
//! Owns: `Packed`, the list of what a buffer holds after packing.
//! Invariants: pages come out in the order in which they were pushed, so that the later copy of a page counts;
//! a checksum is computed from the very bytes that are written.
//! Does not: write them.

use image::{PageChecksum, SpaceId};
use model::PAGE_BYTES;
use sys::page_buffer::PageBuffer;

use crate::batch::Piece;
use crate::packer::is_zero;

const PAGE: usize = PAGE_BYTES as usize;

/// What is in a buffer.
#[derive(Debug, Default)]
pub(super) struct Packed {
    pages: Vec<(SpaceId, u64, Option<PageChecksum>)>,
    stored: u32,
}

/// Moves the pages of a buffer that are not zero to its front, and lists all of them.
pub(super) fn pack(buffer: &mut PageBuffer, pieces: &[Piece], packed: &mut Packed) {
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

impl Packed {
    /// Pages that are stored, at the front of the buffer.
    pub(super) const fn stored(&self) -> u32 {
        self.stored
    }

    /// Tells each page: its space and number, and for a stored one its place in the buffer and its checksum.
    pub(super) fn enter(&self, mut each: impl FnMut(SpaceId, u64, Option<(u32, PageChecksum)>)) {
        let mut number = 0;
        for (space, page, checksum) in &self.pages {
            each(*space, *page, checksum.map(|checksum| (number, checksum)));
            number += u32::from(checksum.is_some());
        }
    }
}
