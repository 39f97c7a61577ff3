//! Obstacles to a checkpoint, reported before the program is stopped or changed.
//!
//! Owns: the fields of one obstacle. `preflight --json` prints these fields.
//! Does not: find obstacles. The kinds find obstacles.

use model::Pid;

/// One reason why a process cannot be checkpointed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Obstacle {
    /// The process that cannot be checkpointed.
    pub pid: Pid,
    /// The name of the object: `fd 7 (io_uring)`, `System V shared memory` …
    pub what: String,
    /// The location of the object: a path, an address range, a peer. Empty if the object has no location.
    pub place: String,
    /// The reason why the object prevents a checkpoint.
    pub why: String,
    /// The action that removes the obstacle.
    pub fix: String,
}
