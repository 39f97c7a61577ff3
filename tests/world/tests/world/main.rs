//! Simulations of one whole machine: a program with memory, files and output, its guardian, and two disks.
//!
//! The log of checkpoints (`store`), the undo log of files (`undo`), and the decisions (`supervise`, and `blame_of` of
//! `guardian`) are the real code. The kernel, the disks, the program and the peer are simulated. One seed determines all
//! changes of the program, all faults and all times.
//!
//! Owns: the number of schedules, their seeds, and the known defects (canaries) that the simulation must find.
//! Invariants: a failure prints its seed. `UNDYING_TEST_SEED` repeats the schedule of one seed.
//! `UNDYING_WORLD_SCHEDULES` sets the number of schedules.
//! Does not: start a process or a thread, or write to a real disk.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod guard;
mod judge;
#[allow(dead_code, unused, reason = "the tests of the store use the rest")]
#[path = "../../../../crates/store/tests/all/common/log_model.rs"]
mod log_model;
mod schedule;
#[allow(dead_code, reason = "the tests of the store use the rest")]
#[path = "../../../../crates/store/tests/all/simulated/mod.rs"]
mod simulated;
mod wire;
mod world;

use model::Sequence;

/// The sequence number that represents the beginning of the program.
const BEGINNING: Sequence = Sequence(0);
/// The number of schedules of a usual run.
const SCHEDULES: u64 = 300;
/// The environment variable with the seed of a schedule that is repeated.
const REPLAY: &str = "UNDYING_TEST_SEED";
/// The maximum number of schedules in which a canary is found.
const CANARY_SCHEDULES: u64 = 400;

/// A defect that is put back to show that the simulation finds it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Canary {
    /// The disk reports a sync before the data is durable, so that a commit record is durable before its pages.
    SyncsNothing,
    /// Files are rolled back to the checkpoint before the checkpoint that is restored.
    RollsBackElsewhere,
    /// The watch misses some changes of files.
    MissesChanges,
    /// Output is released when its checkpoint is taken, before the checkpoint is durable.
    ReleasesAtOnce,
    /// The log does not keep the checkpoints that a restart needs.
    HoldsNothing,
}

const CANARIES: [Canary; 5] = [
    Canary::SyncsNothing,
    Canary::RollsBackElsewhere,
    Canary::MissesChanges,
    Canary::ReleasesAtOnce,
    Canary::HoldsNothing,
];

/// Counts of events. An event that never occurs is not tested.
#[derive(Default, Debug)]
struct Tally {
    runs: u64,
    taken: u64,
    committed: u64,
    released: u64,
    late: u64,
    deaths: u64,
    restored: u64,
    begun_anew: u64,
    logs_lost: u64,
    kills: u64,
    power_cuts: u64,
    by_hand: u64,
    by_hand_refused: u64,
}

impl Tally {
    fn all(&self) -> [u64; 13] {
        let Self { runs, taken, committed, released, late, deaths, restored, .. } = *self;
        let Self { begun_anew, logs_lost, kills, power_cuts, by_hand, by_hand_refused, .. } = *self;
        [
            runs,
            taken,
            committed,
            released,
            late,
            deaths,
            restored,
            begun_anew,
            logs_lost,
            kills,
            power_cuts,
            by_hand,
            by_hand_refused,
        ]
    }
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().unwrap())
}

#[test]
fn no_schedule_breaks_a_promise() {
    let mut tally = Tally::default();
    let (first, count) = match number(REPLAY) {
        Some(seed) => (seed, 1),
        None => (number("UNDYING_SEED").unwrap_or(0), number("UNDYING_WORLD_SCHEDULES").unwrap_or(SCHEDULES)),
    };
    let start = std::time::Instant::now();
    for seed in first..first + count {
        if let Some(why) = schedule::run(seed, None, &mut tally) {
            panic!("{REPLAY}={seed} repeats it\n{why}");
        }
    }
    let a_minute = count as f64 / start.elapsed().as_secs_f64() * 60.0;
    println!("seeds {first} to {}: {a_minute:.0} schedules a minute, {tally:?}", first + count - 1);
    assert!(count < SCHEDULES || tally.all().into_iter().all(|count| count > 0), "{tally:?}");
}

#[test]
fn each_canary_is_found() {
    for canary in CANARIES {
        let mut tally = Tally::default();
        let run = |seed| schedule::run(seed, Some(canary), &mut tally).map(|why| (seed, why));
        let found = (0..CANARY_SCHEDULES).find_map(run);
        let (seed, why) = found.unwrap_or_else(|| panic!("{canary:?} is not found: {tally:?}"));
        println!("{canary:?} is found with seed {seed}: {}", why.lines().next().unwrap_or_default());
    }
}

#[test]
fn a_seed_repeats_its_schedule() {
    let tally_of = |seed| {
        let mut tally = Tally::default();
        let _ = schedule::run(seed, None, &mut tally);
        tally.all()
    };
    for seed in 0..10 {
        assert_eq!(tally_of(seed), tally_of(seed), "seed {seed}");
    }
}
