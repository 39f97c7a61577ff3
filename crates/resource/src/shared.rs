//! Objects that several kinds share in one restore.
//!
//! Owns: the shared objects. The caller passes the objects from kind to kind.
//! Invariants: [`Shared`] exists until all processes are complete. On drop, the names of the created files and queues
//! are removed, unless `keep` was called.
//! Does not: depend on kinds.

use crate::support::made_queues::MadeQueues;
use crate::support::making::Placed;
use crate::support::nameless::RemovedDirectories;

/// The shared objects of a restore, which every kind receives.
#[derive(Debug, Default)]
pub struct Shared {
    /// Removed directories. An open descriptor and a working directory may refer to the same removed directory.
    pub(crate) removed_directories: RemovedDirectories,
    /// Files that this restore has created under a name.
    pub(crate) placed: Vec<Placed>,
    /// Message queues that this restore has created under a name.
    pub(crate) queues: MadeQueues,
}

impl Shared {
    /// Keeps the created files and queues. Called when the restore has succeeded.
    pub fn keep(&mut self) {
        self.placed.drain(..).for_each(Placed::keep);
        self.queues.keep();
    }
}
