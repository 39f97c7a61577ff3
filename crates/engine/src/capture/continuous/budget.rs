//! The pause budget: how long one stop of the subject may last, and how the subject is throttled to keep it.
//!
//! Owns: the measured costs of a stop; how fast the subject dirties pages; the prediction; the steps that lead to a stop
//! that fits.
//! Invariants: a stop copies no page after its deadline. The subject runs ever shorter between two stops, so that the
//! deferred pages become fewer, whatever it writes. Without progress the number of steps is bounded.
//! Does not: read a clock, stop or copy.
//!
//! A subject that dirties pages faster than they are copied is throttled, as live migration does it (QEMU:
//! auto-converge). It is stopped for at most the budget while pages are copied, then runs for a while. Each round that
//! does not halve the deferred pages halves that while.

use std::time::{Duration, Instant};

use model::PageCount;

/// Cost of a page before one was measured: scattered pages take 0.3 to 1.2 µs (docs/design/0011).
const PAGE_FIRST: Duration = Duration::from_nanos(1200);
/// The part of a stop that does not depend on pages, before one was measured.
const FIXED_FIRST: Duration = Duration::from_millis(1);
/// Fewer copied pages say nothing about the cost of one.
const PAGES_MEASURED_MIN: PageCount = PageCount(64);
/// A new measurement counts as one of so many.
const MEMORY: u32 = 8;
/// The part of the budget that pages get at least, where the fixed part would take all of it.
const COPY_SHARE_MIN: u32 = 4;
/// Shorter than a resume and a stop take: the subject is stopped again at once.
const RUN_MIN: Duration = Duration::from_micros(100);
/// Rounds of slices before a last stop is tried in any case.
const ROUNDS_MAX: u32 = 32;
/// Last stops in a row that did not reduce the deferred pages. The next one copies all of them: the fixed part, or
/// pages that no tracker can protect, take more than the budget.
const STALLED_MAX: u32 = 8;
/// Last stops that may follow each other at once to copy what the first of them has left. Slices copy more pages in the
/// same time, but the scan before them lets the subject run.
const REPEATS_MAX: u64 = 8;

/// The part of the budget that a slice, of which there are many, keeps for what it cannot foresee: interrupts, and the
/// time that a hypervisor takes. A last stop does not, since it has to copy more than the subject dirties between two.
const SPARE_SHARE: u32 = 16;

/// Pages that are copied between two readings of the clock, 0.02 to 0.1 ms: a stop ends its copying by so much early.
pub(super) const CHUNK: PageCount = PageCount(64);
/// What it takes to make a buffer of 2 MiB, at most: 0.4 to 0.9 ms (docs/design/0009), and 3 where a hypervisor has to
/// find the memory first. A stop that has less left begins none.
pub(super) const BUFFER_MAKING: Duration = Duration::from_micros(3500);

/// The budget of one subject, and what its stops have cost of late (moving averages).
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// The longest stop. `None`: a stop may last as long as it takes.
    pub(super) limit: Option<Duration>,
    page: Duration,
    /// All of a stop but the copying of pages.
    fixed: Duration,
    /// The part of it that follows the copying.
    after: Duration,
}

impl Budget {
    pub(super) fn new(limit: Option<Duration>) -> Self {
        Self { limit, page: PAGE_FIRST, fixed: FIXED_FIRST, after: Duration::ZERO }
    }

    /// Whether a stop that copies so many pages probably keeps the budget.
    pub(super) fn fits(&self, pages: PageCount) -> bool {
        self.limit.is_none_or(|limit| {
            let room = limit.saturating_sub(self.fixed).max(limit / COPY_SHARE_MIN);
            self.cost(pages) <= room
        })
    }

    /// Pages that one stop copies at most, some of which may cost half of the average.
    pub(super) fn pages_max(&self) -> PageCount {
        let each = self.page.as_nanos().max(1);
        let most = self.limit.map_or(0, |limit| 2 * limit.as_nanos() / each);
        PageCount(u64::try_from(most).unwrap_or(u64::MAX))
    }

    /// How long after its begin a last stop may copy, when copying begins `spent` after it.
    pub(super) fn copy_end(&self, spent: Duration) -> Option<Duration> {
        let rest = self.after + self.cost(CHUNK);
        self.limit.map(|limit| limit.saturating_sub(rest).max(spent + limit / COPY_SHARE_MIN))
    }

    /// How long after its begin a slice may copy, when copying begins `spent` after it.
    pub(super) fn slice_end(&self, spent: Duration) -> Duration {
        let end = self.copy_end(spent).unwrap_or_default();
        end.saturating_sub(self.limit.unwrap_or_default() / SPARE_SHARE).max(spent)
    }

    /// A stop took so long before and after it copied.
    pub(super) fn note_fixed(&mut self, before: Duration, after: Duration) {
        self.fixed = average(self.fixed, before + after);
        self.after = average(self.after, after);
    }

    /// So many pages were copied in so much time.
    pub(super) fn note_copied(&mut self, pages: PageCount, took: Duration) {
        if pages >= PAGES_MEASURED_MIN {
            let each = took.as_nanos() / u128::from(pages.get());
            self.page = average(self.page, Duration::from_nanos(u64::try_from(each).unwrap_or(u64::MAX)));
        }
    }

    fn cost(&self, pages: PageCount) -> Duration {
        let nanos = self.page.as_nanos() * u128::from(pages.get());
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// What to do about deferred pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Take the last stop.
    Last,
    /// Copy all of them in slices: the subject is stopped for at most the budget, then runs for `run`, and again.
    Slices { run: Duration },
}

/// How one checkpoint throttles its subject.
#[derive(Clone, Copy, Debug)]
pub(super) struct Throttle {
    run: Duration,
    rounds: u32,
    left: PageCount,
    stalled: u32,
    left_by_last: PageCount,
}

impl Default for Throttle {
    fn default() -> Self {
        const MOST: PageCount = PageCount(u64::MAX);
        Self { run: Duration::MAX, rounds: 0, left: MOST, stalled: 0, left_by_last: MOST }
    }
}

impl Throttle {
    /// The next step, when so many pages are dirty.
    pub(super) fn step(&mut self, budget: &Budget, pages: PageCount) -> Step {
        let Some(limit) = budget.limit.filter(|_| !budget.fits(pages) && self.rounds < ROUNDS_MAX) else {
            return Step::Last;
        };
        let has_halved = self.rounds == 0 || pages.get() <= self.left.get() / 2;
        if self.run.is_zero() && !has_halved && is_little(budget, pages) {
            // The scan alone lets it dirty as much. The scan of a last stop does not.
            return Step::Last;
        }
        self.run = self.run.min(limit);
        if !has_halved {
            self.run = if self.run / 2 < RUN_MIN { Duration::ZERO } else { self.run / 2 };
        }
        self.rounds += 1;
        self.left = pages;
        Step::Slices { run: self.run }
    }

    /// A last stop has left so many pages. Whether another one follows at once, without slices.
    pub(super) fn repeats(&mut self, budget: &Budget, left: PageCount) -> bool {
        let repeats = is_little(budget, left) || self.rounds >= ROUNDS_MAX;
        if repeats {
            self.stalled = if left < self.left_by_last { 0 } else { self.stalled + 1 };
            self.left_by_last = left;
        } else {
            self.rounds += 1;
            self.left_by_last = PageCount(u64::MAX);
        }
        repeats
    }

    /// The next last stop copies everything.
    pub(super) fn give_up(&mut self) {
        self.stalled = STALLED_MAX;
    }

    /// Whether the next last stop keeps the budget. If not, it copies everything.
    pub(super) fn is_bound(&self) -> bool {
        self.stalled < STALLED_MAX
    }
}

/// Whether so many pages fit into a few last stops.
fn is_little(budget: &Budget, pages: PageCount) -> bool {
    budget.fits(PageCount(pages.get() / REPEATS_MAX))
}

fn average(old: Duration, new: Duration) -> Duration {
    old - old / MEMORY + new / MEMORY
}

/// What the last scan found, and over how long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    at: Option<Instant>,
    pages: PageCount,
    over: Duration,
}

impl Pace {
    /// A scan that began then found so many.
    pub(super) fn scanned(&mut self, at: Instant, pages: PageCount) {
        self.over = self.at.map_or(Duration::ZERO, |before| at.saturating_duration_since(before));
        (self.at, self.pages) = (Some(at), pages);
    }

    /// As many as it has dirtied by then if it went on like that: at most what it dirtied before for each time as long,
    /// since pages that are dirtied again count once.
    pub(super) fn since(&self, now: Instant) -> PageCount {
        let Some(at) = self.at else { return PageCount(0) };
        let since = now.saturating_duration_since(at).as_nanos();
        // After a single scan the time in which they were dirtied is unknown.
        let over = if self.over.is_zero() { since } else { self.over.as_nanos() };
        let pages = u128::from(self.pages.get()) * since / over.max(1);
        PageCount(u64::try_from(pages).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(5);

    /// A subject and its machine: rates in pages a second.
    #[derive(Clone, Copy)]
    struct Machine {
        dirties: u64,
        copies: u64,
        /// Pages that it writes, over and over.
        memory: u64,
        fixed: Duration,
        /// From a resume to the next stop, at least.
        gap: Duration,
        /// A scan of the running subject, and what is prepared before a last stop.
        scan: Duration,
    }

    #[derive(Debug, Default)]
    struct Outcome {
        longest: Duration,
        stopped: Duration,
        ran: Duration,
        stops: u32,
    }

    impl Machine {
        fn dirtied(&self, ran: Duration) -> u64 {
            ((ran.as_secs_f64() * self.dirties as f64) as u64).min(self.memory)
        }

        fn copied(&self, time: Duration) -> u64 {
            (time.as_secs_f64() * self.copies as f64) as u64
        }

        fn copying(&self, pages: u64) -> Duration {
            Duration::from_secs_f64(pages as f64 / self.copies as f64)
        }

        /// One checkpoint, from `dirty` pages after pre-copy.
        fn checkpoint(&self, budget: &mut Budget, mut dirty: u64) -> Outcome {
            let (mut throttle, mut outcome) = (Throttle::default(), Outcome::default());
            loop {
                if let Step::Slices { run } = throttle.step(budget, PageCount(dirty)) {
                    dirty = self.slices(budget, &mut outcome, dirty, run) + self.dirtied(self.scan);
                    continue;
                }
                dirty = self.last_stops(budget, &mut throttle, &mut outcome, dirty + self.dirtied(self.scan));
                if dirty == 0 {
                    return outcome;
                }
            }
        }

        /// Last stops that follow each other at once; how many pages they leave.
        fn last_stops(
            &self,
            budget: &mut Budget,
            throttle: &mut Throttle,
            outcome: &mut Outcome,
            mut dirty: u64,
        ) -> u64 {
            loop {
                let bound = budget.copy_end(self.fixed).filter(|_| throttle.is_bound());
                let room = bound.map_or(u64::MAX, |end| self.copied(end.saturating_sub(self.fixed)));
                let copies = dirty.min(room);
                let stop = self.fixed + self.copying(copies);
                budget.note_copied(PageCount(copies), self.copying(copies));
                budget.note_fixed(self.fixed, Duration::ZERO);
                outcome.stops += 1;
                outcome.longest = outcome.longest.max(stop);
                outcome.stopped += stop;
                dirty -= copies;
                if dirty == 0 || !throttle.repeats(budget, PageCount(dirty)) {
                    return dirty;
                }
                outcome.ran += self.gap;
                dirty = (dirty + self.dirtied(self.gap)).min(self.memory);
                assert!(outcome.stops < 100_000, "it does not converge: {outcome:?}");
            }
        }

        /// Copies `dirty` pages; how many are dirty then.
        fn slices(&self, budget: &mut Budget, outcome: &mut Outcome, mut dirty: u64, run: Duration) -> u64 {
            let mut ran = Duration::ZERO;
            while dirty > 0 {
                let end = budget.slice_end(self.gap);
                let copies = dirty.min(self.copied(end - self.gap));
                let took = self.copying(copies) + self.gap;
                budget.note_copied(PageCount(copies), self.copying(copies));
                outcome.longest = outcome.longest.max(took);
                outcome.stopped += took;
                outcome.stops += 1;
                dirty -= copies;
                let turn = run + self.gap;
                dirty -= dirty.min(self.copied(run));
                ran += turn;
            }
            outcome.ran += ran;
            self.dirtied(ran)
        }
    }

    const FILLER: Machine = Machine {
        dirties: 800_000,
        copies: 900_000,
        memory: 1 << 20,
        fixed: Duration::from_micros(700),
        gap: Duration::from_micros(200),
        scan: Duration::from_micros(500),
    };

    #[test]
    fn no_stop_is_longer_than_the_budget_whatever_is_written() {
        for (dirties, copies) in
            [(10_000, 900_000), (800_000, 900_000), (4_000_000, 900_000), (8_000_000, 400_000)]
        {
            for memory in [1 << 10, 1 << 18, 1 << 20] {
                let machine = Machine { dirties, copies, memory, ..FILLER };
                let mut budget = Budget::new(Some(LIMIT));
                for _ in 0..20 {
                    let outcome = machine.checkpoint(&mut budget, memory);
                    assert!(outcome.longest <= LIMIT, "{dirties}/s, {memory} pages: {outcome:?}");
                }
            }
        }
    }

    #[test]
    fn a_scan_in_which_more_is_dirtied_than_fits_leads_to_no_long_stop() {
        for scan_ms in [2, 6, 30, 200] {
            let scan = Duration::from_millis(scan_ms);
            let fixed = Duration::from_micros(3500);
            let machine = Machine { dirties: 1_000_000, copies: 640_000, scan, fixed, ..FILLER };
            let mut budget = Budget::new(Some(LIMIT));
            for _ in 0..5 {
                let outcome = machine.checkpoint(&mut budget, 1 << 20);
                assert!(outcome.longest <= LIMIT, "{scan_ms} ms: {outcome:?}");
                assert!(outcome.stopped < Duration::from_secs(20), "{scan_ms} ms: {outcome:?}");
            }
        }
    }

    #[test]
    fn a_subject_that_fits_is_stopped_once() {
        let machine = Machine { dirties: 10_000, ..FILLER };
        let mut budget = Budget::new(Some(LIMIT));
        for _ in 0..20 {
            assert_eq!(machine.checkpoint(&mut budget, 1000).stops, 1);
        }
        let mut budget = Budget::new(None);
        let outcome = machine.checkpoint(&mut budget, 1 << 20);
        assert!(outcome.stops == 1 && outcome.longest > Duration::from_secs(1), "{outcome:?}");
    }

    #[test]
    fn a_throttled_subject_goes_on() {
        let mut budget = Budget::new(Some(LIMIT));
        let outcome = FILLER.checkpoint(&mut budget, FILLER.memory);
        assert!(outcome.ran > outcome.stopped / 4, "{outcome:?}");
    }

    #[test]
    fn a_fixed_part_above_the_budget_is_exceeded_by_little() {
        let fixed = LIMIT * 3;
        let machine = Machine { fixed, ..FILLER };
        let mut budget = Budget::new(Some(LIMIT));
        for _ in 0..20 {
            let outcome = machine.checkpoint(&mut budget, 1 << 18);
            assert!(outcome.longest <= fixed + LIMIT / 2, "{outcome:?}");
        }
    }

    #[test]
    fn pages_that_are_always_dirty_are_copied_in_one_stop_in_the_end() {
        let (mut throttle, budget) = (Throttle::default(), Budget::new(Some(LIMIT)));
        let always = PageCount(1 << 20);
        let mut steps = 0;
        while throttle.is_bound() {
            if throttle.step(&budget, always) == Step::Last {
                throttle.repeats(&budget, always);
            }
            steps += 1;
            assert!(steps < 100);
        }
    }

    #[test]
    fn a_subject_goes_on_as_it_did() {
        let begun = Instant::now();
        let after = |millis| begun + Duration::from_millis(millis);
        let mut pace = Pace::default();
        assert_eq!(pace.since(after(5)), PageCount(0));
        pace.scanned(begun, PageCount(300));
        assert_eq!(pace.since(after(2)), PageCount(300));
        pace.scanned(after(10), PageCount(1000));
        assert_eq!(pace.since(after(10)), PageCount(0));
        assert_eq!(pace.since(after(12)), PageCount(200));
        pace.scanned(after(12), PageCount(150));
        assert_eq!(pace.since(after(16)), PageCount(300));
        pace.scanned(after(20), PageCount(0));
        assert_eq!(pace.since(after(1000)), PageCount(0));
    }
}
