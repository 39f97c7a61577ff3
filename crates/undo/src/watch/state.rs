//! The state of a watch, behind one lock.
//!
//! A watch detects file changes of a subject, and records the earlier state of files in the undo log. An epoch is the
//! time between two successive checkpoints.
//!
//! Owns: the log of the present epoch, and the reaction to a failed record.
//! Invariants: a failure to record breaks the epoch, with a reason, and never stops the subject. No rollback across a
//! broken epoch is possible.
//! Does not: determine the changes of a call; `answer`, `names` and `content` do.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use model::Sequence;
use rustix::fs::{FileType, Stat};
use sys::clock;

use super::boundaries::Boundaries;
use super::costs::Costs;
use super::crossings::Crossings;
use super::descriptors::{key_of, stat};
use super::durable::Moment;
use super::epoch::{Content, Epoch, Old};
use super::file_systems::FileSystems;
use super::marks::ContentSource;
use super::paths::path_of;
use super::watched::WatchedFiles;
use crate::error::{Result, UndoError};
use crate::key::{Attributes, FileKey};
use crate::log::UndoLog;
use crate::log::keep::KeepPlaces;

/// The state of a watch.
#[derive(Debug)]
pub(super) struct State {
    pub(super) log: UndoLog,
    pub(super) keep: KeepPlaces,
    pub(super) epoch: Epoch,
    pub(super) watched: WatchedFiles,
    pub(super) file_systems: FileSystems,
    pub(super) boundaries: Boundaries,
    pub(super) costs: Costs,
    pub(super) uncovered: Vec<PathBuf>,
    /// The reason for the last broken epoch.
    pub(super) last_break: Option<String>,
    /// The calls that threads of the subject may be executing.
    pub(super) crossings: Crossings,
    /// Whether the subject is being restored. File changes then belong to the restore.
    pub(super) is_restoring: bool,
    pub(super) buffer: Vec<u8>,
}

/// Maximum difference between the time of a change and the time that a file system records for it. A file system
/// records the time of the last timer interrupt.
const FILE_TIME_STEP: Duration = Duration::from_millis(20);

/// Bytes that one read requests.
pub(super) const CHUNK: usize = 1 << 20;

impl State {
    pub(super) fn new(
        log: UndoLog,
        keep: KeepPlaces,
        source: Box<dyn ContentSource>,
        start: Sequence,
        costs: Costs,
    ) -> Self {
        let boundaries = Boundaries::starting_at(start, (clock::monotonic(), costs.clock().wall()));
        Self {
            log,
            keep,
            epoch: Epoch::default(),
            watched: WatchedFiles::new(source),
            file_systems: FileSystems::default(),
            boundaries,
            costs,
            uncovered: Vec::new(),
            last_break: None,
            crossings: Crossings::default(),
            is_restoring: false,
            buffer: vec![0; CHUNK],
        }
    }

    /// Returns the present time on CLOCK_MONOTONIC and on the wall clock.
    pub(super) fn moment(&self) -> Moment {
        (clock::monotonic(), self.costs.clock().wall())
    }

    /// Reports whether a file may have changed since a time on the wall clock. Of a file that cannot be inspected,
    /// nothing is known.
    pub(super) fn has_changed_since(&self, key: &FileKey, since: SystemTime) -> bool {
        let found =
            self.file_systems.open(key).map_err(drop).and_then(|file| stat(file.as_fd()).map_err(drop));
        found.map_or(true, |found| {
            let changed = Duration::new(found.st_mtime.unsigned_abs(), found.st_mtime_nsec as u32);
            SystemTime::UNIX_EPOCH + changed + FILE_TIME_STEP >= since
        })
    }

    /// Discards the state of the present epoch, and begins a new epoch.
    pub(super) fn begin_epoch(&mut self) {
        self.epoch = Epoch::default();
        self.costs.begin_epoch();
    }

    /// Marks the present epoch as broken: no rollback across this epoch is possible.
    pub(super) fn break_epoch(&mut self, why: &str) {
        if self.epoch.broken.is_none() {
            self.epoch.broken = Some(why.to_owned());
            self.last_break = Some(why.to_owned());
            self.epoch.is_touched = true;
            // If the log cannot record the reason either, the reason is only in the memory of this program.
            let _ = self.log.broken(why);
        }
    }

    /// Marks the epoch as broken if `outcome` is a failure to record.
    pub(super) fn or_break(&mut self, outcome: Result<()>, what: &str) {
        if let Err(error) = outcome {
            let why = match &error {
                UndoError::Full { .. } | UndoError::NoHandles { .. } => error.to_string(),
                _ => format!("could not record {what}: {error}"),
            };
            self.break_epoch(&why);
        }
    }

    /// Records an inode that existed when the epoch began.
    pub(super) fn old(&mut self, file: BorrowedFd<'_>, stat: &Stat) -> Result<&mut Old> {
        let id = (stat.st_dev, stat.st_ino);
        if !self.is_old(file, stat)? {
            let key = key_of(file, stat)?;
            let attributes = Attributes::read(file, stat)?;
            self.record(&key, &attributes, path_of(file))?;
            self.epoch.is_touched = true;
        }
        Ok(self.epoch.inodes.get_mut(&id).expect("it was inserted if it was not there"))
    }

    /// Reports whether an inode existed when the epoch began, and is recorded.
    pub(super) fn is_old(&mut self, file: BorrowedFd<'_>, stat: &Stat) -> Result<bool> {
        let id = (stat.st_dev, stat.st_ino);
        match self.epoch.inodes.get(&id) {
            None => Ok(false),
            Some(Old { gone: None, .. }) => Ok(true),
            Some(Old { gone: Some(key), .. }) if *key == key_of(file, stat)? => Ok(true),
            Some(_) => {
                // The inode number now belongs to a file that was created in this epoch.
                self.epoch.inodes.remove(&id);
                self.epoch.made.insert(id);
                Ok(false)
            }
        }
    }

    /// Writes the record of an inode that existed when the epoch began.
    pub(super) fn record(&mut self, key: &FileKey, attributes: &Attributes, path: PathBuf) -> Result<()> {
        let has_content = attributes.kind() == FileType::RegularFile && attributes.size > 0;
        let number = self.log.inode(key, attributes, &path)?;
        let content = if has_content { Content::Untouched } else { Content::Whole };
        let old = Old { id: number, size: attributes.size, content, is_kept: false, gone: None };
        self.epoch.inodes.insert((key.device, key.inode), old);
        Ok(())
    }
}
