//! Binds the state of watched files to a checkpoint, inside its pause.
//!
//! Owns: which open file descriptions and mappings are reported to the watch, and when. The watch is the part
//! of the crate `undo` that records the earlier state of changed files.
//! Invariants: descriptions and mappings are reported once in each pause, when no thread of the tree runs and
//! every duplicate is open. After each such pause, the watch receives a notification that the tree runs
//! again.
//! Does not: watch; `undo` does.

use std::sync::Arc;

use model::Sequence;
use resource::files::MappedForWriting;
use undo::watch::{Boundary, CheckpointWatch, MappedFile, OpenFile};

use super::before::Before;

/// Notifies the watch that the tree runs again, when the value is dropped.
#[derive(Debug)]
pub(super) struct AfterPause(Arc<dyn CheckpointWatch>);

impl Drop for AfterPause {
    fn drop(&mut self) {
        self.0.after_pause();
    }
}

/// The watch over the files of a subject, if there is one.
#[derive(Default)]
pub(super) struct Watched {
    watch: Option<Arc<dyn CheckpointWatch>>,
    sequence: Sequence,
    /// The boundary that the watch returned in the last pause. It says whether a rollback of files to the
    /// checkpoint is exact.
    boundary: Option<Boundary>,
    /// `Some` in a pause that was reported to the watch.
    after: Option<AfterPause>,
}

impl Watched {
    pub(super) fn new(watch: Arc<dyn CheckpointWatch>) -> Self {
        Self { watch: Some(watch), ..Self::default() }
    }

    /// Begins a checkpoint, to which the next pauses belong.
    pub(super) fn begin(&mut self, sequence: Sequence) {
        self.sequence = sequence;
        self.boundary = None;
    }

    /// Reports the open files and mappings to the watch. Called inside the pause, before the duplicates are
    /// closed.
    ///
    /// The capture may still fail. A boundary whose checkpoint is never committed does no harm, because a
    /// restart rolls back to committed checkpoints only. A retry of the same checkpoint has the same sequence
    /// number. The log of `undo` uses the last boundary of a sequence number.
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
        self.boundary = watch.boundary(self.sequence, &open, &mapped);
    }

    /// Notifies the watch that the tree runs again.
    pub(super) fn resumed(&mut self) {
        self.after = None;
    }

    /// Returns a guard for a tree that stays stopped. Dropping the guard notifies the watch that the tree
    /// runs again.
    pub(super) fn hold(&mut self) -> Option<AfterPause> {
        self.after.take()
    }

    /// Returns the boundary of the checkpoint that was taken.
    pub(super) fn take(&mut self) -> Option<Boundary> {
        self.boundary.take()
    }
}
