//! Page-aligned memory of this process, for copies of subjects' pages and for direct I/O.
//!
//! Owns: `PageBuffer`, its mapping, and the madvise(2) advice for the mapping.
//! Invariants: a buffer begins on a page boundary and is a whole number of pages. All its pages are resident
//! after its creation, until it is lent. Core dumps do not include a buffer, because it can contain memory of a
//! subject. Forked children do not inherit a buffer, because I/O to it may be in flight.
//! Does not: pool buffers, or decide which buffer gets huge pages; the code that fills them does.
//!
//! Man page: mmap(2), madvise(2)
//! Since: Linux 2.6; populating by madvise 5.14
//! Probe: the creation of the first buffer
//! Fallback: if madvise cannot populate the mapping, one byte of every page is written

use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use model::{ByteCount, PAGE_BYTES};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Errno, Error, Result};
use crate::scratch::HUGE_PAGE_BYTES;

/// The number of uses after which huge pages are worth their allocation, which takes up to 8 ms each.
pub(crate) const USES_FOR_HUGE: u32 = 32;

/// A page-aligned byte buffer with a mapping of its own, outside the heap.
#[derive(Debug)]
pub struct PageBuffer {
    start: NonNull<u8>,
    length: usize,
    /// The number of completed uses.
    uses: u32,
    is_huge: bool,
}

// SAFETY: only this value owns the mapping, and the mapping does not depend on a thread.
unsafe impl Send for PageBuffer {}
// SAFETY: a shared reference gives access only to `&[u8]`.
unsafe impl Sync for PageBuffer {}

impl PageBuffer {
    /// Creates a buffer of zero bytes. The size is rounded up to whole pages, and is at least one page.
    pub fn new(size: ByteCount) -> Result<Self> {
        let too_large = || Error::new("map a page buffer", Errno(libc::ENOMEM));
        let rounded = size.0.max(1).checked_next_multiple_of(PAGE_BYTES).ok_or_else(too_large)?;
        let length = usize::try_from(rounded).map_err(|_| too_large())?;
        let start = map(length).map_err(|errno| Error::new("map a page buffer", errno))?;
        let start = NonNull::new(start).ok_or_else(too_large)?;
        let mut buffer = Self { start, length, uses: 0, is_huge: false };
        // Huge pages would be filled with zeros in half the time, but a hypervisor often has no memory behind free huge
        // pages: then they take 4 ms per MiB, and small pages 0.4 ms. A buffer that is used often gets them later.
        for advice in [Advice::LinuxNoHugepage, Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // Failed advice is not an error. Without the advice, the allocation is slower, or a core dump or a
            // forked child contains the buffer.
            let _ = buffer.advise(advice);
        }
        buffer.populate();
        Ok(buffer)
    }

    /// Returns the size of the buffer.
    #[must_use]
    pub const fn size(&self) -> ByteCount {
        ByteCount(self.length as u64)
    }

    /// Counts a completed use.
    pub const fn count_use(&mut self) {
        self.uses = self.uses.saturating_add(1);
    }

    /// Reports whether [`Self::take_huge_pages`] would replace the memory, and the buffer is used often enough.
    #[must_use]
    pub const fn deserves_huge_pages(&self) -> bool {
        self.uses >= USES_FOR_HUGE && !self.is_huge && (self.length as u64).is_multiple_of(HUGE_PAGE_BYTES)
    }

    #[cfg(test)]
    pub(crate) const fn has_huge_pages(&self) -> bool {
        self.is_huge
    }

    /// Replaces the memory by huge pages, as far as the kernel has some. The content is undefined from then on. Direct I/O
    /// and copies of single pages then need a tenth less processor time. Takes 0.1 to 8 ms for each huge page.
    pub fn take_huge_pages(&mut self) {
        self.is_huge = true;
        if self.advise(Advice::LinuxHugepage).is_ok() && self.advise(Advice::LinuxDontNeed).is_ok() {
            self.populate();
        }
    }

    /// Lets the kernel take the memory of the buffer if memory becomes scarce. The content is undefined from then on. The
    /// next write to a page takes the page back.
    pub fn lend(&mut self) {
        // If the advice fails, the buffer just keeps its memory.
        let _ = self.advise(Advice::LinuxFree);
    }

    fn populate(&mut self) {
        if self.advise(Advice::LinuxPopulateWrite).is_err() {
            self.iter_mut().step_by(PAGE_BYTES as usize).for_each(|byte| {
                // SAFETY: `byte` is a valid exclusive reference. The write is volatile, so that the compiler
                // does not remove the write of a zero.
                unsafe { ptr::write_volatile(byte, 0) }
            });
        }
    }

    fn advise(&mut self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is the mapping that this value owns, and the exclusive reference excludes other
        // references to the content. Pages that the kernel takes contain zeroes when they are accessed again.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.length, advice) }
    }
}

/// Maps new memory. Where huge pages fit in, it begins on the boundary of a huge page.
fn map(length: usize) -> rustix::io::Result<*mut u8> {
    let beside = if (length as u64).is_multiple_of(HUGE_PAGE_BYTES) { HUGE_PAGE_BYTES as usize } else { 0 };
    let mapped = length.checked_add(beside).ok_or(rustix::io::Errno::NOMEM)?;
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: mmap makes a new anonymous private mapping at an address of the kernel's choice, and changes no other
    // memory.
    let start =
        unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), mapped, protection, MapFlags::PRIVATE) }?;
    let before = if beside == 0 { 0 } else { start.align_offset(HUGE_PAGE_BYTES as usize) };
    for (from, unused) in [(0, before), (before + length, beside - before)] {
        if unused > 0 {
            // SAFETY: the range is a part of the new mapping, which nothing uses yet.
            unsafe { rustix::mm::munmap(start.wrapping_byte_add(from), unused) }?;
        }
    }
    Ok(start.wrapping_byte_add(before).cast())
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start..start + length` is mapped and readable until the drop, and the kernel has filled it
        // with zeroes. It is written only through `deref_mut`, which borrows exclusively.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the conditions of `deref` hold, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: `new` has mapped the range, and no reference to the range outlives this value.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.length) };
        debug_assert!(unmapped.is_ok(), "unmapping our own mapping failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_aligned_zeroed_and_a_whole_number_of_pages() {
        let mut buffer = PageBuffer::new(ByteCount(5000)).unwrap();
        assert_eq!(buffer.size(), ByteCount(8192));
        assert!(buffer.as_ptr().addr().is_multiple_of(4096));
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer[8191] = 7;
        assert_eq!(std::thread::spawn(move || buffer[8191]).join().unwrap(), 7);
    }

    #[test]
    fn a_buffer_that_is_used_often_gets_huge_pages_where_these_fit() {
        let mut buffer = PageBuffer::new(ByteCount(HUGE_PAGE_BYTES)).unwrap();
        assert!(buffer.as_ptr().addr().is_multiple_of(HUGE_PAGE_BYTES as usize));
        (1..USES_FOR_HUGE).for_each(|_| buffer.count_use());
        assert!(!buffer.deserves_huge_pages());
        buffer.count_use();
        assert!(buffer.deserves_huge_pages());
        buffer.take_huge_pages();
        assert!(!buffer.deserves_huge_pages(), "once is enough");
        buffer.fill(7);
        assert!(buffer.iter().all(|byte| *byte == 7));
        let mut small = PageBuffer::new(ByteCount(PAGE_BYTES)).unwrap();
        (0..2 * USES_FOR_HUGE).for_each(|_| small.count_use());
        assert!(!small.deserves_huge_pages());
    }

    #[test]
    fn an_impossible_size_is_an_error() {
        assert!(PageBuffer::new(ByteCount(u64::MAX)).is_err());
        assert!(PageBuffer::new(ByteCount(1 << 60)).is_err());
    }
}
