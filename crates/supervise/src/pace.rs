//! The schedule of checkpoints, and their achieved rate. A round is one interval of the schedule.
//!
//! A checkpoint costs the subject time. If the costs exceed a limit, the interval grows.
//!
//! Owns: the schedule, and the bounded histories of pauses, commits and costs.
//! Invariants: the subject is stopped for at most a quarter of the time. The retry interval after a refused checkpoint
//! doubles, up to a maximum.
//! Does not: read a clock, or measure costs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The number of pauses in the history. The number is large enough for the 99th percentile, and needs little memory.
const PAUSES_MAX: usize = 1024;
/// The number of commits in the history for the achieved rate. At a high rate, the history covers a few seconds, and at
/// a low rate a longer time.
const COMMITS_MAX: usize = 64;
/// The number of checkpoints whose costs are averaged. A program can change its behaviour soon.
const COSTS_MAX: usize = 8;
/// The program is stated to take at most this many times as long as without checkpoints.
const COSTS_SHOWN_MAX: u32 = 100;
/// The number of checkpoints from which a longer interval is stated. A single checkpoint can be expensive by chance.
const COSTS_MIN: u32 = 2;
/// After a short delay of a commit, the remembered longest delay becomes shorter by this part.
const DELAY_MEMORY: u32 = 8;
/// The maximum interval between two attempts to checkpoint a subject that was refused.
const RETRY_MAX: Duration = Duration::from_secs(5);

/// After a checkpoint, the subject runs at least this many times as long as it was stopped. After the first checkpoint, with
/// a limit of the costs: this many times as long as it has cost.
const RUNS: u32 = 3;

/// The limit of the costs of checkpoints.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CostLimit {
    /// How much longer the program may take because of checkpoints, as a part of the time that it would take without
    /// them; 0.1 is a tenth.
    pub share: f64,
    /// The longest interval to which the costs can extend the requested interval.
    pub interval_max: Duration,
    /// The maximum age of a checkpoint to which a restart can return. Shortens the longest interval, so that the next
    /// checkpoint is usually complete before the newest one has this age.
    pub age_max: Duration,
}

impl CostLimit {
    /// Returns the longest interval to which the costs can extend the requested interval. `delay` is the longest time that
    /// a recent checkpoint needed from the time when it was due to its commit.
    fn longest(self, delay: Duration) -> Duration {
        // Three quarters leave time for one refusal, and for one checkpoint that takes twice as long as usual.
        let spare = self.age_max.saturating_sub(2 * delay).min(self.age_max * 3 / 4);
        self.interval_max.min(spare.max(self.age_max / 2))
    }

    /// Returns how long the program must run without a cost, so that this cost is within the limit. At most `longest`.
    fn run_for(self, cost: Duration, longest: Duration) -> Duration {
        Duration::try_from_secs_f64(cost.as_secs_f64() / self.share).map_or(longest, |time| time.min(longest))
    }

    /// Returns the interval between checkpoints that each cost `cost`, and pay a debt of `debt`. At most `longest`.
    fn interval(self, cost: Duration, debt: Duration, longest: Duration) -> Duration {
        (cost + self.run_for(cost + debt, longest)).min(longest)
    }
}

/// What one checkpoint took from the subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Costs {
    /// The duration of the pause.
    pub(crate) pause: Duration,
    /// The total duration of the stops before the pause.
    pub(crate) before: Duration,
    /// The time that the subject has lost in all, including `pause` and `before`.
    pub(crate) total: Duration,
}

/// The schedule of checkpoints.
#[derive(Debug)]
pub(crate) struct Pace {
    /// The checkpoint interval. `None`: no checkpoint is ever due.
    every: Option<Duration>,
    limit: Option<CostLimit>,
    next: Option<Instant>,
    retry: Duration,
    /// The end of the last checkpoint, or the begin of the incarnation.
    last: Instant,
    /// The time until which the costs of all checkpoints are within the limit.
    paid_until: Instant,
    pauses: VecDeque<Duration>,
    commits: VecDeque<Instant>,
    /// The costs of recent checkpoints, with the time since the checkpoint before. The first checkpoint of an incarnation
    /// is not in the list: it copies everything, and is needed at any cost.
    costs: VecDeque<(Duration, Duration)>,
    /// Costs that the intervals so far have not paid: a part of the cost of the first checkpoint, and a part of the
    /// cost of the next one. If the program ended after the next checkpoint, these costs would exceed the limit.
    debt: Duration,
    has_first: bool,
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
            limit,
            next: every.map(|every| now + every),
            retry: every.unwrap_or_default(),
            last: now,
            paid_until: now,
            pauses: VecDeque::with_capacity(PAUSES_MAX),
            commits: VecDeque::with_capacity(COMMITS_MAX),
            costs: VecDeque::with_capacity(COSTS_MAX),
            debt: Duration::ZERO,
            has_first: false,
            delays: Delays::default(),
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
        (self.last, self.paid_until) = (now, now);
        self.commits.clear();
        self.costs.clear();
        self.debt = Duration::ZERO;
        self.has_first = false;
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
        let paid_until = if std::mem::replace(&mut self.has_first, true) {
            let before = self.highest_cost();
            push(&mut self.costs, (costs.total, now.saturating_duration_since(since)), COSTS_MAX);
            self.debt = (self.debt + self.highest_cost()).saturating_sub(before);
            let debt = self.repays(costs.total);
            self.debt -= debt;
            self.pay((costs.total, debt), since, now)
        } else {
            let wait = self.repays_at_once(costs.total);
            self.debt =
                costs.total - wait.mul_f64(self.limit.map_or(0.0, |limit| limit.share)).min(costs.total);
            self.paid_until = now + wait;
            self.paid_until
        };
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

    /// Returns the part of the debt that a checkpoint with this cost pays. The interval is then longer by at most a third.
    fn repays(&self, cost: Duration) -> Duration {
        if self.limit.is_some() { self.debt.min(cost / 3) } else { Duration::ZERO }
    }

    /// Returns how long the second checkpoint waits for the cost of the first one. What it will cost is not known yet, but
    /// a part of the memory will be copied again.
    fn repays_at_once(&self, cost: Duration) -> Duration {
        let (Some(limit), Some(every)) = (self.limit, self.every) else { return Duration::ZERO };
        limit.run_for(cost, (2 * every).max((RUNS * cost).min(self.longest(limit))))
    }

    /// Returns the highest of the recent costs: what the next checkpoint costs at most, probably.
    fn highest_cost(&self) -> Duration {
        self.costs.iter().map(|(cost, _)| *cost).max().unwrap_or_default()
    }

    /// Returns the earliest time for the next checkpoint, so that the costs of all checkpoints are within the limit. Time
    /// before `since` counts for earlier checkpoints.
    fn pay(&mut self, (cost, debt): (Duration, Duration), since: Instant, now: Instant) -> Instant {
        let Some(limit) = self.limit else { return now };
        let longest = self.longest(limit);
        // A single expensive checkpoint must not defer many others.
        self.paid_until =
            (self.paid_until.max(since) + limit.interval(cost, debt, longest)).min(now + 2 * longest);
        self.paid_until.min(now + longest)
    }

    fn longest(&self, limit: CostLimit) -> Duration {
        limit.longest(self.delays.longest).max(self.every.unwrap_or_default())
    }

    /// Returns the present interval, if the limit of the costs makes it longer than the requested interval.
    pub(crate) fn longer_interval(&self) -> Option<Duration> {
        let (limit, every) = (self.limit?, self.every?);
        let count = u32::try_from(self.costs.len()).ok().filter(|count| *count >= COSTS_MIN)?;
        let mean = self.costs.iter().map(|(cost, _)| *cost).sum::<Duration>() / count;
        let needed = limit.interval(mean, self.repays(mean), self.longest(limit));
        (needed > every).then_some(needed)
    }

    /// Returns the time until which the costs of earlier checkpoints defer the next one.
    pub(crate) fn deferred_until(&self) -> Option<Instant> {
        self.limit?;
        Some(self.paid_until.min(self.next?))
    }

    /// Returns how much longer the subject took because of recent checkpoints, as a part of the time without them; 0.1 is
    /// a tenth.
    pub(crate) fn cost_share(&self) -> f64 {
        let sum = |part: fn(&(Duration, Duration)) -> Duration| self.costs.iter().map(part).sum::<Duration>();
        let (cost, elapsed) = (sum(|(cost, _)| *cost), sum(|(_, elapsed)| *elapsed));
        // Costs are partly estimated, and can exceed the elapsed time.
        let without = elapsed.saturating_sub(cost).max(elapsed / COSTS_SHOWN_MAX).as_secs_f64();
        if without > 0.0 { cost.as_secs_f64() / without } else { 0.0 }
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
    pub(crate) fn achieved_hz(&self) -> f64 {
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

    fn stops(pause: Duration, before: Duration) -> Costs {
        Costs { pause, before, total: pause + before }
    }

    #[test]
    fn rounds_are_kept_and_missed_ones_left_out() {
        let start = Instant::now();
        let mut pace = Pace::new(Some(EVERY), None, start);
        assert_eq!(pace.next(), Some(start + EVERY));
        assert_eq!(pace.taken(stops(Duration::from_millis(1), ZERO), start + Duration::from_millis(103)), 0);
        assert_eq!(pace.next(), Some(start + 2 * EVERY));
        assert_eq!(pace.taken(stops(Duration::from_millis(1), ZERO), start + Duration::from_millis(520)), 3);
        assert_eq!(pace.next(), Some(start + 6 * EVERY));
    }

    #[test]
    fn without_checkpoints_none_is_ever_due() {
        let start = Instant::now();
        let mut pace = Pace::new(None, None, start);
        pace.begin(start);
        pace.failed(start);
        assert_eq!(pace.next(), None);
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
        assert_eq!(pace.next(), Some(end + Duration::from_millis(540)));
        pace.taken(stops(Duration::from_millis(1), Duration::from_millis(399)), end + 9 * EVERY);
        assert_eq!(pace.next(), Some(end + 21 * EVERY));
        assert_eq!(pace.pauses().max, Duration::from_millis(180));
    }

    fn tenth() -> CostLimit {
        CostLimit { share: 0.1, interval_max: 100 * EVERY, age_max: 1000 * EVERY }
    }

    /// Takes checkpoints as soon as each is due. Returns the time from the first due checkpoint to the last one.
    fn take_many(pace: &mut Pace, count: u32, cost: Duration) -> Duration {
        let first = pace.next().unwrap();
        for _ in 0..count {
            let due = pace.next().unwrap();
            pace.taken(Costs { total: cost, ..Costs::default() }, due);
        }
        pace.next().unwrap() - first
    }

    #[test]
    fn costs_above_the_limit_make_the_interval_longer() {
        let mut pace = Pace::new(Some(EVERY), Some(tenth()), Instant::now());
        assert_eq!(take_many(&mut pace, 10, EVERY / 20), 10 * EVERY);
        assert_eq!(pace.longer_interval(), None);
        take_many(&mut pace, 10, EVERY / 2);
        assert_eq!(take_many(&mut pace, 10, EVERY / 2), 55 * EVERY);
        assert_eq!(pace.longer_interval(), Some(EVERY * 11 / 2));
        assert!((pace.cost_share() - 0.1).abs() < 1e-6, "{}", pace.cost_share());
        take_many(&mut pace, 10, EVERY / 20);
        assert_eq!(take_many(&mut pace, 10, EVERY / 20), 10 * EVERY);
        take_many(&mut pace, 20, 20 * EVERY);
        assert_eq!(take_many(&mut pace, 10, 20 * EVERY), 1000 * EVERY, "the interval has a limit");
    }

    #[test]
    fn the_costs_of_a_growing_program_are_within_the_limit() {
        let begun = Instant::now();
        let mut pace = Pace::new(Some(EVERY), Some(tenth()), begun);
        let mut sum = ZERO;
        for checkpoint in 0..20_u32 {
            let cost = EVERY * (10 + checkpoint) / 100;
            let due = pace.next().unwrap();
            pace.taken(Costs { total: cost, ..Costs::default() }, due);
            sum += cost;
            let spent = sum.as_secs_f64() / (due - begun - sum).as_secs_f64();
            assert!(checkpoint < 5 || spent <= 0.105, "{spent} after checkpoint {checkpoint}");
        }
    }

    #[test]
    fn one_expensive_checkpoint_defers_the_next_one_only_for_a_time() {
        let mut pace = Pace::new(Some(EVERY), Some(tenth()), Instant::now());
        assert_eq!(take_many(&mut pace, 1, 1000 * EVERY), 100 * EVERY, "the second one waits");
        let due = pace.next().unwrap();
        assert_eq!(pace.deferred_until(), Some(due));
        take_many(&mut pace, 1, 1000 * EVERY);
        assert!(pace.next().unwrap() >= due + 50 * EVERY);
        assert_eq!(pace.deferred_until(), pace.next());
        let tiny = CostLimit { share: f64::MIN_POSITIVE, ..tenth() };
        assert_eq!(tiny.interval(EVERY, EVERY, 100 * EVERY), 100 * EVERY);
        assert!(take_many(&mut pace, 2, ZERO) <= 200 * EVERY);
        assert_eq!(take_many(&mut pace, 10, ZERO), 10 * EVERY);
    }

    #[test]
    fn the_following_checkpoints_pay_for_the_first_one() {
        let mut pace = Pace::new(Some(EVERY), Some(tenth()), Instant::now());
        take_many(&mut pace, 1, 2 * EVERY);
        take_many(&mut pace, 1, EVERY * 3 / 5);
        assert_eq!(take_many(&mut pace, 3, EVERY * 3 / 5), 3 * EVERY * 43 / 5);
        assert_eq!(pace.longer_interval(), Some(EVERY * 43 / 5));
        // The longer wait for the second checkpoint has paid three tenths, the four checkpoints two fifths. Six more pay the
        // rest, and the cost of one checkpoint in advance.
        assert_eq!(take_many(&mut pace, 6, EVERY * 3 / 5), 6 * EVERY * 43 / 5);
        assert_eq!(take_many(&mut pace, 4, EVERY * 3 / 5), 4 * EVERY * 33 / 5);
        assert_eq!(pace.longer_interval(), Some(EVERY * 33 / 5));
    }

    #[test]
    fn expensive_checkpoints_pay_for_the_first_one_in_parts() {
        let mut pace = Pace::new(Some(EVERY), Some(tenth()), Instant::now());
        assert_eq!(take_many(&mut pace, 1, 10 * EVERY), 30 * EVERY);
        take_many(&mut pace, 1, EVERY * 3 / 2);
        assert_eq!(take_many(&mut pace, 3, EVERY * 3 / 2), 3 * EVERY * 43 / 2);
    }

    #[test]
    fn a_checkpoint_is_complete_before_the_one_before_it_is_too_old() {
        let limit = CostLimit { interval_max: 1000 * EVERY, age_max: 100 * EVERY, ..tenth() };
        let longest =
            [0, 5, 20, 30, 1000].map(|delay| limit.longest(delay * EVERY).as_millis() / EVERY.as_millis());
        assert_eq!(longest, [75, 75, 60, 50, 50]);
        let mut pace = Pace::new(Some(EVERY), Some(limit), Instant::now());
        let mut ages = Vec::new();
        let mut newest = None;
        for _ in 0..20 {
            let taken = pace.next().unwrap() + 4 * EVERY;
            pace.taken(Costs { total: 50 * EVERY, ..Costs::default() }, taken);
            let committed = taken + 8 * EVERY;
            pace.committed(committed);
            ages.extend(newest.replace(taken).map(|newest| committed - newest));
        }
        let oldest = *ages[2..].iter().max().unwrap();
        assert!((80 * EVERY..95 * EVERY).contains(&oldest), "{ages:?}");
    }

    #[test]
    fn without_a_limit_costs_change_nothing() {
        let mut pace = Pace::new(Some(EVERY), None, Instant::now());
        assert_eq!(take_many(&mut pace, 10, EVERY / 2), 10 * EVERY);
        assert_eq!(pace.longer_interval(), None);
        assert!((pace.cost_share() - 1.0).abs() < 1e-6);
        take_many(&mut pace, 10, 2 * EVERY);
        assert!(pace.cost_share() <= 200.0, "{}", pace.cost_share());
    }

    #[test]
    fn refusals_are_tried_again_ever_less_often() {
        let mut now = Instant::now();
        let mut pace = Pace::new(Some(EVERY), None, now);
        for _ in 0..20 {
            pace.failed(now);
            now = pace.next().unwrap();
        }
        pace.failed(now);
        assert_eq!(pace.next(), Some(now + RETRY_MAX));
        pace.taken(stops(ZERO, ZERO), now);
        pace.failed(now);
        assert_eq!(pace.next(), Some(now + EVERY));
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
