//! What stands in the way of a checkpoint, found before anything is done.
//!
//! Owns: `preflight`.
//! Does not: know obstacles.

use model::Pid;
use resource::Obstacle;
use tracee::tree;

use crate::capture::{CheckpointOptions, look_for_preflight};
use crate::error::{EngineError, Result};

/// Lists everything that would stop a checkpoint of a process and its descendants.
pub fn preflight(root: Pid, options: &CheckpointOptions) -> Result<Vec<Obstacle>> {
    tree::descendants(root).map_err(|_| EngineError::NoProcess(root))?;
    match look_for_preflight(root, options) {
        Ok(()) => Ok(Vec::new()),
        Err(EngineError::Refused(obstacles)) => Ok(obstacles),
        Err(error) => Err(error),
    }
}
