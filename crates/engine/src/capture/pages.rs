//! The pages that a checkpoint of a stopped process tree saves.
//!
//! Owns: finding all these pages, and copying them.
//! Invariants: the image contains every page that a restore of the mappings needs, except pages that were never
//! touched.
//! Does not: hash, compress or write pages; the threads of the writer do.

use std::convert::Infallible;
use std::fs::File;
use std::os::fd::AsFd;

use image::SpaceId;
use model::{Address, AddressRange, PAGE_BYTES, Pid};
use resource::memory::Content;
use rustix::fs::SeekFrom;
use store::PageBatch;
use sys::clock::Stopwatch;
use sys::pagemap::PageRegions;
use sys::{Errno, Error};

use super::before::Before;
use super::copier::{Copier, PageSink as _, read_padded};
use super::phases::{Phase, Phases};
use super::pipeline::Memory;
use super::reserve::Reserve;
use crate::error::Result;
use crate::records::object_space;

/// Memory whose pages are all found and copied while the subject is stopped.
pub(super) struct WholeMemory<'a> {
    sink: &'a Reserve<'a>,
    /// The buffer that is filled next.
    batch: Option<PageBatch>,
    /// `true` until the first page is copied.
    pub(super) is_empty: bool,
}

impl<'a> WholeMemory<'a> {
    pub(super) fn new(sink: &'a Reserve<'a>, first: PageBatch) -> Self {
        Self { sink, batch: Some(first), is_empty: true }
    }

    /// Passes the last buffer to the sink. Called after the pause, because an append wakes threads, which
    /// would take processor time in the pause.
    pub(super) fn append_last(self) -> Result<()> {
        Ok(self.batch.map_or(Ok(()), |rest| self.sink.append(rest))?)
    }
}

impl Memory for WholeMemory<'_> {
    type Part = Infallible;

    fn write(&mut self, before: &mut Before, phases: &mut Phases) -> Result<Option<Infallible>> {
        let scanning = Stopwatch::start();
        let plan = scan(before)?;
        phases[Phase::Scan] = scanning.elapsed();
        before.objects.inside()?;
        self.is_empty = false;
        let first = self.batch.take().map_or_else(|| self.sink.buffer(), Ok)?;
        self.batch = Some(copy(&plan, before, self.sink, first)?);
        Ok(None)
    }
}

/// The page ranges to copy.
#[derive(Default)]
pub(super) struct PagePlan {
    processes: Vec<ProcessPages>,
    objects: Vec<(u64, Vec<AddressRange>)>,
}

struct ProcessPages {
    pid: Pid,
    space: SpaceId,
    /// Ranges that process_vm_readv(2) can read.
    readable: Vec<AddressRange>,
    /// Ranges without read permission, which are read through `/proc/PID/mem`.
    hidden: Vec<AddressRange>,
}

impl PagePlan {
    /// Returns all ranges. Each range has the id of its address space or memory object in the image.
    pub(super) fn ranges(&self) -> impl Iterator<Item = (SpaceId, AddressRange)> {
        let processes = self.processes.iter().flat_map(|process| {
            process.readable.iter().chain(&process.hidden).map(|range| (process.space, *range))
        });
        let objects = self.objects.iter();
        processes
            .chain(objects.flat_map(|(id, ranges)| ranges.iter().map(|range| (object_space(*id), *range))))
    }
}

/// Finds the pages that belong to the image.
pub(super) fn scan(before: &mut Before) -> Result<PagePlan> {
    let mut processes = Vec::new();
    let mut regions = PageRegions::new();
    for pid in &before.processes.order {
        let Some(process) = before.processes.living.get_mut(pid) else { continue };
        let mut found =
            ProcessPages { pid: *pid, space: process.space.id, readable: Vec::new(), hidden: Vec::new() };
        let mut guards = Vec::new();
        for (mapping, content) in process.space.mappings.iter().zip(&process.space.contents) {
            if matches!(content, Some(Content::Private | Content::PrivateAndObject)) {
                let ranges = if mapping.protection.read { &mut found.readable } else { &mut found.hidden };
                let mut pages = process.space.pagemap.scan_range_with(mapping.range, &mut regions)?;
                ranges.append(&mut pages.private);
                guards.append(&mut pages.guards);
            }
        }
        process.space.guards = guards;
        processes.push(found);
    }
    let mut objects = Vec::new();
    for (id, file) in before.objects.saved() {
        objects.push((id, data_ranges(file)?));
    }
    Ok(PagePlan { processes, objects })
}

/// Copies the pages of `plan`. Returns the last buffer, which the caller must pass to the sink.
fn copy(plan: &PagePlan, before: &Before, sink: &Reserve<'_>, first: PageBatch) -> Result<PageBatch> {
    let mut copier = Copier::new(sink, first);
    for process in &plan.processes {
        let space = &before.processes.living[&process.pid].space;
        for range in &process.readable {
            copier.add(process.pid, space, *range)?;
        }
        copier.flush(process.pid)?;
        for range in &process.hidden {
            copier.add_with(process.space, *range, |start, bytes| space.memory.read(start, bytes))?;
        }
    }
    for (id, ranges) in &plan.objects {
        let Some((_, file)) = before.objects.saved().find(|(saved, _)| saved == id) else { continue };
        for range in ranges {
            copier.add_with(object_space(*id), *range, |start, bytes| read_padded(file, start, bytes))?;
        }
    }
    Ok(copier.into_last_buffer())
}

/// Copies all pages of each memory object whose content belongs to the image. This includes unchanged pages.
pub(super) fn copy_objects(before: &Before, copier: &mut Copier<'_>) -> Result<()> {
    for (id, file) in before.objects.saved() {
        for range in data_ranges(file)? {
            copier.add_with(object_space(id), range, |start, bytes| read_padded(file, start, bytes))?;
        }
    }
    Ok(())
}

/// Returns the ranges of a file that contain data, expanded to whole pages.
fn data_ranges(file: &File) -> Result<Vec<AddressRange>> {
    const NO_MORE_DATA: Errno = Errno(6);
    let length = file.metadata().map_err(|error| Error::new("look at a memory object", error))?.len();
    let mut found = Vec::new();
    let mut at = 0;
    while at < length {
        let start = match rustix::fs::seek(file.as_fd(), SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(errno) if Errno::from(errno) == NO_MORE_DATA => break,
            Err(errno) => return Err(Error::new("find the data of a memory object", errno).into()),
        };
        let end = rustix::fs::seek(file.as_fd(), SeekFrom::Hole(start))
            .map_err(|errno| Error::new("find the holes of a memory object", errno))?;
        let range =
            AddressRange::new(Address(start).page_floor(), Address(end + PAGE_BYTES - 1).page_floor());
        found.push(range);
        at = end;
    }
    Ok(found)
}

/// Returns the parts of `range` that the sorted ranges in `others` do not cover.
pub(crate) fn without(range: AddressRange, others: impl Iterator<Item = AddressRange>) -> Vec<AddressRange> {
    let mut left = Vec::new();
    let mut start = range.start;
    for other in
        others.skip_while(|other| other.end <= range.start).take_while(|other| other.start < range.end)
    {
        if start < other.start {
            left.push(AddressRange::new(start, other.start));
        }
        start = start.max(other.end);
    }
    if start < range.end {
        left.push(AddressRange::new(start, range.end));
    }
    left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start * PAGE_BYTES), Address(end * PAGE_BYTES))
    }

    #[test]
    fn what_others_cover_is_left_out() {
        let others = [range(0, 2), range(3, 4), range(6, 9), range(20, 30)];
        assert_eq!(without(range(1, 8), others.into_iter()), [range(2, 3), range(4, 6)]);
        assert_eq!(without(range(10, 12), others.into_iter()), [range(10, 12)]);
        assert_eq!(without(range(21, 30), others.into_iter()), []);
    }
}
