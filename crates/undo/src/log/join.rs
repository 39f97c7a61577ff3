//! Joining epochs whose checkpoints are no longer retained (docs/design/0058).
//!
//! Owns: the choice of epochs, and their exchange for a joined epoch in the state of the log.
//! Invariants: the newest two epochs are never joined, because records can be added to them.
//! Does not: write or publish a joined epoch; `joint` does. Does not decide which checkpoints are retained.

use std::ops::Range;
use std::sync::Arc;

use super::files::epoch_name;
use super::joint::{Joined, Joining, Joint};
use super::reader::End;
use super::{Epoch, UndoLog};
use crate::error::Result;

/// The maximum of [`Joining::failures`].
const FAILURES_MAX: u32 = 16;
/// The number of newest epochs to which records can be added: the present epoch, and the epoch whose last records a pause
/// holds back.
const OPEN_EPOCHS: usize = 2;

impl UndoLog {
    /// Returns epochs that are worth joining, if there are any.
    #[must_use]
    pub fn to_join(&self) -> Option<Joint> {
        if self.end != End::Unknown || self.storage.is_short() {
            return None;
        }
        let worth = self.joinable().filter(|(later, range)| self.is_worth_joining(*later, range));
        let (_, range) = worth.max_by_key(|(later, _)| *later)?;
        Some(Joint {
            storage: Arc::clone(&self.storage),
            log: Arc::clone(&self.joining.log),
            boot: self.boot.clone(),
            sequences: self.epochs[range.start].sequences.clone(),
            ordinals: self.epochs.range(range).map(|epoch| epoch.ordinal).collect(),
        })
    }

    /// Reports whether epochs are worth joining, of which all but the first have `later` bytes together.
    fn is_worth_joining(&self, later: u64, range: &Range<usize>) -> bool {
        let first = self.epochs[range.start].length;
        let Joining { bytes_min, epochs_min, failures, .. } = self.joining;
        let is_much = later >= first + (bytes_min << failures) || range.len() > epochs_min << failures;
        is_much && self.bytes + first + later <= self.bytes_max
    }

    /// Returns ranges of at least two epochs, with the bytes of all but the first of them. To the checkpoints of these later
    /// epochs, nothing can be rolled back.
    fn joinable(&self) -> impl Iterator<Item = (u64, Range<usize>)> {
        let old = self.epochs.len().saturating_sub(OPEN_EPOCHS);
        let mut next = 0;
        let ranges = std::iter::from_fn(move || {
            let first = (next..old).find(|index| !self.epochs[*index].is_broken)?;
            let is_later = |index: &usize| {
                let epoch = &self.epochs[*index];
                epoch.sequences.is_empty() && !epoch.is_broken
            };
            next = (first + 1..old).find(|index| !is_later(index)).unwrap_or(old);
            Some((self.epochs.range(first + 1..next).map(|epoch| epoch.length).sum(), first..next))
        });
        ranges.filter(|(_, range)| range.len() > 1)
    }

    /// Reports whether the epochs of a joined epoch are still those of this log.
    #[must_use]
    pub fn can_join(&self, joined: &Joined) -> bool {
        Arc::ptr_eq(&self.joining.log, &joined.log)
            && self.end == End::Unknown
            && joined
                .ordinals
                .iter()
                .all(|ordinal| self.epochs.binary_search_by_key(ordinal, |epoch| epoch.ordinal).is_ok())
    }

    /// Forgets the epochs of a joined epoch that was published. Since [`Self::can_join`], some or all of them may have been
    /// dropped.
    ///
    /// # Errors
    ///
    /// A file that is no longer needed cannot be removed.
    pub fn joined(&mut self, joined: Joined) -> Result<()> {
        self.joining.failures = 0;
        let Some(last) = joined.ordinals.last().copied() else { return Ok(()) };
        let is_joined = |epoch: &Epoch| joined.ordinals.binary_search(&epoch.ordinal).is_ok();
        let Some(first) = self.epochs.iter().position(is_joined) else {
            return self.storage.remove_later(&epoch_name(last));
        };
        let count = self.epochs.iter().skip(first).take_while(|epoch| is_joined(epoch)).count();
        let mut kept = joined.kept;
        kept.retain(|path| {
            let known = self.kept.get_mut(path);
            known.is_some_and(|known| {
                known.epochs += 1;
                true
            })
        });
        let epochs: Vec<Epoch> = self.epochs.drain(first..first + count).collect();
        let mut sequences = Vec::new();
        for epoch in epochs {
            sequences.extend(epoch.sequences);
            self.bytes -= epoch.length;
            if epoch.ordinal != last {
                self.storage.remove_later(&epoch_name(epoch.ordinal))?;
            }
            for path in epoch.kept {
                if self.release(&path) {
                    self.storage.drop_kept_later(&path)?;
                }
            }
        }
        self.bytes += joined.length;
        let epoch = Epoch { ordinal: last, sequences, length: joined.length, kept, ..Epoch::default() };
        self.epochs.insert(first, epoch);
        Ok(())
    }

    /// Makes all epochs worth joining.
    #[cfg(any(test, feature = "simulated"))]
    pub fn join_always(&mut self) {
        self.joining.epochs_min = 1;
    }

    /// Joins epochs, as the watch does. Returns whether epochs were joined.
    #[cfg(test)]
    pub(crate) fn join(&mut self) -> Result<bool> {
        let Some(joint) = self.to_join() else { return Ok(false) };
        let Some(joined) = joint.write()? else { return Ok(false) };
        joined.publish()?;
        self.joined(joined).map(|()| true)
    }

    /// Notes that epochs could not be joined. The next attempt is made later.
    pub fn join_failed(&mut self) {
        self.joining.failures = (self.joining.failures + 1).min(FAILURES_MAX);
    }
}

#[cfg(test)]
mod tests;
