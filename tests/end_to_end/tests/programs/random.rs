//! Moments and choices that a printed seed makes repeatable.
//!
//! Owns: the generator and the seed.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// SplitMix64 (Steele, Lea, Flood, 2014): small, and good enough to pick moments.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The generator for one program, from `UNDYING_TEST_SEED` or the clock; prints the seed.
    pub(crate) fn new(name: &str) -> Self {
        let given = std::env::var("UNDYING_TEST_SEED").ok().and_then(|text| text.parse().ok());
        let now = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64);
        let seed: u64 = given.unwrap_or_else(now);
        println!("{name}: UNDYING_TEST_SEED={seed}");
        Self(seed)
    }

    /// A generator that only this seed decides.
    pub(crate) fn from_seed(seed: u64) -> Self {
        Self(seed)
    }

    /// Any number.
    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// A time up to `limit`, in microseconds.
    pub(crate) fn moment(&mut self, limit: Duration) -> Duration {
        let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX).max(1);
        Duration::from_micros(self.below(limit_us))
    }
}
