//! A simulated disk for files of a subject (a protected process tree) and their undo log, and a subject that changes these
//! files at random.
//!
//! Owns: the use of the undo log and of rollbacks on the simulated disk, for tests of this crate and of other crates.
//! Invariants: the seed of the disk and the calls determine all results.
//! Does not: watch a process.
#![allow(clippy::unwrap_used, reason = "only tests use this module")]

mod disk;
mod files;
mod storage;
mod subject;

use model::{ByteCount, Sequence};

pub use disk::Disk;
pub use subject::{FileSubject, Picture, difference, picture};

#[cfg(test)]
pub(crate) use disk::{ASIDE, KEPT, LOG, NEW, ROOT, TRANSIT, key_of};
pub(crate) use files::Files;

use crate::back::{
    Conflicts, Durability, Standing, Terms, WentBack, give_up_on, go_back_on, reachable_on, standing_on,
};
use crate::error::Result;
use crate::log::{UNWATCHED, UndoLog};
use storage::SimulatedStorage;

impl Disk {
    /// Returns the access of a program to the undo log. Writes that the program holds back are lost with the value.
    pub(crate) fn storage(&self) -> SimulatedStorage {
        SimulatedStorage::new(self.clone())
    }

    /// Works like [`UndoLog::create`].
    ///
    /// # Errors
    ///
    /// The disk is full, or the program was killed.
    pub fn create_log(&self, start: Sequence, bytes_max: ByteCount) -> Result<UndoLog> {
        UndoLog::create_on(Box::new(self.storage()), start, bytes_max)
    }

    /// Works like [`UndoLog::open`].
    ///
    /// # Errors
    ///
    /// The log cannot be continued, the disk is full, or the program was killed.
    pub fn open_log(&self, bytes_max: ByteCount) -> Result<UndoLog> {
        UndoLog::open_on(Box::new(self.storage()), bytes_max)
    }

    /// Works like [`crate::back::go_back`], if no other program changes files.
    ///
    /// # Errors
    ///
    /// The rollback is impossible, the disk is full, or the program was killed.
    pub fn go_back(&self, to: Sequence, durability: Durability) -> Result<WentBack> {
        let terms = Terms { conflicts: Conflicts::Refuse, leave: &[], durability, time: self.now() };
        go_back_on(&self.storage(), &Files { disk: self.clone() }, to, terms)
    }

    /// Returns the checkpoints that a rollback can reach.
    ///
    /// # Errors
    ///
    /// The log cannot be read.
    pub fn reachable(&self) -> Result<Vec<Sequence>> {
        Ok(reachable_on(&self.storage())?.0)
    }

    /// Works like [`crate::back::standing`].
    ///
    /// # Errors
    ///
    /// The log cannot be read.
    pub fn standing(&self) -> Result<Standing> {
        standing_on(&self.storage())
    }

    /// Works like [`crate::back::give_up`].
    ///
    /// # Errors
    ///
    /// The disk is full, or the program was killed.
    pub fn give_up(&self, why: &str) -> Result<()> {
        give_up_on(&self.storage(), why)
    }

    /// Writes the mark of the fd holder: the subject has run without being watched.
    ///
    /// # Errors
    ///
    /// The disk is full.
    pub fn mark_unwatched(&self) -> Result<()> {
        use crate::log::storage::Storage as _;
        let storage = self.storage();
        let is_there = storage.names()?.iter().any(|name| name == UNWATCHED);
        let file = if is_there { storage.open(UNWATCHED) } else { storage.create(UNWATCHED) };
        file?.write(0, [b"unwatched\n", &[]])
    }
}
