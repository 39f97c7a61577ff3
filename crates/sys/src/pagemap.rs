//! Finds the pages of a process with *private content*: content that neither a file nor shared memory has.
//! Queries other properties of pages, too.
//!
//! Owns: `/proc/PID/pagemap` and its PAGEMAP_SCAN request.
//! Invariants: PAGEMAP_SCAN and its fallback report every page with private content. Pages without private
//! content may be reported, too.
//! Does not: decide what a checkpoint does with a written page; the trackers and their users decide.
//!
//! Man page: PAGEMAP_SCAN(2const), proc_pid_pagemap(5)
//! Since: Linux 6.7 (PAGEMAP_SCAN), 3.11 (entries with file bit)
//! Probe: `features::REGISTRY` entry "pagemap-scan"
//! Fallback: the 64-bit entries of the page map are read

use std::fs::File;
use std::io::ErrorKind;
use std::mem::{offset_of, size_of};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Pid};

use crate::error::{Errno, Error, Result};
use crate::feature;
use crate::residence;

/// Usual maximum number of regions that one PAGEMAP_SCAN request returns. A region is a range of pages with equal
/// properties. Further requests return the remaining regions.
const REGIONS_PER_SCAN: usize = 1024;
/// Maximum number of entries that the fallback reads at a time (512 KiB of entries, for 256 MiB of memory).
const ENTRIES_PER_READ: usize = 65_536;

const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_FILE_OR_SHARED: u64 = 1 << 61;
const ENTRY_GUARD: u64 = 1 << 58;
const ENTRY_EXCLUSIVE: u64 = 1 << 56;
const ENTRY_SOFT_DIRTY: u64 = 1 << 55;

/// PM_SCAN_WP_MATCHING: write-protect the selected pages.
const FLAG_WP_MATCHING: u64 = 1;
/// PM_SCAN_CHECK_WPASYNC: fail if a mapping has no asynchronous write protection (userfaultfd).
const FLAG_CHECK_WPASYNC: u64 = 2;

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct PageRegion {
    start: u64,
    end: u64,
    categories: u64,
}

const _: () = assert!(size_of::<PageRegion>() == 24);
const _: () = assert!(offset_of!(PageRegion, categories) == 16);

#[repr(C)]
#[derive(Default)]
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

/// A set of page properties, as PAGEMAP_SCAN defines them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Categories(u64);

impl Categories {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// The page was written since it was last write-protected, or was never write-protected.
    pub const WRITTEN: Self = Self(1 << 1);
    /// The page belongs to a file or to shared memory. For this category, the kernel must inspect the `struct
    /// page` of every page.
    pub const FILE: Self = Self(1 << 2);
    /// The page is in memory.
    pub const PRESENT: Self = Self(1 << 3);
    /// The page is swapped out, or the page table has only a marker instead of a page.
    pub const SWAPPED: Self = Self(1 << 4);
    /// The page is the shared zero page.
    pub const ZERO_PAGE: Self = Self(1 << 5);
    /// The page belongs to a guard region. Since Linux 6.15; older kernels have no guard regions and return
    /// EINVAL for this category.
    pub const GUARD: Self = Self(1 << 8);

    /// Returns the union of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Reports whether the set contains at least one category of `other`.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// A PAGEMAP_SCAN request: which pages are selected, which categories are reported, and whether the selected
/// pages are protected.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageQuery {
    /// Required categories. A selected page has every category of this set that is not in `inverted`, and
    /// lacks every category of this set that is in `inverted`.
    pub all_of: Categories,
    /// Alternative categories. The condition of `all_of` must hold for at least one category of this set. An
    /// empty set is no condition.
    pub any_of: Categories,
    /// Categories that a page must lack instead of have.
    pub inverted: Categories,
    /// Categories that the result reports.
    pub reported: Categories,
    /// Whether the request write-protects the selected pages in the same step. If so, the request fails with
    /// EPERM at a mapping without asynchronous write protection.
    pub rearm: bool,
}

/// A reusable buffer for the result of a request.
#[derive(Debug)]
pub struct PageRegions {
    regions: Vec<PageRegion>,
    used: usize,
}

impl PageRegions {
    /// Creates a buffer for the regions of one request.
    #[must_use]
    pub fn new() -> Self {
        Self::with_room(REGIONS_PER_SCAN)
    }

    /// Creates a buffer for the regions of one request that returns at most `regions` regions.
    #[must_use]
    pub fn with_room(regions: usize) -> Self {
        Self { regions: vec![PageRegion::default(); regions], used: 0 }
    }

    /// Returns the regions of the last request, in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = (AddressRange, Categories)> {
        self.regions[..self.used].iter().map(|region| {
            let range = AddressRange::new(Address(region.start), Address(region.end));
            (range, Categories(region.categories))
        })
    }

    /// Counts the regions that the kernel wrote before a request failed. The kernel does not return this
    /// count. The buffer was zeroed before the request, so the first zero region follows the written regions.
    fn count_written(&self) -> usize {
        self.regions.iter().position(|region| region.end == 0).unwrap_or(self.regions.len())
    }

    fn clear(&mut self) {
        self.regions[..self.used].fill(PageRegion::default());
        self.used = 0;
    }
}

impl Default for PageRegions {
    fn default() -> Self {
        Self::new()
    }
}

/// One entry of `/proc/PID/pagemap`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageEntry(pub u64);

impl PageEntry {
    /// Reports whether the page is in memory or swapped out.
    #[must_use]
    pub const fn is_populated(self) -> bool {
        self.0 & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0
    }

    /// Reports whether the page is in memory.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.0 & ENTRY_PRESENT != 0
    }

    /// Reports whether the page belongs to a file or to shared memory.
    #[must_use]
    pub const fn is_file_or_shared(self) -> bool {
        self.0 & ENTRY_FILE_OR_SHARED != 0
    }

    /// Reports whether the page belongs to a guard region.
    #[must_use]
    pub const fn is_guard(self) -> bool {
        self.0 & ENTRY_GUARD != 0
    }

    /// Reports whether only this process maps the page.
    #[must_use]
    pub const fn is_exclusive(self) -> bool {
        self.0 & ENTRY_EXCLUSIVE != 0
    }

    /// Reports whether the page was written since the soft-dirty bits were last cleared. Returns false on
    /// kernels without soft-dirty bits.
    #[must_use]
    pub const fn is_soft_dirty(self) -> bool {
        self.0 & ENTRY_SOFT_DIRTY != 0
    }
}

/// The pages that a scan found. Each list is in ascending order, and adjacent ranges are merged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct FoundPages {
    /// Pages that are in memory or swapped out, and belong neither to a file nor to shared memory.
    pub private: Vec<AddressRange>,
    /// Guard regions (MADV_GUARD_INSTALL). A guard region has no content, and an access to it faults.
    pub guards: Vec<AddressRange>,
}

/// The open page map of one process.
#[derive(Debug)]
pub struct Pagemap {
    pid: Pid,
    file: File,
}

impl Pagemap {
    /// Opens the page map of a process. The caller needs the right to trace the process.
    pub fn open(pid: Pid) -> Result<Self> {
        let path = format!("/proc/{pid}/pagemap");
        let file = File::open(&path).map_err(|error| Error::path("open", &path, error))?;
        Ok(Self { pid, file })
    }

    /// Finds the pages with private content and the guard regions of a range.
    pub fn scan_range(&self, range: AddressRange) -> Result<FoundPages> {
        self.scan_range_with(range, &mut PageRegions::new())
    }

    /// Does the same as `scan_range`, with a buffer that the caller can reuse for many ranges.
    pub fn scan_range_with(&self, range: AddressRange, regions: &mut PageRegions) -> Result<FoundPages> {
        let mut found = FoundPages::default();
        if feature::enabled(feature::Feature::PagemapScan) {
            for guard in [Categories::GUARD, Categories::NONE] {
                match self.scan(range, guard, regions, &mut found) {
                    Err(error) if error.errno == Errno::EINVAL || error.errno.0 == libc::ENOTTY => {}
                    outcome => return outcome.map(|()| found),
                }
            }
        }
        self.read_entries(range, &mut found)?;
        Ok(found)
    }

    fn scan(
        &self,
        range: AddressRange,
        guard: Categories,
        regions: &mut PageRegions,
        found: &mut FoundPages,
    ) -> Result<()> {
        const NOT_OWN: Categories = Categories::FILE.and(Categories::ZERO_PAGE);
        const POPULATED: Categories = Categories::PRESENT.and(Categories::SWAPPED);
        let query = PageQuery {
            all_of: NOT_OWN,
            any_of: POPULATED.and(guard),
            inverted: NOT_OWN,
            reported: POPULATED.and(guard),
            rearm: false,
        };
        let mut start = range.start;
        while start < range.end {
            start = self.select(&query, AddressRange::new(start, range.end), regions)?;
            for (region, categories) in regions.iter() {
                let list = if categories.has(guard) { &mut found.guards } else { &mut found.private };
                append(list, region);
            }
        }
        Ok(())
    }

    /// Selects pages of a range, and stores their regions in `regions`. Returns the address where the next
    /// request must continue. This address is the end of the range if the whole range was scanned.
    ///
    /// After a failure, `regions` contains the pages that the kernel selected, and maybe protected, before
    /// the failure.
    pub fn select(
        &self,
        query: &PageQuery,
        range: AddressRange,
        regions: &mut PageRegions,
    ) -> Result<Address> {
        regions.clear();
        let mut arguments = ScanArguments {
            size: size_of::<ScanArguments>() as u64,
            flags: if query.rearm { FLAG_WP_MATCHING | FLAG_CHECK_WPASYNC } else { 0 },
            start: range.start.get(),
            end: range.end.get(),
            walk_end: 0,
            vector: regions.regions.as_mut_ptr() as u64,
            vector_length: regions.regions.len() as u64,
            max_pages: 0,
            category_inverted: query.inverted.0,
            category_mask: query.all_of.0,
            category_any_of_mask: query.any_of.0,
            return_mask: query.reported.0,
        };
        // SAFETY: `arguments` has the size that it states. Its vector points to `vector_length` live regions,
        // and only this call accesses them.
        let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
        if count < 0 {
            let error = Error::process("scan the page map", self.pid, Errno::last());
            regions.used = regions.count_written();
            return Err(error);
        }
        regions.used = count as usize;
        Ok(Address(arguments.walk_end))
    }

    /// Reports whether a userfaultfd in async mode watches writes to the mapping at an address. Changes
    /// nothing.
    pub fn is_watched(&self, at: Address) -> bool {
        let page = AddressRange::new(at, Address(at.get() + PAGE_BYTES));
        let written = PageQuery { all_of: Categories::WRITTEN, ..PageQuery::default() };
        self.find(&written, FLAG_CHECK_WPASYNC, page).is_ok()
    }

    /// Reports whether a page of a range is write-protected by a userfaultfd. A marker that will protect a
    /// page when the page is loaded counts as well. No userfaultfd needs to watch the range at present.
    /// Changes nothing.
    pub fn has_protected(&self, range: AddressRange) -> Result<bool> {
        let protected = PageQuery {
            all_of: Categories::WRITTEN,
            any_of: Categories::PRESENT.and(Categories::SWAPPED),
            inverted: Categories::WRITTEN,
            ..PageQuery::default()
        };
        self.find(&protected, 0, range)
    }

    /// Reports whether a query selects a page of a range.
    fn find(&self, query: &PageQuery, flags: u64, range: AddressRange) -> Result<bool> {
        let mut region = PageRegion::default();
        let mut arguments = ScanArguments {
            size: size_of::<ScanArguments>() as u64,
            flags,
            start: range.start.get(),
            end: range.end.get(),
            vector: (&raw mut region) as u64,
            vector_length: 1,
            max_pages: 1,
            category_inverted: query.inverted.0,
            category_mask: query.all_of.0,
            category_any_of_mask: query.any_of.0,
            return_mask: Categories::WRITTEN.0,
            ..ScanArguments::default()
        };
        // SAFETY: `arguments` has the size that it states. Its vector points to one live region, and only
        // this call accesses the region.
        let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
        Errno::check(count).map_err(|errno| Error::process("scan the page map", self.pid, errno))?;
        Ok(count > 0)
    }

    /// Reads the entries of consecutive pages, beginning at an address.
    ///
    /// # Errors
    ///
    /// ESRCH if the address space no longer exists.
    pub fn read_entries_at(&self, start: Address, entries: &mut [PageEntry]) -> Result<()> {
        // SAFETY: a PageEntry has the layout of a u64, for which all bytes are valid. The slice is borrowed
        // exclusively.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), size_of_val(entries))
        };
        self.file.read_exact_at(bytes, start.get() / PAGE_BYTES * 8).map_err(|error| match error.kind() {
            // Once the address space has ended, a read of the page map returns no bytes.
            ErrorKind::UnexpectedEof => Error::process("read the page map", self.pid, Errno::ESRCH),
            _ => Error::process("read the page map", self.pid, error),
        })
    }

    /// Reports whether the address space is still in use. The address space ends at exec(2) and at the exit
    /// of the process, but this file stays open.
    pub fn is_alive(&self) -> Result<bool> {
        let read = self.file.read_at(&mut [0; 8], 0);
        read.map(|count| count > 0).map_err(|error| Error::process("read the page map", self.pid, error))
    }

    /// Calls `part` for the parts of a range whose entries must be read. On kernels without PAGEMAP_SCAN,
    /// large mappings without pages are skipped.
    ///
    pub fn for_each_part(
        &self,
        range: AddressRange,
        part: impl FnMut(AddressRange) -> Result<()>,
    ) -> Result<()> {
        around(&self.bare(range), range, part)
    }

    /// Returns the large mappings without pages in a range. The result is empty on kernels with PAGEMAP_SCAN,
    /// which can have guard regions: only the entries show guard regions.
    fn bare(&self, range: AddressRange) -> Vec<AddressRange> {
        if residence::is_worth_asking(self.pid, range) && !self.supports_scan() {
            residence::bare_mappings(self.pid, range)
        } else {
            Vec::new()
        }
    }

    fn read_entries(&self, range: AddressRange, found: &mut FoundPages) -> Result<()> {
        self.for_each_part(range, |part| self.read_part(part, found))
    }

    fn read_part(&self, range: AddressRange, found: &mut FoundPages) -> Result<()> {
        let mut entries = vec![PageEntry::default(); ENTRIES_PER_READ.min(range.pages().get() as usize)];
        let mut start = range.start;
        while start < range.end {
            let count = (AddressRange::new(start, range.end).pages().get() as usize).min(entries.len());
            self.read_entries_at(start, &mut entries[..count])?;
            for entry in &entries[..count] {
                let page = AddressRange::new(start, start + ByteCount(PAGE_BYTES));
                if entry.is_guard() {
                    append(&mut found.guards, page);
                } else if entry.is_populated() && !entry.is_file_or_shared() {
                    append(&mut found.private, page);
                }
                start = page.end;
            }
        }
        Ok(())
    }

    /// Reports whether the kernel supports the PAGEMAP_SCAN request.
    #[must_use]
    pub fn supports_scan(&self) -> bool {
        let nothing = AddressRange::new(Address(PAGE_BYTES), Address(2 * PAGE_BYTES));
        self.scan(nothing, Categories::NONE, &mut PageRegions::with_room(1), &mut FoundPages::default())
            .is_ok()
    }
}

fn append(found: &mut Vec<AddressRange>, range: AddressRange) {
    match found.last_mut() {
        Some(last) if last.end == range.start => last.end = range.end,
        _ => found.push(range),
    }
}

/// Calls `part` for the parts of a range that are not in `gaps`. The gaps are in ascending order and inside
/// the range.
fn around(
    gaps: &[AddressRange],
    range: AddressRange,
    mut part: impl FnMut(AddressRange) -> Result<()>,
) -> Result<()> {
    let mut start = range.start;
    for gap in gaps {
        if start < gap.start {
            part(AddressRange::new(start, gap.start))?;
        }
        start = gap.end;
    }
    if start < range.end { part(AddressRange::new(start, range.end)) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_bare_is_read() {
        let range = |(start, end): (u64, u64)| AddressRange::new(Address(start), Address(end));
        let parts = |gaps: &[(u64, u64)]| {
            let mut parts = Vec::new();
            let gaps: Vec<_> = gaps.iter().copied().map(range).collect();
            around(&gaps, range((10, 20)), |part| {
                parts.push((part.start.get(), part.end.get()));
                Ok(())
            })
            .unwrap();
            parts
        };
        assert_eq!(parts(&[]), [(10, 20)]);
        assert_eq!(parts(&[(10, 20)]), []);
        assert_eq!(parts(&[(10, 12), (12, 14), (15, 20)]), [(14, 15)]);
        assert_eq!(parts(&[(11, 19)]), [(10, 11), (19, 20)]);
    }
}
