//! What several kinds build together in one restore.
//!
//! Owns: one place for it, which the caller hands from kind to kind.
//! Invariants: it lives until all processes are complete. Files that it holds lose their names again on drop, unless
//! `keep` was called.
//! Does not: know which kinds meet in it.

use crate::support::making::Placed;
use crate::support::nameless::RemovedDirectories;

/// Handed to every kind that takes part.
#[derive(Debug, Default)]
pub struct Shared {
    /// Open directories and working directories may be the same one.
    pub(crate) removed_directories: RemovedDirectories,
    /// Files that were made for this restore and have got their names.
    pub(crate) placed: Vec<Placed>,
}

impl Shared {
    /// Keeps the files that were made: the restore has succeeded.
    pub fn keep(&mut self) {
        self.placed.drain(..).for_each(Placed::keep);
    }
}
