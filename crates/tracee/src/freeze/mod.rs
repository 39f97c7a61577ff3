//! Stops a whole process tree, and resumes it.
//!
//! Owns: the number of attempts to stop a tree.
//! Invariants: dropping a stopped tree resumes every thread of it. A failed stop resumes every thread, too.
//! Does not: read the state of the stopped tree.

mod attempt;
mod stopped;

use model::Pid;

use crate::procfs::KeptFiles;

pub(crate) use stopped::OPTIONS;
pub use stopped::{FreezeError, StoppedProcess, StoppedTree};

use attempt::Attempt;

/// Maximum number of attempts to stop a tree whose threads do not stop in time.
const ATTEMPTS_MAX: usize = 20;

/// Stops the same tree repeatedly, and keeps the necessary files of `/proc` open between the stops.
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
