//! Checkpoints and restores process trees.
//!
//! A *deferred page* is a dirty page that is not yet copied. A *slice* is a short stop that only copies pages, for at
//! most the pause budget. A *stub* is a stopped thread under construction.
//!
//! Owns: the order of the steps of a checkpoint and of a restore, and the records that describe processes and
//! threads.
//! Invariants: preflight, the search for obstacles, changes nothing in the subject. A checkpoint changes the subject
//! only after preflight has found no obstacle. A failed checkpoint leaves the subject running and unchanged. A failed
//! restore leaves no process. Kinds of resources, trackers (which find written pages) and store backends are entries of
//! registries; the engine never names an entry.
//! Does not: decide when a checkpoint is taken, or what happens after the death of a subject; the crate `guardian`
//! does.
#![forbid(unsafe_code)]

mod capture;
mod descriptor_limit;
mod error;
mod obstacles;
mod records;
mod relations;
mod restore;
mod sharing;

pub use capture::{
    CheckpointOptions, CheckpointReport, Comparison, Continuous, Difference, Held, MAX_PAUSE_DEFAULT,
    MAX_PAUSE_MIN, Phase, Phases, Preference, Slices, Taken, Tracking, Tuning, preflight,
};
pub use error::{EngineError, Result};
pub use obstacles::grouped;
pub use resource::Obstacle;
pub use resource::fd::{Connections, Kept, Vacated};
pub use resource::files::{ChangedFile, Covered, Effect, FileRecord};
pub use restore::{
    Applied, ApplyOptions, Aside, BeforeRun, FilePolicy, Files, FilterInstall, ImageDescriptor, ImageMapping,
    ImageProcess, Inventory, PreparedRestore, ProcessState, RestoreOptions, RestorePhases, Restored,
    Rollback, apply, check_records, inventory, recorded_files, restore, restore_lazily,
};
pub use tracee::Roots;
pub use undo::watch::Boundary;

use store::OpenCheckpoint;

/// Takes one checkpoint of the root processes and all their descendants. With `kill`, the tree is killed after the image is
/// committed.
///
/// # Errors
///
/// The reason why the tree cannot be captured, or the error of the sink. `NotRestorable` with `kill`, if a restore would
/// refuse the checkpoint. The tree continues after each error.
pub fn checkpoint(
    roots: impl Into<Roots>,
    sink: Box<dyn OpenCheckpoint>,
    options: &CheckpointOptions,
) -> Result<CheckpointReport> {
    capture::checkpoint(&roots.into(), sink, options, restore::check_restorable)
}
