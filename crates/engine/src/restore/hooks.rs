//! Steps of the caller inside a restore: the rollback of files, and the last step before the program runs.
//!
//! Owns: the types of these steps.
//! Invariants: files are rolled back when only steps that need the files can still fail. The last step is called at
//! most once, directly before the first thread is resumed.
//! Does not: roll files back; `undo` does.

use std::collections::HashSet;
use std::fmt;
use std::path::Path;

use model::Pid;
use undo::UndoError;

/// A rollback of files to the checkpoint that is restored.
pub struct Rollback {
    /// Device and inode of the files and directories that the rollback may change.
    pub(super) recorded: HashSet<(u64, u64)>,
    go: Box<dyn FnOnce() -> Result<(), UndoError>>,
}

impl Rollback {
    /// Creates the value. `go` rolls the files back. `recorded` are the files and directories that `go` may change, by
    /// device and inode number.
    pub fn new(recorded: HashSet<(u64, u64)>, go: impl FnOnce() -> Result<(), UndoError> + 'static) -> Self {
        Self { recorded, go: Box::new(go) }
    }

    /// Reports whether the rollback may change the file at a path, or the directories that lead to the file.
    pub(super) fn may_change(&self, path: &Path) -> bool {
        path.ancestors().any(|part| {
            rustix::fs::lstat(part).is_ok_and(|stat| self.recorded.contains(&(stat.st_dev, stat.st_ino)))
        })
    }

    /// Rolls the files back.
    pub(super) fn go(self) -> Result<(), UndoError> {
        (self.go)()
    }
}

impl fmt::Debug for Rollback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rollback").field("recorded", &self.recorded.len()).finish_non_exhaustive()
    }
}

/// A step that is called directly before the first thread of the restored program runs.
pub struct BeforeRun(Box<dyn FnOnce(Pid) -> Result<(), UndoError>>);

impl BeforeRun {
    /// Creates the value. `step` gets the pid of the root. If `step` fails, the program does not run.
    pub fn new(step: impl FnOnce(Pid) -> Result<(), UndoError> + 'static) -> Self {
        Self(Box::new(step))
    }

    pub(super) fn call(self, root: Pid) -> Result<(), UndoError> {
        (self.0)(root)
    }
}

impl fmt::Debug for BeforeRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BeforeRun").finish_non_exhaustive()
    }
}
