//! Memory of our own to try kernel features on.
//!
//! Owns: a private anonymous mapping, reads and writes of its pages, discarding them.
//! Invariants: begins on the boundary of a huge page; nothing else of the process lies in it.
//! Does not: serve as a buffer; `page_buffer` does.
//!
//! Man page: mmap(2), madvise(2)
//! Since: Linux 2.6
//! Probe: its use
//! Fallback: none needed

use std::ptr::{self, NonNull};

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};

use crate::error::{Errno, Error, Result};

/// Bytes of a huge page on x86-64; page tables of this much are freed together.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// A few pages to play with.
#[derive(Debug)]
pub struct Scratch {
    /// What was mapped: more than is used, for the alignment.
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    start: NonNull<u8>,
    pages: PageCount,
}

// SAFETY: the mapping belongs to this value alone and does not depend on the thread.
unsafe impl Send for Scratch {}

impl Scratch {
    /// So many pages, none of them touched yet.
    pub fn new(pages: PageCount) -> Result<Self> {
        let mapped_bytes = (pages.bytes().get() + HUGE_PAGE_BYTES) as usize;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no other memory.
        let mapped = unsafe { libc::mmap(ptr::null_mut(), mapped_bytes, protection, flags, -1, 0) };
        let failed = || Error::new("map scratch memory", Errno::last());
        if mapped == libc::MAP_FAILED {
            return Err(failed());
        }
        let mapped = NonNull::new(mapped.cast::<u8>()).ok_or_else(failed)?;
        let offset = mapped.as_ptr().align_offset(HUGE_PAGE_BYTES as usize);
        // SAFETY: the offset is below HUGE_PAGE_BYTES, which the mapping is longer than its pages.
        let start = unsafe { mapped.add(offset) };
        Ok(Self { mapped, mapped_bytes, start, pages })
    }

    /// Where it lies.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        let start = Address(self.start.as_ptr() as u64);
        AddressRange::new(start, start + self.pages.bytes())
    }

    /// A part of it: `count` pages from page `first` on.
    #[must_use]
    pub fn part(&self, first: PageCount, count: PageCount) -> AddressRange {
        let start = self.range().start + first.bytes();
        AddressRange::new(start, start + count.bytes())
    }

    /// Asks for huge pages; whether the kernel gives any is its own affair.
    pub fn prefer_huge_pages(&mut self) {
        // Without huge pages the tests of them see base pages, which is what the process would have too.
        let _ = self.advise(PageCount(0), self.pages, libc::MADV_HUGEPAGE);
    }

    /// Writes the first byte of a page.
    pub fn write(&mut self, page: PageCount, byte: u8) {
        let at = self.at(page);
        // SAFETY: `at` checks that the page is inside of the mapping, which is writable and ours exclusively;
        // volatile, since the write itself is what matters.
        unsafe { ptr::write_volatile(at, byte) }
    }

    /// Reads the first byte of a page.
    #[must_use]
    pub fn read(&self, page: PageCount) -> u8 {
        let at = self.at(page);
        // SAFETY: `at` checks that the page is inside of the mapping, which is readable.
        unsafe { ptr::read_volatile(at) }
    }

    /// Discards pages: they read as zero afterwards.
    pub fn discard(&mut self, first: PageCount, count: PageCount) -> Result<()> {
        self.advise(first, count, libc::MADV_DONTNEED)
    }

    fn advise(&mut self, first: PageCount, count: PageCount, advice: i32) -> Result<()> {
        assert!(first.get() + count.get() <= self.pages.get(), "the pages are inside");
        let at = self.start.as_ptr().wrapping_add(first.bytes().get() as usize);
        // SAFETY: the range is inside of the mapping, checked above; no reference into it exists, and all bytes
        // are valid afterwards.
        let result = unsafe { libc::madvise(at.cast(), count.bytes().get() as usize, advice) };
        if result < 0 { Err(Error::new("advise on scratch memory", Errno::last())) } else { Ok(()) }
    }

    fn at(&self, page: PageCount) -> *mut u8 {
        assert!(page < self.pages, "the page is inside");
        self.start.as_ptr().wrapping_add(ByteCount(page.get() * PAGE_BYTES).get() as usize)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and no reference into it exists.
        unsafe { libc::munmap(self.mapped.as_ptr().cast(), self.mapped_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_discarded_reads_as_zero() {
        let mut scratch = Scratch::new(PageCount(3)).unwrap();
        assert!(scratch.range().start.get().is_multiple_of(HUGE_PAGE_BYTES));
        scratch.write(PageCount(1), 7);
        scratch.write(PageCount(2), 8);
        scratch.discard(PageCount(1), PageCount(1)).unwrap();
        assert_eq!([1, 2].map(|page| scratch.read(PageCount(page))), [0, 8]);
    }
}
