//! The schedule of checkpoints, and their achieved rate. A round is one interval of the schedule.
//!
//! A checkpoint costs the subject time. If the costs exceed a limit, the interval grows.
//!
//! Owns: the schedule, and the bounded histories of pauses and commits.
//! Invariants: the subject is stopped for at most a quarter of the time. The retry interval after a refused checkpoint
//! doubles, up to a maximum.
//! Does not: read a clock, or measure costs.

mod ledger;
mod ring;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ledger::Ledger;
use ring::push;

pub use ledger::CostLimit;

/// The number of pauses in the history. The number is large enough for the 99th percentile, and needs little memory.
const PAUSES_MAX: usize = 1024;
/// The number of commits in the history for the achieved rate. At a high rate, the history covers a few seconds, and at
/// a low rate a longer time.
const COMMITS_MAX: usize = 64;
/// After a short delay of a commit, the remembered longest delay becomes shorter by this part.
const DELAY_MEMORY: u32 = 8;
/// The maximum interval between two attempts to checkpoint a subject that was refused.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// After a checkpoint, the subject runs at least this many times as long as it was stopped.
const RUNS: u32 = 3;

/// What one checkpoint took from the subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Costs {
    pub(crate) pause: Duration,
    /// The total duration of the stops before the pause.
    pub(crate) before: Duration,
    /// The time that the subject has lost in all, including `pause` and `before`.
    pub(crate) total: Duration,
}

/// The schedule of checkpoints.
#[derive(Debug)]
pub struct Pace {
    /// The checkpoint interval. `None`: no checkpoint is ever due.
    every: Option<Duration>,
    /// The time at which the next checkpoint is due.
    pub(crate) next: Option<Instant>,
    retry: Duration,
    /// The end of the last checkpoint, or the begin of the incarnation.
    last: Instant,
    pauses: VecDeque<Duration>,
    commits: VecDeque<Instant>,
    ledger: Ledger,
    delays: Delays,
}

/// How long checkpoints need from the time when they are due to their commit.
#[derive(Debug, Default)]
struct Delays {
    /// The longest time that a recent checkpoint needed.
    longest: Duration,
    /// The time when the last checkpoint that was taken was due.
    due: Option<Instant>,
}

impl Delays {
    /// Records a commit. A longer time is remembered for some checkpoints.
    fn committed(&mut self, now: Instant) {
        if let Some(due) = self.due {
            let delay = now.saturating_duration_since(due);
            self.longest = delay.max(self.longest - self.longest / DELAY_MEMORY);
        }
    }
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
    pub(crate) fn new(every: Option<Duration>, limit: Option<CostLimit>, now: Instant) -> Self {
        Self {
            every,
            next: every.map(|every| now + every),
            retry: every.unwrap_or_default(),
            last: now,
            pauses: VecDeque::with_capacity(PAUSES_MAX),
            commits: VecDeque::with_capacity(COMMITS_MAX),
            ledger: Ledger::new(every.unwrap_or_default(), limit, now),
            delays: Delays::default(),
        }
    }

    /// Restarts the schedule: a new incarnation has begun, or `undying` itself was stopped. Missed rounds do not count.
    pub(crate) fn begin(&mut self, now: Instant) {
        self.next = self.every.map(|every| now + every);
        self.retry = self.every.unwrap_or_default();
        self.last = now;
        self.commits.clear();
        self.ledger.begin(now);
        self.delays.due = None;
    }

    /// Records a stop of the subject. For a checkpoint, `taken` records the pause.
    pub(crate) fn paused(&mut self, pause: Duration) {
        push(&mut self.pauses, pause, PAUSES_MAX);
    }

    /// Records a checkpoint that was taken and may not be committed yet. Returns the number of rounds that were missed.
    pub(crate) fn taken(&mut self, costs: Costs, now: Instant) -> u32 {
        self.paused(costs.pause);
        self.delays.due = self.next;
        let since = std::mem::replace(&mut self.last, now);
        let paid_until = self.ledger.charge(costs.total, (since, now), self.delays.longest);
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
        let runs_until = now + RUNS * (costs.pause + costs.before);
        self.next = Some(next.max(runs_until).max(paid_until));
        rounds
    }

    /// Returns the present interval, if the limit of the costs makes it longer than the requested interval.
    #[must_use]
    pub fn longer_interval(&self) -> Option<Duration> {
        self.every.and_then(|_| self.ledger.longer_interval(self.delays.longest))
    }

    /// Returns the time until which the costs of earlier checkpoints defer the next one.
    #[must_use]
    pub fn deferred_until(&self) -> Option<Instant> {
        Some(self.ledger.paid_until()?.min(self.next?))
    }

    /// Returns how much longer the subject took because of recent checkpoints, as a part of the time without them; 0.1 is
    /// a tenth.
    #[must_use]
    pub fn cost_share(&self) -> f64 {
        self.ledger.share()
    }

    /// Records a committed checkpoint.
    pub(crate) fn committed(&mut self, now: Instant) {
        push(&mut self.commits, now, COMMITS_MAX);
        self.delays.committed(now);
    }

    /// Records a refused or failed checkpoint.
    pub(crate) fn failed(&mut self, now: Instant) {
        let Some(every) = self.every else { return };
        self.next = Some(now + self.retry);
        self.retry = (self.retry * 2).min(RETRY_MAX.max(every));
    }

    /// Returns the recent rate of committed checkpoints, per second. The rate is at most the requested rate: additional
    /// checkpoints that the program has requested, and commits that arrive together, do not raise it.
    #[must_use]
    pub fn achieved_hz(&self) -> f64 {
        let (Some(every), Some(first), Some(last)) = (self.every, self.commits.front(), self.commits.back())
        else {
            return 0.0;
        };
        if last <= first {
            return 0.0;
        }
        let rate = (self.commits.len() - 1) as f64 / last.duration_since(*first).as_secs_f64();
        rate.min(1.0 / every.as_secs_f64())
    }

    /// Returns percentiles of the recent pauses.
    #[must_use]
    pub fn pauses(&self) -> Pauses {
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

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: Duration = Duration::from_millis(100);
    const ZERO: Duration = Duration::ZERO;

    fn stops(pause: Duration, before: Duration) -> Costs {
        Costs { pause, before, total: pause + before }
    }

    #[test]
    fn rounds_are_kept_and_missed_ones_left_out() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(EVERY), None, start);
        assert_eq!(pace.next, Some(start + EVERY));
        assert_eq!(pace.taken(stops(Duration::from_millis(1), ZERO), start + Duration::from_millis(103)), 0);
        assert_eq!(pace.next, Some(start + 2 * EVERY));
        assert_eq!(pace.taken(stops(Duration::from_millis(1), ZERO), start + Duration::from_millis(520)), 3);
        assert_eq!(pace.next, Some(start + 6 * EVERY));
    }

    #[test]
    fn without_checkpoints_none_is_ever_due() {
        let start = Instant::now();
        let mut pace = Pace::new(None, None, start);
        pace.begin(start);
        pace.failed(start);
        assert_eq!(pace.next, None);
    }

    #[test]
    fn rounds_that_pass_while_this_program_is_stopped_do_not_count() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(EVERY), None, start);
        let continued = start + 50 * EVERY;
        pace.begin(continued);
        // The stop began during a checkpoint.
        assert_eq!(
            pace.taken(stops(Duration::from_millis(1), ZERO), continued + Duration::from_millis(2)),
            0
        );
        assert_eq!(pace.taken(stops(Duration::from_millis(1), ZERO), continued + 2 * EVERY), 0);
    }

    #[test]
    fn the_subject_runs_three_quarters_of_the_time() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(EVERY), None, start);
        let end = start + Duration::from_millis(290);
        pace.taken(stops(Duration::from_millis(180), ZERO), end);
        assert_eq!(pace.next, Some(end + Duration::from_millis(540)));
        pace.taken(stops(Duration::from_millis(1), Duration::from_millis(399)), end + 9 * EVERY);
        assert_eq!(pace.next, Some(end + 21 * EVERY));
        assert_eq!(pace.pauses().max, Duration::from_millis(180));
    }

    #[test]
    fn refusals_are_tried_again_ever_less_often() {
        let mut now = Instant::now();
        let mut pace = Pace::new(Some(EVERY), None, now);
        for _ in 0..20 {
            pace.failed(now);
            now = pace.next.unwrap();
        }
        pace.failed(now);
        assert_eq!(pace.next, Some(now + RETRY_MAX));
        pace.taken(stops(ZERO, ZERO), now);
        pace.failed(now);
        assert_eq!(pace.next, Some(now + EVERY));
    }

    #[test]
    fn rates_and_percentiles_are_those_of_late() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(EVERY), None, start);
        assert_eq!((pace.achieved_hz(), pace.pauses()), (0.0, Pauses::default()));
        for round in 1..=200_u32 {
            let now = start + EVERY * round;
            pace.taken(stops(Duration::from_micros(u64::from(round)), ZERO), now);
            pace.committed(now);
        }
        assert!((pace.achieved_hz() - 10.0).abs() < 1e-6);
        // The commit of a checkpoint that was in flight arrives with the commit of the next checkpoint.
        pace.begin(start);
        pace.committed(start);
        pace.committed(start + EVERY / 13);
        assert!(pace.achieved_hz() <= 10.0, "{}", pace.achieved_hz());
        let pauses = pace.pauses();
        assert_eq!(pauses.max, Duration::from_micros(200));
        assert_eq!(pauses.p50, Duration::from_micros(100));
        assert_eq!(pauses.p99, Duration::from_micros(198));
    }
}
