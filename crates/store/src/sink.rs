//! The interface that receives the pages and records of checkpoints. An implementation is called a *sink*: the log, the
//! image directory, or checkpoints in memory.
//!
//! Owns: the traits `CheckpointSink`, `OpenCheckpoint` and `PageSink`.
//! Invariants: if a page is appended twice, the second copy replaces the first. No part of a checkpoint is visible
//! before its commit. A checkpoint that is dropped without a commit leaves no data behind.
//! Does not: capture a process.

use std::time::Duration;

use image::{RecordSet, SpaceId};
use model::{AddressRange, PageCount, Sequence};

use crate::batch::PageBatch;
use crate::error::Result;
use crate::log::here::Ticket;
use crate::meta::CommitMeta;

/// The initial content of a new checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Base {
    /// No pages: only appended pages belong to the checkpoint.
    Nothing,
    /// The pages of the previous checkpoint.
    Newest,
}

/// Receives the checkpoints of one subject in sequence.
pub trait CheckpointSink {
    /// Begins a checkpoint. Returns `None` if the sink has too many unfinished checkpoints.
    ///
    /// # Errors
    ///
    /// Returns `Exists` if the sequence number is not higher than all earlier sequence numbers, or the error of an
    /// earlier checkpoint.
    fn begin(&self, sequence: Sequence, base: Base) -> Result<Option<Box<dyn OpenCheckpoint>>>;
}

/// A checkpoint that is being captured. Copiers in several threads may share the checkpoint by reference.
pub trait OpenCheckpoint: PageSink + Sync {
    /// Commits the checkpoint with the appended pages and these records. May return before the checkpoint is durable.
    /// The ticket reports when the checkpoint is durable.
    ///
    /// # Errors
    ///
    /// Returns the first error of this checkpoint. After an error, the sink keeps no data of this checkpoint.
    fn commit(self: Box<Self>, records: RecordSet, meta: CommitMeta) -> Result<Ticket>;
}

/// Lends empty buffers, and receives the buffers when they are filled with pages. If an appended page cannot be
/// written, any following call of a method may return the error.
pub trait PageSink {
    /// Returns an empty buffer. Waits if no buffer is free.
    fn buffer(&self) -> Result<PageBatch>;
    /// Returns an empty buffer for this number of pages. For few pages, the buffer may be smaller than usual, because
    /// the allocation of a usual buffer would cost more than the copying.
    fn buffer_for(&self, _pages: PageCount) -> Result<PageBatch> {
        self.buffer()
    }
    /// Receives a filled buffer.
    fn append(&self, batch: PageBatch) -> Result<()>;
    /// Receives a buffer that is not full. A following call of `buffer` may return this buffer, with its pages, for
    /// more pages.
    fn keep(&self, batch: PageBatch) -> Result<()> {
        self.append(batch)
    }
    /// Returns `count` empty buffers for a pause. Waits until all of these buffers are available.
    fn reserve(&self, count: usize) -> Result<Vec<PageBatch>> {
        (0..count).map(|_| self.spare()).collect()
    }
    /// Returns one more empty buffer for the pause, usually a newly allocated one. The buffer belongs to the reserve
    /// until the next call of `reserve`.
    fn extend_reserve(&self) -> Result<PageBatch> {
        self.spare()
    }
    /// Returns an empty buffer if one is available without waiting.
    fn free_buffer(&self) -> Result<Option<PageBatch>> {
        Ok(None)
    }
    /// Reports whether `free_buffer` would have to allocate a buffer now. An allocation is slow, because the kernel
    /// clears the memory.
    fn has_to_make(&self) -> bool {
        false
    }
    /// Allocates an additional empty buffer. Never waits.
    fn spare(&self) -> Result<PageBatch> {
        self.buffer()
    }
    /// Allocates buffers for this number of pages before the pause. Allocates fewer buffers if the limits would require
    /// a wait. In a pause, one allocation would take as long as copying hundreds of pages. If the kernel must compact
    /// memory for the allocation, the allocation takes many times longer.
    fn prepare(&self, _pages: PageCount) -> Result<()> {
        Ok(())
    }
    /// Waits until the buffers that were allocated beyond the pool and the reserve are written, so that a checkpoint with
    /// many pauses does not allocate more for each of them. The caller has `here` empty buffers. Must not be called while the
    /// subject is stopped.
    fn settle(&self, _here: usize) -> Result<()> {
        Ok(())
    }
    /// Takes back an unused buffer.
    fn put_back(&self, _batch: PageBatch) {}
    /// Returns the number of pages in a buffer.
    fn buffer_pages(&self) -> PageCount;
    /// Sets the maximum time of all following waits together, so that a slow store cannot block the caller forever. A
    /// limit means that the subject may be stopped: during such a wait, the store waits for nothing to keep its maximum
    /// size. `None` removes the limit.
    fn limit_waits(&self, _wait_max: Option<Duration>) {}
    /// Removes a range of pages from the checkpoint. If a page of this range is appended after the removal, the page
    /// belongs to the checkpoint again. Waits while too many removals are queued.
    fn discard(&self, space: SpaceId, range: AddressRange) -> Result<()>;
}
