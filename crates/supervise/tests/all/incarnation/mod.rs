//! Simulations of whole subjects (protected programs), from start to end, with simulated time.
//!
//! Owns: the number of simulated subjects, and their seeds.
//! Invariants: a failure prints its seed, and the seed reproduces the simulation.
//! Does not: start a process. The clock is only read to measure the speed.

mod judge;
mod plans;
mod world;

use std::time::Instant;

use world::World;

/// The number of subjects in one test run. A debug build takes a few seconds.
const RUNS: u64 = 40_000;
/// The environment variable with the first seed. With another first seed, a search can continue after the seeds of CI.
const FIRST: &str = "UNDYING_SEED";

#[test]
fn no_run_breaks_an_invariant() {
    let first = std::env::var(FIRST).ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let base = Instant::now();
    let mut total = world::Counts::default();
    for seed in first..first + RUNS {
        let mut world = World::new(seed, base);
        world.live();
        total.add(&world.counts);
    }
    let took = base.elapsed().as_secs_f64();
    println!(
        "seeds {first} to {}: {:.0} lives a minute, {total:?}",
        first + RUNS - 1,
        RUNS as f64 / took * 60.0
    );
    total.assert_all_seen();
}
