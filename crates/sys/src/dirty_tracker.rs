//! Tracks which pages of files become dirty, also by stores through shared mappings.
//!
//! A program on the tracepoint `writeback_dirty_folio` marks the pages of a folio (one or more pages of the page cache)
//! when the folio turns from clean to dirty. The kernel maps a clean page of a file read-only, so that the next store
//! faults and the folio turns dirty. Stores to a page that is already dirty are not reported. The storing thread does
//! not wait for this process.
//!
//! Owns: the program, its maps, and the division of the map of pages into regions, one or more for each file.
//! Invariants: a clean-to-dirty turn by a thread that has returned to its program is reported, or the report says that
//! reports are lost. A report can name pages that did not turn dirty.
//! Does not: start writeback; `writeback` does.
//!
//! Man page: bpf(2); the tracepoint `writeback_dirty_folio`
//! Since: Linux 6.8 with CONFIG_DEBUG_INFO_BTF
//! Probe: `features::REGISTRY` entry "dirty-tracker"
//! Fallback: none; the caller must assume that every page of a mapped file has changed

mod program;

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use model::PageCount;

use self::program::{KEY_BYTES, Offsets, PAGES_AT, VALUE_BYTES, WORD_PAGES};
use crate::bpf::types::KernelTypes;
use crate::bpf::words::Words;
use crate::bpf::{AttachedProgram, Map, WhenFull};
use crate::error::{Errno, Error, Result};
use crate::feature::{Feature, enabled};

/// Maximum number of files that one tracker tracks.
const FILES_MAX: u32 = 1 << 12;
/// Number of words of all regions: enough for 64 GiB of files. The words take 2 MiB.
const WORDS: u32 = 1 << 18;
/// Minimum number of pages of a region, so that a small file can grow.
const REGION_PAGES_MIN: u64 = 1 << 12;
/// Bits of a minor device number in the kernel's encoding of a device.
const MINOR_BITS: u32 = 20;
/// MEMBARRIER_CMD_QUERY and MEMBARRIER_CMD_GLOBAL of membarrier(2).
const BARRIER_QUERY: i32 = 0;
const BARRIER_GLOBAL: i32 = 1;

/// Tracks files of this process.
#[derive(Debug)]
pub struct DirtyTracker {
    files: Map<KEY_BYTES, VALUE_BYTES>,
    words: Words,
    /// The regions in use: the first word, and the number of words.
    regions: Mutex<BTreeMap<usize, usize>>,
    program: AttachedProgram,
}

/// A file whose dirty pages are reported, until this value is dropped.
#[derive(Debug)]
pub struct TrackedFile {
    tracker: Arc<DirtyTracker>,
    key: [u8; KEY_BYTES],
    /// The regions of the file, newest last. A program that runs while a region is added can still mark pages in the
    /// previous region.
    regions: Vec<(usize, usize)>,
    /// The number of runs that the program had missed at the last call of [`Self::take`].
    misses: u64,
}

impl DirtyTracker {
    /// Loads and attaches the program.
    ///
    /// # Errors
    ///
    /// ENOSYS if the feature is switched off or if this kernel has no global memory barrier, ENOENT if this kernel does
    /// not describe its structures, and the errors of bpf(2) if this process may not load programs.
    pub fn new() -> Result<Arc<Self>> {
        if !enabled(Feature::DirtyTracker) {
            return Err(Error::new(
                "track dirty pages: the feature dirty-tracker is switched off",
                Errno::ENOSYS,
            ));
        }
        // A kernel that runs programs on processors without a timer tick (nohz_full) has no global barrier.
        if barrier(BARRIER_QUERY)? & BARRIER_GLOBAL == 0 {
            return Err(Error::new("track dirty pages without a global memory barrier", Errno::ENOSYS));
        }
        let offsets = Offsets::of(KernelTypes::get()?)?;
        let (files, words) = (Map::new(FILES_MAX, WhenFull::Refuse)?, Words::new(WORDS)?);
        let program =
            AttachedProgram::attach(c"writeback_dirty_folio", &program::mark(&offsets, &files, &words))?;
        Ok(Arc::new(Self { files, words, regions: Mutex::default(), program }))
    }

    /// Tracks a file from now on. `device` contains major and minor number of the file system, as in /proc/PID/maps.
    /// `pages` is the present length of the file in pages. The file may grow later.
    ///
    /// # Errors
    ///
    /// ENOSPC if the file has too many pages, and the errors of bpf(2).
    pub fn track(self: &Arc<Self>, device: (u32, u32), inode: u64, pages: PageCount) -> Result<TrackedFile> {
        let device = u64::from(device.0) << MINOR_BITS | u64::from(device.1);
        let mut key = [0; KEY_BYTES];
        key[..8].copy_from_slice(&device.to_ne_bytes());
        key[8..].copy_from_slice(&inode.to_ne_bytes());
        let misses = self.program.misses()?;
        let mut file = TrackedFile { tracker: Arc::clone(self), key, regions: Vec::new(), misses };
        file.make_room(pages)?;
        Ok(file)
    }

    /// Waits until each report that has begun is visible in the page cache, too: after this call, cachestat(2) counts
    /// the reported pages as dirty, if they were not written back.
    pub fn settle(&self) -> Result<()> {
        // The kernel reports a page and marks the page as dirty in one section that excludes the grace period for which
        // the global barrier waits.
        barrier(BARRIER_GLOBAL).map(drop)
    }

    /// Allocates a region with cleared words.
    fn allocate(&self, words: usize) -> Result<usize> {
        let mut regions = self.regions.lock().unwrap_or_else(PoisonError::into_inner);
        let mut start = 0;
        for (used, length) in regions.iter() {
            if used - start >= words {
                break;
            }
            start = used + length;
        }
        if start + words > WORDS as usize {
            return Err(Error::new("track the pages of a mapped file: too many pages", Errno::ENOSPC));
        }
        regions.insert(start, words);
        drop(regions);
        for word in &self.words.as_slice()[start..start + words] {
            word.store(0, Ordering::Relaxed);
        }
        Ok(start)
    }
}

impl TrackedFile {
    /// Makes room for reports of at least `pages` pages, if there is no room yet. All pages may have turned dirty
    /// without a report if there was too little room.
    ///
    /// # Errors
    ///
    /// ENOSPC if the file has too many pages, and the errors of bpf(2).
    pub fn make_room(&mut self, pages: PageCount) -> Result<()> {
        let pages = pages.get();
        if self.regions.last().is_some_and(|(_, words)| (words - PAGES_AT) as u64 * WORD_PAGES >= pages) {
            return Ok(());
        }
        let words = (pages.saturating_mul(2).max(REGION_PAGES_MIN)).div_ceil(WORD_PAGES);
        let length = usize::try_from(words).unwrap_or(usize::MAX / 2) + PAGES_AT;
        let start = self.tracker.allocate(length)?;
        self.regions.push((start, length));
        let mut value = [0; VALUE_BYTES];
        value[..8].copy_from_slice(&(start as u64).to_ne_bytes());
        value[8..].copy_from_slice(&(words * WORD_PAGES).to_ne_bytes());
        self.tracker.files.set(&self.key, &value)
    }

    /// Takes the reports since the last call. Calls `note` with the number of a page, which is a multiple of 64, and
    /// with 64 bits, one for this page and each of the next pages. Returns `false` if reports are lost, so that any page
    /// may have turned dirty.
    pub fn take(&mut self, mut note: impl FnMut(u64, u64)) -> Result<bool> {
        // The only step that can fail comes first, so that no report is lost after an error.
        let misses = self.tracker.program.misses()?;
        let mut is_complete = misses == self.misses;
        self.misses = misses;
        for (start, length) in &self.regions {
            let (lost, pages) = self.tracker.words.as_slice()[*start..start + length].split_at(PAGES_AT);
            is_complete &= lost.iter().all(|word| word.swap(0, Ordering::AcqRel) == 0);
            for (index, word) in pages.iter().enumerate() {
                if word.load(Ordering::Relaxed) != 0 {
                    note(index as u64 * WORD_PAGES, word.swap(0, Ordering::AcqRel));
                }
            }
        }
        Ok(is_complete)
    }

    /// Returns the tracker of this file.
    #[must_use]
    pub fn tracker(&self) -> &Arc<DirtyTracker> {
        &self.tracker
    }
}

impl Drop for TrackedFile {
    fn drop(&mut self) {
        self.tracker.files.remove(&self.key);
        // A program that still runs can mark a page in a freed region. The next file of the region then gets a report
        // of a page that did not turn dirty, which is allowed.
        let mut regions = self.tracker.regions.lock().unwrap_or_else(PoisonError::into_inner);
        for (start, _) in &self.regions {
            regions.remove(start);
        }
    }
}

/// Calls membarrier(2).
fn barrier(command: i32) -> Result<i32> {
    // SAFETY: membarrier(2) has no address argument.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if result < 0 { Err(Error::new("wait for all processors", Errno::last())) } else { Ok(result as i32) }
}

#[cfg(test)]
mod tests;
