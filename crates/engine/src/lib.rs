//! Checkpoint and restore of process trees.
//!
//! Owns: the order of a checkpoint and of a restore, the records that describe processes and threads.
//! Invariants: a subject is not touched before preflight passes. A failed checkpoint leaves the subject running and
//! unchanged; a failed restore leaves no process. Kinds of descriptors, memory, state, trackers and backends are
//! reached through their registries and never named here.
//! Does not: decide when to checkpoint, or what follows a death; the guardian does.
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
    CheckpointOptions, CheckpointReport, Comparison, Continuous, Difference, GroupMember, Held,
    MAX_PAUSE_DEFAULT, MAX_PAUSE_MIN, Phase, Phases, Preference, Slices, Taken, Tracking, Tuning, checkpoint,
    preflight,
};
pub use error::{EngineError, Result};
pub use obstacles::grouped;
pub use resource::Obstacle;
pub use resource::fd::{Connections, Kept, Vacated};
pub use resource::files::{ChangedFile, Covered, Effect, FileRecord};
pub use restore::{
    Applied, Aside, FilePolicy, Files, FilterInstall, ImageDescriptor, ImageMapping, ImageProcess, Inventory,
    PidPolicy, ProcessState, RestoreOptions, RestorePhases, Restored, apply, check_pids, check_records,
    compare_files, inventory, recorded_files, restore, restore_lazily,
};
pub use undo::watch::Boundary;
