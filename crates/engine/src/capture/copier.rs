//! Copies pages into buffers, and hands the buffers on.
//!
//! Owns: the loops that copy, and a sink for scans that copy nothing.
//! Invariants: every page that is handed on was read completely. Removing a page from a checkpoint affects earlier
//! copies only, not later ones.
//! Does not: choose pages; hash, compress or write, which the threads of the sink do.

use std::fs::File;
use std::os::unix::fs::FileExt;

use image::SpaceId;
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount, Pid};
use store::PageBatch;
pub(super) use store::PageSink;
use sys::Error;
use sys::process_memory::{self, RANGES_PER_CALL};

use crate::error::Result;

/// Takes nothing: for looks at a subject that copy nothing of it.
pub(super) struct Nowhere;

impl PageSink for Nowhere {
    fn buffer(&self) -> store::Result<PageBatch> {
        Err(Error::new("copy without a place to copy to", sys::Errno::EINVAL).into())
    }

    fn append(&self, _: PageBatch) -> store::Result<()> {
        Ok(())
    }

    fn buffer_pages(&self) -> PageCount {
        PageCount(0)
    }

    fn discard(&self, _: SpaceId, _: AddressRange) -> store::Result<()> {
        Ok(())
    }
}

/// Pages on their way from a process into buffers.
pub(super) struct Copier<'a> {
    sink: &'a dyn PageSink,
    batch: PageBatch,
    /// Ranges pushed to the batch and not read yet; they stand at its end.
    ranges: Vec<(Address, ByteCount)>,
    /// Bytes of the batch before those.
    filled: usize,
    /// The batch holds pages of an earlier copier.
    is_continued: bool,
    /// What could not be read; without it, that is an error.
    failed: Option<Vec<AddressRange>>,
}

impl<'a> Copier<'a> {
    pub(super) fn new(sink: &'a dyn PageSink, first: PageBatch) -> Self {
        let (filled, is_continued) = (first.filled().bytes().get() as usize, !first.is_empty());
        Self { sink, batch: first, ranges: Vec::new(), filled, is_continued, failed: None }
    }

    /// One that leaves out what cannot be read, and says so in the end.
    pub(super) fn tolerant(sink: &'a dyn PageSink, first: PageBatch) -> Self {
        Self { failed: Some(Vec::new()), ..Self::new(sink, first) }
    }

    /// What could not be read since this was last asked.
    pub(super) fn take_failed(&mut self) -> Vec<AddressRange> {
        self.failed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn add(&mut self, pid: Pid, space: SpaceId, range: AddressRange) -> Result<()> {
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
    pub(super) fn flush(&mut self, pid: Pid) -> Result<()> {
        let bytes = self.batch.bytes_mut();
        let end = bytes.len();
        if !self.ranges.is_empty() {
            match process_memory::read_scattered(pid, &self.ranges, &mut bytes[self.filled..]) {
                Err(_) if self.failed.is_some() => self.read_one_by_one(pid),
                outcome => outcome?,
            }
            self.ranges.clear();
        }
        self.filled = end;
        Ok(())
    }

    fn read_one_by_one(&mut self, pid: Pid) {
        let mut failed = Vec::new();
        let mut at = self.filled;
        for (address, length) in &self.ranges {
            let end = at + length.get() as usize;
            if process_memory::read(pid, *address, &mut self.batch.bytes_mut()[at..end]).is_err() {
                failed.push(AddressRange::new(*address, *address + *length));
            }
            at = end;
        }
        let pending_from = PageCount(self.filled as u64 / PAGE_BYTES);
        self.batch.retain(|piece| {
            piece.at < pending_from || !failed.iter().any(|range| range.start == piece.start)
        });
        self.failed.get_or_insert_default().append(&mut failed);
    }

    /// Pages that the buffer takes before it is handed on.
    pub(super) fn room(&self) -> PageCount {
        self.batch.room()
    }

    /// Hands on a full buffer of which all is read; false if that needs a wait for the next one and `may_wait` is not
    /// set.
    pub(super) fn make_room(&mut self, may_wait: bool) -> Result<bool> {
        if self.room() > PageCount(0) {
            return Ok(true);
        }
        if may_wait || self.batch.is_empty() {
            return self.send().map(|()| true);
        }
        let next = self.sink.free_buffer()?;
        let has_next = next.is_some();
        next.map_or(Ok(()), |next| self.send_for(next))?;
        Ok(has_next)
    }

    pub(super) fn send(&mut self) -> Result<()> {
        if self.batch.is_empty() {
            // What was left out has taken room all the same.
            self.batch.clear();
            self.filled = 0;
            return Ok(());
        }
        let next = self.sink.buffer()?;
        self.send_for(next)
    }

    fn send_for(&mut self, next: PageBatch) -> Result<()> {
        let full = std::mem::replace(&mut self.batch, next);
        self.sink.append(full)?;
        self.filled = self.batch.filled().bytes().get() as usize;
        self.is_continued = false;
        Ok(())
    }

    /// Takes a range out of the checkpoint that this copier was given nothing of.
    pub(super) fn discard(&mut self, pid: Pid, space: SpaceId, range: AddressRange) -> Result<()> {
        if self.is_continued {
            self.flush(pid)?;
            self.send()?;
        }
        Ok(self.sink.discard(space, range)?)
    }

    /// Hands on what is left, and the buffer with it: a log lends only so many.
    pub(super) fn finish(self) -> Result<()> {
        debug_assert!(self.ranges.is_empty(), "pending ranges were flushed");
        Ok(self.sink.keep(self.batch)?)
    }

    /// What is left, to be handed on after the pause: that wakes threads, which would run before it ends.
    pub(super) fn into_rest(self) -> PageBatch {
        debug_assert!(self.ranges.is_empty(), "pending ranges were flushed");
        self.batch
    }

    /// Adds pages that `fill` reads.
    pub(super) fn add_with(
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
pub(super) fn read_padded(file: &File, start: Address, bytes: &mut [u8]) -> std::result::Result<(), Error> {
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
