//! Stopping a whole process tree, and letting it go on.
//!
//! Owns: how often a stop is attempted.
//! Invariants: dropping a stopped tree lets every thread of it go on; a failed stop does too.
//! Does not: read any state of what it stopped.

mod attempt;
mod stopped;

use model::Pid;

use crate::procfs::KeptFiles;

pub(crate) use stopped::OPTIONS;
pub use stopped::{FreezeError, StoppedProcess, StoppedTree};

use attempt::Attempt;

/// Attempts before a tree that does not stop in time is given up.
const ATTEMPTS_MAX: usize = 20;

/// Stops trees, the same one again and again; keeps what it needs of `/proc` open meanwhile.
#[derive(Debug, Default)]
pub struct Freezer {
    files: KeptFiles,
}

impl StoppedTree {
    /// Stops a process and all its descendants.
    pub fn stop(root: Pid) -> Result<Self, FreezeError> {
        Freezer::default().stop(root)
    }
}

impl Freezer {
    /// Stops a process and all its descendants.
    pub fn stop(&mut self, root: Pid) -> Result<StoppedTree, FreezeError> {
        let mut outcome = Err(FreezeError::Growing(root));
        for _ in 0..ATTEMPTS_MAX {
            outcome = self.attempt(root);
            if !matches!(outcome, Err(FreezeError::Stuck { .. })) {
                break;
            }
        }
        outcome
    }

    fn attempt(&mut self, root: Pid) -> Result<StoppedTree, FreezeError> {
        let mut attempt = Attempt::default();
        let outcome = attempt.run(root, &mut self.files).and_then(|()| attempt.finish(root));
        match outcome {
            Ok(_) => self.files.sweep(),
            Err(_) => {
                attempt.release();
                stopped::detach_strays();
            }
        }
        outcome
    }
}
