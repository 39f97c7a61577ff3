//! Random numbers of a test, which a printed seed repeats.
//!
//! Owns: the choice of the seed, and its line in the output of the test.
//! Does not: generate numbers; `fastrand` does.

use std::env;
use std::time::{Duration, UNIX_EPOCH};

use fastrand::Rng;

/// The seed to repeat a run with.
const SEED: &str = "UNDYING_TEST_SEED";

/// The seed of a test: from `UNDYING_TEST_SEED`, else from the clock. Prints it.
#[must_use]
pub fn seed(test: &str) -> u64 {
    let given = env::var(SEED).ok().map(|text| text.parse().expect("the seed is a whole number"));
    let clock = || UNIX_EPOCH.elapsed().map_or(1, |elapsed| elapsed.as_nanos() as u64);
    let seed = given.unwrap_or_else(clock);
    println!("{test}: {SEED}={seed}");
    seed
}

/// Random numbers from the seed of a test.
#[must_use]
pub fn seeded(test: &str) -> Rng {
    Rng::with_seed(seed(test))
}

/// A time below `limit`, in whole microseconds.
pub fn moment(random: &mut Rng, limit: Duration) -> Duration {
    let limit_us = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(random.u64(..limit_us.max(1)))
}
