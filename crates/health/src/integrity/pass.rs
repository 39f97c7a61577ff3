//! One pass over all executable pages of a process tree.
//!
//! Owns: the list of mappings, the position of the pass, and the pages that differ from their known content.
//! Invariants: each page is compared once. A page of the page cache is compared once even if many processes map the
//! page. A step reads at most [`STEP_PAGES`] pages.
//! Does not: decide when the next step is due, or classify a difference.

use std::collections::HashSet;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount, Pid};
use sys::Result;

use super::changed::Place;
use super::memory::Memory;
use super::page::{self, PAGE, Present};
use super::process::{self, FileId, Mapping, ReadSource};

/// Maximum number of pages in a step: 256 KiB, about 50 µs.
pub(super) const STEP_PAGES: u64 = 64;
/// Maximum number of processes that one step lists; about 100 µs for each process.
const PROCESSES_PER_STEP: usize = 8;
/// Maximum number of differing pages that are stored until the end of the pass. Only large replacements of code exceed
/// this limit.
const SUSPECTS_MAX: usize = 64;

/// The pages that a pass has covered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extent {
    /// Executable pages of files that the processes map.
    pub mapped: PageCount,
    /// Compared pages. Only pages in the page tables are compared, and each page of the page cache is counted once.
    pub compared: PageCount,
    /// Size of the mappings whose files cannot be identified. These files are deleted or replaced, and
    /// `/proc/PID/map_files` is not permitted.
    pub unreadable: ByteCount,
}

/// A page that differs.
#[derive(Debug)]
pub(super) struct Suspect {
    pub(super) mapping: Mapping,
    pub(super) page: Present,
    pub(super) content: Vec<u8>,
}

#[derive(Debug, Default)]
pub(super) struct Pass {
    /// Processes that are not listed yet, in reverse order.
    processes: Vec<Pid>,
    pub(super) mappings: Vec<Mapping>,
    /// The index of the next mapping, and the next address in this mapping.
    next: (usize, Option<Address>),
    /// Number of pages that the pass has visited.
    done: u64,
    pub(super) extent: Extent,
    /// Compared pages of the page cache.
    cached: HashSet<(FileId, u64)>,
    suspects: Vec<Suspect>,
    buffer: Vec<u8>,
}

impl Pass {
    /// Creates a pass over these processes.
    pub(super) fn new(mut processes: Vec<Pid>) -> Self {
        processes.reverse();
        Self { processes, ..Self::default() }
    }

    /// Reports whether some processes are not listed yet. The length of the pass is not known until all are listed.
    pub(super) fn is_listing(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Returns the number of visited pages and the number of all pages.
    pub(super) fn position(&self) -> (u64, u64) {
        (self.done, self.extent.mapped.get())
    }

    pub(super) fn is_over(&self) -> bool {
        !self.is_listing() && self.next.0 >= self.mappings.len()
    }

    pub(super) fn take_suspects(&mut self) -> Vec<Suspect> {
        std::mem::take(&mut self.suspects)
    }

    pub(super) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Lists several processes, or compares the next pages.
    pub(super) fn step(&mut self, memory: &mut Memory) {
        if self.is_listing() {
            for _ in 0..PROCESSES_PER_STEP {
                let Some(pid) = self.processes.pop() else { break };
                // A process that has ended maps nothing.
                let listing = process::list(pid).unwrap_or_default();
                self.extent.unreadable += listing.unreadable;
                let pages = listing.mappings.iter().map(|mapping| mapping.range.pages().get()).sum();
                self.extent.mapped += PageCount(pages);
                self.mappings.extend(listing.mappings);
            }
            return;
        }
        let Some(mapping) = self.mappings.get(self.next.0).cloned() else { return };
        let start = self.next.1.unwrap_or(mapping.range.start);
        let end = Address(start.get() + STEP_PAGES * PAGE_BYTES).min(mapping.range.end);
        let piece = AddressRange::new(start, end);
        self.done += piece.pages().get();
        self.next = if end < mapping.range.end { (self.next.0, Some(end)) } else { (self.next.0 + 1, None) };
        // The process may have ended or unmapped the pages. The next pass then lists the current mappings.
        let _gone = self.compare(&mapping, piece, memory);
    }

    fn compare(&mut self, mapping: &Mapping, piece: AddressRange, memory: &mut Memory) -> Result<()> {
        let mut pages = page::present(mapping.process.pid, piece)?;
        pages.retain(|page| {
            page.place == Place::Process || self.cached.insert((mapping.file, mapping.page_in_file(page.at)))
        });
        if pages.is_empty() {
            return Ok(());
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        let outcome = page::read(mapping.process.pid, &pages, &mut buffer);
        if outcome.is_ok() {
            self.extent.compared += PageCount(pages.len() as u64);
            for (page, content) in pages.into_iter().zip(buffer.chunks_exact(PAGE)) {
                if !is_right(mapping, page, content, memory) && self.suspects.len() < SUSPECTS_MAX {
                    self.suspects.push(Suspect { mapping: mapping.clone(), page, content: content.to_vec() });
                }
            }
        }
        self.buffer = buffer;
        outcome
    }
}

/// Reports whether a page has its known content. Records the content if none is known.
fn is_right(mapping: &Mapping, page: Present, content: &[u8], memory: &mut Memory) -> bool {
    let (process, at, number) = (mapping.process, page.at, mapping.page_in_file(page.at));
    match page.place {
        Place::PageCache => {
            let sum = crc_fast::crc32_iscsi(content);
            // The process may have had a private copy before. The copy is gone, so its accepted content is removed.
            memory.forget(process, at);
            let known = memory.sum_of_file(mapping.file, number);
            if known.is_none() {
                memory.set_sum_of_file(mapping.file, number, sum);
            }
            known.is_none_or(|known| known == sum) || memory.reported(mapping.file, number) == Some(sum)
        }
        Place::Process => {
            if let Some(learnt) = memory.learnt(process, at) {
                return learnt.is(content);
            }
            let Some(known) = sum_of_file(mapping, at, memory) else { return true };
            let is_right = crc_fast::crc32_iscsi(content) == known;
            if !is_right && memory.is_new(mapping) {
                memory.learn(process, at, content);
                return true;
            }
            is_right
        }
    }
}

/// Returns the checksum of a page of the file. Reads the page from the page cache if the checksum is not known.
fn sum_of_file(mapping: &Mapping, at: Address, memory: &mut Memory) -> Option<u32> {
    let number = mapping.page_in_file(at);
    if let Some(known) = memory.sum_of_file(mapping.file, number) {
        return Some(known);
    }
    let sum = crc_fast::crc32_iscsi(&page::read_file(mapping, at, ReadSource::Cached).ok()?);
    memory.set_sum_of_file(mapping.file, number, sum);
    Some(sum)
}
