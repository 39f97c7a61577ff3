//! A joined epoch: the content of several epochs of which only the first one begins at a retained checkpoint
//! (docs/design/0058).
//!
//! A rollback to a checkpoint needs all later epochs. A program that changes the same files all the time repeats their
//! content in each epoch. If nothing can be rolled back to the checkpoint between two epochs, of all content of a range
//! only the oldest is needed.
//!
//! Owns: writing a joined epoch, and the rename that exchanges it for the epochs.
//! Invariants: a rollback has the same result with the joined epoch as with the epochs. One rename exchanges them, so
//! that the log is complete at every moment.
//! Does not: choose epochs, or count the size of the log; `join` does.

mod writer;
mod young;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use model::Sequence;

use self::writer::Writer;
use self::young::Young;
use super::files::epoch_name;
use super::reader::{self, ReadEpoch};
use super::record;
use super::storage::{LogFile, Storage};
use crate::error::Result;

/// Epochs are joined if the later ones have as many bytes as the first one, and this many more. So at most as many bytes
/// are copied as were recorded.
const JOIN_BYTES_MIN: u64 = 4 << 20;
/// Epochs are also joined if they are this many, because a rollback opens the file of each epoch.
const JOIN_EPOCHS_MIN: usize = 512;
/// The suffix of a joined epoch that is not published.
pub(super) const SUFFIX: &str = ".joined";

/// When epochs are joined.
#[derive(Debug)]
pub(super) struct Joining {
    /// Identifies the log: a log that was opened again knows nothing of the epochs that are being joined.
    pub(super) log: Arc<()>,
    /// `JOIN_BYTES_MIN` and `JOIN_EPOCHS_MIN`.
    pub(super) bytes_min: u64,
    pub(super) epochs_min: usize,
    /// The number of attempts that have failed since the last success, at most `FAILURES_MAX`. Each doubles the minimums, so
    /// that damaged epochs are not read all the time.
    pub(super) failures: u32,
}

/// Epochs that can be joined.
#[derive(Debug)]
pub struct Joint {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) log: Arc<()>,
    pub(super) boot: String,
    /// The ordinal numbers of the epochs, in rising order.
    pub(super) ordinals: Vec<u64>,
    /// The checkpoints to which the first of the epochs leads.
    pub(super) sequences: Vec<Sequence>,
}

/// A joined epoch that is written, and not yet published.
#[derive(Debug)]
pub struct Joined {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) log: Arc<()>,
    pub(super) ordinals: Vec<u64>,
    /// The name of the file.
    pub(super) name: String,
    pub(super) length: u64,
    /// The files in keep directories that the records name.
    pub(super) kept: Vec<PathBuf>,
}

impl Default for Joining {
    fn default() -> Self {
        Self { log: Arc::default(), bytes_min: JOIN_BYTES_MIN, epochs_min: JOIN_EPOCHS_MIN, failures: 0 }
    }
}

/// Removes joined epochs that were never published.
pub(super) fn remove_unpublished(storage: &dyn Storage) -> Result<()> {
    storage.names()?.iter().filter(|name| name.ends_with(SUFFIX)).try_for_each(|name| storage.remove(name))
}

impl Joint {
    /// Writes the joined epoch. The caller needs no access to the log. Returns `None` if a record is missing or damaged.
    ///
    /// # Errors
    ///
    /// A file cannot be read or written.
    pub fn write(self) -> Result<Option<Joined>> {
        // Another thread can still be joining epochs of the log that this log has replaced.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let last = self.ordinals.last().copied().unwrap_or_default();
        let name = format!("{last:08}-{}{SUFFIX}", NEXT.fetch_add(1, Ordering::Relaxed));
        let written = self.write_to(&name);
        let Ok(Some((length, kept))) = written else {
            self.storage.remove(&name)?;
            return written.map(|_| None);
        };
        let Self { storage, log, ordinals, .. } = self;
        Ok(Some(Joined { storage, log, ordinals, name, length, kept }))
    }

    fn write_to(&self, name: &str) -> Result<Option<(u64, Vec<PathBuf>)>> {
        self.storage.remove(name)?;
        let mut young = Young::default();
        for ordinal in &self.ordinals {
            let Some((_, epoch)) = self.read(*ordinal, false)? else { return Ok(None) };
            young.add(&epoch);
        }
        let mut joined = Writer::new(self.storage.create_plain(name)?, young.found());
        for ordinal in &self.ordinals {
            let Some((file, epoch)) = self.read(*ordinal, true)? else { return Ok(None) };
            if *ordinal == self.ordinals[0] {
                joined.append(&self.header(&epoch), &[])?;
            }
            if !joined.add(&*file, &epoch, &self.sequences)? {
                return Ok(None);
            }
        }
        joined.finish().map(Some)
    }

    /// Reads an epoch; with `is_deep`, its data is verified. Returns `None` if the epoch cannot be joined.
    fn read(&self, ordinal: u64, is_deep: bool) -> Result<Option<(Box<dyn LogFile>, ReadEpoch)>> {
        let file = self.storage.open(&epoch_name(ordinal))?;
        let epoch = reader::read_epoch(&*file, ordinal, false, is_deep)?;
        let epoch = epoch.filter(|epoch| epoch.broken.is_none() && epoch.boot == self.boot);
        Ok(epoch.map(|epoch| (file, epoch)))
    }

    /// Returns the header of the joined epoch: the checkpoints and the predecessor of the first epoch, and the number of the
    /// last one, which its successor names.
    fn header(&self, first: &ReadEpoch) -> record::Header {
        record::Header {
            boot: self.boot.clone(),
            ordinal: self.ordinals.last().copied().unwrap_or_default(),
            after: first.after,
            sequences: self.sequences.iter().map(|sequence| sequence.get()).collect(),
            time: first.time,
        }
    }
}

impl Joined {
    /// Replaces the last of the epochs. The other epochs are then no longer part of the log. The caller ensures that no
    /// other thread reads the log or opens it again.
    ///
    /// # Errors
    ///
    /// The file cannot be renamed. The log is unchanged.
    pub fn publish(&self) -> Result<()> {
        let last = self.ordinals.last().copied().unwrap_or_default();
        self.storage.rename(&self.name, &epoch_name(last))
    }

    /// Removes the joined epoch, which was not published.
    ///
    /// # Errors
    ///
    /// The file cannot be removed.
    pub fn discard(self) -> Result<()> {
        self.storage.remove(&self.name)
    }
}
