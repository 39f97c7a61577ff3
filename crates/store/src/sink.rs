//! The port through which a checkpoint leaves its subject.
//!
//! Owns: the traits `CheckpointSink`, `OpenCheckpoint`, `PageSink`. The log, the image folder and memory are sinks.
//! Invariants: a later copy of a page supersedes an earlier one; nothing of a checkpoint is visible before its commit,
//! and a checkpoint that is dropped instead leaves nothing.
//! Does not: capture.

use std::time::Duration;

use image::{RecordSet, SpaceId};
use model::{AddressRange, PageCount, Sequence};

use crate::batch::PageBatch;
use crate::error::Result;
use crate::log::here::Ticket;
use crate::meta::CommitMeta;

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

/// A checkpoint that is being taken. Copiers on several threads may share it by reference.
pub trait OpenCheckpoint: PageSink + Sync {
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
    /// One more for the pause, as a rule made now. It counts as one of `reserve` until the next call of that.
    fn extend_reserve(&self) -> Result<PageBatch> {
        self.spare()
    }
    /// An empty buffer that is here already, if there is one.
    fn free_buffer(&self) -> Result<Option<PageBatch>> {
        Ok(None)
    }
    /// Whether `free_buffer` makes one now, which takes as long as clearing its memory does.
    fn has_to_make(&self) -> bool {
        false
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
