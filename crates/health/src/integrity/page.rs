//! Reading pages: of a process, of the page cache, of a device.
//!
//! Owns: which pages of a range are in the page tables, and the buffer that they are read into.
//! Invariants: of a process, only pages that are in the page tables are read, so that no page is brought in, and nothing
//! waits for a disk or for a userfaultfd. Pages of files are read only where a process has a copy or a page differs.
//! Does not: compare.

use std::fs::File;
use std::os::unix::fs::FileExt;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Pid};
use sys::page_buffer::PageBuffer;
use sys::pagemap::PageEntry;
use sys::{Error, Result, process_memory};

use super::changed::Place;
use super::process::{Mapping, Way};

/// Bytes of a page.
pub(super) const PAGE: usize = PAGE_BYTES as usize;
/// Bytes of an entry of the page map.
const ENTRY: usize = size_of::<u64>();

/// A page that is in the page tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Present {
    pub(super) at: Address,
    pub(super) place: Place,
}

/// The pages of a range that are in the page tables of a process, rising.
pub(super) fn present(pid: Pid, range: AddressRange) -> Result<Vec<Present>> {
    let path = format!("/proc/{pid}/pagemap");
    let failed = |error: std::io::Error| Error::path("read", &path, error);
    let file = File::open(&path).map_err(failed)?;
    let mut bytes = vec![0; range.pages().get() as usize * ENTRY];
    file.read_exact_at(&mut bytes, range.start.get() / PAGE_BYTES * ENTRY as u64).map_err(failed)?;
    let entries = bytes.chunks_exact(ENTRY).filter_map(|entry| entry.first_chunk());
    let pages = entries.zip(0..).map(|(entry, number)| {
        let at = Address(range.start.get() + number * PAGE_BYTES);
        (at, PageEntry(u64::from_ne_bytes(*entry)))
    });
    let place = |entry: PageEntry| match entry.is_file_or_shared() {
        true => Place::PageCache,
        false => Place::Process,
    };
    let is_read = |entry: PageEntry| entry.is_present() && !entry.is_guard();
    Ok(pages
        .filter(|(_, entry)| is_read(*entry))
        .map(|(at, entry)| Present { at, place: place(entry) })
        .collect())
}

/// Reads pages of a process into a buffer, one behind the other.
pub(super) fn read(pid: Pid, pages: &[Present], buffer: &mut Vec<u8>) -> Result<()> {
    let mut ranges: Vec<(Address, ByteCount)> = Vec::new();
    for page in pages {
        match ranges.last_mut() {
            Some((start, length)) if *start + *length == page.at => *length += ByteCount(PAGE_BYTES),
            _ => ranges.push((page.at, ByteCount(PAGE_BYTES))),
        }
    }
    buffer.resize(pages.len() * PAGE, 0);
    process_memory::read_scattered(pid, &ranges, buffer)
}

/// Reads a page of the file of a mapping; what lies behind the end of the file is zeros, as it is in memory.
pub(super) fn read_file(mapping: &Mapping, at: Address, way: Way) -> Result<Vec<u8>> {
    let file = mapping.open(way)?;
    let failed = |error: std::io::Error| Error::path("read", &mapping.name, error);
    // Direct reads need an aligned buffer.
    let mut page = PageBuffer::new(ByteCount(PAGE_BYTES))?;
    let offset = mapping.page_in_file(at) * PAGE_BYTES;
    let count = file.read_at(&mut page, offset).map_err(failed)?;
    page[count..].fill(0);
    Ok(page.to_vec())
}
