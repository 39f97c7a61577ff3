//! Finds pages that are already stored, so that pages which processes share copy-on-write are stored once.
//!
//! Owns: a table with the place of each shared page of one image, by the hash of the page.
//! Invariants: equal hashes mean equal content. The hash is BLAKE3 with a random key, and has 128 bits. So the program
//! cannot write pages with different content and the same hash. The hash contains the page number, because the pages of
//! a child have the addresses of its parent's pages. Pages at successive addresses thus stay together in the segment. While
//! pages are added, a place in the table is never written again.
//! Does not: choose the pages that may be shared. The copiers mark these pages.

use std::collections::HashMap;

use model::PAGE_BYTES;

use crate::error::Result;
use crate::log::table::BlockIndex;

/// The maximum number of pages in the table: 8 GiB of shared memory. Further pages are stored again for each process.
const PAGES_MAX: usize = 1 << 21;

const HASH_BYTES: usize = 16;
const PAGE: usize = PAGE_BYTES as usize;

/// The places of the pages that may be shared.
#[derive(Debug)]
pub(crate) struct KnownPages {
    key: [u8; blake3::KEY_LEN],
    places: HashMap<[u8; HASH_BYTES], BlockIndex>,
}

impl KnownPages {
    /// Returns an empty table with a new key. Fails if the kernel gives no random bytes.
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { key: random_key()?, places: HashMap::new() })
    }

    /// Returns the place at which a page with this number and content is stored. If there is no such page, records that
    /// the page will be stored at `next`.
    pub(crate) fn find(&mut self, number: u64, page: &[u8; PAGE], next: BlockIndex) -> Option<BlockIndex> {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        hasher.update(page).update(&number.to_le_bytes());
        let mut hash = [0; HASH_BYTES];
        hasher.finalize_xof().fill(&mut hash);
        if let Some(known) = self.places.get(&hash) {
            return Some(*known);
        }
        if self.places.len() < PAGES_MAX {
            self.places.insert(hash, next);
        }
        None
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
        let mut known = KnownPages::new().unwrap();
        let (one, mut other) = ([7; PAGE], [7; PAGE]);
        other[4095] = 8;
        let places = [0, 1, 2, 3].map(BlockIndex::new);
        assert_eq!(known.find(3, &one, places[0]), None);
        assert_eq!(known.find(3, &one, places[1]), Some(places[0]));
        assert_eq!(known.find(4, &one, places[1]), None);
        assert_eq!(known.find(3, &other, places[2]), None);
        assert_eq!(known.find(3, &other, places[3]), Some(places[2]));
    }
}
