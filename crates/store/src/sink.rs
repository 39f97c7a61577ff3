//! The interface that receives the pages and records of checkpoints. The log, the image directory and memory implement
//! this interface.
//!
//! Owns: the traits `CheckpointSink`, `OpenCheckpoint` and `PageSink`.
//! Invariants: a later copy of a page replaces an earlier copy. No part of a checkpoint is visible before its commit. A
//! checkpoint that is dropped without a commit leaves no data behind.
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

/// Receives the checkpoints of one subject (a protected process tree) in sequence.
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
    /// Commits a checkpoint with the appended pages and these records. May return before the checkpoint is durable; the
    /// ticket reports when the checkpoint is durable.
    ///
    /// # Errors
    ///
    /// Returns the first error of this checkpoint. After an error, no data remains.
    fn commit(self: Box<Self>, records: RecordSet, meta: CommitMeta) -> Result<Ticket>;
}

/// Lends buffers and receives them filled with copied pages. Every method may fail with an error of pages that were
/// appended earlier.
pub trait PageSink {
    /// Returns an empty buffer. Waits if no buffer is free.
    fn buffer(&self) -> Result<PageBatch>;
    /// Returns an empty buffer for this number of pages. May return a smaller buffer than `buffer`, if allocating a
    /// buffer of the usual size costs more than copying the pages.
    fn buffer_for(&self, _pages: PageCount) -> Result<PageBatch> {
        self.buffer()
    }
    /// Receives a filled buffer.
    fn append(&self, batch: PageBatch) -> Result<()>;
    /// Receives a buffer that is not full. A later call of `buffer` may return the same buffer.
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
    /// Reports whether `free_buffer` would allocate a buffer now. An allocation takes as long as clearing the memory.
    fn has_to_make(&self) -> bool {
        false
    }
    /// Allocates an additional empty buffer. Never waits.
    fn spare(&self) -> Result<PageBatch> {
        self.buffer()
    }
    /// Takes buffers for this number of pages in advance, as far as limits allow without a wait. While the subject is
    /// stopped, an allocation takes as long as copying hundreds of pages. If the kernel must compact memory first, the
    /// allocation takes many times longer.
    fn prepare(&self, _pages: PageCount) -> Result<()> {
        Ok(())
    }
    /// Takes back an unused buffer.
    fn put_back(&self, _batch: PageBatch) {}
    /// Returns the number of pages in a buffer.
    fn buffer_pages(&self) -> PageCount;
    /// Limits the time that a caller may wait for one buffer, from now on. A slow store then cannot block the caller
    /// forever.
    fn limit_waits(&self, _wait_max: Option<Duration>) {}
    /// Removes a range of pages from the checkpoint. Pages that are appended later are part of the checkpoint again.
    /// Waits while too many removals are queued.
    fn discard(&self, space: SpaceId, range: AddressRange) -> Result<()>;
}
