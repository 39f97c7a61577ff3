//! The schedule of checkpoints, and their achieved rate. A round is one interval of the schedule.
//!
//! Owns: the schedule, and the bounded histories of pauses and commits.
//! Invariants: the subject is stopped for at most a quarter of the time. The retry interval after a refused checkpoint
//! doubles, up to a maximum.
//! Does not: read a clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The number of pauses in the history. The number is large enough for the 99th percentile, and needs little memory.
const PAUSES_MAX: usize = 1024;
/// The number of commits in the history for the achieved rate. At a high rate, the history covers a few seconds, and at
/// a low rate a longer time.
const COMMITS_MAX: usize = 64;
/// The maximum interval between two attempts to checkpoint a subject that was refused.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// After a checkpoint, the subject runs at least this many times as long as it was stopped.
const RUNS: u32 = 3;

/// The schedule of checkpoints.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The checkpoint interval. `None`: no checkpoint is ever due.
    every: Option<Duration>,
    next: Option<Instant>,
    retry: Duration,
    pauses: VecDeque<Duration>,
    commits: VecDeque<Instant>,
}

/// Percentiles of the pauses in the history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Pauses {
    /// The median pause.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The longest pause.
    pub max: Duration,
}

impl Pace {
    /// Returns a schedule in which the first checkpoint is due after `every`.
    pub(crate) fn new(every: Option<Duration>, now: Instant) -> Self {
        Self {
            every,
            next: every.map(|every| now + every),
            retry: every.unwrap_or_default(),
            pauses: VecDeque::with_capacity(PAUSES_MAX),
            commits: VecDeque::with_capacity(COMMITS_MAX),
        }
    }

    /// Returns the time at which the next checkpoint is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.next
    }

    /// Restarts the schedule: a new incarnation has begun, or `undying` itself was stopped. Missed rounds do not count.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.next = self.every.map(|every| now + every);
        self.retry = self.every.unwrap_or_default();
        self.commits.clear();
    }

    /// Records a stop of the subject. For a checkpoint, `taken` records the pause.
    pub(crate) fn paused(&mut self, pause: Duration) {
        push(&mut self.pauses, pause, PAUSES_MAX);
    }

    /// Records a checkpoint that was taken and may not be committed yet. `before` is the total duration of the stops before
    /// the pause. Returns the number of rounds that were missed.
    pub(crate) fn taken(&mut self, pause: Duration, before: Duration, now: Instant) -> u32 {
        self.paused(pause);
        let (Some(every), Some(due)) = (self.every, self.next) else { return 0 };
        self.retry = every;
        // Missed rounds are skipped.
        let mut rounds = 0;
        let mut next = due + every;
        if next < now {
            let behind = now.duration_since(next).as_nanos();
            rounds = u32::try_from(behind / every.as_nanos().max(1) + 1).unwrap_or(u32::MAX);
            next += every.saturating_mul(rounds);
        }
        self.next = Some(next.max(now + RUNS * (pause + before)));
        rounds
    }

    /// Records a committed checkpoint.
    pub(crate) fn committed(&mut self, now: Instant) {
        push(&mut self.commits, now, COMMITS_MAX);
    }

    /// Records a refused or failed checkpoint.
    pub(crate) fn failed(&mut self, now: Instant) {
        let Some(every) = self.every else { return };
        self.retry = (self.retry * 2).min(RETRY_MAX.max(every));
        self.next = Some(now + self.retry);
    }

    /// Returns the recent rate of committed checkpoints, per second.
    pub(crate) fn achieved_hz(&self) -> f64 {
        match (self.commits.front(), self.commits.back()) {
            (Some(first), Some(last)) if last > first => {
                (self.commits.len() - 1) as f64 / last.duration_since(*first).as_secs_f64()
            }
            _ => 0.0,
        }
    }

    /// Returns percentiles of the recent pauses.
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
    const ZERO: Duration = Duration::ZERO;

    #[test]
    fn rounds_are_kept_and_missed_ones_left_out() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(EVERY), start);
        assert_eq!(pace.next(), Some(start + EVERY));
        assert_eq!(pace.taken(Duration::from_millis(1), ZERO, start + Duration::from_millis(103)), 0);
        assert_eq!(pace.next(), Some(start + 2 * EVERY));
        assert_eq!(pace.taken(Duration::from_millis(1), ZERO, start + Duration::from_millis(520)), 3);
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
        // The stop began during a checkpoint.
        assert_eq!(pace.taken(Duration::from_millis(1), ZERO, continued + Duration::from_millis(2)), 0);
        assert_eq!(pace.taken(Duration::from_millis(1), ZERO, continued + 2 * EVERY), 0);
    }

    #[test]
    fn the_subject_runs_three_quarters_of_the_time() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(EVERY), start);
        let end = start + Duration::from_millis(290);
        pace.taken(Duration::from_millis(180), ZERO, end);
        assert_eq!(pace.next(), Some(end + Duration::from_millis(540)));
        pace.taken(Duration::from_millis(1), Duration::from_millis(399), end + 9 * EVERY);
        assert_eq!(pace.next(), Some(end + 21 * EVERY));
        assert_eq!(pace.pauses().max, Duration::from_millis(180));
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
        pace.taken(ZERO, ZERO, now);
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
            pace.taken(Duration::from_micros(u64::from(round)), ZERO, now);
            pace.committed(now);
        }
        assert!((pace.achieved_hz() - 10.0).abs() < 1e-6);
        let pauses = pace.pauses();
        assert_eq!(pauses.max, Duration::from_micros(200));
        assert_eq!(pauses.p50, Duration::from_micros(100));
        assert_eq!(pauses.p99, Duration::from_micros(198));
    }
}
