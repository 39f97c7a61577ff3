//! Random numbers for tests. A run can be repeated with its printed seed.
//!
//! Owns: the choice of the seed, and the line with the seed in the output of the test.
//! Does not: generate numbers; `fastrand` does.

use std::env;
use std::time::{Duration, UNIX_EPOCH};

use fastrand::Rng;

/// The variable with the seed for the repetition of a run.
const SEED: &str = "UNDYING_TEST_SEED";

/// Returns the seed of a test and prints it. The seed comes from `UNDYING_TEST_SEED` or from the clock.
#[must_use]
pub fn seed(test: &str) -> u64 {
    let given = env::var(SEED).ok().map(|text| text.parse().expect("the seed is a whole number"));
    let clock = || UNIX_EPOCH.elapsed().map_or(1, |elapsed| elapsed.as_nanos() as u64);
    let seed = given.unwrap_or_else(clock);
    println!("{test}: {SEED}={seed}");
    seed
}

/// Returns a random number generator with the seed of a test.
#[must_use]
pub fn seeded(test: &str) -> Rng {
    Rng::with_seed(seed(test))
}

/// Returns a random duration below `limit`, in whole microseconds.
pub fn moment(random: &mut Rng, limit: Duration) -> Duration {
    let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(random.u64(..limit_us.max(1)))
}
