//! The journal of going back.
//!
//! Owns: the file that says that going back has begun, where to, what it may have changed, what was made again.
//! Invariants: it is durable before the first step; an alias is in it before the inode that was made has its name.
//! Does not: list steps: these follow from the files as they are.

use std::collections::HashSet;

use model::Sequence;

use super::reader::{self, ReadLog};
use super::record::{self, Alias, AnyRecord, Attempt, KeyMessage, Kind, Touching};
use super::storage::{LogFile, Storage};
use super::target::Aliases;
use crate::error::Result;
use crate::key::FileKey;

/// What happens when a file was changed after the subject had ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Conflicts {
    /// Nothing is changed; the error names all of them.
    #[default]
    Refuse,
    /// They go back as all others.
    Force,
}

/// What going back is safe against.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// The end of this program at any moment.
    #[default]
    Kill,
    /// That of the kernel as well: file systems are synced before the first step and after the last one.
    PowerCut,
}

/// The name of the journal.
const NAME: &str = "going-back";
/// Keys in one record, well below its bound.
const KEYS_MAX: usize = 10_000;

/// What an interrupted going back has left.
#[derive(Debug, Default)]
pub(crate) struct Begun {
    /// The oldest checkpoint that was aimed at.
    pub(crate) to: Sequence,
    /// The number of this going back; all its attempts have the same.
    pub(crate) number: u64,
    /// The run of the kernel in which it began, which is that of the epochs.
    pub(crate) boot: String,
    /// The run of the kernel of the last attempt.
    pub(crate) last_boot: String,
    pub(crate) is_forced: bool,
    /// Before the last attempt, all was made durable.
    pub(crate) is_durable: bool,
    /// Inodes that it can have changed.
    pub(crate) touched: HashSet<FileKey>,
    pub(crate) made: Vec<(FileKey, FileKey)>,
    length: u64,
}

/// The journal of the going back that is under way.
#[derive(Debug)]
pub(crate) struct Journal {
    file: Box<dyn LogFile>,
    length: u64,
    pub(crate) made: Vec<(FileKey, FileKey)>,
}

/// What the journal in a log says; `None` when nothing is under way.
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
            }
            (AnyRecord::Touching(touching), Some(begun)) => {
                begun.touched.extend(touching.keys.into_iter().map(FileKey::from));
            }
            (AnyRecord::Alias(alias), Some(begun)) => {
                let new = FileKey::from(alias.new);
                begun.touched.insert(new.clone());
                begun.made.push((alias.old.into(), new));
            }
            _ => {}
        }
    }
    // An attempt whose end the log has seen left its journal behind; one that is not whole has done nothing.
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

    /// Adds what was made again to the aliases of a log.
    pub(crate) fn add_to(&self, aliases: &mut Aliases) {
        for (old, new) in &self.made {
            aliases.add(old.clone(), new.clone());
        }
    }
}

impl Journal {
    /// Writes the beginning of an attempt, durably.
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
        // What is touched comes behind the attempt, and all of it before the first step.
        journal.append(&attempt)?;
        for keys in touching.chunks(KEYS_MAX) {
            journal.append(&Touching { keys: keys.iter().map(KeyMessage::from).collect() })?;
        }
        journal.file.sync()?;
        storage.sync()?;
        Ok(journal)
    }

    /// An inode was made again, and gets its name next.
    pub(crate) fn made(&mut self, old: &FileKey, new: &FileKey) -> Result<()> {
        self.append(&Alias { old: old.into(), new: new.into() })?;
        self.made.push((old.clone(), new.clone()));
        Ok(())
    }

    pub(crate) fn sync(&self) -> Result<()> {
        self.file.sync()
    }

    /// Removes the journal of a going back that the log has seen the end of.
    pub(crate) fn remove(storage: &dyn Storage) -> Result<()> {
        storage.remove(NAME)
    }

    fn append<Body: Kind>(&mut self, body: &Body) -> Result<()> {
        let frame = record::frame(body, &[]);
        if let Err(error) = self.file.write(self.length, [&frame, &[]]) {
            let _ = self.file.truncate(self.length);
            return Err(error);
        }
        self.length += frame.len() as u64;
        Ok(())
    }
}

/// The record of an attempt.
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
