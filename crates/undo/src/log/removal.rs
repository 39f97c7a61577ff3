//! Removal of epochs, and of the links and copies that their records name.
//!
//! Invariants: a log file is removed before the links that its records name.
//! Does not: decide which epochs are retained.

use std::collections::HashSet;
use std::path::Path;

use super::files::{clear_mark, epoch_name, ordinals};
use super::joint;
use super::journal::Journal;
use super::reader::{ReadEpoch, ReadLog};
use super::record::{self, AnyRecord};
use super::storage::Storage;
use crate::error::Result;

/// Returns the paths in keep directories that the records of an epoch name.
pub(super) fn kept_of(epoch: &ReadEpoch) -> impl Iterator<Item = &Path> {
    epoch.records.iter().filter_map(|entry| match &entry.record {
        AnyRecord::Linked(linked) => Some(record::path_of(&linked.link)),
        AnyRecord::Whole(whole) => Some(record::path_of(&whole.file)),
        AnyRecord::Shadow(shadow) => Some(record::path_of(&shadow.file)),
        _ => None,
    })
}

/// Removes the files of epochs that a rollback has replaced or cannot reach, newest first. Then removes links and
/// copies that no remaining epoch names.
pub(crate) fn remove_leftovers(storage: &dyn Storage, read: &ReadLog) -> Result<()> {
    for ordinal in &read.leftovers {
        storage.remove(&epoch_name(*ordinal))?;
    }
    joint::remove_unpublished(storage)?;
    storage.sweep_kept(&read.epochs.iter().flat_map(kept_of).map(Path::to_path_buf).collect())
}

/// Removes all epochs with their links and copies. Returns the ordinal number of the newest removed epoch, or 0. Files
/// that a rollback has moved aside stay.
pub(crate) fn clear(storage: &dyn Storage) -> Result<u64> {
    // Remove the newest epoch first: an older epoch is useless without all later epochs.
    let mut ordinals = ordinals(storage)?;
    ordinals.sort_unstable();
    for ordinal in ordinals.iter().rev() {
        storage.remove(&epoch_name(*ordinal))?;
    }
    joint::remove_unpublished(storage)?;
    clear_mark(storage)?;
    Journal::remove(storage)?;
    storage.sweep_kept(&HashSet::new())?;
    Ok(ordinals.last().copied().unwrap_or(0))
}
