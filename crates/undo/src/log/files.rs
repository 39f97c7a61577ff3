//! The files of a log in its directory: one for each epoch, and the mark of an unwatched subject.
//!
//! Owns: their names, how they are made, found and removed.
//! Invariants: a file of the log is removed before the links that it names.
//! Does not: read or write records.

use std::collections::HashSet;
use std::path::Path;

use super::reader::{ReadEpoch, ReadLog};
use super::record::{self, AnyRecord};
use super::storage::{LogFile, Storage};
use crate::error::{Result, UndoError};
use crate::log::journal::Journal;

/// A file of this name, once it has content, says that the subject has run without being watched: the newest epoch is
/// broken. The holder of the listener, which lets calls of the subject continue without a record, writes to it first; it
/// was given the open file beforehand, so that the file is never replaced.
pub const UNWATCHED: &str = "unwatched";
/// How the files of epochs end.
const EPOCH_SUFFIX: &str = ".epoch";

/// What an epoch names in keep directories.
pub(super) fn kept_of(epoch: &ReadEpoch) -> impl Iterator<Item = &Path> {
    epoch.records.iter().filter_map(|entry| match &entry.record {
        AnyRecord::Linked(linked) => Some(record::path_of(&linked.link)),
        AnyRecord::Whole(whole) => Some(record::path_of(&whole.file)),
        _ => None,
    })
}

/// Removes the files of epochs that lead nowhere, newest first, and what no other epoch names in keep directories.
pub(crate) fn remove_leftovers(storage: &dyn Storage, read: &ReadLog) -> Result<()> {
    for ordinal in &read.leftovers {
        storage.remove(&epoch_name(*ordinal))?;
    }
    storage.sweep_kept(&read.epochs.iter().flat_map(kept_of).map(Path::to_path_buf).collect())
}

/// Removes all epochs with what they keep; the newest ordinal that there was. What was moved aside stays.
pub(crate) fn clear(storage: &dyn Storage) -> Result<u64> {
    // Newest first: as long as one is there, the log leads nowhere without those after it.
    let mut ordinals = ordinals(storage)?;
    ordinals.sort_unstable();
    for ordinal in ordinals.iter().rev() {
        storage.remove(&epoch_name(*ordinal))?;
    }
    clear_mark(storage)?;
    Journal::remove(storage)?;
    storage.sweep_kept(&HashSet::new())?;
    Ok(ordinals.last().copied().unwrap_or(0))
}

/// Empties the file that says that the subject has run without being watched.
pub(super) fn clear_mark(storage: &dyn Storage) -> Result<()> {
    if storage.names()?.iter().any(|name| name == UNWATCHED) {
        storage.open(UNWATCHED)?.truncate(0)
    } else {
        Ok(())
    }
}

/// The name of an epoch's file.
pub(crate) fn epoch_name(ordinal: u64) -> String {
    format!("{ordinal:08}{EPOCH_SUFFIX}")
}

/// The numbers of the epochs in a directory, in no order.
pub(crate) fn ordinals(storage: &dyn Storage) -> Result<Vec<u64>> {
    let names = storage.names()?;
    Ok(names.iter().filter_map(|name| name.strip_suffix(EPOCH_SUFFIX)?.parse().ok()).collect())
}

/// An empty file for an epoch; one that an earlier run has left without content is used.
pub(super) fn new_file(storage: &dyn Storage, ordinal: u64) -> Result<Box<dyn LogFile>> {
    let name = epoch_name(ordinal);
    let file = match storage.create(&name) {
        Err(UndoError::Kernel(error)) if error.errno == sys::Errno::EEXIST => storage.open(&name)?,
        result => result?,
    };
    file.truncate(0)?;
    Ok(file)
}
