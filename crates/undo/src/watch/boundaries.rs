//! Checkpoints that a rollback can reach, the files that were open at each checkpoint, and data that became durable
//! after each checkpoint.
//!
//! Does not: find open files; `boundary` does.

use std::collections::BTreeMap;

use model::Sequence;

use super::durable::{Durable, Moment};
use super::epoch::Armed;
use crate::key::FileKey;

/// Files that were open for writing or mapped at each boundary, and what happened after each boundary.
#[derive(Debug)]
pub(super) struct Boundaries {
    open: BTreeMap<Sequence, Vec<Armed>>,
    /// The files of the newest boundary, if its checkpoint is not exact any more.
    retracted: Option<Vec<Armed>>,
    /// The oldest checkpoint after which no file has changed until the newest boundary.
    unchanged_from: Option<Sequence>,
    pub(super) durable: Durable,
}

impl Boundaries {
    /// Creates a list that contains only the checkpoint from which the subject starts, without open files.
    pub(super) fn starting_at(start: Sequence, now: Moment) -> Self {
        let open = BTreeMap::from([(start, Vec::new())]);
        Self { open, retracted: None, unchanged_from: None, durable: Durable::starting_at(start, now) }
    }

    /// Adds a checkpoint. `is_unchanged`: no file has changed since the boundary before. `written_through` are the files
    /// of `open` through whose descriptions each write makes its data durable.
    pub(super) fn insert(
        &mut self,
        sequence: Sequence,
        is_unchanged: bool,
        now: Moment,
        open: Vec<Armed>,
        written_through: Vec<FileKey>,
    ) {
        if !is_unchanged || self.unchanged_from.is_none() {
            self.unchanged_from = Some(sequence);
        }
        self.open.insert(sequence, open);
        self.retracted = None;
        self.durable.boundary(sequence, now, written_through);
    }

    /// Removes a checkpoint that is not exact any more. The present epoch still begins at its boundary.
    pub(super) fn retract(&mut self, sequence: Sequence) {
        if let Some(open) = self.open.remove(&sequence) {
            self.retracted = Some(open);
        }
    }

    /// Reports whether the present epoch begins at a boundary whose checkpoint is not exact any more.
    pub(super) fn is_retracted(&self) -> bool {
        self.retracted.is_some()
    }

    pub(super) fn has(&self, sequence: Sequence) -> bool {
        self.open.contains_key(&sequence)
    }

    pub(super) fn newest(&self) -> Option<Sequence> {
        self.open.keys().next_back().copied()
    }

    /// Returns the oldest checkpoint after which no file has changed until the newest boundary.
    pub(super) fn unchanged_from(&self) -> Option<Sequence> {
        self.unchanged_from
    }

    /// Returns the files that were open at the newest boundary.
    pub(super) fn newest_open(&self) -> Option<&[Armed]> {
        self.retracted.as_ref().or_else(|| self.open.values().next_back()).map(Vec::as_slice)
    }

    /// Removes boundaries after `to`, and returns the files that were open at `to`.
    pub(super) fn go_back(&mut self, to: Sequence) -> Vec<Armed> {
        self.open.split_off(&Sequence(to.get() + 1));
        self.retracted = None;
        self.unchanged_from = Some(to);
        self.durable.go_back(to);
        self.open.get(&to).cloned().unwrap_or_default()
    }

    /// Retains only checkpoints in `kept` (in rising order) and newer checkpoints.
    pub(super) fn retain(&mut self, kept: &[Sequence]) {
        let newest = kept.last().copied();
        self.open.retain(|one, _| Some(*one) > newest || kept.binary_search(one).is_ok());
        self.durable.retain(kept);
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn a_checkpoint_that_is_not_exact_any_more_is_not_the_newest() {
        let now = (Duration::ZERO, SystemTime::UNIX_EPOCH);
        let mut boundaries = Boundaries::starting_at(Sequence(0), now);
        boundaries.insert(Sequence(1), false, now, Vec::new(), Vec::new());
        boundaries.insert(Sequence(2), false, now, Vec::new(), Vec::new());
        boundaries.retract(Sequence(3));
        assert!(!boundaries.is_retracted());
        boundaries.retract(Sequence(2));
        assert_eq!((boundaries.newest(), boundaries.is_retracted()), (Some(Sequence(1)), true));
        boundaries.retract(Sequence(2));
        assert!(boundaries.is_retracted(), "files may have changed since checkpoint 1");
        boundaries.insert(Sequence(2), false, now, Vec::new(), Vec::new());
        assert_eq!((boundaries.newest(), boundaries.is_retracted()), (Some(Sequence(2)), false));
    }

    #[test]
    fn checkpoints_without_changes_between_them_are_equally_good() {
        let now = (Duration::ZERO, SystemTime::UNIX_EPOCH);
        let mut boundaries = Boundaries::starting_at(Sequence(0), now);
        for (number, is_unchanged, from) in [(1, true, 1), (2, true, 1), (3, false, 3), (4, true, 3)] {
            boundaries.insert(Sequence(number), is_unchanged, now, Vec::new(), Vec::new());
            assert_eq!(boundaries.unchanged_from(), Some(Sequence(from)), "{number}");
        }
        boundaries.go_back(Sequence(2));
        assert_eq!(boundaries.unchanged_from(), Some(Sequence(2)));
    }
}
