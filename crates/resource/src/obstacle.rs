//! Obstacles to a checkpoint, reported before the program is touched.
//!
//! Owns: the fields of one obstacle, as `preflight --json` prints it.
//! Does not: find obstacles; the kinds do.

use model::Pid;

/// One reason why a process cannot be checkpointed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Obstacle {
    /// The process that holds it.
    pub pid: Pid,
    /// The object: `fd 7 (io_uring)`, `System V shared memory` …
    pub what: String,
    /// Its location: a path, an address range, a peer; empty if there is none.
    pub place: String,
    /// The reason.
    pub why: String,
    /// What the operator can do.
    pub fix: String,
}
