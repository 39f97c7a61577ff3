//! Checkpoints that a rollback can reach, and the files that were open at each checkpoint.
//!
//! A boundary binds the state of files to a checkpoint.
//!
//! Does not: find open files; `boundary` does.

use std::collections::BTreeMap;

use model::Sequence;

use super::epoch::Armed;

/// Files that were open for writing or mapped at each boundary.
#[derive(Debug, Default)]
pub(super) struct Boundaries(BTreeMap<Sequence, Vec<Armed>>);

impl Boundaries {
    /// Creates a list that contains only the checkpoint from which the subject starts, without open files.
    pub(super) fn starting_at(start: Sequence) -> Self {
        Self(BTreeMap::from([(start, Vec::new())]))
    }

    pub(super) fn insert(&mut self, sequence: Sequence, open: Vec<Armed>) {
        self.0.insert(sequence, open);
    }

    pub(super) fn has(&self, sequence: Sequence) -> bool {
        self.0.contains_key(&sequence)
    }

    pub(super) fn newest(&self) -> Option<Sequence> {
        self.0.keys().next_back().copied()
    }

    /// Returns the files that were open at the newest boundary.
    pub(super) fn newest_open(&self) -> Option<&[Armed]> {
        self.0.values().next_back().map(Vec::as_slice)
    }

    /// Removes boundaries after `to`, and returns the files that were open at `to`.
    pub(super) fn go_back(&mut self, to: Sequence) -> Vec<Armed> {
        self.0.split_off(&Sequence(to.get() + 1));
        self.0.get(&to).cloned().unwrap_or_default()
    }

    /// Retains only checkpoints in `kept` (in rising order) and newer checkpoints.
    pub(super) fn retain(&mut self, kept: &[Sequence]) {
        let newest = kept.last().copied();
        self.0.retain(|one, _| Some(*one) > newest || kept.binary_search(one).is_ok());
    }
}
