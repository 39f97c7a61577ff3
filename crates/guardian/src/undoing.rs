//! Uses the undo log of a subject (a protected process tree) for `restore`, `ls`, `show`, `files` and `prune`.
//!
//! The undo log records the old contents of files, so that files can be rolled back to a checkpoint. A rollback can
//! move a file, or the end of a file, to another directory. Such a moved file or end is called a part.
//!
//! Owns: the decision whether the files of an image are rolled back, and rollback on request. Also owns the list of
//! parts, and putting parts back.
//! Invariants: files are rolled back only while no guardian protects the subject, and only if the pids of the image are
//! free. A part is never put back over an existing file.
//! Does not: know how files are rolled back; `undo` does. Does not restore memory.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use engine::{Covered, FileRecord};
use model::Sequence;
use serde::Serialize;
use store::{Store, SubjectName};
use sys::Error;
use undo::back::{self, Conflicts, Durability, MovedAside};

use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::location::StoreLocation;
use crate::run::{Claim, UNDO_DIRECTORY, remove_log};
use crate::streams;

/// What `restore` does with files that have changed since the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RestoredFiles {
    /// If the undo log of the subject reaches the checkpoint, files are rolled back. Otherwise, the policy is `Refuse`.
    #[default]
    Auto,
    /// Files are rolled back, or the restore is refused.
    Rewind,
    /// Files are compared with the checkpoint. If a file has changed, the restore is refused.
    Refuse,
    /// Files stay as they are, and the memory of the checkpoint is restored.
    Keep,
    /// Files are rolled back, including files that other programs have changed.
    Force,
}

impl RestoredFiles {
    /// The policies that can be chosen by name.
    pub const NAMED: [Self; 4] = [Self::Rewind, Self::Refuse, Self::Keep, Self::Force];

    /// Returns the name on the command line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Rewind => "rewind",
            Self::Refuse => "refuse",
            Self::Keep => "keep",
            Self::Force => "force",
        }
    }
}

/// An image whose files are to be rolled back.
#[derive(Debug)]
pub(crate) struct Going {
    directory: PathBuf,
    to: Sequence,
    conflicts: Conflicts,
    /// Prevents that a guardian of this subject starts before the restored process tree runs.
    _claim: Claim,
}

impl Going {
    /// Decides whether the files of an image are to be rolled back. Returns `None` if no rollback is to be made.
    ///
    /// # Errors
    ///
    /// `NotReached` if the policy `files` demands a rollback that is impossible. `FilesInUse` if the policy demands a
    /// rollback and the subject is guarded. An error is also returned if a pid of the image is not free. In each case,
    /// nothing was changed.
    pub(crate) fn decide(
        location: &StoreLocation,
        image: &str,
        files: RestoredFiles,
    ) -> Result<Option<Self>> {
        let conflicts = match files {
            RestoredFiles::Refuse | RestoredFiles::Keep => return Ok(None),
            RestoredFiles::Auto | RestoredFiles::Rewind => Conflicts::Refuse,
            RestoredFiles::Force => Conflicts::Force,
        };
        let not_reached = |why: String| match files {
            RestoredFiles::Auto => Ok(None),
            _ => Err(GuardianError::NotReached { image: image.to_owned(), why }),
        };
        let reader = location.read(image)?;
        let Some((store, name)) = location.subject_of(image)? else {
            return not_reached("an image outside a store has no undo log".to_owned());
        };
        let directory = log_of(&store, &name);
        let to = reader.commit().sequence;
        if let Some(why) = unreachable(&directory, to)? {
            return not_reached(why);
        }
        let claim = match Claim::named(&store, &name) {
            Err(GuardianError::NameTaken { name, .. }) => {
                return match files {
                    // No rollback is made. The following restore fails, because the guarded subject uses the pids. The
                    // error of the restore names a process with such a pid.
                    RestoredFiles::Auto => Ok(None),
                    _ => Err(GuardianError::FilesInUse { name }),
                };
            }
            claim => claim?,
        };
        engine::check_pids(reader)?;
        Ok(Some(Self { directory, to, conflicts, _claim: claim }))
    }

    /// Rolls the files back. A file that is a standard stream of the subject is not changed if an outside process
    /// writes to it.
    pub(crate) fn go(&self, recorded: &[FileRecord]) -> Result<(RunEvent, Covered)> {
        let inherited = recorded.iter().filter(|file| file.effect() == engine::Effect::Stays);
        let streams: Vec<(u64, u64)> = inherited.map(FileRecord::file).collect();
        let leave = streams::written_by_others(&streams);
        // An operator may restore after a power cut. The rollback must survive a further power cut.
        let durability = Durability::PowerCut;
        let went = back::go_back(&self.directory, self.to, self.conflicts, &leave, durability)?;
        let uncovered: HashSet<(u64, u64)> = went.uncovered.iter().chain(&leave).copied().collect();
        Ok((RunEvent::went_back(self.to, &went, leave.len()), Covered::AllBut(uncovered)))
    }
}

/// Returns the directory of the undo log of a subject.
fn log_of(store: &Store, name: &SubjectName) -> PathBuf {
    store.root().join(name.as_str()).join(UNDO_DIRECTORY)
}

/// Returns why files cannot be rolled back to a checkpoint. Returns `None` if files can be rolled back.
fn unreachable(directory: &Path, to: Sequence) -> Result<Option<String>> {
    if !directory.is_dir() {
        return Ok(Some("the subject has no undo log".to_owned()));
    }
    let (reached, why) = back::reachable(directory)?;
    if reached.contains(&to) {
        return Ok(None);
    }
    Ok(Some(why.unwrap_or_else(|| "the undo log does not lead there".to_owned())))
}

/// Returns the checkpoints of a subject to which files can be rolled back. Returns an empty list if the log cannot be
/// read.
pub(crate) fn reached(store: &Store, name: &SubjectName) -> Vec<Sequence> {
    let directory = log_of(store, name);
    if !directory.is_dir() {
        return Vec::new();
    }
    back::reachable(&directory).map(|(reached, _)| reached).unwrap_or_default()
}

/// Returns the files that a rollback to a checkpoint does not change. Returns `None` if files cannot be rolled back to
/// the checkpoint.
pub(crate) fn reach(store: &Store, name: &SubjectName, to: Sequence) -> Option<Vec<PathBuf>> {
    let is_reached = reached(store, name).contains(&to);
    is_reached.then(|| back::uncovered_since(&log_of(store, name), to).unwrap_or_default())
}

/// Removes the undo log of a subject, unless a guardian writes the log. Call this only for a subject that has no
/// checkpoints.
pub(crate) fn remove_unused_log(store: &Store, name: &SubjectName) -> Result<()> {
    match Claim::named(store, name) {
        Ok(_claim) => remove_log(&store.root().join(name.as_str())),
        Err(GuardianError::NameTaken { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A part: a file, or the end of a file, that a rollback has moved aside.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct AsideRow {
    /// The original path.
    pub path: String,
    /// The present path.
    pub to: String,
    /// Length in bytes.
    pub bytes: u64,
}

impl AsideRow {
    fn of(moved: &MovedAside) -> Self {
        let text = |path: &Path| path.display().to_string();
        Self { path: text(&moved.path), to: text(&moved.to), bytes: moved.bytes.get() }
    }
}

/// Returns the parts of a subject that still exist.
///
/// # Errors
///
/// The store does not contain this subject, or its undo log cannot be read.
pub fn moved_aside(location: &StoreLocation, name: &str) -> Result<Vec<AsideRow>> {
    let Some(log) = log_in(location, name)? else { return Ok(Vec::new()) };
    Ok(back::list_aside(&log)?.iter().map(AsideRow::of).collect())
}

/// Moves the newest part of a path back to this path.
///
/// # Errors
///
/// `NotAside` if no part of that path exists. The errors of [`back::put_back`]; then the part is not moved.
pub fn put_back(location: &StoreLocation, name: &str, path: &Path) -> Result<AsideRow> {
    let path = std::path::absolute(path).map_err(|error| Error::path("resolve", path, error))?;
    let moved = match log_in(location, name)? {
        Some(log) => back::put_back(&log, &path)?,
        None => None,
    };
    let moved = moved.ok_or_else(|| GuardianError::NotAside { name: name.to_owned(), path })?;
    Ok(AsideRow::of(&moved))
}

/// Returns the directory of the undo log of a subject, if the subject has an undo log.
fn log_in(location: &StoreLocation, name: &str) -> Result<Option<PathBuf>> {
    let name: SubjectName = name.parse()?;
    let store = location.with_subject(&name)?;
    let directory = log_of(&store, &name);
    Ok(directory.is_dir().then_some(directory))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_without_a_log_is_not_reached() {
        let folder = tempfile::tempdir().unwrap();
        let why = unreachable(&folder.path().join("undo"), Sequence(3)).unwrap();
        assert_eq!(why.as_deref(), Some("the subject has no undo log"));
    }
}
