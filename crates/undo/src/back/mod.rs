//! Rollback: returns the files of a subject to their state at a checkpoint.
//!
//! A rollback has these parts:
//!
//! - The target is computed: the recorded states of files at the checkpoint.
//! - A survey compares the present files with the target.
//! - A journal records what the rollback is about to change. If the rollback is interrupted, the next call uses the
//!   journal to continue. The rollback then consists of several *attempts*.
//! - Steps change the files. Files that the subject has created since the checkpoint are moved aside, into a special
//!   directory.
//! - A new epoch begins at the checkpoint.
//!
//! Owns: the list of checkpoints to which a rollback is possible, and the order of the parts of a rollback.
//! Invariants: the steps depend only on the present files and the target. Therefore, the rollback can compute and
//! execute all steps once more after a crash. No file changes before the journal is durable. The new epoch begins after
//! the last step. No step follows a symbolic link. A file that the subject has created is moved aside, and never
//! removed.
//! Does not: watch the subject.
//!
//! Proof: the tests in `simulated`, with kills and power cuts at random operations.

mod aside;
mod attributes;
mod disk;
pub(crate) mod files;
mod lease;
mod permission;
mod put_back;
mod replaced;
mod rollback;
#[cfg(test)]
mod simulated;
mod steps;
mod survey;
#[cfg(test)]
mod tests;
mod update;

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use model::Sequence;
use sys::clock::Clock;

pub use self::aside::{MovedAside, list_aside};
use self::disk::DiskFiles;
use self::files::FileSystem;
pub use self::put_back::put_back;
use self::replaced::RecordedNames;
use self::rollback::{Rollback, position};
use self::steps::{Attempt, Steps};
use self::survey::Survey;
use crate::error::{Result, UndoError};
use crate::key::{FileKey, Time};
use crate::log::frame;
use crate::log::journal::{self, Journal};
pub use crate::log::journal::{Conflicts, Durability};
use crate::log::reader::{self, Depth, End};
use crate::log::record::{self, AnyRecord, Broken};
use crate::log::storage::{DiskStorage, Storage};
use crate::log::{epoch_name, target};

/// The result of a rollback.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WentBack {
    /// Number of changes: names that were changed, and files and directories whose content or attributes were changed.
    pub changed: usize,
    /// Files and directories that were moved aside.
    pub aside: Vec<MovedAside>,
    /// Files that may have changed undetected since the checkpoint, by device and inode number. The restore compares
    /// these files with the checkpoint.
    pub uncovered: Vec<(u64, u64)>,
}

/// Returns the checkpoints that a rollback with the log in `directory` can reach, in rising order. If older checkpoints
/// exist but cannot be reached, also returns the reason.
pub fn reachable(directory: &Path) -> Result<(Vec<Sequence>, Option<String>)> {
    let storage = DiskStorage::open(directory)?;
    reachable_on(&storage)
}

/// Returns the files that may have changed undetected since a checkpoint. A rollback with the log in `directory` does
/// not change these files.
pub fn uncovered_since(directory: &Path, to: Sequence) -> Result<Vec<PathBuf>> {
    let log = reader::read(&DiskStorage::open(directory)?, Depth::Newest)?;
    let Some(first) = position(&log, to) else { return Ok(Vec::new()) };
    let records = log.epochs[first..].iter().flat_map(|epoch| &epoch.records);
    let uncovered = records.filter_map(|entry| match &entry.record {
        AnyRecord::Uncovered(file) => Some(record::path_of(&file.path).to_path_buf()),
        _ => None,
    });
    Ok(uncovered.collect::<BTreeSet<_>>().into_iter().collect())
}

/// Rolls all files back to a checkpoint. `leave` lists files by device and inode number; the rollback does not change
/// the content and attributes of these files. An interrupted rollback can be continued to the same or to an older
/// checkpoint.
///
/// Before this call, the caller stops the use of its [`crate::log::UndoLog`]. After this call, the caller opens the log
/// again.
///
/// # Errors
///
/// Fails without changing a file if the checkpoint is unreachable, if recorded content is missing, if other programs
/// have changed the files, or if the subject could not roll back the files itself. If a step fails (a full disk, an immutable file), some files are already changed. The next
/// call then continues with the help of the journal.
pub fn go_back(
    directory: &Path,
    to: Sequence,
    conflicts: Conflicts,
    leave: &[(u64, u64)],
    durability: Durability,
) -> Result<WentBack> {
    let storage = DiskStorage::open(directory)?;
    let files = DiskFiles::new(directory)?;
    let time = Clock::default().wall().into();
    go_back_on(&storage, &files, to, Terms { conflicts, leave, durability, time })
}

/// The effect that a rollback would have.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Outlook {
    /// Files, by device and inode number, that the subject has changed since the checkpoint. The rollback sets them back.
    pub recorded: HashSet<(u64, u64)>,
    /// Files that may have changed undetected since the checkpoint; see [`WentBack::uncovered`].
    pub uncovered: Vec<(u64, u64)>,
    /// Files that another program has changed since the end of the subject. If the rollback would set one of them back,
    /// `go_back` fails with `Conflict`. The others are files that the subject had changed only before the checkpoint.
    pub conflicts: Vec<PathBuf>,
    /// Files that the subject shared with its guardian: device, inode number, and length in bytes at the end of the
    /// subject.
    pub shared: Vec<(u64, u64, u64)>,
}

/// Finds out which files [`go_back`] with the same arguments would set back. Changes no file of the subject.
///
/// # Errors
///
/// The errors with which `go_back` fails without changing a file, except `Conflict`.
pub fn preview(
    directory: &Path,
    to: Sequence,
    conflicts: Conflicts,
    leave: &[(u64, u64)],
) -> Result<Outlook> {
    let storage = DiskStorage::open(directory)?;
    let files = DiskFiles::new(directory)?;
    let (durability, time) = (Durability::Kill, Clock::default().wall().into());
    let terms = Terms { conflicts, leave, durability, time };
    let (rollback, number, survey) = survey_of(&storage, &files, to, &terms)?;
    let mut conflicting = Vec::new();
    if !rollback.is_forced(conflicts) {
        conflicting = rollback.conflicts(&files, &survey)?;
        conflicting.extend(rollback.changed_beside(&files, to, leave)?);
    }
    if rollback.begun.is_none() {
        files.tidy(number)?;
    }
    let recorded = rollback.target.inodes.iter().map(|inode| (inode.key.device, inode.key.inode)).collect();
    let shared = rollback.log.shared();
    Ok(Outlook { recorded, uncovered: rollback.target.uncovered, conflicts: conflicting, shared })
}

/// Checks that after a rollback to `to`, the program finds the files that it had `opened` for writing at this
/// checkpoint. `opened` contains paths with device and inode number. The other arguments are those of
/// [`go_back`].
///
/// # Errors
///
/// `Replaced` with the paths that another program leads to other files.
pub fn check_opened(
    directory: &Path,
    to: Sequence,
    conflicts: Conflicts,
    leave: &[(u64, u64)],
    opened: impl Iterator<Item = (PathBuf, (u64, u64))>,
) -> Result<()> {
    let files = DiskFiles::new(directory)?;
    let mut other = Vec::new();
    for (path, file) in opened.filter(|(_, file)| !leave.contains(file)) {
        if files.way(&path, Some(file))?.is_some() {
            other.push((path, file));
        }
    }
    if other.is_empty() {
        return Ok(());
    }
    let Rollback { log, begun, target, .. } = Rollback::find(&DiskStorage::open(directory)?, to, conflicts)?;
    let (names, mut aliases) = (RecordedNames::of(&files, &target)?, target::aliases(&log.epochs));
    begun.iter().for_each(|begun| begun.add_to(&mut aliases));
    let mut paths = Vec::new();
    for (path, file) in other {
        paths.extend(names.opened_elsewhere(&files, path, aliases.resolve_number(file))?);
    }
    if paths.is_empty() { Ok(()) } else { Err(UndoError::Replaced { to, paths }) }
}

/// What a log states about the time after its last record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Standing {
    /// The subject may have changed files after the last record, without being watched.
    Unknown,
    /// The subject has ended, and its last change is recorded.
    Complete,
    /// A rollback has set the files back to these checkpoints. No process of the subject has run since then.
    At(Vec<Sequence>),
}

/// Returns what the log in `directory` states about the time after its last record. Call this only if no guardian
/// writes the log.
pub fn standing(directory: &Path) -> Result<Standing> {
    standing_on(&DiskStorage::open(directory)?)
}

pub(crate) fn standing_on(storage: &dyn Storage) -> Result<Standing> {
    let log = reader::read(storage, Depth::Newest)?;
    // A rollback only begins after the end of the subject.
    if journal::read(storage, &log)?.is_some() {
        return Ok(Standing::Complete);
    }
    Ok(match (log.present(), log.end()) {
        ([_, ..], _) => Standing::At(log.present().to_vec()),
        ([], End::Unknown) => Standing::Unknown,
        ([], End::Idle | End::At(_)) => Standing::Complete,
    })
}

/// Marks the newest epoch of the log in `directory` as broken, because the subject is about to run without being
/// watched. No rollback is possible afterwards.
pub fn give_up(directory: &Path, why: &str) -> Result<()> {
    give_up_on(&DiskStorage::open(directory)?, why)
}

pub(crate) fn give_up_on(storage: &dyn Storage, why: &str) -> Result<()> {
    let log = reader::read(storage, Depth::Newest)?;
    let Some(newest) = log.epochs.last().filter(|newest| newest.broken.is_none()) else { return Ok(()) };
    let file = storage.open(&epoch_name(newest.ordinal))?;
    let frame = frame::encode(&Broken { why: why.to_owned() }, &[]);
    file.write(newest.length, [&frame, &[]])
}

/// Removes the log in `directory`, and all links and copies that belong to the log, also on other file systems. Files
/// that were moved aside stay. Does nothing if `directory` does not exist.
///
/// # Errors
///
/// A file cannot be removed.
pub fn remove(directory: &Path) -> Result<()> {
    if !directory.exists() {
        return Ok(());
    }
    let storage = DiskStorage::open(directory)?;
    crate::log::clear(&storage)?;
    Ok(crate::log::remove_reserve(directory)?)
}

pub(crate) fn reachable_on(storage: &dyn Storage) -> Result<(Vec<Sequence>, Option<String>)> {
    let log = reader::read(storage, Depth::All)?;
    let boot = storage.boot()?;
    let Some(begun) = journal::read(storage, &log)? else { return Ok(log.reachable(&boot)) };
    let trusted = if begun.is_durable || begun.last_boot == boot { &begun.boot } else { &boot };
    let (mut sequences, why) = log.reachable(trusted);
    sequences.retain(|sequence| position(&log, *sequence) <= position(&log, begun.to));
    let interrupted = || format!("going back to checkpoint {} was interrupted", begun.to.get());
    Ok((sequences, why.or_else(|| Some(interrupted()))))
}

/// The conditions of a rollback.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) conflicts: Conflicts,
    pub(crate) leave: &'a [(u64, u64)],
    pub(crate) durability: Durability,
    pub(crate) time: Time,
}

pub(crate) fn go_back_on<Files: FileSystem>(
    storage: &dyn Storage,
    files: &Files,
    to: Sequence,
    terms: Terms<'_>,
) -> Result<WentBack> {
    let Terms { conflicts, durability, time, .. } = terms;
    let (mut rollback, number, survey) = survey_of(storage, files, to, &terms)?;
    let is_forced = rollback.is_forced(conflicts);
    let refuse = |paths: Vec<PathBuf>, why: fn(Vec<PathBuf>) -> UndoError| {
        if paths.is_empty() { Ok(()) } else { Err(why(paths)) }
    };
    if !is_forced {
        refuse(rollback.conflicts(files, &survey)?, |paths| UndoError::Conflict { paths })?;
        refuse(rollback.denied(files, &survey)?, |paths| UndoError::Denied { paths })?;
    }
    refuse(permission::fixed(files, &rollback.target, &survey)?, |paths| UndoError::Fixed { paths })?;
    if !is_forced {
        refuse(lease::held(files, &rollback.target, &survey)?, |paths| UndoError::Leased { paths })?;
    }
    let is_durable = durability == Durability::PowerCut;
    if is_durable {
        for epoch in &rollback.log.epochs {
            storage.open(&epoch_name(epoch.ordinal))?.sync()?;
        }
        storage.sync()?;
        files.sync()?;
    }
    let attempt = journal::attempt(to, number, &rollback.boot, conflicts, durability, &rollback.log);
    let touching = survey.touching(&rollback.target);
    let places = rollback.places(&touching);
    let mut journal = Journal::begin(storage, rollback.begun.as_ref(), attempt, &touching)?;
    let attempt = Attempt { number, is_durable, time };
    let outcome = Steps::new(files, storage, &mut journal, &mut rollback.target, survey, attempt).run();
    let done = outcome.inspect_err(|_| {
        // Without these records, the next attempt cannot tell later changes by other programs from those of this attempt.
        let _ = note_left(files, &mut journal, &places);
    })?;
    rollback.commit(storage, &journal, is_durable)?;
    files.tidy(number)?;
    Ok(WentBack { changed: done.changed, aside: done.aside, uncovered: rollback.target.uncovered })
}

/// Records the state in which a failed attempt leaves inodes.
fn note_left<Files: FileSystem>(
    files: &Files,
    journal: &mut Journal,
    places: &[(FileKey, PathBuf)],
) -> Result<()> {
    for (key, path) in places {
        if let Some(node) = files.find(key, path)? {
            journal.left(key, &files.status(&node)?.attributes)?;
        }
    }
    journal.sync()
}

/// Compares the present files with the checkpoint `to`, and refuses the rollback if content is missing. Changes nothing.
fn survey_of<Files: FileSystem>(
    storage: &dyn Storage,
    files: &Files,
    to: Sequence,
    Terms { conflicts, leave, .. }: &Terms<'_>,
) -> Result<(Rollback, u64, Survey)> {
    let rollback = Rollback::find(storage, to, *conflicts)?;
    let number = match &rollback.begun {
        Some(begun) => begun.number,
        None => files.next_number()?,
    };
    let mut survey = Survey::of(files, &rollback.target, &files.works(number)?)?;
    survey.leave(&rollback.target, leave);
    let lost = survey.lost(files, &rollback.target);
    if !lost.is_empty() {
        return Err(UndoError::Lost { to, paths: lost });
    }
    let paths = survey.replaced(files, &rollback.target)?;
    if !paths.is_empty() {
        return Err(UndoError::Replaced { to, paths });
    }
    Ok((rollback, number, survey))
}
