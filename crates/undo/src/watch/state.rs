//! The state of a watch, behind one lock.
//!
//! Owns: the log of the present epoch, and the reaction to a failed record.
//! Invariants: a failure to record breaks the epoch, with a reason, and never stops the subject.
//! Does not: determine the changes of a call; `answer`, `names` and `content` do.

use std::collections::HashSet;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use model::Sequence;
use rustix::fs::Stat;
use sys::clock;

use super::boundaries::Boundaries;
use super::callers::Callers;
use super::costs::Costs;
use super::crossings::Crossings;
use super::descriptors::{key_of, recorded_path, stat};
use super::durable::Moment;
use super::epoch::{Content, Epoch, Id, Old};
use super::file_systems::FileSystems;
use super::marks::ContentSource;
use super::own_lines::OwnLines;
use super::watched::WatchedFiles;
use crate::error::{Result, UndoError};
use crate::key::{Attributes, FileKey, Time};
use crate::log::UndoLog;
use crate::log::keep::KeepPlaces;
use crate::rights::{Aspects, Rights, RightsId, Touch};

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
    pub(super) unreported: Unreported,
    /// The reason for the last broken epoch.
    pub(super) last_break: Option<String>,
    pub(super) calls: Calls,
    /// Whether the subject is being restored. File changes then belong to the restore.
    pub(super) is_restoring: bool,
    pub(super) buffer: Vec<u8>,
}

/// Maximum difference between the time of a change and the time that a file system records for it. A file system
/// records the time of the last timer interrupt.
const FILE_TIME_STEP: Duration = Duration::from_millis(20);

/// Files that were open or mapped at the newest boundary, and can change undetected.
#[derive(Debug, Default)]
pub(super) struct Unreported {
    pub(super) paths: Vec<PathBuf>,
    /// Those files of which an open file description reports no changes, because its open was not detected.
    pub(super) unseen: HashSet<Id>,
    /// Recognizes messages of this program in files that the subject shares with this program.
    pub(super) own_lines: Option<OwnLines>,
}

/// The calls of the subject.
#[derive(Debug)]
pub(super) struct Calls {
    /// The calls that threads of the subject may be executing.
    pub(super) crossings: Crossings,
    pub(super) callers: Callers,
    /// The rights of the thread whose call is answered. `None` means at least the rights of this program.
    pub(super) rights: Option<Rights>,
    /// The rights with which a rollback may revert the present call, if they differ from `rights`.
    pub(super) limit: Option<Rights>,
}

/// Bytes that one read requests.
pub(super) const CHUNK: usize = 1 << 20;

impl State {
    pub(super) fn new(
        log: UndoLog,
        keep: KeepPlaces,
        source: Box<dyn ContentSource>,
        callers: Callers,
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
            unreported: Unreported::default(),
            last_break: None,
            calls: Calls { crossings: Crossings::default(), callers, rights: None, limit: None },
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

    /// Records an inode that existed when the epoch began, before the present call changes some aspects of the inode.
    pub(super) fn old(&mut self, file: BorrowedFd<'_>, stat: &Stat, aspects: Aspects) -> Result<&mut Old> {
        let id = (stat.st_dev, stat.st_ino);
        let touch = Touch { aspects, rights: self.by()? };
        if !self.is_old(file, stat)? {
            let key = key_of(file, stat)?;
            let attributes = Attributes::read(file, stat)?;
            let changed = self.change_time(stat);
            self.record_touched(&key, &attributes, recorded_path(file)?, touch, changed)?;
            self.epoch.is_touched = true;
        }
        let old = self.epoch.inodes.get_mut(&id).expect("it was inserted if it was not there");
        if !aspects.is_none() && !old.touched.iter().any(|known| known.covers(touch)) {
            let attributes = Attributes::read(file, stat)?;
            self.log.touched(old.id, touch, &attributes)?;
            // Another program may have changed the content since the first record.
            if aspects.contains(Aspects::CONTENT) && !old.touches(Aspects::CONTENT) {
                (old.size, old.content) = (attributes.size, Content::at_first(&attributes));
            }
            old.touched.push(touch);
            self.epoch.is_touched = true;
        }
        Ok(old)
    }

    /// Returns the id of the rights of the present call.
    pub(super) fn by(&mut self) -> Result<RightsId> {
        let rights = self.calls.limit.as_ref().or(self.calls.rights.as_ref());
        let Some(rights) = rights else { return Ok(RightsId::OWN) };
        if let Some(id) = self.epoch.rights.get(rights) {
            return Ok(*id);
        }
        let id = self.log.rights(rights)?;
        self.epoch.rights.insert(rights.clone(), id);
        Ok(id)
    }

    /// Returns the status change time of an inode. Returns `None` if the next change could leave the same time: the time
    /// is very recent, or the file system may not set the time at a store through a mapping.
    fn change_time(&self, stat: &Stat) -> Option<Time> {
        /// Some kernels count file times in ticks of up to 10 ms.
        const TICKS: Duration = Duration::from_millis(50);
        let changed = Time { s: stat.st_ctime, ns: stat.st_ctime_nsec as u32 };
        let before = Time::from(self.costs.clock().wall() - TICKS);
        (changed < before && self.file_systems.is_reporting(stat.st_dev)).then_some(changed)
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

    /// Writes the record of an inode whose content the subject can change through an open file or a mapping. The rights
    /// do not matter any more when a file is open.
    pub(super) fn record(&mut self, key: &FileKey, attributes: &Attributes, path: PathBuf) -> Result<()> {
        let touch = Touch { aspects: Aspects::CONTENT, rights: RightsId::OWN };
        self.record_touched(key, attributes, path, touch, None)
    }

    fn record_touched(
        &mut self,
        key: &FileKey,
        attributes: &Attributes,
        path: PathBuf,
        touch: Touch,
        changed: Option<Time>,
    ) -> Result<()> {
        let id = self.log.inode(key, attributes, &path, touch, changed)?;
        let content = Content::at_first(attributes);
        let touched = vec![touch];
        let old = Old { id, size: attributes.size, content, is_kept: false, touched, gone: None };
        self.epoch.inodes.insert((key.device, key.inode), old);
        Ok(())
    }
}
