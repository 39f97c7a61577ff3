//! Binds the state of watched files to a checkpoint, inside its pause.
//!
//! Owns: which open descriptions and mappings are reported to the watch, and when.
//! Invariants: they are reported once in each pause, when no thread of the tree runs and every duplicate is open. After
//! each such pause, the watch is told that the tree runs again.
//! Does not: watch; `undo` does.

use std::sync::Arc;

use model::Sequence;
use resource::files::MappedForWriting;
use undo::watch::{Boundary, MappedFile, OpenFile, Watch};

use super::before::Before;

/// Tells the watch that the tree runs again, when it is dropped.
#[derive(Debug)]
pub(super) struct AfterPause(Arc<Watch>);

impl Drop for AfterPause {
    fn drop(&mut self) {
        self.0.after_pause();
    }
}

/// The watch over the files of a subject, if there is one.
#[derive(Default)]
pub(super) struct Watched {
    watch: Option<Arc<Watch>>,
    sequence: Sequence,
    /// The answer of the last pause.
    boundary: Option<Boundary>,
    /// In a pause of which the watch was told.
    after: Option<AfterPause>,
}

impl Watched {
    pub(super) fn new(watch: Arc<Watch>) -> Self {
        Self { watch: Some(watch), ..Self::default() }
    }

    /// The checkpoint that the next pauses are for.
    pub(super) fn begin(&mut self, sequence: Sequence) {
        self.sequence = sequence;
        self.boundary = None;
    }

    /// Inside the pause, before the duplicates are closed.
    ///
    /// The capture may still fail. A boundary whose checkpoint is never committed does no harm, since a restart goes
    /// back to committed checkpoints only. A retry within the same epoch has the same sequence number: the log of
    /// `undo` uses the last boundary of a number.
    pub(super) fn bind(&mut self, before: &Before) {
        let Some(watch) = &self.watch else { return };
        let open: Vec<OpenFile<'_>> = before.descriptors.open_for_writing();
        let mapped = before.descriptors.mapped_for_writing();
        let mapped: Vec<MappedFile<'_>> = mapped
            .iter()
            .filter(|file| !before.objects.is_memory_file(file.key))
            .map(|MappedForWriting { key, path, is_writable }| MappedFile {
                device: key.device,
                inode: key.inode.get(),
                path,
                is_writable: *is_writable,
            })
            .collect();
        self.after.get_or_insert_with(|| AfterPause(Arc::clone(watch)));
        self.boundary = Some(watch.boundary(self.sequence, &open, &mapped));
    }

    /// The tree runs again.
    pub(super) fn resumed(&mut self) {
        self.after = None;
    }

    /// The tree stays stopped. What is returned tells the watch when that ends.
    pub(super) fn hold(&mut self) -> Option<AfterPause> {
        self.after.take()
    }

    /// The answer for the checkpoint that was taken.
    pub(super) fn take(&mut self) -> Option<Boundary> {
        self.boundary.take()
    }
}
