//! Copies pages into buffers, and passes the buffers to a sink.
//!
//! Owns: the loops that copy, and a sink for scans that copy no pages.
//! Invariants: every page that is passed on was read completely. Removing a page from a checkpoint removes
//! earlier copies of the page, not later copies.
//! Does not: choose pages; hash, compress or write pages, which the threads of the sink do.

use std::fs::File;
use std::os::unix::fs::FileExt;

use image::SpaceId;
use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount, Pid};
pub(super) use store::PageSink;
use store::{BufferStock, PageBatch, PageChange, PagePool, Waits};
use sys::Error;
use sys::process_memory::{self, RANGES_PER_CALL};

use super::address_space::AddressSpace;
use super::reserve::Reserve;
use super::shared_pages;
use crate::error::Result;

/// A sink that accepts no pages, for scans that copy no pages.
pub(super) struct NullSink(PagePool);

impl NullSink {
    pub(super) fn new() -> Self {
        Self(PagePool::new(0, BufferStock::new(PageCount(1)), Waits::Never))
    }
}

impl PageSink for NullSink {
    fn pool(&self) -> &PagePool {
        &self.0
    }

    fn apply(&self, _: PageChange) -> store::Result<()> {
        Ok(())
    }
}

/// Copies pages from a process into buffers of a sink.
pub(super) struct Copier<'a> {
    sink: &'a Reserve<'a>,
    batch: PageBatch,
    /// Ranges that were pushed to the batch and are not read yet. They are at the end of the batch.
    ranges: Vec<(Address, ByteCount)>,
    /// The number of bytes in the batch before the pending ranges.
    filled: usize,
    /// `true` if the batch contains pages of an earlier copier.
    is_continued: bool,
    /// Ranges that could not be read. With `None`, a failed read is an error.
    failed: Option<Vec<AddressRange>>,
    /// The minimum length of ranges that are searched for shared pages.
    shared_min: PageCount,
}

impl<'a> Copier<'a> {
    pub(super) fn new(sink: &'a Reserve<'a>, first: PageBatch) -> Self {
        let (filled, is_continued) = (first.filled().bytes().get() as usize, !first.is_empty());
        let (ranges, failed, shared_min) = (Vec::new(), None, PageCount(1));
        Self { sink, batch: first, ranges, filled, is_continued, failed, shared_min }
    }

    /// Creates a copier that skips ranges that cannot be read. `take_failed` returns these ranges.
    pub(super) fn tolerant(sink: &'a Reserve<'a>, first: PageBatch) -> Self {
        Self { failed: Some(Vec::new()), ..Self::new(sink, first) }
    }

    /// Makes the copier search only long ranges for shared pages, because the subject is stopped.
    pub(super) fn in_pause(self) -> Self {
        Self { shared_min: shared_pages::PAUSE_PAGES_MIN, ..self }
    }

    /// Returns the ranges that could not be read since the last call of this function.
    pub(super) fn take_failed(&mut self) -> Vec<AddressRange> {
        self.failed.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Adds pages of a process. Pages that several processes share copy-on-write stay shared.
    pub(super) fn add(&mut self, pid: Pid, space: &AddressSpace, range: AddressRange) -> Result<()> {
        for (part, is_shared) in shared_pages::parts(space, range, self.shared_min) {
            if is_shared {
                self.flush(pid)?;
                self.add_shared(space, part)?;
            } else {
                self.add_pending(pid, space.id, part)?;
            }
        }
        Ok(())
    }

    fn add_pending(&mut self, pid: Pid, space: SpaceId, range: AddressRange) -> Result<()> {
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

    /// Reads all pending ranges with one scattered read (process_vm_readv(2)).
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
        let mut failed = read_one_by_one(pid, &self.ranges, &mut self.batch, self.filled);
        self.failed.get_or_insert_default().append(&mut failed);
    }

    /// Returns the number of pages that still fit into the present buffer.
    pub(super) fn room(&self) -> PageCount {
        self.batch.room()
    }

    /// Passes a full buffer to the sink and gets another buffer. Does nothing if the buffer has room. All
    /// pages in the buffer must have been read. Returns `false` if no other buffer is available without
    /// waiting and `may_wait` is `false`.
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
            // Removed pages still occupy the buffer.
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

    /// Removes a range from the checkpoint. The caller must not have added pages of this range to this
    /// copier. Pages of an earlier copier in the batch are passed on first, so that the removal also affects
    /// these pages.
    pub(super) fn discard(&mut self, pid: Pid, space: SpaceId, range: AddressRange) -> Result<()> {
        if self.is_continued {
            self.flush(pid)?;
            self.send()?;
        }
        Ok(self.sink.discard(space, range)?)
    }

    /// Returns the last buffer to the sink, also if the buffer is empty, because a log has a limited number
    /// of buffers.
    pub(super) fn finish(self) -> Result<()> {
        debug_assert!(self.ranges.is_empty(), "pending ranges were flushed");
        Ok(self.sink.keep(self.batch)?)
    }

    /// Returns the last buffer. The caller passes it to the sink after the pause, because an append wakes
    /// threads, which would take processor time in the pause.
    pub(super) fn into_last_buffer(self) -> PageBatch {
        debug_assert!(self.ranges.is_empty(), "pending ranges were flushed");
        self.batch
    }

    /// Adds pages. `fill` reads the content of the pages.
    pub(super) fn add_with(
        &mut self,
        space: SpaceId,
        range: AddressRange,
        fill: impl FnMut(Address, &mut [u8]) -> std::result::Result<(), Error>,
    ) -> Result<()> {
        self.add_marked(space, range, false, fill)
    }

    /// Adds pages that several processes share.
    fn add_shared(&mut self, space: &AddressSpace, range: AddressRange) -> Result<()> {
        self.add_marked(space.id, range, true, |start, bytes| space.memory.read(start, bytes))
    }

    fn add_marked(
        &mut self,
        space: SpaceId,
        range: AddressRange,
        is_shared: bool,
        mut fill: impl FnMut(Address, &mut [u8]) -> std::result::Result<(), Error>,
    ) -> Result<()> {
        debug_assert!(self.ranges.is_empty(), "pending ranges stand at the end of the batch");
        let mut start = range.start;
        while start < range.end {
            if self.batch.room() == PageCount(0) {
                self.send()?;
            }
            let pages = pages_that_fit(&self.batch, start, range.end);
            let at = self.batch.filled();
            let outcome = self.batch.push(space, start, pages).map_or(Ok(()), |bytes| fill(start, bytes));
            if is_shared {
                self.batch.mark_shared();
            }
            if let (Err(_), Some(failed)) = (&outcome, &mut self.failed) {
                failed.push(AddressRange::new(start, start + pages.bytes()));
                self.batch.retain(|piece| piece.at != at);
            } else {
                outcome?;
            }
            self.filled += pages.bytes().get() as usize;
            start = start + pages.bytes();
        }
        Ok(())
    }
}

/// Reads ranges whose pages are the last ones of a batch, from byte `filled` on. Removes the ranges that cannot be read
/// from the batch, and returns them.
pub(super) fn read_one_by_one(
    pid: Pid,
    ranges: &[(Address, ByteCount)],
    batch: &mut PageBatch,
    filled: usize,
) -> Vec<AddressRange> {
    let mut failed = Vec::new();
    let mut at = filled;
    for (address, length) in ranges {
        let end = at + length.get() as usize;
        if process_memory::read(pid, *address, &mut batch.bytes_mut()[at..end]).is_err() {
            failed.push(AddressRange::new(*address, *address + *length));
        }
        at = end;
    }
    let pending_from = PageCount(filled as u64 / PAGE_BYTES);
    batch.retain(|piece| piece.at < pending_from || !failed.iter().any(|range| range.start == piece.start));
    failed
}

fn pages_that_fit(batch: &PageBatch, start: Address, end: Address) -> PageCount {
    PageCount(batch.room().get().min((end - start).get() / PAGE_BYTES))
}

/// Reads from a file. Bytes beyond the end of the file are set to zero.
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
