//! The back-off: the waiting time before a restart of a program that dies repeatedly.
//!
//! Owns: the parameters and the state of the back-off, and its jitter.
//! Invariants: no wait is longer than `BackOffPlan::longest`. All randomness comes from the seed of the plan.
//! Does not: wait, or count restarts; `restarts` counts restarts.

use std::time::Duration;

use crate::system;

/// The parameters of the waits between deaths and restarts.
///
/// The first restart after a healthy incarnation does not wait. The next restart waits for `first`. Each further wait
/// is `factor` times as long as the previous wait, up to `longest`.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BackOffPlan {
    /// The first wait that is not zero.
    pub first: Duration,
    /// The longest wait.
    pub longest: Duration,
    /// The factor between two successive waits, at least 1.
    pub factor: f64,
    /// The fraction of a wait, from 0 to 1, that is drawn at random. Jitter only shortens a wait.
    pub jitter: f64,
    /// The minimum lifetime of a healthy incarnation. The death of a healthy incarnation resets the back-off.
    pub healthy: Duration,
    /// The random seed of the jitter. Components of one system have different seeds.
    pub seed: u64,
}

impl Default for BackOffPlan {
    fn default() -> Self {
        Self {
            first: Duration::from_millis(50),
            longest: Duration::from_secs(10),
            factor: 4.0,
            jitter: 0.0,
            healthy: Duration::from_secs(10),
            seed: 0,
        }
    }
}

impl BackOffPlan {
    /// Returns the back-off of a component in a system file.
    #[must_use]
    pub fn of(restart: &system::Restart, seed: u64) -> Self {
        Self {
            first: restart.backoff.0,
            longest: restart.backoff.1,
            factor: restart.factor,
            jitter: restart.jitter,
            healthy: restart.healthy.0,
            seed,
        }
    }
}

/// The back-off of one subject. A program that fails until a port or a file is available does not use up all restarts
/// within a second.
#[derive(Debug)]
pub(crate) struct BackOff {
    plan: BackOffPlan,
    random: SplitMix64,
    /// The next wait, without its jitter.
    next: Duration,
}

impl BackOff {
    /// Returns the back-off before the first death.
    pub(crate) fn new(plan: BackOffPlan) -> Self {
        Self { plan, random: SplitMix64(plan.seed), next: Duration::ZERO }
    }

    /// Returns the wait after an incarnation with this lifetime has died.
    pub(crate) fn died(&mut self, lived: Duration) -> Duration {
        if lived >= self.plan.healthy { self.died_healthy() } else { self.advance() }
    }

    /// Returns the wait after the death of an incarnation that counts as healthy, independent of its lifetime.
    pub(crate) fn died_healthy(&mut self) -> Duration {
        self.next = Duration::ZERO;
        self.advance()
    }

    fn advance(&mut self) -> Duration {
        let BackOffPlan { first, longest, factor, .. } = self.plan;
        let wait = std::mem::replace(&mut self.next, first.min(longest));
        if !wait.is_zero() {
            let longer = Duration::try_from_secs_f64(wait.as_secs_f64() * factor);
            self.next = longer.unwrap_or(longest).min(longest);
        }
        let drawn = self.plan.jitter.clamp(0.0, 1.0) * self.random.fraction();
        wait.mul_f64(1.0 - drawn)
    }
}

/// A random number generator: [splitmix64](https://prng.di.unimi.it/splitmix64.c) of Sebastiano Vigna.
///
/// The numbers are good enough to desynchronise components, and not suitable for secrets.
#[derive(Debug)]
pub(crate) struct SplitMix64(pub(crate) u64);

impl SplitMix64 {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 (inclusive) to 1 (exclusive).
    fn fraction(&mut self) -> f64 {
        const BITS: u32 = f64::MANTISSA_DIGITS;
        (self.next() >> (u64::BITS - BITS)) as f64 / (1_u64 << BITS) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(20);

    fn waits(plan: BackOffPlan, count: usize) -> Vec<u128> {
        let mut back_off = BackOff::new(plan);
        (0..count).map(|_| back_off.died(SHORT).as_millis()).collect()
    }

    #[test]
    fn restarts_of_a_crash_loop_are_further_and_further_apart() {
        let plan = BackOffPlan::default();
        assert_eq!(waits(plan, 7), [0, 50, 200, 800, 3_200, 10_000, 10_000]);
        let mut back_off = BackOff::new(plan);
        back_off.died(SHORT);
        back_off.died(SHORT);
        assert_eq!(back_off.died(plan.healthy), Duration::ZERO);
        assert_eq!(back_off.died(SHORT), plan.first);
        assert_eq!(back_off.died(SHORT).as_millis(), 200);
        assert_eq!(back_off.died_healthy(), Duration::ZERO);
        assert_eq!(back_off.died(SHORT), plan.first);
    }

    #[test]
    fn a_system_file_has_its_own_figures() {
        let restart = system::Restart { jitter: 0.0, ..system::Restart::default() };
        let plan = BackOffPlan::of(&restart, 1);
        assert_eq!(waits(plan, 10), [0, 50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000]);
        assert_eq!(plan.healthy, Duration::from_secs(30));
    }

    #[test]
    fn jitter_shortens_a_wait_by_its_part_at_most_and_differs_by_seed() {
        let plan = |seed| BackOffPlan { jitter: 0.5, seed, ..BackOffPlan::default() };
        let exact = waits(BackOffPlan::default(), 50);
        for (drawn, exact) in waits(plan(7), 50).into_iter().zip(exact) {
            assert!(drawn <= exact && drawn * 2 + 1 >= exact, "{drawn} of {exact}");
        }
        assert_eq!(waits(plan(7), 50), waits(plan(7), 50));
        assert_ne!(waits(plan(7), 50), waits(plan(8), 50));
    }

    #[test]
    fn a_factor_without_bounds_ends_at_the_longest_wait() {
        let plan = BackOffPlan { factor: f64::INFINITY, ..BackOffPlan::default() };
        assert_eq!(waits(plan, 4), [0, 50, 10_000, 10_000]);
    }

    #[test]
    fn the_generator_is_the_published_one() {
        let mut random = SplitMix64(1_234_567);
        assert_eq!(random.next(), 6_457_827_717_110_365_317);
        assert_eq!(random.next(), 3_203_168_211_198_807_973);
        assert_eq!(
            (0..1_000).map(|_| random.fraction()).filter(|part| (0.0..1.0).contains(part)).count(),
            1_000
        );
    }
}
