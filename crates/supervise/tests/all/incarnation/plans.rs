//! Random plans for the simulated subjects (protected programs).
//!
//! Invariants: all randomness comes from the given source.

use std::time::Duration;

use fastrand::Rng;
use undying_supervise::{BackOffPlan, ChangedFiles, CostLimit, Plan, RestartLimit, RestartPolicy, Success};

/// Returns a random plan.
pub(crate) fn plan(random: &mut Rng) -> Plan {
    let restart = RestartPolicy::ALL[random.usize(..RestartPolicy::ALL.len())];
    let restart = if random.bool() { RestartPolicy::OnFailure } else { restart };
    let can_start = random.u8(..4) > 0;
    let files =
        if can_start { ChangedFiles::ALL[random.usize(..ChangedFiles::ALL.len())] } else { kept(random) };
    let window = Duration::from_secs([1, 60, 3_600][random.usize(..3)]);
    Plan {
        every: (random.u8(..8) > 0)
            .then(|| Duration::from_millis([10, 100, 1_000, 30_000][random.usize(..4)])),
        cost_limit: random.bool().then_some(CostLimit {
            share: 0.1,
            interval_max: Duration::from_secs(5),
            age_max: Duration::from_secs(10),
        }),
        awaits_ready: random.u8(..4) == 0,
        restart,
        success: [Success::default(), Success::default().with_code(1)][random.usize(..2)],
        limit: RestartLimit { count: random.usize(..7), window },
        back_off: back_off(random),
        files,
        files_back_max: Duration::from_millis([50, 1_000, 100_000][random.usize(..3)]),
        can_start,
        ends_on_request: window == Duration::from_secs(1),
        in_flight_max: 4,
        once: random.u8(..8) == 0,
    }
}

fn back_off(random: &mut Rng) -> BackOffPlan {
    if random.bool() {
        return BackOffPlan::default();
    }
    let longest = Duration::from_millis([50, 1_000, 60_000][random.usize(..3)]);
    BackOffPlan {
        first: longest.mul_f64(random.f64()),
        longest,
        factor: 1.0 + random.f64() * 9.0,
        jitter: random.f64(),
        healthy: Duration::from_millis([100, 10_000][random.usize(..2)]),
        seed: random.u64(..),
    }
}

/// Returns a random policy for a subject whose files are not rolled back.
pub(crate) fn kept(random: &mut Rng) -> ChangedFiles {
    [ChangedFiles::Keep, ChangedFiles::Refuse, ChangedFiles::Fresh][random.usize(..3)]
}
