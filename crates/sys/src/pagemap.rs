//! Which pages of a process hold content of their own.
//!
//! Owns: `/proc/PID/pagemap` and its PAGEMAP_SCAN request.
//! Invariants: both ways answer the same question; a page neither can vouch for counts as private content.
//! Does not: arm write tracking; the trackers do.
//!
//! Man page: PAGEMAP_SCAN(2const), proc_pid_pagemap(5)
//! Since: Linux 6.7 (PAGEMAP_SCAN), 3.11 (entries with file bit)
//! Probe: `features::REGISTRY` entry "pagemap-scan"
//! Fallback: reading the 64-bit entries

use std::fs::File;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use model::{Address, AddressRange, PAGE_BYTES, Pid};

use crate::error::{Errno, Error, Result};
use crate::features;

/// Regions one request returns at most; more are fetched by further requests.
const REGIONS_PER_SCAN: usize = 4096;
/// Pagemap entries read at once by the fallback (512 KiB of entries describe 256 MiB).
const ENTRIES_PER_READ: usize = 65_536;

const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const CATEGORY_FILE: u64 = 1 << 2;
const CATEGORY_PRESENT: u64 = 1 << 3;
const CATEGORY_SWAPPED: u64 = 1 << 4;
const CATEGORY_ZERO_PAGE: u64 = 1 << 5;
/// Since Linux 6.15; older kernels refuse it with EINVAL and have no guard regions.
const CATEGORY_GUARD: u64 = 1 << 8;

const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_FILE_OR_SHARED: u64 = 1 << 61;
const ENTRY_GUARD: u64 = 1 << 58;

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

const _: () = assert!(size_of::<PageRegion>() == 24);
const _: () = assert!(offset_of!(PageRegion, categories) == 16);

#[repr(C)]
struct ScanArguments {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vector: u64,
    vector_length: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_any_of_mask: u64,
    return_mask: u64,
}

const _: () = assert!(size_of::<ScanArguments>() == 96);
const _: () = assert!(offset_of!(ScanArguments, walk_end) == 32);
const _: () = assert!(offset_of!(ScanArguments, return_mask) == 88);

/// What a look at a range found, in rising order, neighbours joined.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FoundPages {
    /// Pages in memory or swapped out that are not the clean pages of a file.
    pub private: Vec<AddressRange>,
    /// Guard regions (MADV_GUARD_INSTALL): they hold nothing and fault when touched.
    pub guards: Vec<AddressRange>,
}

/// The page map of one process, held open.
#[derive(Debug)]
pub struct Pagemap {
    pid: Pid,
    file: File,
}

impl Pagemap {
    /// Opens the page map of a process; needs the right to trace it.
    pub fn open(pid: Pid) -> Result<Self> {
        let path = format!("/proc/{pid}/pagemap");
        let file = File::open(&path).map_err(|error| Error::path("open", &path, error))?;
        Ok(Self { pid, file })
    }

    /// Looks at the pages of a range.
    pub fn look(&self, range: AddressRange) -> Result<FoundPages> {
        let mut found = FoundPages::default();
        if features::enabled(features::Feature::PagemapScan) {
            for guard in [CATEGORY_GUARD, 0] {
                match self.scan(range, guard, &mut found) {
                    Err(error) if error.errno == Errno::EINVAL || error.errno.0 == libc::ENOTTY => {}
                    outcome => return outcome.map(|()| found),
                }
            }
        }
        self.read_entries(range, &mut found)?;
        Ok(found)
    }

    fn scan(&self, range: AddressRange, guard: u64, found: &mut FoundPages) -> Result<()> {
        let mut regions = vec![PageRegion::default(); REGIONS_PER_SCAN];
        let mut start = range.start.get();
        while start < range.end.get() {
            let mut arguments = ScanArguments {
                size: size_of::<ScanArguments>() as u64,
                flags: 0,
                start,
                end: range.end.get(),
                walk_end: 0,
                vector: regions.as_mut_ptr() as u64,
                vector_length: regions.len() as u64,
                max_pages: 0,
                category_inverted: CATEGORY_FILE | CATEGORY_ZERO_PAGE,
                category_mask: CATEGORY_FILE | CATEGORY_ZERO_PAGE,
                category_any_of_mask: CATEGORY_PRESENT | CATEGORY_SWAPPED | guard,
                return_mask: CATEGORY_PRESENT | CATEGORY_SWAPPED | guard,
            };
            // SAFETY: `arguments` has the size it names, and its vector points to `vector_length` regions
            // that live and are exclusively ours during the call.
            let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
            if count < 0 {
                return Err(Error::process("scan the page map", self.pid, Errno::last()));
            }
            for region in &regions[..count as usize] {
                let list =
                    if region.categories & guard == 0 { &mut found.private } else { &mut found.guards };
                append(list, AddressRange::new(Address(region.start), Address(region.end)));
            }
            start = arguments.walk_end;
        }
        Ok(())
    }

    fn read_entries(&self, range: AddressRange, found: &mut FoundPages) -> Result<()> {
        let mut bytes = Vec::new();
        let mut page = range.start.get() / PAGE_BYTES;
        let last = range.end.get() / PAGE_BYTES;
        while page < last {
            let count = ((last - page) as usize).min(ENTRIES_PER_READ);
            bytes.resize(count * 8, 0);
            self.file
                .read_exact_at(&mut bytes, page * 8)
                .map_err(|error| Error::process("read the page map", self.pid, error))?;
            for (index, entry) in bytes.chunks_exact(8).enumerate() {
                let entry = u64::from_ne_bytes(entry.try_into().expect("chunks of eight bytes"));
                let start = Address((page + index as u64) * PAGE_BYTES);
                let range = AddressRange::new(start, Address(start.get() + PAGE_BYTES));
                if entry & ENTRY_GUARD != 0 {
                    append(&mut found.guards, range);
                } else if entry & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0 && entry & ENTRY_FILE_OR_SHARED == 0 {
                    append(&mut found.private, range);
                }
            }
            page += count as u64;
        }
        Ok(())
    }

    /// Whether the kernel knows the PAGEMAP_SCAN request.
    #[must_use]
    pub fn supports_scan(&self) -> bool {
        let nothing = AddressRange::new(Address(PAGE_BYTES), Address(2 * PAGE_BYTES));
        self.scan(nothing, 0, &mut FoundPages::default()).is_ok()
    }

    /// The open file, for requests of the trackers.
    #[must_use]
    pub fn as_file(&self) -> std::os::fd::BorrowedFd<'_> {
        self.file.as_fd()
    }
}

fn append(found: &mut Vec<AddressRange>, range: AddressRange) {
    match found.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => found.push(range),
    }
}
