//! Memory of this process for trying kernel features.
//!
//! Owns: a private anonymous mapping, and the reading, writing and discarding of its pages.
//! Invariants: the pages begin on a huge page boundary. The mapping contains no other data of the process.
//! Does not: provide buffers; `page_buffer` does.
//!
//! Man page: mmap(2), madvise(2)
//! Since: Linux 2.6
//! Probe: none; creating the mapping reports the error
//! Fallback: none needed

use std::ptr::{self, NonNull};

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::error::{Error, Result, done};

/// Size of a huge page on x86-64 in bytes. One page table covers a range of this size, and is freed as a whole.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// A mapping of a few pages for trials.
#[derive(Debug)]
pub struct Scratch {
    /// Start of the mapping. The mapping is longer than `pages`, so that `start` can be aligned.
    mapped: NonNull<u8>,
    mapped_bytes: usize,
    start: NonNull<u8>,
    pages: PageCount,
}

// SAFETY: the mapping belongs to this value alone and does not depend on the thread.
unsafe impl Send for Scratch {}

impl Scratch {
    /// Maps this number of pages, and touches no page.
    pub fn new(pages: PageCount) -> Result<Self> {
        let mapped_bytes = (pages.bytes().get() + HUGE_PAGE_BYTES) as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no other memory.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), mapped_bytes, protection, flags) };
        let mapped = mapped.map_err(|errno| Error::new("map scratch memory", errno))?;
        let mapped = NonNull::new(mapped.cast::<u8>()).expect("the kernel maps nothing at address 0");
        let offset = mapped.as_ptr().align_offset(HUGE_PAGE_BYTES as usize);
        // SAFETY: the offset is below HUGE_PAGE_BYTES, and the mapping is longer than its pages by HUGE_PAGE_BYTES.
        let start = unsafe { mapped.add(offset) };
        Ok(Self { mapped, mapped_bytes, start, pages })
    }

    /// Returns the address range of the pages.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        let start = Address(self.start.as_ptr() as u64);
        AddressRange::new(start, start + self.pages.bytes())
    }

    /// Returns the address range of `count` pages, from page `first` on.
    #[must_use]
    pub fn part(&self, first: PageCount, count: PageCount) -> AddressRange {
        let start = self.range().start + first.bytes();
        AddressRange::new(start, start + count.bytes())
    }

    /// Asks the kernel for huge pages. The kernel may provide base pages instead.
    pub fn prefer_huge_pages(&mut self) {
        // If the advice fails, the memory has base pages, like the memory of any other process here.
        let _ = self.advise(PageCount(0), self.pages, libc::MADV_HUGEPAGE);
    }

    /// Writes the first byte of a page.
    pub fn write(&mut self, page: PageCount, byte: u8) {
        let at = self.at(page);
        // SAFETY: `at` checks that the page is inside of the mapping, which is writable and exclusively ours. The
        // write is volatile, so that the compiler does not remove the memory access.
        unsafe { ptr::write_volatile(at, byte) }
    }

    /// Reads the first byte of a page.
    #[must_use]
    pub fn read(&self, page: PageCount) -> u8 {
        let at = self.at(page);
        // SAFETY: `at` checks that the page is inside of the mapping, which is readable.
        unsafe { ptr::read_volatile(at) }
    }

    /// Discards pages. Afterwards the pages read as zero.
    pub fn discard(&mut self, first: PageCount, count: PageCount) -> Result<()> {
        self.advise(first, count, libc::MADV_DONTNEED)
    }

    fn advise(&mut self, first: PageCount, count: PageCount, advice: i32) -> Result<()> {
        assert!(first.get() + count.get() <= self.pages.get(), "the pages are inside");
        let at = self.start.as_ptr().wrapping_add(first.bytes().get() as usize);
        // SAFETY: the range is inside of the mapping, as checked above. No reference into the range exists, and all
        // bytes are valid afterwards.
        let result = unsafe { libc::madvise(at.cast(), count.bytes().get() as usize, advice) };
        done("advise on scratch memory", result).map(drop)
    }

    fn at(&self, page: PageCount) -> *mut u8 {
        assert!(page < self.pages, "the page is inside");
        self.start.as_ptr().wrapping_add(ByteCount(page.get() * PAGE_BYTES).get() as usize)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: `new` mapped the range, and no reference into the range exists.
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
