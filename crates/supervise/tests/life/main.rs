//! Whole lives of subjects in injected time.
//!
//! Owns: how many lives are tried, and from which seeds.
//! Invariants: a seed is printed with every failure, and gives the same life again.
//! Does not: start a process or read a clock.

mod judge;
mod world;

use std::time::Instant;

use world::World;

/// Lives of one test. A debug build takes some seconds for them.
const LIVES: u64 = 40_000;
/// Seeds from elsewhere, so that a search can go on where CI has ended: the first one of `UNDYING_SEED`.
const FIRST: &str = "UNDYING_SEED";

#[test]
fn no_life_breaks_an_invariant() {
    let first = std::env::var(FIRST).ok().and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let base = Instant::now();
    let mut total = world::Counts::default();
    for seed in first..first + LIVES {
        let mut world = World::new(seed, base);
        world.live();
        total.add(&world.counts);
    }
    let took = base.elapsed().as_secs_f64();
    println!(
        "seeds {first} to {}: {:.0} lives a minute, {total:?}",
        first + LIVES - 1,
        LIVES as f64 / took * 60.0
    );
    total.assert_all_seen();
}
