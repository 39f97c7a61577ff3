//! The files of a log in its directory: one for each epoch, and the mark of an unwatched subject.
//!
//! Owns: their names, how they are made and found.
//! Does not: read or write records.

use super::storage::{LogFile, Storage};
use crate::error::{Result, UndoError};

/// A file of this name, once it has content, says that the subject has run without being watched: the newest epoch is
/// broken. The holder of the listener, which lets calls of the subject continue without a record, writes to it first; it
/// was given the open file beforehand, so that the file is never replaced.
pub const UNWATCHED: &str = "unwatched";
/// How the files of epochs end.
const EPOCH_SUFFIX: &str = ".epoch";

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
