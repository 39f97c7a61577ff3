//! Simulations of whole systems, from start to end, with simulated time. A system is a group of components (programs).
//!
//! Owns: the number of simulated systems, and their seeds.
//! Invariants: a failure prints its seed, and the seed reproduces the simulation.
//! Does not: start a process. The clock is only read to measure the speed.

mod judge;
mod spec;
mod world;

use std::time::Instant;

use world::World;

/// The number of systems in one test run. A debug build takes a few seconds.
const SYSTEMS: u64 = 20_000;
/// The environment variable with the first seed. With another first seed, a search can continue after the seeds of CI.
const FIRST: &str = "UNDYING_SEED";

#[test]
fn no_system_breaks_an_invariant() {
    let first = std::env::var(FIRST).ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let base = Instant::now();
    let template = spec::template();
    let mut total = world::Counts::default();
    for seed in first..first + SYSTEMS {
        let mut world = World::new(seed, base, &template);
        world.live();
        total.add(&mut world.counts);
    }
    let took = base.elapsed().as_secs_f64();
    println!(
        "seeds {first} to {}: {:.0} systems a minute, {total:?}",
        first + SYSTEMS - 1,
        SYSTEMS as f64 / took * 60.0
    );
    total.assert_all_seen();
}
