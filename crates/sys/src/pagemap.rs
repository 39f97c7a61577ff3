//! Which pages of a process hold content of their own.
//!
//! Owns: `/proc/PID/pagemap` and its PAGEMAP_SCAN request.
//! Invariants: both ways answer the same question; a page neither can vouch for counts as private content.
//! Does not: say what a written page means; the trackers do.
//!
//! Man page: PAGEMAP_SCAN(2const), proc_pid_pagemap(5)
//! Since: Linux 6.7 (PAGEMAP_SCAN), 3.11 (entries with file bit)
//! Probe: `features::REGISTRY` entry "pagemap-scan"
//! Fallback: reading the 64-bit entries

use std::fs::File;
use std::io::ErrorKind;
use std::mem::{offset_of, size_of};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Pid};

use crate::error::{Errno, Error, Result};
use crate::feature;
use crate::residence;

/// Regions one request returns at most; more are fetched by further requests.
const REGIONS_PER_SCAN: usize = 4096;
/// Pagemap entries read at once by the fallback (512 KiB of entries describe 256 MiB).
const ENTRIES_PER_READ: usize = 65_536;

const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SWAPPED: u64 = 1 << 62;
const ENTRY_FILE_OR_SHARED: u64 = 1 << 61;
const ENTRY_GUARD: u64 = 1 << 58;
const ENTRY_EXCLUSIVE: u64 = 1 << 56;
const ENTRY_SOFT_DIRTY: u64 = 1 << 55;

/// Protect what was selected against writes again.
const FLAG_WP_MATCHING: u64 = 1;
/// Fail where writes are not watched.
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

/// Properties of a page, as PAGEMAP_SCAN knows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Categories(u64);

impl Categories {
    /// None of them.
    pub const NONE: Self = Self(0);
    /// Written since it was last protected, or never protected.
    pub const WRITTEN: Self = Self(1 << 1);
    /// Shows a file's page or shared memory. Asking for it costs a look at every page's descriptor.
    pub const FILE: Self = Self(1 << 2);
    /// In memory.
    pub const PRESENT: Self = Self(1 << 3);
    /// Swapped out, or a mark where no page is.
    pub const SWAPPED: Self = Self(1 << 4);
    /// The shared page of zeros.
    pub const ZERO_PAGE: Self = Self(1 << 5);
    /// A guard region. Since Linux 6.15; older kernels refuse it with EINVAL and have no guard regions.
    pub const GUARD: Self = Self(1 << 8);

    /// Those of both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether one of `other` is among them.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }
}

/// Which pages a request selects, what it tells of them, and whether it protects them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageQuery {
    /// Categories that a page must have (must lack, if `inverted`).
    pub all_of: Categories,
    /// Categories of which it must have one (lack one, if `inverted`); with none, any page will do.
    pub any_of: Categories,
    /// Categories whose meaning is turned round.
    pub inverted: Categories,
    /// Categories that the answer tells.
    pub tell: Categories,
    /// Fail with EPERM where writes are not watched, and protect the selected pages again in the same step.
    pub rearm: bool,
}

/// Answers to requests: a buffer that is filled again and again.
#[derive(Debug)]
pub struct PageRegions {
    regions: Vec<PageRegion>,
    used: usize,
}

impl PageRegions {
    /// Room for the regions of one request.
    #[must_use]
    pub fn new() -> Self {
        Self { regions: vec![PageRegion::default(); REGIONS_PER_SCAN], used: 0 }
    }

    /// The regions of the last request, rising.
    pub fn iter(&self) -> impl Iterator<Item = (AddressRange, Categories)> {
        self.regions[..self.used].iter().map(|region| {
            let range = AddressRange::new(Address(region.start), Address(region.end));
            (range, Categories(region.categories))
        })
    }

    /// After a failure the kernel does not say how much it wrote; nothing was there before.
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

/// One entry of the page map.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PageEntry(pub u64);

impl PageEntry {
    /// In memory or swapped out.
    #[must_use]
    pub const fn is_populated(self) -> bool {
        self.0 & (ENTRY_PRESENT | ENTRY_SWAPPED) != 0
    }

    /// In memory.
    #[must_use]
    pub const fn is_present(self) -> bool {
        self.0 & ENTRY_PRESENT != 0
    }

    /// A file's page or shared memory.
    #[must_use]
    pub const fn is_file_or_shared(self) -> bool {
        self.0 & ENTRY_FILE_OR_SHARED != 0
    }

    /// A guard region.
    #[must_use]
    pub const fn is_guard(self) -> bool {
        self.0 & ENTRY_GUARD != 0
    }

    /// Mapped by this process alone.
    #[must_use]
    pub const fn is_exclusive(self) -> bool {
        self.0 & ENTRY_EXCLUSIVE != 0
    }

    /// Written since the bits were last cleared; always false on kernels without these bits.
    #[must_use]
    pub const fn is_soft_dirty(self) -> bool {
        self.0 & ENTRY_SOFT_DIRTY != 0
    }
}

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
        self.look_with(range, &mut PageRegions::new())
    }

    /// As `look`, for many ranges one after the other.
    pub fn look_with(&self, range: AddressRange, regions: &mut PageRegions) -> Result<FoundPages> {
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
            tell: POPULATED.and(guard),
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

    /// Selects pages of a range, from its start; the address to go on from, which is its end when all was seen.
    ///
    /// Regions are valid after a failure too: the kernel reports what it has protected up to the place where it
    /// failed, and forgets to count it.
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
            return_mask: query.tell.0,
        };
        // SAFETY: `arguments` has the size it names, and its vector points to `vector_length` regions that live
        // and are exclusively ours during the call.
        let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
        if count < 0 {
            let error = Error::process("scan the page map", self.pid, Errno::last());
            regions.used = regions.count_written();
            return Err(error);
        }
        regions.used = count as usize;
        Ok(Address(arguments.walk_end))
    }

    /// Whether writes to the area at an address are watched asynchronously, by whomever. Changes nothing.
    pub fn is_watched(&self, at: Address) -> bool {
        let page = AddressRange::new(at, Address(at.get() + PAGE_BYTES));
        let written = PageQuery { all_of: Categories::WRITTEN, ..PageQuery::default() };
        self.find(&written, FLAG_CHECK_WPASYNC, page).is_ok()
    }

    /// Whether a page of a range is protected against writes by a userfaultfd, or would be once it is there. Also without
    /// a present watch. Changes nothing.
    pub fn has_protected(&self, range: AddressRange) -> Result<bool> {
        let protected = PageQuery {
            all_of: Categories::WRITTEN,
            any_of: Categories::PRESENT.and(Categories::SWAPPED),
            inverted: Categories::WRITTEN,
            ..PageQuery::default()
        };
        self.find(&protected, 0, range)
    }

    /// Whether there is a page that a question selects.
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
        // SAFETY: `arguments` has the size it names, and its vector points to one region that lives and is
        // exclusively ours during the call.
        let count = unsafe { libc::ioctl(self.file.as_raw_fd(), PAGEMAP_SCAN, &raw mut arguments) };
        if count < 0 {
            return Err(Error::process("scan the page map", self.pid, Errno::last()));
        }
        Ok(count > 0)
    }

    /// Reads the entries of the pages from an address on. ESRCH: the address space is gone.
    pub fn read_entries_at(&self, start: Address, entries: &mut [PageEntry]) -> Result<()> {
        // SAFETY: a PageEntry is a u64, of which any bytes are valid; the slice is exclusively borrowed.
        let bytes = unsafe {
            std::slice::from_raw_parts_mut(entries.as_mut_ptr().cast::<u8>(), size_of_val(entries))
        };
        self.file.read_exact_at(bytes, start.get() / PAGE_BYTES * 8).map_err(|error| match error.kind() {
            // An address space that has ended reads as an empty file.
            ErrorKind::UnexpectedEof => Error::process("read the page map", self.pid, Errno::ESRCH),
            _ => Error::process("read the page map", self.pid, error),
        })
    }

    /// Whether the address space is still in use; exec(2) and exit end it while the file stays open.
    pub fn is_alive(&self) -> Result<bool> {
        let read = self.file.read_at(&mut [0; 8], 0);
        read.map(|count| count > 0).map_err(|error| Error::process("read the page map", self.pid, error))
    }

    /// Goes through the parts of a range whose entries have to be read: all of it but large areas that hold nothing.
    /// Meant for kernels without the request, which skips those by itself.
    pub fn for_parts(&self, range: AddressRange, part: impl FnMut(AddressRange) -> Result<()>) -> Result<()> {
        around(&self.bare(range), range, part)
    }

    /// Kernels that know the request may know guard regions too, which only an entry tells.
    fn bare(&self, range: AddressRange) -> Vec<AddressRange> {
        if residence::is_worth_asking(self.pid, range) && !self.supports_scan() {
            residence::bare_areas(self.pid, range)
        } else {
            Vec::new()
        }
    }

    fn read_entries(&self, range: AddressRange, found: &mut FoundPages) -> Result<()> {
        self.for_parts(range, |part| self.read_part(part, found))
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

    /// Whether the kernel knows the PAGEMAP_SCAN request.
    #[must_use]
    pub fn supports_scan(&self) -> bool {
        let nothing = AddressRange::new(Address(PAGE_BYTES), Address(2 * PAGE_BYTES));
        self.scan(nothing, Categories::NONE, &mut PageRegions::new(), &mut FoundPages::default()).is_ok()
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

/// What lies between the gaps, which rise and are inside of the range.
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
