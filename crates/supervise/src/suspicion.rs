//! The checkpoints that a restart does not use.
//!
//! Owns: the deaths that are evidence against a checkpoint, and the checkpoints that cannot be restored.
//! Invariants: if a checkpoint is avoided, all checkpoints that descend from it are avoided, too.
//! Does not: know which checkpoints exist.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use model::Sequence;

/// The checkpoints that are avoided because their state leads to a death.
///
/// An incarnation descends from a checkpoint: the newest checkpoint that it has committed, or the checkpoint from which
/// it was restored. If two successive incarnations that descend from the same checkpoint die within the window, this
/// checkpoint is avoided. The next restart then uses the previous checkpoint, the fallback.
///
/// If an incarnation that began at a fallback dies within the window, the fallback is avoided at once. The checkpoints
/// of this incarnation are avoided, too. A death with an external cause is no evidence.
///
/// After each death of a fallback in a row, the next restart skips more checkpoints: 1, 3, 7 and so on. A program that
/// takes many checkpoints while its state already leads to the death is therefore back after a few restarts.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    window: Duration,
    /// The checkpoint and the time at which this incarnation began. Both are `None` after a start from the beginning.
    incarnation: (Option<Sequence>, Option<Instant>),
    /// The origin of each checkpoint: the checkpoint from which the committing incarnation was restored.
    origins: BTreeMap<Sequence, Sequence>,
    deaths: BTreeMap<Sequence, Instant>,
    fallbacks: BTreeSet<Sequence>,
    avoided: BTreeSet<Sequence>,
    unusable: BTreeSet<Sequence>,
    /// Number of fallbacks in a row whose incarnations died.
    row: u32,
    /// Whether a restore has ended connections since the last start from the beginning. The deaths after restores may then
    /// only show that connections were lost. The state of the program itself is no reason not to start it again.
    pub(crate) has_ended_connections: bool,
}

impl Suspicion {
    /// Returns a state without suspected checkpoints. Two deaths within `window` count as successive.
    pub(crate) fn new(window: Duration) -> Self {
        Self { window, ..Self::default() }
    }

    /// Records that an incarnation begins at a checkpoint. If newer checkpoints are avoided, the checkpoint is a
    /// fallback.
    pub(crate) fn begins(&mut self, at: Sequence, now: Instant) {
        self.incarnation = (Some(at), Some(now));
        if let Some(first) = self.avoided.range(at..).next().copied() {
            self.fallbacks.insert(at);
            // `choose` has skipped these checkpoints. The files can no longer be rolled back to them.
            self.avoided.extend((at.get() + 1..first.get()).map(Sequence));
        }
    }

    /// Records that an incarnation begins at the beginning of the program: all evidence is cleared.
    pub(crate) fn begins_afresh(&mut self) {
        *self = Self::new(self.window);
    }

    /// Records that this incarnation has committed a checkpoint.
    pub(crate) fn committed(&mut self, sequence: Sequence) {
        if let Some(origin) = self.incarnation.0 {
            self.origins.insert(sequence, origin);
        }
    }

    /// Records the death of an incarnation that descended from checkpoint `from`. Returns the checkpoint that is
    /// avoided from now on, if any.
    ///
    /// The caller does not report deaths with an external cause.
    pub(crate) fn died(&mut self, from: Sequence, now: Instant) -> Option<Sequence> {
        let is_recent = |time: Instant| now.duration_since(time) <= self.window;
        let fallback = self.incarnation.0.filter(|began| self.fallbacks.contains(began));
        if let (Some(began), Some(since)) = (fallback, self.incarnation.1)
            && is_recent(since)
        {
            self.avoid(began);
            self.row += 1;
            return Some(began);
        }
        self.row = 0;
        let again = self.deaths.get(&from).is_some_and(|time| is_recent(*time));
        self.deaths.insert(from, now);
        again.then(|| {
            self.avoid(from);
            from
        })
    }

    /// Reports whether any checkpoint was avoided since the last start from the beginning.
    pub(crate) fn has_avoided(&self) -> bool {
        !self.avoided.is_empty()
    }

    /// Records that a restore has ended connections of the program.
    pub(crate) fn connections_ended(&mut self) {
        self.has_ended_connections = true;
    }

    /// Records that a checkpoint cannot be restored.
    pub(crate) fn unusable(&mut self, sequence: Sequence) {
        self.unusable.insert(sequence);
    }

    /// Returns the checkpoint to use, of the given checkpoints in rising order: the newest that may be used, or an older
    /// one if fallbacks have died in a row.
    pub(crate) fn choose(&self, committed: &[Sequence]) -> Option<Sequence> {
        let may_be_used =
            |sequence: &&Sequence| !self.avoided.contains(sequence) && !self.unusable.contains(sequence);
        let usable: Vec<Sequence> = committed.iter().filter(may_be_used).copied().collect();
        let skipped = (1_usize << self.row.min(16)) - 1;
        usable.iter().rev().nth(skipped).or(usable.first()).copied()
    }

    /// Removes all data about checkpoints older than `oldest`, the oldest existing checkpoint.
    pub(crate) fn forget_below(&mut self, oldest: Sequence) {
        self.origins = self.origins.split_off(&oldest);
        self.deaths = self.deaths.split_off(&oldest);
        self.fallbacks = self.fallbacks.split_off(&oldest);
        self.avoided = self.avoided.split_off(&oldest);
        self.unusable = self.unusable.split_off(&oldest);
    }

    /// Avoids a checkpoint and all checkpoints that descend from it. A descendant has a higher number than its origin.
    fn avoid(&mut self, sequence: Sequence) {
        self.avoided.insert(sequence);
        for (child, origin) in self.origins.range(sequence..) {
            if self.avoided.contains(origin) {
                self.avoided.insert(*child);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WINDOW: Duration = Duration::from_secs(60);

    fn sequences(numbers: &[u64]) -> Vec<Sequence> {
        numbers.iter().map(|number| Sequence(*number)).collect()
    }

    #[test]
    fn a_checkpoint_that_leads_to_death_again_is_passed_over() {
        let mut suspicion = Suspicion::new(WINDOW);
        let committed = sequences(&[2, 3, 4, 5]);
        let now = Instant::now();
        assert_eq!(suspicion.died(Sequence(5), now), None);
        assert_eq!(suspicion.choose(&committed), Some(Sequence(5)));
        for (number, next) in [(5, Some(4)), (4, Some(2)), (2, None)] {
            suspicion.begins(Sequence(number), now);
            assert_eq!(suspicion.died(Sequence(number), now), Some(Sequence(number)));
            assert_eq!(suspicion.choose(&committed), next.map(Sequence));
        }
        suspicion.forget_below(Sequence(6));
        assert_eq!(suspicion.choose(&sequences(&[6])), Some(Sequence(6)));
    }

    #[test]
    fn a_long_row_of_checkpoints_that_lead_to_death_is_left_quickly() {
        let mut suspicion = Suspicion::new(WINDOW);
        let now = Instant::now();
        let mut committed = sequences(&(1..=100).collect::<Vec<u64>>());
        suspicion.died(Sequence(100), now);
        let mut tried = Vec::new();
        while let Some(next) = suspicion.choose(&committed) {
            tried.push(next.get());
            suspicion.begins(next, now);
            suspicion.died(next, now);
            // Files were rolled back, so newer checkpoints cannot be reached any more.
            committed.retain(|sequence| *sequence <= next);
        }
        assert_eq!(tried, [100, 99, 97, 93, 85, 69, 37, 1]);
    }

    #[test]
    fn a_fallback_that_lives_on_ends_the_row() {
        let mut suspicion = Suspicion::new(WINDOW);
        let now = Instant::now();
        let committed = sequences(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        suspicion.died(Sequence(9), now);
        for number in [9, 8, 6] {
            assert_eq!(suspicion.choose(&committed), Some(Sequence(number)));
            suspicion.begins(Sequence(number), now);
            suspicion.died(Sequence(number), now);
        }
        suspicion.begins(Sequence(2), now);
        suspicion.committed(Sequence(10));
        assert_eq!(suspicion.died(Sequence(10), now + WINDOW * 2), None);
        assert_eq!(suspicion.choose(&sequences(&[1, 2, 7, 10])), Some(Sequence(10)));
    }

    #[test]
    fn what_a_doomed_incarnation_has_committed_is_doomed_as_well() {
        let mut suspicion = Suspicion::new(WINDOW);
        let now = Instant::now();
        assert_eq!(suspicion.died(Sequence(5), now), None);
        suspicion.begins(Sequence(5), now);
        assert_eq!(suspicion.died(Sequence(5), now), Some(Sequence(5)));
        suspicion.begins(Sequence(4), now);
        suspicion.committed(Sequence(6));
        suspicion.committed(Sequence(7));
        assert_eq!(suspicion.died(Sequence(7), now), Some(Sequence(4)));
        assert_eq!(suspicion.choose(&sequences(&[3, 4, 5, 6, 7])), Some(Sequence(3)));
    }

    #[test]
    fn a_fallback_that_lives_on_is_no_longer_one() {
        let mut suspicion = Suspicion::new(WINDOW);
        let now = Instant::now();
        suspicion.died(Sequence(5), now);
        suspicion.begins(Sequence(5), now);
        suspicion.died(Sequence(5), now);
        suspicion.begins(Sequence(4), now);
        suspicion.committed(Sequence(6));
        let later = now + WINDOW * 2;
        assert_eq!(suspicion.died(Sequence(6), later), None);
        assert_eq!(suspicion.choose(&sequences(&[4, 5, 6])), Some(Sequence(6)));
    }

    #[test]
    fn deaths_far_apart_are_no_evidence() {
        let mut suspicion = Suspicion::new(WINDOW);
        let committed = sequences(&[1, 2]);
        let now = Instant::now();
        assert_eq!(suspicion.died(Sequence(2), now), None);
        let later = now + WINDOW + Duration::from_secs(1);
        assert_eq!(suspicion.died(Sequence(2), later), None);
        assert_eq!(suspicion.choose(&committed), Some(Sequence(2)));
        suspicion.unusable(Sequence(2));
        assert_eq!(suspicion.choose(&committed), Some(Sequence(1)));
    }
}
