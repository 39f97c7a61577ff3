//! What a watch knows, behind one lock.
//!
//! Owns: the log of the present epoch, and what becomes of a failure to keep.
//! Invariants: whatever cannot be kept breaks the epoch, with the reason, and never stops the subject.
//! Does not: decide what a call changes; `names` and `content` do.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use model::Sequence;
use rustix::fs::{FileType, Stat};

use super::boundaries::Boundaries;
use super::costs::Costs;
use super::crossings::Crossings;
use super::descriptors::key_of;
use super::epoch::{Content, Epoch, Old};
use super::file_systems::FileSystems;
use super::marks::ContentSource;
use super::paths::path_of;
use super::watched::WatchedFiles;
use crate::error::{Result, UndoError};
use crate::key::{Attributes, FileKey};
use crate::log::UndoLog;
use crate::log::keep::KeepPlaces;

/// What a watch knows.
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
    /// Why an epoch was broken last.
    pub(super) last_break: Option<String>,
    /// What its threads may be doing.
    pub(super) crossings: Crossings,
    /// The subject is being restored: what is done to files is no change.
    pub(super) is_restoring: bool,
    pub(super) buffer: Vec<u8>,
}

/// Bytes that are read at once.
pub(super) const CHUNK: usize = 1 << 20;

impl State {
    pub(super) fn new(
        log: UndoLog,
        keep: KeepPlaces,
        source: Box<dyn ContentSource>,
        start: Sequence,
        costs: Costs,
    ) -> Self {
        Self {
            log,
            keep,
            epoch: Epoch::default(),
            watched: WatchedFiles::new(source),
            file_systems: FileSystems::default(),
            boundaries: Boundaries::starting_at(start),
            costs,
            uncovered: Vec::new(),
            last_break: None,
            crossings: Crossings::default(),
            is_restoring: false,
            buffer: vec![0; CHUNK],
        }
    }

    /// Forgets the present epoch.
    pub(super) fn begin_epoch(&mut self) {
        self.epoch = Epoch::default();
        self.costs.begin_epoch();
    }

    /// Notes that the way back through this epoch is lost.
    pub(super) fn break_epoch(&mut self, why: &str) {
        if self.epoch.broken.is_none() {
            self.epoch.broken = Some(why.to_owned());
            self.last_break = Some(why.to_owned());
            self.epoch.is_touched = true;
            // A log that takes no records loses this one, too: then the memory of this program knows.
            let _ = self.log.broken(why);
        }
    }

    /// Turns a failure to keep into a broken epoch.
    pub(super) fn or_break(&mut self, outcome: Result<()>, what: &str) {
        if let Err(error) = outcome {
            let why = match &error {
                UndoError::Full { .. } | UndoError::NoHandles { .. } => error.to_string(),
                _ => format!("{what} could not be kept: {error}"),
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

    /// Whether an inode existed when the epoch began, and is recorded.
    pub(super) fn is_old(&mut self, file: BorrowedFd<'_>, stat: &Stat) -> Result<bool> {
        let id = (stat.st_dev, stat.st_ino);
        match self.epoch.inodes.get(&id) {
            None => Ok(false),
            Some(Old { gone: None, .. }) => Ok(true),
            Some(Old { gone: Some(key), .. }) if *key == key_of(file, stat)? => Ok(true),
            Some(_) => {
                // The number is that of a file which was made in this epoch.
                self.epoch.inodes.remove(&id);
                self.epoch.made.insert(id);
                Ok(false)
            }
        }
    }

    /// Writes the record of an old inode.
    pub(super) fn record(&mut self, key: &FileKey, attributes: &Attributes, path: PathBuf) -> Result<()> {
        let has_content = attributes.kind() == FileType::RegularFile && attributes.size > 0;
        let number = self.log.inode(key, attributes, &path)?;
        let content = if has_content { Content::Untouched } else { Content::Whole };
        let old = Old { id: number, size: attributes.size, content, is_kept: false, gone: None };
        self.epoch.inodes.insert((key.device, key.inode), old);
        Ok(())
    }
}
