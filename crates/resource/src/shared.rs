//! Objects that several kinds share in one restore.
//!
//! Owns: these objects; the caller passes them from kind to kind.
//! Invariants: it exists until all processes are complete. On drop, its files lose their names, unless `keep` was
//! called.
//! Does not: depend on kinds.

use crate::support::making::Placed;
use crate::support::nameless::RemovedDirectories;

/// Passed to every kind of a restore.
#[derive(Debug, Default)]
pub struct Shared {
    /// Open directories and working directories, which may be the same.
    pub(crate) removed_directories: RemovedDirectories,
    /// Files that this restore has created and that have their names.
    pub(crate) placed: Vec<Placed>,
}

impl Shared {
    /// Keeps the created files, since the restore has succeeded.
    pub fn keep(&mut self) {
        self.placed.drain(..).for_each(Placed::keep);
    }
}
