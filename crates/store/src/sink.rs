//! The port through which a checkpoint leaves its subject, and what is behind it.
//!
//! Owns: the traits `CheckpointSink`, `OpenCheckpoint`, `PageSink`; the log and the image folder as sinks.
//! Invariants: a later copy of a page supersedes an earlier one; nothing of a checkpoint is visible before its commit,
//! and a checkpoint that is dropped instead leaves nothing.
//! Does not: capture.

use std::time::Duration;

use image::{RecordSet, SpaceId};
use model::{AddressRange, PageCount, Sequence};

use crate::batch::PageBatch;
use crate::error::Result;
use crate::log::{Epoch, LogCommitted, LogWriter, Ticket};
use crate::writer::{CommitMeta, ImageWriter};

/// What a checkpoint begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// Nothing: only pages that are appended are part of it.
    Nothing,
    /// The pages of the checkpoint before.
    Newest,
}

/// A place for the checkpoints of one subject, one after the other.
pub trait CheckpointSink {
    /// Begins a checkpoint. `None` when the sink does not keep up.
    ///
    /// # Errors
    ///
    /// `Exists` when the number is not above all before; what went wrong with earlier checkpoints.
    fn begin(&self, sequence: Sequence, base: Base) -> Result<Option<Box<dyn OpenCheckpoint>>>;
}

/// A checkpoint that is being taken.
pub trait OpenCheckpoint: PageSink {
    /// Makes a checkpoint of the pages and these records. May return before it is durable; the ticket says when.
    ///
    /// # Errors
    ///
    /// What went wrong so far; nothing is left behind then.
    fn commit(self: Box<Self>, records: RecordSet, meta: CommitMeta) -> Result<Ticket>;
}

/// What takes copied pages, in buffers that it lends. Every method may fail with what went wrong with pages appended
/// earlier.
pub trait PageSink {
    /// An empty buffer; waits for one if it must.
    fn buffer(&self) -> Result<PageBatch>;
    /// An empty buffer for so many pages, where one of the usual size costs more than to copy these.
    fn buffer_for(&self, _pages: PageCount) -> Result<PageBatch> {
        self.buffer()
    }
    /// Takes over a filled one.
    fn append(&self, batch: PageBatch) -> Result<()>;
    /// Takes over one that has room left, and may give it again as the next.
    fn keep(&self, batch: PageBatch) -> Result<()> {
        self.append(batch)
    }
    /// So many empty buffers for a pause; waits for them if it must.
    fn reserve(&self, count: usize) -> Result<Vec<PageBatch>> {
        (0..count).map(|_| self.spare()).collect()
    }
    /// An empty buffer that is here already, if there is one.
    fn free_buffer(&self) -> Result<Option<PageBatch>> {
        Ok(None)
    }
    /// An empty buffer made now, beside all others; never waits.
    fn spare(&self) -> Result<PageBatch> {
        self.buffer()
    }
    /// Has buffers at hand for so many pages, as far as limits allow without a wait: to make one inside a stop takes
    /// as long as to copy hundreds of pages, and many times that where memory has to be compacted for it.
    fn prepare(&self, _pages: PageCount) -> Result<()> {
        Ok(())
    }
    /// Takes back one that was not needed.
    fn put_back(&self, _batch: PageBatch) {}
    /// How many pages a buffer holds.
    fn buffer_pages(&self) -> PageCount;
    /// How long a caller may wait for one buffer from now on, where a store may not keep up for ever.
    fn limit_waits(&self, _wait_max: Option<Duration>) {}
    /// Takes a range out of the checkpoint; what is appended later is in again. Waits while too many are waiting to be
    /// taken out.
    fn discard(&self, space: SpaceId, range: AddressRange) -> Result<()>;
}

impl CheckpointSink for LogWriter {
    fn begin(&self, sequence: Sequence, base: Base) -> Result<Option<Box<dyn OpenCheckpoint>>> {
        let epoch = match base {
            Base::Nothing => self.begin_full(sequence)?,
            Base::Newest => self.begin(sequence)?,
        };
        Ok(epoch.map(|epoch| Box::new(epoch) as Box<dyn OpenCheckpoint>))
    }
}

impl OpenCheckpoint for Epoch {
    fn commit(self: Box<Self>, records: RecordSet, meta: CommitMeta) -> Result<Ticket> {
        self.finish(records, meta)
    }
}

impl PageSink for Epoch {
    fn buffer(&self) -> Result<PageBatch> {
        self.buffer()
    }

    fn append(&self, batch: PageBatch) -> Result<()> {
        self.append(batch)
    }

    fn reserve(&self, count: usize) -> Result<Vec<PageBatch>> {
        self.reserve(count)
    }

    fn free_buffer(&self) -> Result<Option<PageBatch>> {
        self.try_buffer()
    }

    fn spare(&self) -> Result<PageBatch> {
        self.spare()
    }

    fn put_back(&self, batch: PageBatch) {
        self.put_back(batch);
    }

    fn buffer_pages(&self) -> PageCount {
        self.buffer_pages()
    }

    fn limit_waits(&self, wait_max: Option<Duration>) {
        self.limit_waits(wait_max);
    }

    fn discard(&self, space: SpaceId, range: AddressRange) -> Result<()> {
        const POLL: Duration = Duration::from_micros(20);
        while !self.drop_range(space, range)? {
            std::thread::sleep(POLL);
        }
        Ok(())
    }
}

impl OpenCheckpoint for ImageWriter {
    /// Returns when it is durable.
    fn commit(self: Box<Self>, records: RecordSet, meta: CommitMeta) -> Result<Ticket> {
        let done = self.finish(&records, meta)?;
        Ok(Ticket::answered(LogCommitted::alone(done.commit, done.timings)))
    }
}

impl PageSink for ImageWriter {
    fn buffer(&self) -> Result<PageBatch> {
        self.buffer()
    }

    fn buffer_for(&self, pages: PageCount) -> Result<PageBatch> {
        self.buffer_for(pages)
    }

    fn append(&self, batch: PageBatch) -> Result<()> {
        self.append(batch)
    }

    /// Not of the pool: the worker needs all of it.
    fn spare(&self) -> Result<PageBatch> {
        self.spare()
    }

    fn buffer_pages(&self) -> PageCount {
        self.buffer_pages()
    }

    fn discard(&self, space: SpaceId, range: AddressRange) -> Result<()> {
        self.discard(space, range)
    }
}
