//! Files on disk and the memory of a checkpoint: files are compared before anything is built, and cut back before
//! anything runs.
//!
//! Owns: the policy for changed files.
//! Invariants: no file is changed unless every file was accepted, and every other step of the restore has succeeded.
//! Does not: judge a single file; `resource::files` does.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use resource::files::{self, ChangedFile, Covered, Cut, MoveAside};

use super::plan::Plan;
use crate::error::{EngineError, Result};

/// What happens when a regular file that the subject may write is not as it was at the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FilePolicy {
    /// A file that only grew is cut back if no name has gone from its directory; any other change refuses the restore.
    #[default]
    Compare,
    /// A file that only grew stays as it is if the program appends to it at its end (O_APPEND); any other change refuses
    /// the restore.
    Append,
    /// Files are used as they are: the restored memory may not fit them.
    Keep,
}

/// What a restore is told about regular files.
#[derive(Debug, Default)]
pub struct Files {
    /// What happens when they have changed.
    pub policy: FilePolicy,
    /// Keeps what is cut off files that only grew; without it, these count as changed.
    pub aside: Option<Aside>,
    /// Files that later checkpoints of the subject have recorded. One that this checkpoint has not recorded was opened
    /// after it, and prevents the restore if it was changed since.
    pub opened_later: Vec<PathBuf>,
    /// Files that an undo log has taken back to the checkpoint: they are not compared, and descriptions of them that
    /// the restorer holds itself go back to their position.
    pub covered: Covered,
}

/// Keeps what is cut off a file; see [`MoveAside`].
pub struct Aside(Box<MoveAside<'static>>);

impl Aside {
    /// Hands every cut-off part to `keep`: path, file, offset and length in bytes. It must be durable afterwards.
    pub fn new(keep: impl FnMut(&Path, &File, u64, u64) -> sys::Result<()> + 'static) -> Self {
        Self(Box::new(keep))
    }
}

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aside").finish_non_exhaustive()
    }
}

fn refuse<'a>(changed: impl Iterator<Item = &'a Cut>, why: &str) -> Result<()> {
    let changed = changed.map(|cut| ChangedFile { path: cut.path().to_owned(), why: why.to_owned() });
    let changed: Vec<ChangedFile> = changed.collect();
    if changed.is_empty() { Ok(()) } else { Err(EngineError::FilesChanged(changed)) }
}

/// Files that were compared and accepted.
pub(super) struct Compared {
    cuts: Vec<Cut>,
    aside: Option<Aside>,
}

impl Compared {
    /// Compares the files of an image with those of the system.
    ///
    /// # Errors
    ///
    /// `FilesChanged` with every file that does not fit; `FilesNotRecorded` for an image of an earlier version.
    pub(super) fn compare(plan: &Plan, time: SystemTime, files: Files) -> Result<Self> {
        let Files { policy, aside, opened_later, covered } = files;
        if policy == FilePolicy::Keep {
            return Ok(Self { cuts: Vec::new(), aside });
        }
        let records = plan.files.as_ref().ok_or(EngineError::FilesNotRecorded)?;
        let cuts = files::compare(records, plan.directories.as_deref(), &opened_later, &covered, time)
            .map_err(EngineError::FilesChanged)?;
        if policy == FilePolicy::Append {
            refuse(cuts.iter().filter(|cut| !cut.may_stay()), "was written to after the checkpoint")?;
            return Ok(Self { cuts: Vec::new(), aside });
        }
        if aside.is_none() {
            refuse(cuts.iter(), "grew after the checkpoint, and there is no store to move the end to")?;
        }
        Ok(Self { cuts, aside })
    }

    /// Cuts files back that only grew.
    pub(super) fn cut_back(&mut self) -> Result<()> {
        if let Some(Aside(keep)) = &mut self.aside {
            self.cuts.iter().try_for_each(Cut::check)?;
            for cut in self.cuts.drain(..) {
                cut.apply(keep)?;
            }
        }
        Ok(())
    }
}
