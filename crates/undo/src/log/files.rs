//! Names of the files in the directory of an undo log.
//!
//! Owns: the names of epoch files, creating and finding epoch files, and the mark of a subject that has run without a
//! watch.
//! Does not: read or write records.

use super::storage::{LogFile, Storage};
use crate::error::{Result, UndoError};

/// The name of the file in which the fd holder, a process with a copy of the seccomp filter's listener, marks how an
/// incarnation of the subject has ended.
///
/// If the subject has run without being watched, the file contains another text than an end mark
/// ([`sys::listener_holder::end_of`]). The newest epoch is then broken: no rollback across this epoch is possible. The
/// fd holder writes this text before calls of the subject continue without a record. An end mark states that the last
/// process of the subject has ended while the guardian watched the subject.
///
/// The fd holder receives the open file in advance. Each incarnation has a new file, so that a late mark of an earlier
/// incarnation has no effect.
pub const UNWATCHED: &str = "unwatched";
/// The suffix of epoch files.
const EPOCH_SUFFIX: &str = ".epoch";

/// Empties the file that marks a subject which has run without being watched.
pub(super) fn clear_mark(storage: &dyn Storage) -> Result<()> {
    if storage.names()?.iter().any(|name| name == UNWATCHED) {
        storage.open(UNWATCHED)?.truncate(0)
    } else {
        Ok(())
    }
}

/// Returns the name of the file of an epoch.
pub(crate) fn epoch_name(ordinal: u64) -> String {
    format!("{ordinal:08}{EPOCH_SUFFIX}")
}

/// Returns the ordinal numbers of the epochs in a directory, in no order.
pub(crate) fn ordinals(storage: &dyn Storage) -> Result<Vec<u64>> {
    let names = storage.names()?;
    Ok(names.iter().filter_map(|name| name.strip_suffix(EPOCH_SUFFIX)?.parse().ok()).collect())
}

/// Creates an empty file for an epoch. An existing file of an earlier run is emptied and used.
pub(super) fn new_file(storage: &dyn Storage, ordinal: u64) -> Result<Box<dyn LogFile>> {
    let name = epoch_name(ordinal);
    let file = match storage.create(&name) {
        Err(UndoError::Kernel(error)) if error.errno == sys::Errno::EEXIST => storage.open(&name)?,
        result => result?,
    };
    file.truncate(0)?;
    Ok(file)
}
