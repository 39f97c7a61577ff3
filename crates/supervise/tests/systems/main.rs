//! Whole lives of systems in injected time.
//!
//! Owns: how many systems are tried, and from which seeds.
//! Invariants: a seed is printed with every failure, and gives the same life again.
//! Does not: start a process or read a clock.

mod judge;
mod spec;
mod world;

use std::time::Instant;

use world::World;

/// Systems of one test. A debug build takes some seconds for them.
const SYSTEMS: u64 = 20_000;
/// Seeds from elsewhere, so that a search can go on where CI has ended: the first one of `UNDYING_SEED`.
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
