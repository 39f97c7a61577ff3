//! The interface that receives the pages and records of checkpoints. An implementation is called a *sink*: the log or
//! the image directory. Other crates can implement a sink, for example one that sends checkpoints to another machine.
//!
//! Owns: the traits `CheckpointSink`, `OpenCheckpoint` and `PageSink`.
//! Invariants: if a page is passed twice, the second copy replaces the first. No part of a checkpoint is visible before
//! its commit. A checkpoint that is dropped without a commit leaves no data behind.
//! Does not: capture a process, or lend buffers; [`PagePool`] does.

use image::{RecordSet, SpaceId};
use model::{AddressRange, Sequence};

use crate::batch::{PageBatch, PageChange};
use crate::error::Result;
use crate::log::here::Ticket;
use crate::meta::CommitMeta;
use crate::pool::PagePool;
use crate::scheduler::Urgency;

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
    /// Begins a checkpoint. All its writes are at least as urgent as `urgency`. Returns `None` if the sink has too many
    /// unfinished checkpoints.
    ///
    /// # Errors
    ///
    /// Returns `Exists` if the sequence number is not higher than all earlier sequence numbers, or the error of an
    /// earlier checkpoint.
    fn begin(
        &self,
        sequence: Sequence,
        base: Base,
        urgency: Urgency,
    ) -> Result<Option<Box<dyn OpenCheckpoint>>>;
}

/// A checkpoint that is being captured. Copiers in several threads may share the checkpoint by reference.
pub trait OpenCheckpoint: PageSink + Sync {
    /// Commits the checkpoint with the passed pages and these records. May return before the checkpoint is durable.
    /// The ticket reports when the checkpoint is durable.
    ///
    /// # Errors
    ///
    /// Returns the first error of this checkpoint. After an error, the sink keeps no data of this checkpoint.
    fn commit(self: Box<Self>, records: RecordSet, meta: CommitMeta) -> Result<Ticket>;
}

/// Receives the pages of a checkpoint, in buffers that its pool lends.
pub trait PageSink {
    /// Returns the pool that lends the buffers. The sink puts each buffer back when its pages are written.
    fn pool(&self) -> &PagePool;

    /// Receives a change. Waits while too many removals are queued. If a page cannot be written, any following call of a
    /// method may return the error.
    fn apply(&self, change: PageChange) -> Result<()>;

    /// Adds the pages of a batch.
    fn append(&self, batch: PageBatch) -> Result<()> {
        self.apply(PageChange::Pages(batch))
    }

    /// Removes a range of pages.
    fn discard(&self, space: SpaceId, range: AddressRange) -> Result<()> {
        self.apply(PageChange::Discard(space, range))
    }
}
