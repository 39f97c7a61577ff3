//! Which checkpoints a restart passes over.
//!
//! Owns: the deaths that speak against a checkpoint, checkpoints that cannot be restored.
//! Invariants: what descends from a checkpoint that is passed over is passed over as well.
//! Does not: know which checkpoints there are.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use model::Sequence;

/// Which checkpoints are not to be used, since what they hold leads to death.
///
/// An incarnation descends from a checkpoint: the newest that it has committed, or the one it was restored from. When
/// two incarnations in a row that descend from the same one end within the window, the one before it is used: a
/// fallback. An incarnation that began at a fallback and ends within the window discredits the fallback at once, with
/// all that it has committed. Deaths that come from outside are no evidence.
#[derive(Debug, Default)]
pub(crate) struct Suspicion {
    window: Duration,
    /// Where and when this incarnation began; nowhere for one from the program's beginning.
    incarnation: (Option<Sequence>, Option<Instant>),
    /// Checkpoints committed by incarnations that began at a checkpoint, with that one.
    origins: BTreeMap<Sequence, Sequence>,
    deaths: BTreeMap<Sequence, Instant>,
    fallbacks: BTreeSet<Sequence>,
    avoided: BTreeSet<Sequence>,
    unusable: BTreeSet<Sequence>,
}

impl Suspicion {
    /// Nothing is suspected; two deaths count as in a row within `window`.
    pub(crate) fn new(window: Duration) -> Self {
        Self { window, ..Self::default() }
    }

    /// An incarnation begins at a checkpoint; those newer than it may be avoided.
    pub(crate) fn begins(&mut self, at: Sequence, now: Instant) {
        self.incarnation = (Some(at), Some(now));
        if self.avoided.range(at..).next().is_some() {
            self.fallbacks.insert(at);
        }
    }

    /// An incarnation begins at the program's beginning.
    pub(crate) fn begins_afresh(&mut self) {
        *self = Self::new(self.window);
    }

    /// This incarnation has committed a checkpoint.
    pub(crate) fn committed(&mut self, sequence: Sequence) {
        if let Some(origin) = self.incarnation.0 {
            self.origins.insert(sequence, origin);
        }
    }

    /// An incarnation that descended from a checkpoint has ended; gives the checkpoint that is passed over from now on.
    /// Deaths that are no evidence are not reported here.
    pub(crate) fn died(&mut self, from: Sequence, now: Instant) -> Option<Sequence> {
        let is_recent = |time: Instant| now.duration_since(time) <= self.window;
        let fallback = self.incarnation.0.filter(|began| self.fallbacks.contains(began));
        if let (Some(began), Some(since)) = (fallback, self.incarnation.1)
            && is_recent(since)
        {
            self.avoid(began);
            return Some(began);
        }
        let again = self.deaths.get(&from).is_some_and(|time| is_recent(*time));
        self.deaths.insert(from, now);
        again.then(|| {
            self.avoid(from);
            from
        })
    }

    /// Whether some checkpoint was passed over since the program's beginning.
    pub(crate) fn has_avoided(&self) -> bool {
        !self.avoided.is_empty()
    }

    /// A checkpoint cannot be restored.
    pub(crate) fn unusable(&mut self, sequence: Sequence) {
        self.unusable.insert(sequence);
    }

    /// The newest of the checkpoints that may be used.
    pub(crate) fn choose(&self, committed: &[Sequence]) -> Option<Sequence> {
        let usable =
            |sequence: &&Sequence| !self.avoided.contains(sequence) && !self.unusable.contains(sequence);
        committed.iter().rev().find(usable).copied()
    }

    /// Forgets checkpoints older than the oldest one that exists.
    pub(crate) fn forget_below(&mut self, oldest: Sequence) {
        self.origins = self.origins.split_off(&oldest);
        self.deaths = self.deaths.split_off(&oldest);
        self.fallbacks = self.fallbacks.split_off(&oldest);
        self.avoided = self.avoided.split_off(&oldest);
        self.unusable = self.unusable.split_off(&oldest);
    }

    /// Avoids a checkpoint and what descends from it. A child has a higher number than its origin.
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
        let committed = sequences(&[3, 4, 5]);
        let now = Instant::now();
        assert_eq!(suspicion.died(Sequence(5), now), None);
        assert_eq!(suspicion.choose(&committed), Some(Sequence(5)));
        for (number, next) in [(5, Some(4)), (4, Some(3)), (3, None)] {
            suspicion.begins(Sequence(number), now);
            assert_eq!(suspicion.died(Sequence(number), now), Some(Sequence(number)));
            assert_eq!(suspicion.choose(&committed), next.map(Sequence));
        }
        suspicion.forget_below(Sequence(6));
        assert_eq!(suspicion.choose(&sequences(&[6])), Some(Sequence(6)));
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
