//! Removing epochs, and what they name in keep directories.
//!
//! Invariants: a file of the log is removed before the links that it names.
//! Does not: decide which epochs are kept.

use std::collections::HashSet;
use std::path::Path;

use super::files::{clear_mark, epoch_name, ordinals};
use super::journal::Journal;
use super::reader::{ReadEpoch, ReadLog};
use super::record::{self, AnyRecord};
use super::storage::Storage;
use crate::error::Result;

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
