//! Uses the undo log of a subject for `restore`, `ls`, `show`, `files` and `prune`.
//!
//! The undo log records the old contents of files, so that files can be rolled back to a checkpoint. A rollback can
//! move a file, or the end of a file, to another directory. Such a moved file or end is called a part.
//!
//! Owns: the decision whether the files of an image are rolled back, and rollback on request. Also owns the list of
//! parts, and putting parts back.
//! Invariants: files are rolled back only while no guardian protects the subject, and only if the pids of the image are
//! free. A part is never put back over an existing file.
//! Does not: know how files are rolled back; `undo` does. Does not restore memory.

use std::cell::{Cell, OnceCell};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use engine::{Covered, EngineError, FileRecord, PreparedRestore, Rollback};
use model::{Pid, Sequence, Word};
use serde::Serialize;
use store::{Store, SubjectName};
use sys::Error;
use undo::UndoError;
use undo::back::{self, Conflicts, Durability, MovedAside, Outlook, Standing};

use crate::aside::Parts;
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::location::StoreLocation;
use crate::record::Record;
use crate::run::{Claim, UNDO_DIRECTORY, remove_log};
use crate::system::SystemRecord;
use crate::{own_lines, streams};

/// What `restore` does with files that have changed since the checkpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum RestoredFiles {
    /// If the subject has an undo log, the policy is `Rewind`. Otherwise, the policy is `Refuse`.
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

/// The undo log of the subject of an image, during a restore of this image.
#[derive(Debug)]
pub(crate) struct Going {
    directory: PathBuf,
    /// The checkpoint that is restored.
    pub(crate) to: Sequence,
    /// How files are rolled back. `None` if files are not rolled back.
    conflicts: Option<Conflicts>,
}

/// A rollback that was checked and can begin.
#[derive(Debug)]
pub(crate) struct Planned {
    /// The files that are compared, because the rollback does not change them.
    pub(crate) covered: Covered,
    pub(crate) rollback: Rollback,
    /// The event of the rollback. The engine calls the rollback, which sets the event.
    pub(crate) done: Rc<OnceCell<RunEvent>>,
}

impl Going {
    /// Decides whether the files of an image are to be rolled back. Returns `None` if the image belongs to a subject
    /// without an undo log, or to no subject.
    ///
    /// # Errors
    ///
    /// `NotReached` or `EndNotRecorded` if a rollback is impossible and the policy `files` does not permit a restore
    /// without a rollback. An error is also returned if a pid of the image is not free. In each case, nothing was
    /// changed. The caller holds the claim of the subject, see [`claim_of`].
    pub(crate) fn decide(
        location: &StoreLocation,
        image: &str,
        files: RestoredFiles,
    ) -> Result<Option<Self>> {
        let has_others = Cell::new(false);
        let not_reached = |why: String| {
            let (image, has_others) = (image.to_owned(), has_others.get());
            GuardianError::NotReached { image, why, has_others }
        };
        let is_optional = !matches!(files, RestoredFiles::Rewind | RestoredFiles::Force);
        let reader = location.read(image)?;
        let Some((store, name)) = location.subject_of(image)? else {
            let why = || not_reached("an image outside a store has no undo log".to_owned());
            return if is_optional { Ok(None) } else { Err(why()) };
        };
        let directory = log_of(&store, &name);
        if !directory.is_dir() {
            let why = || not_reached("the subject has no undo log".to_owned());
            return if is_optional { Ok(None) } else { Err(why()) };
        }
        // If the program still runs, its files cannot be rolled back either. The pids show the reason.
        let prepared = PreparedRestore::read(reader).and_then(|prepared| prepared.check_pids(&[]));
        prepared.map_err(|error| of_living(location, image, error))?;
        let standing = back::standing(&directory)?;
        has_others.set(standing != Standing::Unknown && !back::reachable(&directory)?.0.is_empty());
        let to = location.read(image)?.commit().sequence;
        let conflicts = match files {
            RestoredFiles::Keep | RestoredFiles::Refuse => None,
            RestoredFiles::Auto | RestoredFiles::Rewind => Some(Conflicts::Refuse),
            RestoredFiles::Force => Some(Conflicts::Force),
        };
        if files != RestoredFiles::Keep
            && let Some(why) = rolled_back_further(&directory, to)?
        {
            return Err(not_reached(why));
        }
        if conflicts.is_some() {
            if let Some(why) = unreachable(&directory, to)? {
                return Err(not_reached(why));
            }
            if conflicts == Some(Conflicts::Refuse) && standing == Standing::Unknown {
                return Err(GuardianError::EndNotRecorded { image: image.to_owned() });
            }
        }
        Ok(Some(Self { directory, to, conflicts }))
    }

    /// Checks the rollback. `recorded` returns the files in the image. `parts` receives messages of
    /// `undying` that the rollback cuts off. Returns `None` if files are not rolled back. A file that is a standard stream of the subject
    /// is not changed if an outside process writes to it.
    pub(crate) fn plan(
        &self,
        recorded: impl FnOnce() -> Result<Vec<FileRecord>>,
        parts: &Parts,
    ) -> Result<Option<Planned>> {
        let Some(conflicts) = self.conflicts else { return Ok(None) };
        let recorded = recorded()?;
        let inherited = recorded.iter().filter(|file| file.effect() == engine::Effect::Stays);
        let streams: Vec<(u64, u64)> = inherited.map(FileRecord::file).collect();
        let leave = streams::written_by_others(&streams);
        back::check_opened(
            &self.directory,
            self.to,
            conflicts,
            &leave,
            resource::files::of_program(&recorded),
        )?;
        let outlook = back::preview(&self.directory, self.to, conflicts, &leave)?;
        let explained = explained(&recorded, &outlook);
        let paths = foreign(&outlook, &explained);
        if !paths.is_empty() {
            return Err(UndoError::Conflict { paths }.into());
        }
        // Only conflicts with own messages are left.
        let conflicts = if outlook.conflicts.is_empty() { conflicts } else { Conflicts::Force };
        let covered = Covered::AllBut(outlook.uncovered.iter().chain(&leave).copied().collect());
        let done = Rc::new(OnceCell::new());
        let (directory, to, event) = (self.directory.clone(), self.to, Rc::clone(&done));
        let parts = parts.clone();
        let rollback = Rollback::new(outlook.recorded, move || {
            explained.iter().try_for_each(|one| parts.keep_end(&one.path, &one.file, one.from))?;
            // An operator may restore after a power cut. The rollback must survive a further power cut.
            let went = back::go_back(&directory, to, conflicts, &leave, Durability::PowerCut)?;
            // The cell is empty, because the closure runs at most once.
            let _ = event.set(RunEvent::went_back(to, &went, leave.len()));
            Ok(())
        });
        Ok(Some(Planned { covered, rollback, done }))
    }

    /// Returns the step that records in the undo log that the program runs without a watch.
    pub(crate) fn before_run(&self) -> impl FnOnce() -> std::result::Result<(), UndoError> + 'static {
        let (directory, to) = (self.directory.clone(), self.to);
        move || {
            let why = format!(
                "checkpoint {to} was restored by `undying restore`, and the program has run without being watched"
            );
            back::give_up(&directory, &why)
        }
    }
}

/// Claims the subject of an image, so that no guardian of this subject starts before the restored process tree runs.
/// Returns `None` for an image outside a store, and for a subject that was never guarded.
///
/// # Errors
///
/// `Guarded` if a guardian protects the subject.
pub(crate) fn claim_of(location: &StoreLocation, image: &str) -> Result<Option<Claim>> {
    let Some((store, name)) = location.subject_of(image)? else { return Ok(None) };
    match Claim::existing(&store, &name) {
        Err(GuardianError::NameTaken { name: taken, .. }) => {
            let record = Record::read(&store.root().join(name.as_str()))?;
            let guardian = record.map_or(Pid(0), |record| record.guardian.key().pid);
            let system = SystemRecord::read(&store)?;
            let is_component = system.is_some_and(|system| system.components.contains_key(&taken));
            let end = if is_component {
                format!("undying --store {} stop {taken}", Word(&store.root().to_string_lossy()))
            } else {
                format!("kill {guardian}")
            };
            Err(GuardianError::Guarded { name: taken, guardian, end })
        }
        claim => claim,
    }
}

/// Names the process of the subject whose pid a restore of `image` needs. Returns every other error unchanged.
pub(crate) fn of_living(location: &StoreLocation, image: &str, error: EngineError) -> GuardianError {
    let EngineError::PidTaken(pid) = error else { return error.into() };
    let found = || {
        let (store, name) = location.subject_of(image).ok()??;
        let record = Record::read(&store.root().join(name.as_str())).ok()??;
        let program = tracee::procfs::stat(pid).ok()?.comm;
        let name = name.to_string();
        record.has_process(pid).then_some(GuardianError::StillRuns { name, pid, program })
    };
    found().unwrap_or_else(|| error.into())
}

/// A file that has changed since the end of the subject only by messages of `undying`.
struct Explained {
    path: PathBuf,
    file: File,
    identity: (u64, u64),
    /// The length at the checkpoint in bytes.
    from: u64,
}

/// Returns the shared files that have changed since the end of the subject only by messages of `undying`.
fn explained(recorded: &[FileRecord], outlook: &Outlook) -> Vec<Explained> {
    let end_of = |identity: (u64, u64)| {
        outlook.shared.iter().find(|one| (one.0, one.1) == identity).map(|(_, _, length)| *length)
    };
    let explain = |record: &FileRecord| {
        let (path, identity) = (record.path(), record.file());
        let end = end_of(identity)?;
        let file = own_lines::open(&path, identity)?;
        own_lines::follow(&file, end).then(|| Explained { path, file, identity, from: record.size() })
    };
    recorded.iter().filter_map(explain).collect()
}

/// Returns the conflicts that are not explained by messages of `undying`.
fn foreign(outlook: &Outlook, explained: &[Explained]) -> Vec<PathBuf> {
    let is_foreign = |path: &&PathBuf| {
        let found = rustix::fs::lstat(path.as_path()).map(|stat| (stat.st_dev, stat.st_ino));
        !found.is_ok_and(|found| explained.iter().any(|one| one.identity == found))
    };
    outlook.conflicts.iter().filter(is_foreign).cloned().collect()
}

/// Returns the checkpoint to which an interrupted restart or restore has rolled the files back, if `image` names only
/// the subject, and the subject has newer checkpoints. The event tells the operator about the choice.
pub(crate) fn checkpoint_of_files(
    location: &StoreLocation,
    image: &str,
    files: RestoredFiles,
) -> Result<Option<(String, RunEvent)>> {
    if matches!(files, RestoredFiles::Keep | RestoredFiles::Refuse) {
        return Ok(None);
    }
    let Some((store, name)) = location.subject_of(image)?.filter(|(_, name)| name.as_str() == image) else {
        return Ok(None);
    };
    let directory = log_of(&store, &name);
    if !directory.is_dir() {
        return Ok(None);
    }
    let Standing::At(at) = back::standing(&directory)? else { return Ok(None) };
    let listed: Vec<Sequence> = store.list(&name)?.into_iter().map(|(sequence, _)| sequence).collect();
    let (Some(newest), Some(chosen)) = (listed.last(), listed.iter().rfind(|sequence| at.contains(sequence)))
    else {
        return Ok(None);
    };
    let reason =
        format!("files were rolled back to checkpoint {chosen} before, and that checkpoint is restored");
    let event = RunEvent::RestoreFailed { seq: newest.get(), reason };
    Ok((newest != chosen).then(|| (format!("{name}@{chosen}"), event)))
}

/// Returns why the present files cannot be those of checkpoint `to`: an earlier restore has rolled them back further.
fn rolled_back_further(directory: &Path, to: Sequence) -> Result<Option<String>> {
    match back::standing(directory)? {
        Standing::At(sequences) if sequences.iter().all(|at| *at < to) => {
            let at = sequences.last().copied().unwrap_or_default();
            Ok(Some(format!(
                "an earlier restore has rolled the files back to checkpoint {at}, which is older"
            )))
        }
        _ => Ok(None),
    }
}

fn log_of(store: &Store, name: &SubjectName) -> PathBuf {
    store.root().join(name.as_str()).join(UNDO_DIRECTORY)
}

/// Returns why files cannot be rolled back to a checkpoint. Returns `None` if files can be rolled back.
fn unreachable(directory: &Path, to: Sequence) -> Result<Option<String>> {
    let (reached, why) = back::reachable(directory)?;
    if reached.contains(&to) {
        return Ok(None);
    }
    Ok(Some(why.unwrap_or_else(|| "the undo log does not lead there".to_owned())))
}

/// Returns the checkpoints of a subject to which files can be rolled back. Returns an empty list if the log cannot be
/// read. If no guardian protects the subject, the end of the subject must be recorded.
pub(crate) fn reached(store: &Store, name: &SubjectName) -> Vec<Sequence> {
    let directory = log_of(store, name);
    let is_guarded = || matches!(Claim::named(store, name), Err(GuardianError::NameTaken { .. }));
    if !directory.is_dir() || (back::standing(&directory).ok() == Some(Standing::Unknown) && !is_guarded()) {
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
