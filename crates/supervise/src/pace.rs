//! When the next checkpoint is due, and at which rate they are taken.
//!
//! Owns: the schedule, the bounded memories of pauses and commits.
//! Invariants: the subject gets at least as much time to run as a checkpoint takes from it; a checkpoint that is
//! refused is tried again ever less often, down to once in a while.
//! Does not: read a clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Pauses that percentiles are taken of: enough for a 99th, and small.
const PAUSES_MAX: usize = 1024;
/// Commits that the achieved rate is taken of: seconds at a high rate, and as long as there are at a low one.
const COMMITS_MAX: usize = 64;
/// The interval at which a subject that cannot be checkpointed is inspected again.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// The schedule of checkpoints.
#[derive(Debug)]
pub(crate) struct Pace {
    /// `None`: no checkpoint is ever due.
    every: Option<Duration>,
    next: Option<Instant>,
    retry: Duration,
    pauses: VecDeque<Duration>,
    commits: VecDeque<Instant>,
}

/// Percentiles of the last pauses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pauses {
    /// Half of them are no longer.
    pub p50: Duration,
    /// 99 of a hundred are no longer.
    pub p99: Duration,
    /// The longest one.
    pub max: Duration,
}

impl Pace {
    /// The first checkpoint is due after `every`.
    pub(crate) fn new(every: Option<Duration>, now: Instant) -> Self {
        Self {
            every,
            next: every.map(|every| now + every),
            retry: every.unwrap_or_default(),
            pauses: VecDeque::with_capacity(PAUSES_MAX),
            commits: VecDeque::with_capacity(COMMITS_MAX),
        }
    }

    /// When the next checkpoint is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// A new incarnation has begun, or this program was stopped meanwhile: rounds that have passed do not count.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.next = self.every.map(|every| now + every);
        self.retry = self.every.unwrap_or_default();
        self.commits.clear();
    }

    /// The subject was stopped for this time, in addition to checkpoints.
    pub(crate) fn paused(&mut self, pause: Duration) {
        push(&mut self.pauses, pause, PAUSES_MAX);
    }

    /// A checkpoint was taken; it may not be committed yet. How many rounds have passed over it.
    pub(crate) fn taken(&mut self, pause: Duration, now: Instant) -> u32 {
        self.paused(pause);
        let (Some(every), Some(due)) = (self.every, self.next) else { return 0 };
        self.retry = every;
        // Rounds that have passed already are left out, not made up for.
        let mut rounds = 0;
        let mut next = due + every;
        if next < now {
            let behind = now.duration_since(next).as_nanos();
            rounds = u32::try_from(behind / every.as_nanos().max(1) + 1).unwrap_or(u32::MAX);
            next += every.saturating_mul(rounds);
        }
        self.next = Some(next.max(now + pause));
        rounds
    }

    /// A checkpoint was taken in slices. The subject was stopped in turns, and runs as long before the next one.
    pub(crate) fn sliced(&mut self, longest: Duration, total: Duration, now: Instant) {
        self.paused(longest);
        self.next = self.next.map(|next| next.max(now + total));
    }

    /// A checkpoint was committed.
    pub(crate) fn committed(&mut self, now: Instant) {
        push(&mut self.commits, now, COMMITS_MAX);
    }

    /// A checkpoint was refused or failed.
    pub(crate) fn failed(&mut self, now: Instant) {
        let Some(every) = self.every else { return };
        self.retry = (self.retry * 2).min(RETRY_MAX.max(every));
        self.next = Some(now + self.retry);
    }

    /// Checkpoints taken per second, of late.
    pub(crate) fn achieved_hz(&self) -> f64 {
        match (self.commits.front(), self.commits.back()) {
            (Some(first), Some(last)) if last > first => {
                (self.commits.len() - 1) as f64 / last.duration_since(*first).as_secs_f64()
            }
            _ => 0.0,
        }
    }

    /// How long the subject was stopped of late.
    pub(crate) fn pauses(&self) -> Pauses {
        let mut sorted: Vec<Duration> = self.pauses.iter().copied().collect();
        sorted.sort_unstable();
        let at = |share: usize| sorted.get(sorted.len().saturating_sub(1) * share / 100).copied();
        Pauses {
            p50: at(50).unwrap_or_default(),
            p99: at(99).unwrap_or_default(),
            max: at(100).unwrap_or_default(),
        }
    }
}

fn push<T>(ring: &mut VecDeque<T>, value: T, limit: usize) {
    if ring.len() == limit {
        ring.pop_front();
    }
    ring.push_back(value);
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(100);

    #[test]
    fn rounds_are_kept_and_missed_ones_left_out() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(EVERY), start);
        assert_eq!(pace.next(), Some(start + EVERY));
        assert_eq!(pace.taken(Duration::from_millis(1), start + Duration::from_millis(103)), 0);
        assert_eq!(pace.next(), Some(start + 2 * EVERY));
        assert_eq!(pace.taken(Duration::from_millis(1), start + Duration::from_millis(520)), 3);
        assert_eq!(pace.next(), Some(start + 6 * EVERY));
    }

    #[test]
    fn without_checkpoints_none_is_ever_due() {
        let start = Instant::now();
        let mut pace = Pace::new(None, start);
        pace.begin(start);
        pace.failed(start);
        assert_eq!(pace.next(), None);
    }

    #[test]
    fn rounds_that_pass_while_this_program_is_stopped_do_not_count() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(EVERY), start);
        let continued = start + 50 * EVERY;
        pace.begin(continued);
        // The stop came in the middle of a checkpoint.
        assert_eq!(pace.taken(Duration::from_millis(1), continued + Duration::from_millis(2)), 0);
        assert_eq!(pace.taken(Duration::from_millis(1), continued + 2 * EVERY), 0);
    }

    #[test]
    fn the_subject_runs_at_least_half_of_the_time() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(EVERY), start);
        let end = start + Duration::from_millis(290);
        pace.taken(Duration::from_millis(180), end);
        assert_eq!(pace.next(), Some(end + Duration::from_millis(180)));
    }

    #[test]
    fn a_subject_that_was_stopped_in_slices_runs_as_long() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(EVERY), start);
        let end = start + EVERY;
        pace.taken(Duration::from_millis(1), end);
        pace.sliced(Duration::from_millis(5), Duration::from_millis(400), end);
        assert_eq!(pace.next(), Some(end + Duration::from_millis(400)));
        assert_eq!(pace.pauses().max, Duration::from_millis(5));
    }

    #[test]
    fn refusals_are_tried_again_ever_less_often() {
        let mut now = Instant::now();
        let mut pace = Pace::new(Some(EVERY), now);
        for _ in 0..20 {
            pace.failed(now);
            now = pace.next().unwrap();
        }
        pace.failed(now);
        assert_eq!(pace.next(), Some(now + RETRY_MAX));
        pace.taken(Duration::ZERO, now);
        pace.failed(now);
        assert_eq!(pace.next(), Some(now + 2 * EVERY));
    }

    #[test]
    fn rates_and_percentiles_are_those_of_late() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(EVERY), start);
        assert_eq!((pace.achieved_hz(), pace.pauses()), (0.0, Pauses::default()));
        for round in 1..=200_u32 {
            let now = start + EVERY * round;
            pace.taken(Duration::from_micros(u64::from(round)), now);
            pace.committed(now);
        }
        assert!((pace.achieved_hz() - 10.0).abs() < 1e-6);
        let pauses = pace.pauses();
        assert_eq!(pauses.max, Duration::from_micros(200));
        assert_eq!(pauses.p50, Duration::from_micros(100));
        assert_eq!(pauses.p99, Duration::from_micros(198));
    }
}
