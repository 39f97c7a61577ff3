//! A copy of the memory of a process, which a tracker keeps up to date, and its comparison with the memory.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::FileExt;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Pid};
use sys::pagemap::{PageEntry, Pagemap};
use tracee::ProcessMemory;
use tracee::procfs::{Backing, Mapping};
use undying_track::{Coverage, DirtyPages, DirtyRange};

/// Number of scans that are printed for a missed page.
const SCANS_REMEMBERED: usize = 12;

type Page = Box<[u8; PAGE_BYTES as usize]>;

/// The copied pages by address. A page without a copy reads as zero or as the file of its mapping.
pub(crate) struct Shadow {
    pid: Pid,
    memory: ProcessMemory,
    map: Pagemap,
    pages: BTreeMap<u64, Page>,
    pub(crate) copied: u64,
    buffer: Vec<u8>,
    /// The descriptions of the last scans, newest first. `reported` contains the ranges that these scans
    /// reported.
    history: VecDeque<String>,
    reported: VecDeque<Vec<DirtyRange>>,
}

impl Shadow {
    pub(crate) fn new(pid: Pid) -> Self {
        let memory = ProcessMemory::open(pid).unwrap();
        let map = Pagemap::open(pid).unwrap();
        Self {
            pid,
            memory,
            map,
            pages: BTreeMap::new(),
            copied: 0,
            buffer: vec![0; 64 * PAGE_BYTES as usize],
            history: VecDeque::new(),
            reported: VecDeque::new(),
        }
    }

    /// Forgets the copies of new ranges, and of pages that are no longer mapped.
    pub(crate) fn cover(&mut self, coverage: &Coverage, mappings: &[Mapping]) {
        for range in &coverage.fresh {
            self.forget(*range);
        }
        let inside = |page: u64| {
            let first = mappings.partition_point(|mapping| mapping.range.end.get() <= page);
            mappings.get(first).is_some_and(|mapping| mapping.range.start.get() <= page)
        };
        self.pages.retain(|page, _| inside(*page));
    }

    /// Updates the copy with the result of a scan.
    pub(crate) fn apply(&mut self, scan: &str, dirty: &DirtyPages) {
        self.history.push_front(format!("{scan}:"));
        self.history.truncate(SCANS_REMEMBERED);
        self.reported.push_front(dirty.ranges().to_vec());
        self.reported.truncate(SCANS_REMEMBERED);
        for found in dirty.ranges() {
            if found.content.must_read() {
                self.copy(found.range);
            } else {
                self.forget(found.range);
            }
        }
    }

    fn forget(&mut self, range: AddressRange) {
        let doomed: Vec<u64> =
            self.pages.range(range.start.get()..range.end.get()).map(|(page, _)| *page).collect();
        for page in doomed {
            self.pages.remove(&page);
        }
    }

    fn copy(&mut self, range: AddressRange) {
        let mut buffer = std::mem::take(&mut self.buffer);
        let mut at = range.start;
        while at < range.end {
            let length = ((range.end - at).get() as usize).min(buffer.len());
            let whole = self.memory.read(at, &mut buffer[..length]).is_ok();
            for page in buffer[..length].chunks_exact_mut(PAGE_BYTES as usize) {
                // If the read fails, the page is a guard region or no longer mapped, and has no content.
                if whole || self.memory.read(at, page).is_ok() {
                    let copy = self.pages.entry(at.get());
                    copy.or_insert_with(|| Box::new([0; PAGE_BYTES as usize])).copy_from_slice(page);
                } else {
                    self.pages.remove(&at.get());
                }
                self.copied += 1;
                at = at + ByteCount(PAGE_BYTES);
            }
        }
        self.buffer = buffer;
    }

    /// Compares all memory. Returns the pages that differ, and the mapping of these pages.
    pub(crate) fn differences(&self, mappings: &[Mapping]) -> Vec<String> {
        let mut found = Vec::new();
        for mapping in mappings.iter().filter(|mapping| !mapping.is_kernel()) {
            let before = found.len();
            if mapping.protection.shared {
                self.compare(mapping, mapping.range, &mut found);
            } else {
                let populated = self.map.scan_range(mapping.range).unwrap();
                populated.private.iter().for_each(|range| self.compare(mapping, *range, &mut found));
                self.compare_rest(mapping, &populated.private, &mut found);
            }
            if found.len() > before {
                found.push(format!("in {} {:?}", mapping.range, mapping.name));
            }
        }
        found
    }

    /// Compares the copies of pages that have no content in the process with the file, or with zero.
    fn compare_rest(&self, mapping: &Mapping, populated: &[AddressRange], found: &mut Vec<String>) {
        let held = self.pages.range(mapping.range.start.get()..mapping.range.end.get());
        for (page, copy) in held {
            let first = populated.partition_point(|range| range.end.get() <= *page);
            if populated.get(first).is_some_and(|range| range.start.get() <= *page) {
                continue;
            }
            let expected = file_page(mapping, *page);
            if copy[..] != expected[..] {
                found.push(format!("{page:#x} of pid {} holds nothing, and the copy does", self.pid));
            }
        }
    }

    /// Describes a page that the tracker has missed.
    fn describe(&self, page: u64, actual: &[u8]) -> String {
        let copy = self.pages.get(&page).map_or_else(|| vec![0; actual.len()], |copy| copy.to_vec());
        let differs: Vec<usize> = (0..actual.len()).filter(|at| copy[*at] != actual[*at]).collect();
        let first = differs[0] & !7;
        let words = (&actual[first..first + 8], &copy[first..first + 8]);
        let zero = (actual.iter().all(|byte| *byte == 0), copy.iter().all(|byte| *byte == 0));
        let mut entry = [PageEntry::default()];
        self.map.read_entries_at(Address(page), &mut entry).unwrap();
        let mut text = format!(
            "{} of pid {} changed unseen: {} bytes from {first} on, {words:x?}, zero {zero:?}, entry {:x}\n",
            Address(page),
            self.pid,
            differs.len(),
            entry[0].0
        );
        for (scan, reported) in self.history.iter().zip(&self.reported) {
            let here = reported.iter().filter(|found| found.range.contains(Address(page)));
            text += &format!("  {scan} {:?}\n", here.collect::<Vec<_>>());
        }
        text
    }

    fn compare(&self, mapping: &Mapping, range: AddressRange, found: &mut Vec<String>) {
        let mut bytes = vec![0; range.len().get() as usize];
        if self.memory.read(range.start, &mut bytes).is_err() {
            return;
        }
        for (index, actual) in bytes.chunks_exact(PAGE_BYTES as usize).enumerate() {
            let page = range.start.get() + index as u64 * PAGE_BYTES;
            let same = match self.pages.get(&page) {
                Some(copy) => copy[..] == *actual,
                None if mapping.protection.shared && is_file(mapping) => true,
                None => actual == &file_page(mapping, page)[..],
            };
            if !same {
                found.push(self.describe(page, actual));
            }
        }
    }
}

fn is_file(mapping: &Mapping) -> bool {
    matches!(&mapping.backing, Backing::File { path, .. } if path.exists())
}

/// Returns the content of a page without a copy.
fn file_page(mapping: &Mapping, page: u64) -> Page {
    let mut bytes = Box::new([0; PAGE_BYTES as usize]);
    let Backing::File { path, .. } = &mapping.backing else { return bytes };
    match File::open(path) {
        Ok(file) => {
            // Bytes beyond the end of the file are zero.
            let _ = file.read_at(&mut bytes[..], mapping.offset + page - mapping.range.start.get());
        }
        // The subject `restless` has deleted its file, whose bytes all have this value.
        Err(_) if !mapping.protection.shared => bytes.fill(0x55),
        Err(_) => {}
    }
    bytes
}
