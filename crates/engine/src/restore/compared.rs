//! Compares files on disk with the checkpoint before any process is created. Truncates grown files before any
//! process runs.
//!
//! Owns: the policy for changed files.
//! Invariants: no file is changed unless every file was accepted, and every other step of the restore has
//! succeeded.
//! Does not: compare one file with its record; `resource::files` does.

use std::fmt;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use resource::files::{self, ChangedFile, Covered, Cut, Moment, MoveAside};

use super::hooks::Rollback;
use super::plan::Plan;
use crate::error::{EngineError, Result};

/// How a restore treats a regular file that the subject can write and that differs from its state at the
/// checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum FilePolicy {
    /// A file that only grew is truncated to its length at the checkpoint, if no name has disappeared from its
    /// directory. Any other change refuses the restore.
    #[default]
    Compare,
    /// No file is changed. Any change refuses the restore.
    Unchanged,
    /// A file that only grew is left unchanged if the program appends to the file (O_APPEND). Any other change
    /// refuses the restore.
    Append,
    /// Files are neither compared nor changed. The restored memory may not match the files.
    Keep,
}

/// Options of a restore for regular files.
#[derive(Debug, Default)]
pub struct Files {
    /// How changed files are treated.
    pub policy: FilePolicy,
    /// Stores the bytes that are cut off grown files. If this is `None`, a grown file counts as changed.
    pub aside: Option<Aside>,
    /// Files that later checkpoints of the subject have recorded. If this checkpoint has not recorded a file of the
    /// list, the file was opened after the checkpoint. The restore is refused if such a file was also changed after
    /// the checkpoint.
    pub opened_later: Vec<PathBuf>,
    /// Files that an undo log has set back to the checkpoint. The restore does not compare these files. If the
    /// restoring process itself holds a description of such a file, the restore also sets the position of the
    /// description back.
    pub covered: Covered,
    /// Rolls files back to the checkpoint, when only steps that need the files can still fail. Before that, the restore
    /// checks that each covered file is unchanged or may be changed by the rollback.
    pub rollback: Option<Rollback>,
}

/// The directory for the bytes that are cut off files.
pub struct Aside {
    check: Box<dyn Fn() -> Result<()>>,
    keep: Box<MoveAside<'static>>,
}

impl Aside {
    /// Creates the value from two functions. `check` returns an error if the directory cannot be used; it is called
    /// before the restore creates anything. `keep` receives the path, the file, and the offset and length of the
    /// cut-off part in bytes. When `keep` returns, the part must be durable.
    pub fn new(
        check: impl Fn() -> Result<()> + 'static,
        keep: impl FnMut(&Path, &File, u64, u64) -> sys::Result<()> + 'static,
    ) -> Self {
        Self { check: Box::new(check), keep: Box::new(keep) }
    }
}

impl fmt::Debug for Aside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Aside").finish_non_exhaustive()
    }
}

fn refuse<'a>(changed: impl Iterator<Item = &'a Cut>, why: &str) -> Result<()> {
    let changed =
        changed.map(|cut| ChangedFile { path: cut.path().to_owned(), why: why.to_owned(), errno: None });
    let changed: Vec<ChangedFile> = changed.collect();
    if changed.is_empty() { Ok(()) } else { Err(EngineError::FilesChanged(changed)) }
}

/// The files that were compared and accepted.
pub(super) struct Compared {
    cuts: Vec<Cut>,
    aside: Option<Aside>,
}

impl Compared {
    /// Compares the recorded files of an image with the files on disk.
    ///
    /// # Errors
    ///
    /// `FilesChanged` with every file that does not match; `FilesNotRecorded` for an image of an earlier version;
    /// `AsideRefused` if the directory for the cut-off bytes cannot be used.
    pub(super) fn compare(
        plan: &Plan,
        time: SystemTime,
        files: Files,
        rollback: Option<&Rollback>,
    ) -> Result<Self> {
        let Files { policy, aside, opened_later, covered, .. } = files;
        let moment = Moment { time, is_before_boot: plan.is_of_another_boot() };
        if policy == FilePolicy::Keep {
            return Ok(Self { cuts: Vec::new(), aside });
        }
        let records = plan.files.as_ref().ok_or(EngineError::FilesNotRecorded)?;
        if let Some(rollback) = rollback {
            let changed = files::changed_beside(records, &covered, &rollback.recorded);
            if !changed.is_empty() {
                return Err(EngineError::FilesChanged(changed));
            }
        }
        let cuts = files::compare(records, plan.directories.as_deref(), &opened_later, &covered, moment)
            .map_err(EngineError::FilesChanged)?;
        if policy == FilePolicy::Unchanged {
            refuse(cuts.iter(), "was appended to after the checkpoint")?;
        }
        if policy == FilePolicy::Append {
            refuse(cuts.iter().filter(|cut| !cut.may_stay()), "was written to after the checkpoint")?;
            return Ok(Self { cuts: Vec::new(), aside });
        }
        match &aside {
            None => {
                refuse(cuts.iter(), "grew after the checkpoint, and there is no store to move the end to")?
            }
            Some(aside) if !cuts.is_empty() => (aside.check)()?,
            Some(_) => {}
        }
        Ok(Self { cuts, aside })
    }

    /// Truncates the files that only grew.
    pub(super) fn cut_back(&mut self) -> Result<()> {
        if let Some(Aside { keep, .. }) = &mut self.aside {
            self.cuts.iter().try_for_each(Cut::check)?;
            for cut in self.cuts.drain(..) {
                cut.apply(keep)?;
            }
        }
        Ok(())
    }
}
