//! Reads many parts of a file at a time: cached parts from the page cache, other parts with O_DIRECT.
//!
//! Owns: `PartReader`: a buffer, and an io_uring for reads into the buffer.
//! Invariants: no read is *in flight* (submitted, but not yet complete) when `read` returns. The buffer is
//! never unmapped while the kernel may still write to the buffer. A short read is continued or repeated, or
//! is an error.
//! Does not: choose the parts, or check the content.
//!
//! A restore reads each part of a checkpoint only once, so a copy in the page cache would not be used again.
//! Copying from the page cache and managing its pages takes more time than the read itself (measured with
//! `benches/restore_age.py`). Many small reads reach the data rate of the device if enough reads are in
//! flight.
//!
//! Man page: cachestat(2), open(2) O_DIRECT, io_uring(7)
//! Since: Linux 6.5 for cachestat, 5.6 for IORING_OP_READ
//! Probe: `probe_cachestat`; `features::REGISTRY` entries "cachestat", "direct-io" and "io-uring"
//! Fallback: without cachestat or O_DIRECT, reads through the page cache; without io_uring, one pread(2)
//! after another

use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use io_uring::{IoUring, opcode, types};
use model::{ByteCount, PAGE_BYTES};
use rustix::fs::OFlags;

use crate::error::{Errno, Error, Result};
use crate::feature::{self, Feature};
use crate::page_buffer::{PageBuffer, USES_FOR_HUGE};
use crate::scratch::HUGE_PAGE_BYTES;

/// Maximum number of reads in flight of one reader. The measured device reads 17,000 pages per second with 32
/// reads in flight, and 108,000 with 128. Two readers together have 128 reads in flight.
const IN_FLIGHT: usize = 64;

/// Number of completions for which one system call waits. The other reads stay in flight during the wait.
const AT_A_TIME: usize = IN_FLIGHT / 4;

/// The number of cachestat(2), which libc does not define on all targets.
const SYS_CACHESTAT: libc::c_long = 451;

#[repr(C)]
struct CachestatRange {
    offset: u64,
    length: u64,
}

/// Numbers of pages.
#[repr(C)]
#[derive(Default)]
pub(crate) struct Cachestat {
    cached: u64,
    pub(crate) dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

const _: () = assert!(size_of::<CachestatRange>() == 16 && std::mem::offset_of!(CachestatRange, length) == 8);
const _: () = {
    assert!(size_of::<Cachestat>() == 40);
    assert!(std::mem::offset_of!(Cachestat, dirty) == 8);
    assert!(std::mem::offset_of!(Cachestat, writeback) == 16);
    assert!(std::mem::offset_of!(Cachestat, evicted) == 24);
    assert!(std::mem::offset_of!(Cachestat, recently_evicted) == 32);
};

/// Reads parts of files into a buffer of its own. A reader is used by one thread.
#[derive(Debug, Default)]
pub struct PartReader {
    buffer: Option<PageBuffer>,
    ring: Ring,
    uses: u32,
}

/// The io_uring of a reader. The reader tries to create the io_uring once, at the first use.
#[derive(Default)]
enum Ring {
    #[default]
    NotTried,
    None,
    Some(IoUring),
}

/// Returns an error if this kernel does not support cachestat(2).
pub fn probe_cachestat(file: &File) -> Result<()> {
    cached_pages(file, ByteCount(0), ByteCount(PAGE_BYTES)).map(drop)
}

/// Returns how many pages of a range of a file are in the page cache.
fn cached_pages(file: &File, offset: ByteCount, length: ByteCount) -> Result<u64> {
    cache_state(file, offset, length).map(|state| state.cached)
}

/// Counts the pages of a range of a file in the page cache.
pub(crate) fn cache_state(file: &impl AsFd, offset: ByteCount, length: ByteCount) -> Result<Cachestat> {
    let file = file.as_fd().as_raw_fd();
    let range = CachestatRange { offset: offset.get(), length: length.get() };
    let mut found = Cachestat::default();
    // SAFETY: both structures have the layout of the kernel, which is checked above, and outlive the call.
    let result = unsafe { libc::syscall(SYS_CACHESTAT, file, &raw const range, &raw mut found, 0_u32) };
    if result == 0 { Ok(found) } else { Err(Error::new("ask what is cached", Errno::last())) }
}

impl PartReader {
    /// Returns the buffer, which has at least the given size. The old content of the buffer may be lost.
    pub fn buffer(&mut self, size: ByteCount) -> Result<&mut [u8]> {
        self.uses = self.uses.saturating_add(1);
        // A buffer that is used often is at least as large as a huge page.
        let wanted = if self.uses < USES_FOR_HUGE { size } else { size.max(ByteCount(HUGE_PAGE_BYTES)) };
        if self.buffer.as_ref().is_none_or(|buffer| buffer.size() < wanted) {
            self.buffer = None;
            self.buffer = Some(PageBuffer::new(wanted)?);
        }
        if let Some(buffer) = &mut self.buffer {
            buffer.count_use();
            if buffer.deserves_huge_pages() {
                buffer.take_huge_pages();
            }
        }
        self.buffer.as_deref_mut().ok_or_else(|| Error::new("map a page buffer", Errno::EINVAL))
    }

    /// Reads parts of a file into the buffer, and returns the read bytes. In the buffer, each part directly
    /// follows the previous part. The parts are whole pages, in ascending order.
    pub fn read(&mut self, file: &File, parts: &[Range<ByteCount>]) -> Result<&[u8]> {
        let total = parts.iter().map(|part| part.end.get() - part.start.get()).sum::<u64>() as usize;
        self.buffer(ByteCount(total as u64))?;
        let past_cache = if is_mostly_cached(file, parts) { None } else { reopen(file) };
        let direct = past_cache.is_some_and(|file| self.read_past_cache(&file, parts).is_ok());
        if !direct {
            // If a read with O_DIRECT has failed, this read succeeds or reports the error.
            let buffer = self.buffer(ByteCount(total as u64))?;
            read_one_by_one(file, parts, buffer).map_err(|errno| Error::new("read", errno))?;
        }
        Ok(self.buffer.as_deref().map_or(&[], |buffer| &buffer[..total]))
    }

    fn read_past_cache(&mut self, file: &File, parts: &[Range<ByteCount>]) -> std::result::Result<(), Errno> {
        let Some(buffer) = &mut self.buffer else { return Err(Errno::EINVAL) };
        // With a single part, there are no other reads that could run at the same time.
        if parts.len() == 1 {
            return read_one_by_one(file, parts, buffer);
        }
        if matches!(self.ring, Ring::NotTried) {
            let wanted = feature::enabled(Feature::IoUring);
            let ring = wanted.then(|| IoUring::new(IN_FLIGHT as u32).ok()).flatten();
            self.ring = ring.map_or(Ring::None, Ring::Some);
        }
        let Ring::Some(ring) = &mut self.ring else { return read_one_by_one(file, parts, buffer) };
        match read_in_flight(ring, file, parts, buffer) {
            Ok(all_whole) if all_whole => Ok(()),
            Ok(_) => read_one_by_one(file, parts, buffer),
            Err(errno) => {
                // The kernel may still write to the buffer. So the buffer is never unmapped, and the ring is
                // never used again.
                if let Some(buffer) = self.buffer.take() {
                    std::mem::forget(buffer);
                }
                if let Ring::Some(ring) = std::mem::replace(&mut self.ring, Ring::None) {
                    std::mem::forget(ring);
                }
                Err(errno)
            }
        }
    }
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NotTried => "NotTried",
            Self::None => "None",
            Self::Some(_) => "Some",
        })
    }
}

/// Reports whether more than half of the range from the first to the last part is in the page cache. Returns
/// true as well if the cached pages cannot be counted, or if O_DIRECT is disabled.
fn is_mostly_cached(file: &File, parts: &[Range<ByteCount>]) -> bool {
    let (Some(first), Some(last)) = (parts.first(), parts.last()) else { return true };
    if !feature::enabled(Feature::Cachestat) || !feature::enabled(Feature::DirectIo) {
        return true;
    }
    let length = ByteCount(last.end.get().saturating_sub(first.start.get()));
    cached_pages(file, first.start, length).map_or(true, |pages| pages * PAGE_BYTES * 2 > length.get())
}

/// Opens the same file with O_DIRECT, even if the file was unlinked: the path is a link in `/proc`.
fn reopen(file: &File) -> Option<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits().cast_signed()).open(path).ok()
}

fn read_one_by_one(
    file: &File,
    parts: &[Range<ByteCount>],
    buffer: &mut [u8],
) -> std::result::Result<(), Errno> {
    let mut at = 0;
    for part in parts {
        let length = (part.end.get() - part.start.get()) as usize;
        file.read_exact_at(&mut buffer[at..at + length], part.start.get()).map_err(|error| {
            let short = error.kind() == std::io::ErrorKind::UnexpectedEof;
            if short { Errno::SHORT } else { Errno::from(error) }
        })?;
        at += length;
    }
    Ok(())
}

/// Reads all parts, several at a time. Returns false if a read was short or failed. When this function
/// returns an error, reads may still be in flight.
fn read_in_flight(
    ring: &mut IoUring,
    file: &File,
    parts: &[Range<ByteCount>],
    buffer: &mut PageBuffer,
) -> std::result::Result<bool, Errno> {
    let descriptor = types::Fd(file.as_raw_fd());
    let (mut at, mut next, mut in_flight, mut whole) = (0, 0, 0, true);
    while next < parts.len() || in_flight > 0 {
        while next < parts.len() && in_flight < IN_FLIGHT {
            let part = &parts[next];
            let length = (part.end.get() - part.start.get()) as usize;
            let place = &mut buffer[at..at + length];
            let entry = opcode::Read::new(descriptor, place.as_mut_ptr(), length as u32)
                .offset(part.start.get())
                .build()
                .user_data(next as u64);
            // SAFETY: the entry points to a part of `buffer` that no other entry uses. This part is not
            // accessed before all completions have arrived. This function returns after the last completion,
            // or with an error. After an error, the caller leaks the buffer and the ring. The ring has space
            // for `IN_FLIGHT` entries.
            unsafe { ring.submission().push(&entry) }.map_err(|_| Errno(libc::EBUSY))?;
            (at, next, in_flight) = (at + length, next + 1, in_flight + 1);
        }
        if let Err(error) = ring.submit_and_wait(in_flight.min(AT_A_TIME))
            && error.raw_os_error() != Some(libc::EINTR)
        {
            return Err(Errno::from(error));
        }
        for completion in ring.completion() {
            let part = parts.get(completion.user_data() as usize).ok_or(Errno::EINVAL)?;
            let length = part.end.get() - part.start.get();
            whole &= u64::try_from(completion.result()).is_ok_and(|count| count == length);
            in_flight -= 1;
        }
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn scratch(name: &str, pages: u64) -> (PathBuf, Vec<u8>) {
        let path = std::env::temp_dir().join(format!("undying-part-reader-{}-{name}", std::process::id()));
        let bytes: Vec<u8> =
            (0..pages * PAGE_BYTES).map(|at| (at / PAGE_BYTES * 7 + at % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
        (path, bytes)
    }

    fn pages(range: Range<u64>) -> Range<ByteCount> {
        ByteCount(range.start * PAGE_BYTES)..ByteCount(range.end * PAGE_BYTES)
    }

    fn expected(bytes: &[u8], parts: &[Range<ByteCount>]) -> Vec<u8> {
        parts.iter().flat_map(|part| &bytes[part.start.0 as usize..part.end.0 as usize]).copied().collect()
    }

    #[test]
    fn parts_come_one_behind_the_other_cached_or_not() {
        let (path, bytes) = scratch("parts", 600);
        let file = File::open(&path).unwrap();
        let parts: Vec<_> = (0..150).map(|number| pages(number * 4..number * 4 + 1 + number % 3)).collect();
        let mut reader = PartReader::default();
        for cached in [true, false] {
            if !cached {
                rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            }
            assert_eq!(reader.read(&file, &parts).unwrap(), expected(&bytes, &parts), "cached: {cached}");
            let one = [pages(3..9)];
            assert_eq!(reader.read(&file, &one).unwrap(), expected(&bytes, &one));
        }
        // The writer of a log may unlink the file during a read.
        std::fs::remove_file(&path).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(reader.read(&file, &parts).unwrap(), expected(&bytes, &parts));
    }

    #[test]
    fn what_is_read_past_the_cache_does_not_enter_it() {
        let (path, bytes) = scratch("past", 64);
        let file = File::open(&path).unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        let all = ByteCount(64 * PAGE_BYTES);
        let cold = cached_pages(&file, ByteCount(0), all).is_ok_and(|pages| pages == 0);
        let direct = reopen(&file).is_some();
        let parts = [pages(0..20), pages(30..64)];
        assert_eq!(PartReader::default().read(&file, &parts).unwrap(), expected(&bytes, &parts));
        if cold && direct {
            assert_eq!(cached_pages(&file, ByteCount(0), all).unwrap(), 0);
        } else {
            println!("unsupported: cachestat or O_DIRECT here");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_buffer_that_is_used_often_gets_huge_pages_whatever_its_size() {
        let (path, _) = scratch("huge", 600);
        let file = File::open(&path).unwrap();
        for largest in [8, 512] {
            let mut reader = PartReader::default();
            reader.read(&file, &[pages(0..largest)]).unwrap();
            let reads = (0..3 * USES_FOR_HUGE).map(|_| {
                reader.read(&file, &[pages(1..3)]).unwrap();
                reader.buffer.as_ref().unwrap().has_huge_pages()
            });
            let reads: Vec<bool> = reads.collect();
            assert!(!reads[0] && reads[reads.len() - 1], "{largest} pages: {reads:?}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_ends_before_is_an_error() {
        let (path, bytes) = scratch("short", 8);
        let file = File::open(&path).unwrap();
        let mut reader = PartReader::default();
        for parts in [vec![pages(0..2), pages(6..9)], vec![pages(9..10)]] {
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            assert_eq!(reader.read(&file, &parts).unwrap_err().errno, Errno::SHORT);
        }
        assert_eq!(reader.read(&file, &[pages(1..2)]).unwrap(), expected(&bytes, &[pages(1..2)]));
        std::fs::remove_file(&path).unwrap();
    }
}
