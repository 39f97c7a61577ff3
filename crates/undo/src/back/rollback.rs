//! A rollback to one checkpoint: its log and its target.
//!
//! Owns: the conditions under which a rollback may begin, and the epoch that follows a rollback.
//! Does not: execute steps.

use std::collections::HashSet;
use std::path::PathBuf;

use model::Sequence;

use super::files::{FileSystem, Status};
use super::permission;
use super::replaced::RecordedNames;
use super::survey::Survey;
use crate::error::{Result, UndoError};
use crate::key::FileKey;
use crate::log::frame;
use crate::log::journal::{self, Begun, Conflicts, Journal};
use crate::log::reader::{self, Depth, End, ReadEpoch, ReadLog};
use crate::log::record::{self, Alias, AnyRecord, Header, Idle};
use crate::log::storage::Storage;
use crate::log::target::{self, Target};
use crate::log::{epoch_name, remove_leftovers};

/// The temporary name of the file of the next epoch, until the file is complete.
const NEXT_NAME: &str = "next";

/// The log, and the target of a rollback to one checkpoint.
pub(super) struct Rollback {
    pub(super) log: ReadLog,
    pub(super) boot: String,
    pub(super) begun: Option<Begun>,
    pub(super) target: Target,
    /// The index of the epoch that begins at the checkpoint.
    first: usize,
}

impl Rollback {
    pub(super) fn find(storage: &dyn Storage, to: Sequence, conflicts: Conflicts) -> Result<Self> {
        let log = reader::read(storage, Depth::DownTo(to))?;
        let boot = storage.boot()?;
        let begun = journal::read(storage, &log)?;
        let mut trusted = &boot;
        let mut aliases = target::aliases(&log.epochs);
        if let Some(begun) = &begun {
            if position(&log, to) > position(&log, begun.to) {
                let why = format!("and the undo log no longer contains the records for checkpoint {to}");
                return Err(UndoError::HalfBack { to: begun.to, why });
            }
            let is_forced = conflicts == Conflicts::Force;
            if begun.last_boot != boot && !begun.is_durable && !is_forced {
                return Err(UndoError::PowerCut { to: begun.to, paths: touched_paths(&log, begun) });
            }
            trusted = &begun.boot;
            begun.add_to(&mut aliases);
        }
        let (sequences, why) = log.reachable(trusted);
        let first = position(&log, to).filter(|_| sequences.contains(&to));
        let unreachable = |why: String| UndoError::Unreachable { to, why };
        let Some(first) = first else {
            return Err(unreachable(
                why.unwrap_or_else(|| "no epoch of the undo log begins at this checkpoint".to_owned()),
            ));
        };
        let mut target = target::merge(&log.epochs[first..], &aliases)
            .map_err(|malformed| unreachable(malformed.to_string()))?;
        target.kept_before = target::kept_by(&log.epochs[..first], &aliases);
        for (_, made) in begun.iter().flat_map(|begun| &begun.made) {
            if let Some(index) = target.indices.get(made) {
                target.inodes[*index].is_made = true;
            }
        }
        Ok(Self { log, boot, begun, target, first })
    }

    /// Returns the inodes that all attempts may have changed, with their paths.
    pub(super) fn places(&self, touching: &[FileKey]) -> Vec<(FileKey, PathBuf)> {
        let earlier = self.begun.iter().flat_map(|begun| &begun.touched);
        let all: HashSet<&FileKey> = touching.iter().chain(earlier).collect();
        let path = |key: &FileKey| Some(self.target.inodes[*self.target.indices.get(key)?].path.clone());
        all.into_iter().filter_map(|key| Some((key.clone(), path(key)?))).collect()
    }

    pub(super) fn is_forced(&self, conflicts: Conflicts) -> bool {
        conflicts == Conflicts::Force || self.begun.as_ref().is_some_and(|begun| begun.is_forced)
    }

    /// Reports whether the present state of an inode can be the work of an earlier attempt.
    fn explains(&self, now: &Status) -> bool {
        self.begun.as_ref().is_some_and(|begun| begun.explains(&now.key, &now.attributes))
    }

    pub(super) fn conflicts<Files: FileSystem>(
        &self,
        files: &Files,
        survey: &Survey,
    ) -> Result<Vec<PathBuf>> {
        match self.log.end() {
            End::At(ended) => survey.conflicts(files, &self.target, ended, |now| self.explains(now)),
            End::Idle | End::Unknown => Ok(Vec::new()),
        }
    }

    /// Returns files that another program has changed since the end of the subject, among the files that the subject has
    /// changed only before the checkpoint. The log knows these files from its older epochs.
    pub(super) fn changed_beside<Files: FileSystem>(
        &self,
        files: &Files,
        to: Sequence,
        leave: &[(u64, u64)],
    ) -> Result<Vec<PathBuf>> {
        let (End::At(ended), None) = (self.log.end(), &self.begun) else { return Ok(Vec::new()) };
        let aliases = target::aliases(&self.log.epochs);
        let whole = target::merge(&self.log.epochs, &aliases)
            .map_err(|malformed| UndoError::Unreachable { to, why: malformed.to_string() })?;
        let names = RecordedNames::of(files, &whole)?;
        let mut paths = Vec::new();
        for inode in &whole.inodes {
            let key = &inode.key;
            if self.target.indices.contains_key(key) || leave.contains(&(key.device, key.inode)) {
                continue;
            }
            let changed = match files.find(key, &inode.path)? {
                Some(node) => {
                    Some(files.status(&node)?).filter(|now| !now.is_directory()).map(|now| now.changed)
                }
                None => names.led_away(files, &inode.path, None)?.map(|away| away.changed),
            };
            if changed.is_some_and(|changed| changed > ended) {
                paths.push(inode.path.clone());
            }
        }
        Ok(paths)
    }

    /// Returns the files that the subject could not roll back itself.
    pub(super) fn denied<Files: FileSystem>(&self, files: &Files, survey: &Survey) -> Result<Vec<PathBuf>> {
        permission::denied(files, &self.target, survey, |now| self.explains(now))
    }

    /// Begins a new epoch at the checkpoint. The rename of the new epoch file completes the rollback. If the rollback
    /// is interrupted before the rename, the next call repeats all steps. After the rename, only obsolete log files
    /// remain to be removed.
    pub(super) fn commit(&self, storage: &dyn Storage, journal: &Journal, is_durable: bool) -> Result<()> {
        let epoch = &self.log.epochs[self.first];
        let ordinal = self.log.epochs.last().map_or(1, |newest| newest.ordinal + 1);
        let sequences = epoch.sequences.iter().map(|sequence| sequence.get()).collect();
        let time = Some(storage.now());
        let header = Header { boot: self.boot.clone(), ordinal, after: epoch.after, sequences, time };
        let mut bytes = frame::encode(&header, &[]);
        // Records of epochs before the checkpoint can name inodes that were removed and that this rollback, or an
        // earlier rollback, has created again.
        for (old, new) in aliases_of(&self.log.epochs[self.first..]).chain(journal.made.iter().cloned()) {
            bytes.extend(frame::encode(&Alias { old: (&old).into(), new: (&new).into() }, &[]));
        }
        // The rollback is made while no process of the subject runs.
        bytes.extend(frame::encode(&Idle {}, &[]));
        storage.remove(NEXT_NAME)?;
        let file = storage.create(NEXT_NAME)?;
        file.write(0, [&bytes, &[]])?;
        if is_durable {
            file.sync()?;
        }
        storage.rename(NEXT_NAME, &epoch_name(ordinal))?;
        if is_durable {
            storage.sync()?;
        }
        Journal::remove(storage)?;
        remove_leftovers(storage, &reader::read(storage, Depth::Newest)?)
    }
}

fn aliases_of(epochs: &[ReadEpoch]) -> impl Iterator<Item = (FileKey, FileKey)> {
    epochs.iter().flat_map(|epoch| &epoch.records).filter_map(|entry| match &entry.record {
        AnyRecord::Alias(alias) => Some((alias.old.clone().into(), alias.new.clone().into())),
        _ => None,
    })
}

/// Returns the index of the epoch that begins at a checkpoint. If two epochs begin at the same checkpoint, returns the
/// newer epoch, because a rollback from there applies fewer records.
pub(super) fn position(log: &ReadLog, sequence: Sequence) -> Option<usize> {
    log.epochs.iter().rposition(|epoch| epoch.sequences.contains(&sequence))
}

/// Returns the paths of inodes that an interrupted rollback may have changed.
fn touched_paths(log: &ReadLog, begun: &Begun) -> Vec<PathBuf> {
    let mut paths = Vec::new();
    for entry in log.epochs.iter().flat_map(|epoch| &epoch.records) {
        let (key, path) = match &entry.record {
            AnyRecord::Inode(inode) => (&inode.key, &inode.path),
            AnyRecord::Directory(directory) => (&directory.key, &directory.path),
            _ => continue,
        };
        if begun.touched.contains(&FileKey::from(key.clone())) {
            paths.push(record::path_of(path).to_path_buf());
        }
    }
    paths.sort();
    paths.dedup();
    paths
}
