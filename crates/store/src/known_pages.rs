//! Finds pages that are already stored, so that pages which processes share copy-on-write are stored once.
//!
//! Owns: a table with the place of each shared page of one image, by the hash of the page; packing a buffer with such
//! pages.
//! Invariants: equal hashes mean equal content. The hash is BLAKE3 with a random key, and has 128 bits. So the program
//! cannot write pages with different content and the same hash. The hash contains the page number, because the pages of
//! a child have the addresses of its parent's pages. Pages at successive addresses thus stay together in the segment. While
//! pages are added, a place in the table is never written again.
//! Does not: choose the pages that may be shared. The copiers mark these pages.

use std::collections::HashMap;

use image::{PageChecksum, PageMap, SegmentId, SpaceId};
use model::{Address, ByteCount, PAGE_BYTES, PageCount};
use sys::page_buffer::PageBuffer;

use crate::batch::Piece;
use crate::error::Result;
use crate::packer::is_zero;

/// The maximum number of pages in the table: 8 GiB of shared memory. Further pages are stored again for each process.
const PAGES_MAX: usize = 1 << 21;

const HASH_BYTES: usize = 16;
const PAGE: usize = PAGE_BYTES as usize;

/// The places of the pages that may be shared.
#[derive(Debug, Default)]
pub(crate) struct KnownPages {
    /// The key of the hash. `None` until the first page is hashed.
    key: Option<[u8; blake3::KEY_LEN]>,
    offsets: HashMap<[u8; HASH_BYTES], u64>,
}

/// The checksum and the offset of a stored page; `None` for a zero page.
type Placed = Option<(PageChecksum, u64)>;

impl KnownPages {
    /// Moves the pages of a buffer that must be stored to its front, and enters all pages into the page map. The stored
    /// pages follow each other at offset `end` of the segment. Returns the number of stored pages.
    pub(crate) fn pack(
        &mut self,
        map: &mut PageMap,
        (segment, end): (SegmentId, u64),
        buffer: &mut PageBuffer,
        pieces: &[Piece],
    ) -> Result<PageCount> {
        let (mut pages, mut stored): (Vec<(SpaceId, u64, Placed)>, _) = (Vec::new(), 0);
        for piece in pieces {
            let first = piece.start.get() / PAGE_BYTES;
            for number in 0..piece.pages.get() {
                let from = (piece.at.get() + number) as usize * PAGE;
                let page = &buffer[from..].as_chunks::<PAGE>().0[0];
                if is_zero(page) {
                    pages.push((piece.space, first + number, None));
                    continue;
                }
                let (checksum, next) = (PageChecksum::of(page), end + stored * PAGE_BYTES);
                let known = if piece.is_shared { self.find(first + number, page, next)? } else { None };
                if known.is_none() {
                    let to = stored as usize * PAGE;
                    if to != from {
                        buffer.copy_within(from..from + PAGE, to);
                    }
                    stored += 1;
                }
                pages.push((piece.space, first + number, Some((checksum, known.unwrap_or(next)))));
            }
        }
        enter(map, segment, &pages);
        Ok(PageCount(stored))
    }

    /// Returns the offset at which a page with this number and content is stored. If there is no such page, records that
    /// the page will be stored at `offset`.
    fn find(&mut self, number: u64, page: &[u8; PAGE], offset: u64) -> Result<Option<u64>> {
        let key = match self.key {
            Some(key) => key,
            None => *self.key.insert(random_key()?),
        };
        let mut hasher = blake3::Hasher::new_keyed(&key);
        hasher.update(page).update(&number.to_le_bytes());
        let mut hash = [0; HASH_BYTES];
        hasher.finalize_xof().fill(&mut hash);
        if let Some(known) = self.offsets.get(&hash) {
            return Ok(Some(*known));
        }
        if self.offsets.len() < PAGES_MAX {
            self.offsets.insert(hash, offset);
        }
        Ok(None)
    }
}

/// Enters pages into the page map, in their order.
fn enter(map: &mut PageMap, segment: SegmentId, pages: &[(SpaceId, u64, Placed)]) {
    let follows = |at: &Placed, next: &Placed| match (at, next) {
        (None, None) => true,
        (Some((_, at)), Some((_, next))) => at + PAGE_BYTES == *next,
        _ => false,
    };
    let runs = pages.chunk_by(|(space, number, at), (of, next, then)| {
        (space, number + 1) == (of, *next) && follows(at, then)
    });
    for run in runs {
        let (space, first, at) = run[0];
        let start = Address(first * PAGE_BYTES);
        let checksums: Vec<PageChecksum> = run.iter().filter_map(|(.., at)| Some(at.as_ref()?.0)).collect();
        match at {
            None => map.zero(space, start, PageCount(run.len() as u64)),
            Some((_, offset)) => map.store(space, start, segment, ByteCount(offset), &checksums),
        }
    }
}

fn random_key() -> Result<[u8; blake3::KEY_LEN]> {
    let mut key = [0; blake3::KEY_LEN];
    let filled = rustix::rand::getrandom(&mut key[..], rustix::rand::GetRandomFlags::empty());
    match filled {
        Ok(count) if count == key.len() => Ok(key),
        Ok(_) => Err(sys::Error::new("get random bytes", sys::Errno::SHORT).into()),
        Err(errno) => Err(sys::Error::new("get random bytes", errno).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_known_by_its_number_and_its_content() {
        let mut known = KnownPages::default();
        let (one, mut other) = ([7; PAGE], [7; PAGE]);
        other[4095] = 8;
        assert_eq!(known.find(3, &one, 0).unwrap(), None);
        assert_eq!(known.find(3, &one, 4096).unwrap(), Some(0));
        assert_eq!(known.find(4, &one, 4096).unwrap(), None);
        assert_eq!(known.find(3, &other, 8192).unwrap(), None);
        assert_eq!(known.find(3, &other, 12288).unwrap(), Some(8192));
    }
}
