//! One pass over all executable pages of a tree.
//!
//! Owns: the list of mappings, the place that the pass has come to, the pages that differ.
//! Invariants: each page is compared once; a page of the page cache once, however many processes map it. A step reads
//! at most [`STEP_PAGES`] pages.
//! Does not: decide when the next step is due, or what a difference means.

use std::collections::HashSet;

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount, Pid};
use sys::Result;

use super::changed::Place;
use super::memory::Memory;
use super::page::{self, PAGE, Present};
use super::process::{self, FileId, Mapping, Way};

/// Pages of a step: 256 KiB, some 50 µs.
pub(super) const STEP_PAGES: u64 = 64;
/// Processes that one step lists: some 100 µs each.
const PROCESSES_PER_STEP: usize = 8;
/// Pages that differ and are kept for the end of the pass. There are more only where code is replaced on a large scale.
const SUSPECTS_MAX: usize = 64;

/// What a pass has covered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Extent {
    /// Executable pages of files that the processes map.
    pub mapped: PageCount,
    /// Pages that were compared: those in the page tables, each page of the page cache once.
    pub compared: PageCount,
    /// Mappings of files that cannot be identified: deleted or replaced, where `/proc/PID/map_files` may not be used.
    pub unreadable: ByteCount,
}

/// A page that differs.
#[derive(Debug)]
pub(super) struct Suspect {
    pub(super) mapping: Mapping,
    pub(super) page: Present,
    pub(super) content: Vec<u8>,
}

/// A pass that is going on.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// Processes to be listed, the next one last.
    processes: Vec<Pid>,
    mappings: Vec<Mapping>,
    /// The mapping, and the address in it, that come next.
    next: (usize, Option<Address>),
    /// Pages that were passed.
    done: u64,
    extent: Extent,
    /// Pages of the page cache that were compared.
    cached: HashSet<(FileId, u64)>,
    suspects: Vec<Suspect>,
    buffer: Vec<u8>,
}

impl Pass {
    /// A pass over these processes.
    pub(super) fn new(mut processes: Vec<Pid>) -> Self {
        processes.reverse();
        Self { processes, ..Self::default() }
    }

    /// Whether processes are still to be listed: the length of the pass is not known yet.
    pub(super) fn is_listing(&self) -> bool {
        !self.processes.is_empty()
    }

    /// Pages that were passed, and all.
    pub(super) fn position(&self) -> (u64, u64) {
        (self.done, self.extent.mapped.get())
    }

    pub(super) fn is_over(&self) -> bool {
        !self.is_listing() && self.next.0 >= self.mappings.len()
    }

    pub(super) fn extent(&self) -> Extent {
        self.extent
    }

    pub(super) fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    pub(super) fn take_suspects(&mut self) -> Vec<Suspect> {
        std::mem::take(&mut self.suspects)
    }

    pub(super) fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Lists some processes, or compares some pages.
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
        // Pages of a process that has ended, or unmapped them, are those of the next pass.
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

/// Whether a page is what it was; learns it where nothing is known of it.
fn is_right(mapping: &Mapping, page: Present, content: &[u8], memory: &mut Memory) -> bool {
    let (process, at, number) = (mapping.process, page.at, mapping.page_in_file(page.at));
    match page.place {
        Place::PageCache => {
            let sum = crc32c::crc32c(content);
            // Also where the process had a copy before, which it has given back.
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
            let is_right = crc32c::crc32c(content) == known;
            if !is_right && memory.is_new(mapping) {
                memory.learn(process, at, content);
                return true;
            }
            is_right
        }
    }
}

/// The checksum of a page of the file; read from the page cache if no process has shown it yet.
fn sum_of_file(mapping: &Mapping, at: Address, memory: &mut Memory) -> Option<u32> {
    let number = mapping.page_in_file(at);
    if let Some(known) = memory.sum_of_file(mapping.file, number) {
        return Some(known);
    }
    let sum = crc32c::crc32c(&page::read_file(mapping, at, Way::Cached).ok()?);
    memory.set_sum_of_file(mapping.file, number, sum);
    Some(sum)
}
