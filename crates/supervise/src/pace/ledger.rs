//! What checkpoints have cost a subject, and the interval that keeps their costs within a limit.
//!
//! Owns: the costs of recent checkpoints, and the costs that no interval has paid yet.
//! Invariants: a cost is paid by an interval, or it is in `debt` or `deferred`.
//! Does not: read a clock, or measure costs.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::ring::push;

/// The number of checkpoints whose costs are averaged. A program can change its behaviour soon.
const COSTS_MAX: usize = 8;
/// The program is stated to take at most this many times as long as without checkpoints.
const COSTS_SHOWN_MAX: u32 = 100;
/// The number of checkpoints from which a longer interval is stated. A single checkpoint can be expensive by chance.
const COSTS_MIN: usize = 2;
/// If the usual cost permits it, an expensive checkpoint makes the interval at most so many times as long as requested.
const CALM_ROUNDS: u32 = 18;
/// Intervals are shortened by at most so many times the longest such interval, until later intervals have made up for it.
const DEFERRED_MAX: u32 = 2;
/// The second checkpoint waits at most this many times as long as the first one has cost.
const FIRST_RUNS: u32 = 3;
/// The second checkpoint waits at most so many requested intervals, unless it waits for half of `FIRST_RUNS`. Its wait begins
/// at the end of the first one, and both take longer than later ones.
const FIRST_ROUNDS: u32 = 16;

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

/// The intervals that the costs can bring about.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// No interval is longer.
    longest: Duration,
    /// If the usual cost permits it, no interval is longer.
    calm: Duration,
}

/// The costs of checkpoints of one incarnation.
#[derive(Debug)]
pub(super) struct Ledger {
    limit: Option<CostLimit>,
    /// The requested interval.
    every: Duration,
    /// The time until which the costs of all checkpoints are within the limit.
    paid_until: Instant,
    /// The costs of recent checkpoints, with the time since the checkpoint before. The first checkpoint of an incarnation
    /// is not in the list: it copies everything, and is needed at any cost.
    costs: VecDeque<(Duration, Duration)>,
    /// Costs that the intervals so far have not paid: a part of the cost of the first checkpoint, and a part of the
    /// cost of the next one. If the program ended after the next checkpoint, these costs would exceed the limit.
    debt: Duration,
    /// How much longer the intervals so far would have been without `CALM_ROUNDS`. Later intervals are longer instead.
    deferred: Duration,
    has_first: bool,
}

impl Ledger {
    /// Returns a ledger without costs. Without a limit, costs never defer a checkpoint.
    pub(super) fn new(every: Duration, limit: Option<CostLimit>, now: Instant) -> Self {
        Self {
            limit,
            every,
            paid_until: now,
            costs: VecDeque::with_capacity(COSTS_MAX),
            debt: Duration::ZERO,
            deferred: Duration::ZERO,
            has_first: false,
        }
    }

    /// Forgets all costs: a new incarnation has begun.
    pub(super) fn begin(&mut self, now: Instant) {
        *self = Self::new(self.every, self.limit, now);
    }

    /// Records the cost of a checkpoint that was taken at `now`, after the one before was taken at `since`. `delay` is the
    /// longest time that a recent checkpoint needed from the time when it was due to its commit. Returns the earliest time
    /// for the next checkpoint.
    pub(super) fn charge(
        &mut self,
        cost: Duration,
        (since, now): (Instant, Instant),
        delay: Duration,
    ) -> Instant {
        let bounds = self.limit.map(|limit| (limit, self.bounds(limit, delay)));
        if std::mem::replace(&mut self.has_first, true) {
            let before = self.highest();
            push(&mut self.costs, (cost, now.saturating_duration_since(since)), COSTS_MAX);
            let Some((limit, bounds)) = bounds else { return now };
            self.debt = (self.debt + self.highest()).saturating_sub(before);
            let (interval, deferred) = self.interval(limit, cost, bounds);
            (self.debt, self.deferred) = (self.debt - self.repays(cost), deferred);
            // Time before `since` counts for earlier checkpoints. A single expensive checkpoint must not defer many others.
            self.paid_until = (self.paid_until.max(since) + interval).min(now + 2 * bounds.longest);
            self.paid_until.min(now + bounds.longest)
        } else {
            let Some((limit, bounds)) = bounds else { return now };
            let wait = self.wait_for_second(limit, cost, bounds);
            self.debt = cost - wait.mul_f64(limit.share).min(cost);
            self.paid_until = now + wait;
            self.paid_until
        }
    }

    /// Returns the present interval, if the limit of the costs makes it longer than the requested interval.
    pub(super) fn longer_interval(&self, delay: Duration) -> Option<Duration> {
        let limit = self.limit?;
        if self.costs.len() < COSTS_MIN {
            return None;
        }
        let needed = self.interval(limit, self.mean(), self.bounds(limit, delay)).0;
        (needed > self.every).then_some(needed)
    }

    /// Returns the time until which the costs of all checkpoints are within the limit, if there is a limit.
    pub(super) fn paid_until(&self) -> Option<Instant> {
        self.limit.map(|_| self.paid_until)
    }

    /// Returns how much longer the subject took because of recent checkpoints, as a part of the time without them; 0.1 is
    /// a tenth.
    pub(super) fn share(&self) -> f64 {
        let sum = |part: fn(&(Duration, Duration)) -> Duration| self.costs.iter().map(part).sum::<Duration>();
        let (cost, elapsed) = (sum(|(cost, _)| *cost), sum(|(_, elapsed)| *elapsed));
        // Costs are partly estimated, and can exceed the elapsed time.
        let without = elapsed.saturating_sub(cost).max(elapsed / COSTS_SHOWN_MAX).as_secs_f64();
        if without > 0.0 { cost.as_secs_f64() / without } else { 0.0 }
    }

    fn bounds(&self, limit: CostLimit, delay: Duration) -> Bounds {
        let longest = limit.longest(delay).max(self.every);
        Bounds { longest, calm: (CALM_ROUNDS * self.every).min(longest) }
    }

    /// Returns the interval after a checkpoint with this cost, and how much of it is deferred to later intervals.
    fn interval(&self, limit: CostLimit, cost: Duration, bounds: Bounds) -> (Duration, Duration) {
        let needed = limit.interval(cost, self.repays(cost), bounds.longest);
        let is_calm = limit.interval(self.usual(), Duration::ZERO, bounds.longest) <= bounds.calm
            && self.deferred <= DEFERRED_MAX * bounds.calm;
        let most = if is_calm { bounds.calm } else { (needed * 4 / 3).min(bounds.longest) };
        let interval = (needed + self.deferred).min(most);
        (interval, needed + self.deferred - interval)
    }

    /// Returns the part of the debt that a checkpoint with this cost pays. The interval is then longer by at most a third.
    fn repays(&self, cost: Duration) -> Duration {
        self.debt.min(cost / 3)
    }

    /// Returns how long the second checkpoint waits for the cost of the first one. What it will cost is not known yet, but
    /// a part of the memory will be copied again.
    fn wait_for_second(&self, limit: CostLimit, cost: Duration, bounds: Bounds) -> Duration {
        let calm = FIRST_ROUNDS * self.every;
        let wait = (FIRST_RUNS * cost).min(calm.max(FIRST_RUNS * cost / 2)).min(bounds.longest);
        limit.run_for(cost, wait.max(2 * self.every))
    }

    /// Returns what a checkpoint usually costs: the mean of the recent costs, with only half of the highest one.
    fn usual(&self) -> Duration {
        let count = u32::try_from(self.costs.len()).unwrap_or(u32::MAX).max(1);
        self.mean() - self.highest() / (2 * count)
    }

    fn mean(&self) -> Duration {
        let count = u32::try_from(self.costs.len()).unwrap_or(u32::MAX).max(1);
        self.costs.iter().map(|(cost, _)| *cost).sum::<Duration>() / count
    }

    /// Returns the highest of the recent costs: what the next checkpoint costs at most, probably.
    fn highest(&self) -> Duration {
        self.costs.iter().map(|(cost, _)| *cost).max().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pace::{Costs, Pace};

    const EVERY: Duration = Duration::from_millis(100);
    const ZERO: Duration = Duration::ZERO;

    fn tenth() -> CostLimit {
        CostLimit { share: 0.1, interval_max: 100 * EVERY, age_max: 1000 * EVERY }
    }

    /// Takes checkpoints as soon as each is due. Returns the time from the first due checkpoint to the last one.
    fn take_many(pace: &mut Pace, count: u32, cost: Duration) -> Duration {
        let first = pace.next.unwrap();
        for _ in 0..count {
            let due = pace.next.unwrap();
            pace.taken(Costs { total: cost, ..Costs::default() }, due);
        }
        pace.next.unwrap() - first
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
            let due = pace.next.unwrap();
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
        let due = pace.next.unwrap();
        assert_eq!(pace.deferred_until(), Some(due));
        take_many(&mut pace, 1, 1000 * EVERY);
        assert!(pace.next.unwrap() >= due + 50 * EVERY);
        assert_eq!(pace.deferred_until(), pace.next);
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
        assert_eq!(take_many(&mut pace, 1, 15 * EVERY), EVERY * 45 / 2);
        take_many(&mut pace, 1, 4 * EVERY);
        let elapsed = take_many(&mut pace, 3, 4 * EVERY);
        let rounds = elapsed.as_secs_f64() / EVERY.as_secs_f64();
        assert!((rounds - 3.0 * 44.0 - 40.0).abs() < 1e-3, "{rounds}");
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
            let taken = pace.next.unwrap() + 4 * EVERY;
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

    /// Returns the intervals after checkpoints with these costs in milliseconds, in milliseconds.
    fn intervals(costs: &[u64]) -> Vec<u128> {
        let mut pace = Pace::new(Some(EVERY), Some(tenth()), Instant::now());
        let intervals = costs.iter().map(|cost| {
            let due = pace.next.unwrap();
            pace.taken(Costs { total: Duration::from_millis(*cost), ..Costs::default() }, due);
            (pace.next.unwrap() - due).as_millis()
        });
        intervals.collect()
    }

    /// The costs are those of a program with 1,000 threads that write to 30 pages each.
    #[test]
    fn an_expensive_beginning_makes_no_long_interval() {
        let mut costs = vec![977, 194, 147, 130, 137, 131, 141, 122, 145, 122];
        let intervals = intervals(&costs);
        assert!(intervals.iter().all(|interval| *interval <= 1800), "{intervals:?}");
        assert_eq!(intervals[0], 1600);
        // What is not paid at once is paid later, so the costs after the first are within the limit at last.
        costs.resize(200, 125);
        let all = self::intervals(&costs);
        let (cost, elapsed) = (costs.iter().sum::<u64>() as f64, all.iter().sum::<u128>() as f64);
        assert!(cost / (elapsed - cost) <= 0.1, "{}", cost / (elapsed - cost));
        assert_eq!(all.last(), Some(&1375));
    }

    #[test]
    fn costs_that_change_are_within_the_limit() {
        for (cheap, expensive) in [(50, 400), (5, 800), (100, 200), (1, 160)] {
            for period in [2, 3, 4, 8, 20] {
                let costs: Vec<u64> =
                    (0..400).map(|count| if count % period == 0 { expensive } else { cheap }).collect();
                let elapsed = intervals(&costs).iter().sum::<u128>() as f64;
                let cost = costs.iter().sum::<u64>() as f64;
                let share = cost / (elapsed - cost);
                assert!(share <= 0.105, "{cheap}, {expensive}, {period}: {share}");
            }
        }
    }
}
