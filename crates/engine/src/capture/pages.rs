//! Copying pages of a stopped tree into the image.
//!
//! Owns: which pages are copied, and the loops that copy them.
//! Invariants: every page that an area's content names is in the image or was never touched.
//! Does not: hash, compress or write; the writer's threads do.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use image::SpaceId;
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount, Pid};
use resource::memory::Content;
use rustix::fs::SeekFrom;
use store::{ImageWriter, PageBatch};
use sys::process_memory::{self, RANGES_PER_CALL};
use sys::{Errno, Error};
use tracee::ProcessMemory;

use super::before::Before;
use crate::error::Result;
use crate::records::object_space;

/// Page ranges to copy.
pub(super) struct PagePlan {
    processes: Vec<ProcessPages>,
    objects: Vec<(u64, Vec<AddressRange>)>,
}

struct ProcessPages {
    pid: Pid,
    space: SpaceId,
    /// Ranges that can be read in bulk.
    readable: Vec<AddressRange>,
    /// Ranges without read permission, reached through `/proc/PID/mem`.
    hidden: Vec<AddressRange>,
}

/// Finds the pages that belong into the image.
pub(super) fn scan(before: &mut Before) -> Result<PagePlan> {
    let mut processes = Vec::new();
    for pid in &before.order {
        let Some(process) = before.processes.get_mut(pid) else { continue };
        let mut found =
            ProcessPages { pid: *pid, space: process.space, readable: Vec::new(), hidden: Vec::new() };
        let mut guards = Vec::new();
        for (area, content) in process.areas.iter().zip(&process.contents) {
            if matches!(content, Some(Content::Private | Content::PrivateAndObject)) {
                let ranges = if area.protection.read { &mut found.readable } else { &mut found.hidden };
                let mut pages = process.pagemap.look(area.range)?;
                ranges.append(&mut pages.private);
                guards.append(&mut pages.guards);
            }
        }
        process.guards = guards;
        processes.push(found);
    }
    let mut objects = Vec::new();
    for (id, file) in before.objects.saved() {
        objects.push((id, data_ranges(file)?));
    }
    Ok(PagePlan { processes, objects })
}

/// Copies what `scan` found.
pub(super) fn copy(plan: &PagePlan, before: &Before, writer: &ImageWriter, first: PageBatch) -> Result<()> {
    let mut copier = Copier { writer, batch: first, ranges: Vec::new(), filled: 0 };
    for process in &plan.processes {
        for range in &process.readable {
            copier.add(process.pid, process.space, *range)?;
        }
        copier.flush(process.pid)?;
        let memory = &before.processes[&process.pid].memory;
        for range in &process.hidden {
            copier.add_hidden(memory, process.space, *range)?;
        }
    }
    for (id, ranges) in &plan.objects {
        let Some((_, file)) = before.objects.saved().find(|(saved, _)| saved == id) else { continue };
        for range in ranges {
            copier.add_object(file, object_space(*id), *range)?;
        }
    }
    copier.send()
}

struct Copier<'a> {
    writer: &'a ImageWriter,
    batch: PageBatch,
    /// Ranges pushed to the batch and not read yet; they stand at its end.
    ranges: Vec<(Address, ByteCount)>,
    /// Bytes of the batch before those.
    filled: usize,
}

impl Copier<'_> {
    fn add(&mut self, pid: Pid, space: SpaceId, range: AddressRange) -> Result<()> {
        let mut start = range.start;
        while start < range.end {
            if self.batch.room() == PageCount(0) || self.ranges.len() == RANGES_PER_CALL {
                self.flush(pid)?;
                self.send()?;
            }
            let pages = pages_that_fit(&self.batch, start, range.end);
            let pushed = self.batch.push(space, start, pages);
            debug_assert!(pushed.is_some(), "the pages were cut to fit");
            self.ranges.push((start, pages.bytes()));
            start = start + pages.bytes();
        }
        Ok(())
    }

    /// Reads all pending ranges with one scattered read.
    fn flush(&mut self, pid: Pid) -> Result<()> {
        let bytes = self.batch.bytes_mut();
        if !self.ranges.is_empty() {
            process_memory::read_scattered(pid, &self.ranges, &mut bytes[self.filled..])?;
            self.ranges.clear();
        }
        self.filled = bytes.len();
        Ok(())
    }

    fn send(&mut self) -> Result<()> {
        if !self.batch.is_empty() {
            let full = std::mem::replace(&mut self.batch, self.writer.buffer()?);
            self.writer.append(full)?;
            self.filled = 0;
        }
        Ok(())
    }

    fn add_hidden(&mut self, memory: &ProcessMemory, space: SpaceId, range: AddressRange) -> Result<()> {
        self.add_with(space, range, |start, bytes| memory.read(start, bytes))
    }

    fn add_object(&mut self, file: &File, space: SpaceId, range: AddressRange) -> Result<()> {
        self.add_with(space, range, |start, bytes| read_padded(file, start, bytes))
    }

    fn add_with(
        &mut self,
        space: SpaceId,
        range: AddressRange,
        mut fill: impl FnMut(Address, &mut [u8]) -> std::result::Result<(), Error>,
    ) -> Result<()> {
        debug_assert!(self.ranges.is_empty(), "pending ranges stand at the end of the batch");
        let mut start = range.start;
        while start < range.end {
            if self.batch.room() == PageCount(0) {
                self.send()?;
            }
            let pages = pages_that_fit(&self.batch, start, range.end);
            if let Some(bytes) = self.batch.push(space, start, pages) {
                fill(start, bytes)?;
            }
            self.filled += pages.bytes().get() as usize;
            start = start + pages.bytes();
        }
        Ok(())
    }
}

fn pages_that_fit(batch: &PageBatch, start: Address, end: Address) -> PageCount {
    PageCount(batch.room().get().min((end - start).get() / PAGE_BYTES))
}

/// Reads from a file; what lies behind its end within the last page is zero.
fn read_padded(file: &File, start: Address, bytes: &mut [u8]) -> std::result::Result<(), Error> {
    let mut done = 0;
    while done < bytes.len() {
        let read = file
            .read_at(&mut bytes[done..], start.get() + done as u64)
            .map_err(|error| Error::new("read a memory object", error))?;
        if read == 0 {
            bytes[done..].fill(0);
            break;
        }
        done += read;
    }
    Ok(())
}

/// Ranges of a file that hold data, in whole pages.
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
