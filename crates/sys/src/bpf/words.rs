//! An array of words that programs and this process share.
//!
//! Owns: creating the array, and mapping the array into the memory of this process.
//! Invariants: words are read and changed only by atomic operations.
//! Does not: know the meaning of a word.
//!
//! Man page: bpf(2) BPF_MAP_TYPE_ARRAY, mmap(2)
//! Since: Linux 5.5 (BPF_F_MMAPABLE)
//! Probe: as in the modules that use the array
//! Fallback: as in the modules that use the array

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use rustix::mm::{MapFlags, ProtFlags};

use super::{MAP_CREATE, MapArguments, bpf, owned};
use crate::error::{Error, Result};

const ARRAY: u32 = 2;
/// Flag of an array that can be mapped into memory.
const MAPPABLE: u32 = 1 << 10;
const WORD_BYTES: usize = size_of::<AtomicU64>();

/// An array of words. All words are 0 at first.
#[derive(Debug)]
pub(crate) struct Words {
    map: OwnedFd,
    start: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the memory is valid for every thread until the value is dropped.
unsafe impl Send for Words {}
// SAFETY: all accesses are atomic.
unsafe impl Sync for Words {}

impl Words {
    pub(crate) fn new(count: u32) -> Result<Self> {
        let mut arguments = MapArguments {
            kind: ARRAY,
            key_bytes: 4,
            value_bytes: WORD_BYTES as u32,
            entries_max: count,
            flags: MAPPABLE,
        };
        // SAFETY: the arguments contain no address.
        let map = unsafe { bpf(MAP_CREATE, &mut arguments) }
            .map(owned)
            .map_err(|errno| Error::new("create an array of BPF", errno))?;
        let count = count as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses an address that this process does not use.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), count * WORD_BYTES, protection, MapFlags::SHARED, &map, 0)
        };
        let start = start.map_err(|errno| Error::new("map an array of BPF", errno))?;
        let start = NonNull::new(start.cast()).expect("the kernel maps nothing at address 0");
        Ok(Self { map, start, count })
    }

    pub(crate) fn as_slice(&self) -> &[AtomicU64] {
        // SAFETY: the mapping has `count` words, is aligned to pages, and exists as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl AsFd for Words {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.map.as_fd()
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: `new` has made this mapping, and no reference to it is left.
        let unmapped = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.count * WORD_BYTES) };
        debug_assert!(unmapped.is_ok());
    }
}
