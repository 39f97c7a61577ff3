//! What several kinds build together in one restore.
//!
//! Owns: one place for it, which the caller hands from kind to kind.
//! Invariants: it lives until all processes are complete.
//! Does not: know which kinds meet in it.

use crate::support::nameless::RemovedDirectories;

/// Handed to every kind that takes part.
#[derive(Debug, Default)]
pub struct Shared {
    /// Open directories and working directories may be the same one.
    pub(crate) removed_directories: RemovedDirectories,
}
