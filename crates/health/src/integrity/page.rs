//! Reading pages of a process, of the page cache or of a device.
//!
//! Owns: the list of pages that are in the page tables, and the buffer into which pages are read.
//! Invariants: in a process, only pages in the page tables are read. The kernel therefore loads no page, and a read
//! never waits for a disk or a userfaultfd. Pages of files are read only if a process has a private copy or if a page
//! differs.
//! Does not: compare pages.

use std::fs::File;
use std::os::unix::fs::FileExt;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Pid};
use sys::page_buffer::PageBuffer;
use sys::pagemap::PageEntry;
use sys::{Error, Result, process_memory};

use super::changed::Place;
use super::process::{Mapping, ReadSource};

pub(super) const PAGE: usize = PAGE_BYTES as usize;
/// Size of an entry of the page map in bytes.
const ENTRY: usize = size_of::<u64>();

/// A page that is in the page tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Present {
    pub(super) at: Address,
    pub(super) place: Place,
}

/// Returns the pages of a range that are in the page tables of a process, in ascending order.
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

/// Reads pages of a process into a buffer. The pages are adjacent in the buffer.
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

/// Reads a page from the file of a mapping. Bytes after the end of the file are zeros, like in memory.
pub(super) fn read_file(mapping: &Mapping, at: Address, source: ReadSource) -> Result<Vec<u8>> {
    let file = mapping.open(source)?;
    let failed = |error: std::io::Error| Error::path("read", &mapping.name, error);
    // Direct reads need an aligned buffer.
    let mut page = PageBuffer::new(ByteCount(PAGE_BYTES))?;
    let offset = mapping.page_in_file(at) * PAGE_BYTES;
    let count = file.read_at(&mut page, offset).map_err(failed)?;
    page[count..].fill(0);
    Ok(page.to_vec())
}
