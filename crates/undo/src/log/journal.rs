//! The journal of a rollback: the file that lets a later call continue an interrupted rollback.
//!
//! Owns: the journal file, with the checkpoint, the inodes that may have changed, and the inodes that were created
//! again.
//! Invariants: the journal is durable before the first step. The alias of a new inode is in the journal before the
//! inode gets its name.
//! Does not: list the steps. The steps follow from the present state of files.

use std::collections::{HashMap, HashSet};

use model::Sequence;
use rustix::fs::FileType;

use super::frame;
use super::reader::{self, ReadLog};
use super::record::{Alias, AnyRecord, Attempt, KeyMessage, Kind, Left, Touching};
use super::storage::{LogFile, Storage};
use super::target::Aliases;
use crate::error::Result;
use crate::key::{Attributes, FileKey};

/// How a rollback treats files that were changed after the subject had ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Conflicts {
    /// The rollback changes nothing, and the error names the changed files.
    #[default]
    Refuse,
    /// The rollback changes these files like all other files.
    Force,
}

/// The failure that a rollback survives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// The end of this program at any moment.
    #[default]
    Kill,
    /// A power cut, or the end of the kernel: file systems are synced before the first step and after the last step.
    PowerCut,
}

/// The name of the journal file.
const NAME: &str = "going-back";
/// Maximum number of keys in one record. The record stays well below its size limit.
const KEYS_MAX: usize = 10_000;

/// An interrupted rollback, as the journal describes the rollback.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// The oldest checkpoint of all attempts.
    pub(crate) to: Sequence,
    /// The number of the rollback. All attempts have the same number.
    pub(crate) number: u64,
    /// The boot id of the first attempt, which is also the boot id of the epochs.
    pub(crate) boot: String,
    /// The boot id of the last attempt.
    pub(crate) last_boot: String,
    pub(crate) is_forced: bool,
    /// Whether all files were made durable before the last attempt.
    pub(crate) is_durable: bool,
    /// Inodes that the rollback may have changed.
    pub(crate) touched: HashSet<FileKey>,
    /// The state of these inodes at the end of the last attempt, if this attempt has failed and was not killed.
    left: HashMap<FileKey, Attributes>,
    pub(crate) made: Vec<(FileKey, FileKey)>,
    length: u64,
}

/// The journal of a rollback in progress.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Box<dyn LogFile>,
    length: u64,
    pub(crate) made: Vec<(FileKey, FileKey)>,
}

/// Reads the journal of a log. Returns `None` if no rollback is in progress.
pub(crate) fn read(storage: &dyn Storage, log: &ReadLog) -> Result<Option<Begun>> {
    if !storage.names()?.iter().any(|name| name == NAME) {
        return Ok(None);
    }
    let (records, length) = reader::read_frames(&*storage.open(NAME)?)?;
    let newest = log.epochs.last().map_or(0, |epoch| epoch.ordinal);
    let mut begun: Option<Begun> = None;
    for record in records {
        match (record, &mut begun) {
            (AnyRecord::Attempt(attempt), None) => begun = Some(Begun::new(attempt, newest)),
            (AnyRecord::Attempt(attempt), Some(begun)) => {
                begun.to = begun.to.min(Sequence(attempt.to));
                begun.is_forced |= attempt.is_forced;
                begun.is_durable = attempt.is_durable;
                begun.last_boot = attempt.boot;
                begun.left.clear();
            }
            (AnyRecord::Touching(touching), Some(begun)) => {
                begun.touched.extend(touching.keys.into_iter().map(FileKey::from));
            }
            (AnyRecord::Left(left), Some(begun)) => {
                begun.left.insert(left.key.into(), left.attributes);
            }
            (AnyRecord::Alias(alias), Some(begun)) => {
                let new = FileKey::from(alias.new);
                begun.touched.insert(new.clone());
                begun.made.push((alias.old.into(), new));
            }
            _ => {}
        }
    }
    // Number 0 means a complete rollback whose journal still exists. Without a whole record of an attempt, no step was
    // made.
    Ok(begun.filter(|begun| begun.number > 0).map(|begun| Begun { length, ..begun }))
}

impl Begun {
    fn new(attempt: Attempt, newest: u64) -> Self {
        let is_done = newest > attempt.ordinal;
        Self {
            to: Sequence(attempt.to),
            number: if is_done { 0 } else { attempt.number },
            boot: attempt.boot.clone(),
            last_boot: attempt.boot,
            is_forced: attempt.is_forced,
            is_durable: attempt.is_durable,
            ..Self::default()
        }
    }

    /// Reports whether the present state of an inode can be the work of an earlier attempt.
    pub(crate) fn explains(&self, key: &FileKey, now: &Attributes) -> bool {
        let is_as_left = |left: &Attributes| {
            let rights = |of: &Attributes| (of.mode, of.owner, of.group);
            // The operator may remove a name that stood in the way, which sets the time of the directory.
            let is_same_file = (left.size, left.modified) == (now.size, now.modified);
            rights(left) == rights(now) && (is_same_file || left.kind() == FileType::Directory)
        };
        self.touched.contains(key) && self.left.get(key).is_none_or(is_as_left)
    }

    /// Adds the inodes that were created again to the aliases of a log.
    pub(crate) fn add_to(&self, aliases: &mut Aliases) {
        for (old, new) in &self.made {
            aliases.add(old.clone(), new.clone());
        }
    }
}

impl Journal {
    /// Writes the beginning of an attempt, and makes the journal durable.
    pub(crate) fn begin(
        storage: &dyn Storage,
        begun: Option<&Begun>,
        attempt: Attempt,
        touching: &[FileKey],
    ) -> Result<Self> {
        let (file, length, made) = match begun {
            Some(begun) => (storage.open(NAME)?, begun.length, begun.made.clone()),
            None => {
                storage.remove(NAME)?;
                (storage.create(NAME)?, 0, Vec::new())
            }
        };
        file.truncate(length)?;
        let mut journal = Self { file, length, made };
        // The inodes to be changed follow the attempt. All these records are durable before the first step.
        journal.append(&attempt)?;
        for keys in touching.chunks(KEYS_MAX) {
            journal.append(&Touching { keys: keys.iter().map(KeyMessage::from).collect() })?;
        }
        journal.file.sync()?;
        storage.sync()?;
        Ok(journal)
    }

    /// Records that an inode was created again. The caller gives the new inode its name afterwards.
    pub(crate) fn made(&mut self, old: &FileKey, new: &FileKey) -> Result<()> {
        self.append(&Alias { old: old.into(), new: new.into() })?;
        self.made.push((old.clone(), new.clone()));
        Ok(())
    }

    /// Records the state in which a failed attempt has left an inode.
    pub(crate) fn left(&mut self, key: &FileKey, attributes: &Attributes) -> Result<()> {
        self.append(&Left { key: key.into(), attributes: attributes.clone() })
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync()
    }

    /// Removes the journal of a complete rollback, after the log has recorded the end.
    pub(crate) fn remove(storage: &dyn Storage) -> Result<()> {
        storage.remove(NAME)
    }

    fn append<Body: Kind>(&mut self, body: &Body) -> Result<()> {
        let frame = frame::encode(body, &[]);
        if let Err(error) = self.file.write(self.length, [&frame, &[]]) {
            let _ = self.file.truncate(self.length);
            return Err(error);
        }
        self.length += frame.len() as u64;
        Ok(())
    }
}

/// Builds the record of an attempt.
pub(crate) fn attempt(
    to: Sequence,
    number: u64,
    boot: &str,
    conflicts: Conflicts,
    durability: Durability,
    log: &ReadLog,
) -> Attempt {
    Attempt {
        to: to.get(),
        number,
        boot: boot.to_owned(),
        is_forced: conflicts == Conflicts::Force,
        is_durable: durability == Durability::PowerCut,
        ordinal: log.epochs.last().map_or(0, |epoch| epoch.ordinal),
    }
}
