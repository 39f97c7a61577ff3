//! Page-aligned memory of our own, for copying subjects' pages and for direct I/O.
//!
//! Owns: `PageBuffer`, its mapping and its advice to the kernel.
//! Invariants: begins on a page boundary, is a whole number of pages, is resident from the start, is left out
//! of core dumps (it holds a subject's memory) and of forked children (I/O may be in flight on it).
//! Does not: pool buffers; the code that fills them does.
//!
//! Man page: mmap(2), madvise(2)
//! Since: Linux 2.6; populating by madvise 5.14
//! Probe: the first buffer
//! Fallback: where madvise cannot populate, every page is written to once

use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use model::{ByteCount, PAGE_BYTES};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::error::{Errno, Error, Result};

/// A page-aligned byte buffer that is not on the heap.
#[derive(Debug)]
pub struct PageBuffer {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the mapping belongs to this value alone and does not depend on the thread.
unsafe impl Send for PageBuffer {}
// SAFETY: a shared reference gives out only `&[u8]`.
unsafe impl Sync for PageBuffer {}

impl PageBuffer {
    /// A buffer of zero bytes of this size, rounded up to whole pages, at least one.
    pub fn new(size: ByteCount) -> Result<Self> {
        let too_large = || Error::new("map a page buffer", Errno(libc::ENOMEM));
        let rounded = size.0.max(1).checked_next_multiple_of(PAGE_BYTES).ok_or_else(too_large)?;
        let length = usize::try_from(rounded).map_err(|_| too_large())?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: an anonymous private mapping at an address of the kernel's choice touches no other memory.
        let start =
            unsafe { rustix::mm::mmap_anonymous(ptr::null_mut(), length, protection, MapFlags::PRIVATE) };
        let start = start.map_err(|errno| Error::new("map a page buffer", errno))?;
        let start = NonNull::new(start.cast::<u8>()).ok_or_else(too_large)?;
        let mut buffer = Self { start, length };
        for advice in [Advice::LinuxHugepage, Advice::LinuxDontFork, Advice::LinuxDontDump] {
            // Advice the kernel does not take costs speed, or a core dump that holds more: not an error.
            let _ = buffer.advise(advice);
        }
        buffer.populate();
        Ok(buffer)
    }

    /// The size of the buffer.
    #[must_use]
    pub const fn size(&self) -> ByteCount {
        ByteCount(self.length as u64)
    }

    fn populate(&mut self) {
        if self.advise(Advice::LinuxPopulateWrite).is_err() {
            self.iter_mut().step_by(PAGE_BYTES as usize).for_each(|byte| {
                // SAFETY: a valid exclusive reference; volatile so that the write of a zero is not left out.
                unsafe { ptr::write_volatile(byte, 0) }
            });
        }
    }

    fn advise(&mut self, advice: Advice) -> rustix::io::Result<()> {
        // SAFETY: the range is the mapping this value owns; none of the advice used changes its content.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.length, advice) }
    }
}

impl Deref for PageBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `start..start + length` is mapped readable until drop, initialised by the kernel to zero, and
        // written only through `deref_mut`, which borrows exclusively.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for PageBuffer {
    fn drop(&mut self) {
        // SAFETY: the range was mapped by `new`, and no reference to it outlives this value.
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
    fn an_impossible_size_is_an_error() {
        assert!(PageBuffer::new(ByteCount(u64::MAX)).is_err());
        assert!(PageBuffer::new(ByteCount(1 << 60)).is_err());
    }
}
