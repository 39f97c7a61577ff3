//! Stops a whole process tree, and resumes it.
//!
//! Owns: the number of attempts to stop a tree.
//! Invariants: dropping a stopped tree resumes every thread of it. A failed stop resumes every thread, too.
//! Does not: read the state of the stopped tree.

mod attempt;
mod stopped;

use crate::procfs::KeptFiles;
use crate::tree::Roots;

pub use stopped::{FreezeError, StoppedProcess, StoppedTree};
pub(crate) use stopped::{OPTIONS, detach_running, detach_strays};

use attempt::Attempt;

/// Maximum number of attempts to stop a tree whose threads do not stop in time.
const ATTEMPTS_MAX: usize = 20;

/// Stops the same tree repeatedly, and keeps the necessary files of `/proc` open between the stops.
#[derive(Debug, Default)]
pub struct Freezer {
    files: KeptFiles,
}

impl StoppedTree {
    /// Stops the root processes and all their descendants.
    pub fn stop(roots: impl Into<Roots>) -> Result<Self, FreezeError> {
        Freezer::default().stop(roots)
    }
}

impl Freezer {
    /// Returns the files of `/proc` that stay open between the stops. A file that no stop and no other reader has read
    /// since the stop before is closed at a stop.
    pub fn files(&mut self) -> &mut KeptFiles {
        &mut self.files
    }

    /// Stops the root processes and all their descendants.
    pub fn stop(&mut self, roots: impl Into<Roots>) -> Result<StoppedTree, FreezeError> {
        let roots = roots.into();
        let mut outcome = Err(FreezeError::Growing(roots.first()));
        for _ in 0..ATTEMPTS_MAX {
            outcome = self.attempt(&roots);
            if !matches!(outcome, Err(FreezeError::Stuck { .. })) {
                break;
            }
        }
        outcome
    }

    fn attempt(&mut self, roots: &Roots) -> Result<StoppedTree, FreezeError> {
        let mut attempt = Attempt::default();
        let outcome = attempt.run(roots, &mut self.files).and_then(|()| attempt.finish(roots));
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
