//! Pages as they were before they changed, for a copy that runs beside the process.
//!
//! Owns: the pool of old pages, and which ones are still wanted.
//! Invariants: a wanted page never changes before its old content is kept; the pool is bounded, and a writer waits
//! for room in it rather than getting past.
//! Does not: lift the protection; the handler of the tracker does, afterwards.

use std::collections::HashMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};
use sys::Error;
use sys::page_buffer::PageBuffer;

/// Pages of the pool (8 MiB): a writer that dirties 10,000 pages in a second is a millisecond ahead of a copier that
/// moves a gigabyte in one with fewer.
const POOL_PAGES: PageCount = PageCount(2048);

/// Old content, kept from [`OldPages::begin`] until the copier has passed.
#[derive(Debug)]
pub struct OldPages {
    state: Mutex<State>,
    room: Condvar,
}

#[derive(Debug)]
struct State {
    pool: PageBuffer,
    free: Vec<usize>,
    taken: HashMap<Address, usize>,
    /// What is still to be copied, rising.
    wanted: Vec<AddressRange>,
    /// Everything below has been copied.
    passed: Address,
    closed: bool,
}

impl OldPages {
    pub(crate) fn new() -> Result<Self, Error> {
        let pool = PageBuffer::new(POOL_PAGES.bytes())?;
        let count = POOL_PAGES.get() as usize;
        let state = State {
            pool,
            free: (0..count).collect(),
            taken: HashMap::with_capacity(count),
            wanted: Vec::new(),
            passed: Address(0),
            closed: false,
        };
        Ok(Self { state: Mutex::new(state), room: Condvar::new() })
    }

    /// Keeps the content of these ranges (rising) from now on. Called while the process stands, after the scan that
    /// has protected them.
    pub fn begin(&self, wanted: &[AddressRange]) {
        let mut state = self.state();
        debug_assert!(wanted.windows(2).all(|pair| pair[0].end <= pair[1].start), "ranges rise");
        state.release_all();
        state.passed = Address(0);
        state.wanted.clear();
        state.wanted.extend_from_slice(wanted);
        drop(state);
        self.room.notify_all();
    }

    /// Puts old content in place of pages that have changed; `copy` was read from `start` on after [`Self::begin`].
    /// Returns how many pages that were. Copying is done in rising order: all up to the end of this copy counts as
    /// copied afterwards, and its old pages are let go.
    pub fn correct(&self, start: Address, copy: &mut [u8]) -> PageCount {
        let mut state = self.state();
        let mut corrected = PageCount(0);
        for (index, page) in copy.chunks_exact_mut(PAGE_BYTES as usize).enumerate() {
            let address = start + ByteCount(index as u64 * PAGE_BYTES);
            if let Some(slot) = state.taken.get(&address) {
                let at = slot * PAGE_BYTES as usize;
                page.copy_from_slice(&state.pool[at..at + PAGE_BYTES as usize]);
                corrected += PageCount(1);
            }
        }
        state.pass(start + ByteCount(copy.len() as u64));
        drop(state);
        self.room.notify_all();
        corrected
    }

    /// Nothing more is wanted; writers no longer wait.
    pub fn end(&self) {
        self.begin(&[]);
    }

    /// Keeps a page that is about to change, if it is wanted. Waits for room.
    pub(crate) fn keep(
        &self,
        page: Address,
        read: impl FnOnce(&mut [u8]) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut state = self.state();
        while state.wants(page) {
            if let Some(slot) = state.free.pop() {
                let at = slot * PAGE_BYTES as usize;
                let outcome = read(&mut state.pool[at..at + PAGE_BYTES as usize]);
                if outcome.is_ok() {
                    state.taken.insert(page, slot);
                } else {
                    state.free.push(slot);
                }
                return outcome;
            }
            state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(())
    }

    /// No more pages come.
    pub(crate) fn close(&self) {
        self.state().closed = true;
        self.room.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // The state is whole after every step; a panic elsewhere does not spoil it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wants(&self, page: Address) -> bool {
        if self.closed || page < self.passed || self.taken.contains_key(&page) {
            return false;
        }
        let first = self.wanted.partition_point(|range| range.end <= page);
        self.wanted.get(first).is_some_and(|range| range.contains(page))
    }

    fn pass(&mut self, end: Address) {
        self.passed = self.passed.max(end);
        let (free, passed) = (&mut self.free, self.passed);
        self.taken.retain(|page, slot| {
            let keep = *page >= passed;
            if !keep {
                free.push(*slot);
            }
            keep
        });
    }

    fn release_all(&mut self) {
        self.free.extend(self.taken.drain().map(|(_, slot)| slot));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn range(first: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(first * PAGE_BYTES), Address(end * PAGE_BYTES))
    }

    fn fill(byte: u8) -> impl FnOnce(&mut [u8]) -> Result<(), Error> {
        move |page| {
            page.fill(byte);
            Ok(())
        }
    }

    #[test]
    fn a_page_is_kept_once_while_it_is_wanted() {
        let old = OldPages::new().unwrap();
        old.begin(&[range(2, 4), range(8, 9)]);
        for page in [1, 2, 2, 5, 8] {
            old.keep(range(page, page + 1).start, fill(page as u8)).unwrap();
        }
        old.keep(range(2, 3).start, fill(99)).unwrap();
        let mut copy = vec![7; 2 * PAGE_BYTES as usize];
        assert_eq!(old.correct(range(2, 4).start, &mut copy), PageCount(1));
        assert_eq!((copy[0], copy[PAGE_BYTES as usize]), (2, 7));
        // What has been passed is not kept any more.
        old.keep(range(3, 4).start, |_| panic!("it was copied")).unwrap();
        assert_eq!(old.correct(range(8, 9).start, &mut copy[..PAGE_BYTES as usize]), PageCount(1));
        assert_eq!(copy[0], 8);
        old.end();
        old.keep(range(8, 9).start, |_| panic!("nothing is wanted")).unwrap();
    }

    #[test]
    fn a_writer_waits_for_room_until_the_copier_has_passed() {
        let old = Arc::new(OldPages::new().unwrap());
        let count = POOL_PAGES.get();
        old.begin(&[range(0, 2 * count)]);
        for page in 0..count {
            old.keep(range(page, page + 1).start, fill(1)).unwrap();
        }
        let writer = {
            let old = Arc::clone(&old);
            std::thread::spawn(move || old.keep(range(count, count + 1).start, fill(2)))
        };
        std::thread::sleep(Duration::from_millis(20));
        assert!(!writer.is_finished());
        let mut page = vec![0; PAGE_BYTES as usize];
        assert_eq!(old.correct(range(0, 1).start, &mut page), PageCount(1));
        writer.join().unwrap().unwrap();
        old.close();
        old.keep(range(count + 1, count + 2).start, |_| panic!("it is closed")).unwrap();
    }
}
