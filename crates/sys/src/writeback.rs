//! Writeback of dirty pages of files.
//!
//! Owns: starting writeback of a range, and counting the dirty pages of a range.
//! Invariants: none.
//! Does not: make data durable.
//!
//! Man page: sync_file_range(2), cachestat(2)
//! Since: Linux 6.5 for cachestat
//! Probe: `features::REGISTRY` entry "cachestat"
//! Fallback: none

use std::os::fd::{AsFd, AsRawFd};

use model::ByteCount;

use crate::error::{Errno, Error, Result};
use crate::part_reader::cache_state;

/// Starts to write the dirty pages of a range back, and does not wait for the end. May wait for room in the queue of the
/// device.
pub fn start(file: &impl AsFd, offset: ByteCount, length: ByteCount) -> Result<()> {
    let (offset, length) = (offset.get() as i64, length.get() as i64);
    // SAFETY: sync_file_range(2) has no address argument.
    let result = unsafe {
        libc::sync_file_range(file.as_fd().as_raw_fd(), offset, length, libc::SYNC_FILE_RANGE_WRITE)
    };
    if result == 0 { Ok(()) } else { Err(Error::new("start writeback of a file", Errno::last())) }
}

/// Returns the number of dirty pages of a range. A page that is being written back is not dirty: before the kernel begins
/// to write a page, the kernel makes all mappings of the page read-only.
pub fn dirty_pages(file: &impl AsFd, offset: ByteCount, length: ByteCount) -> Result<u64> {
    cache_state(file, offset, length).map(|state| state.dirty)
}
