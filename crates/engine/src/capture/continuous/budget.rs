//! The pause budget: how long one stop of the subject may last, and how the subject is throttled to keep the budget.
//!
//! A subject can dirty pages faster than a stop can copy pages within the budget. Such a subject is
//! throttled, like in live migration (QEMU: auto-converge). The dirty pages that are not copied yet are the
//! *deferred pages*. A *round* copies the deferred pages in several *slices*. In a slice, the subject is
//! stopped for at most the budget, and pages are copied. Between two slices, the subject runs for the *run
//! time*. If a round does not halve the number of deferred pages, the run time is halved. After the rounds,
//! the *final stop* copies the remaining pages and takes the checkpoint. If the remaining pages do not fit
//! into its budget, another final stop follows.
//!
//! A stop of many threads or processes can take longer than the budget, although it copies no page. Copying in
//! many such stops would leave the subject little time to run. Then the budget is *raised*: each stop may copy
//! for as long as its fixed part takes.
//!
//! Owns: the measured costs of a stop, and its deadline.
//! Invariants: a stop copies no page after its deadline.
//! Does not: read a clock, stop the subject, or copy pages; choose the next step: `throttle` does.

use std::time::Duration;

use model::PageCount;

/// Assumed time for copying a page, used until the first measurement. A scattered page takes 0.3 to 1.2 µs (docs/design/0011).
const PAGE_FIRST: Duration = Duration::from_nanos(1200);
/// Assumed length of the fixed part of a stop, used until the first measurement. The fixed part is the work
/// that does not depend on the number of pages.
const FIXED_FIRST: Duration = Duration::from_millis(1);
/// Minimum number of copied pages for a measurement. Fewer pages do not show the cost of one page.
const PAGES_MEASURED_MIN: PageCount = PageCount(64);
/// A new measurement has the weight `1 / MEMORY` in a moving average.
const MEMORY: u32 = 8;
/// A raised budget is this many times the fixed part of recent stops.
const RAISE: u32 = 2;
/// A raised budget is lowered if the stops now need less than `1 / LOWER` of it.
const LOWER: u32 = 4;
/// Number of recent stops of one kind that decide about raising the budget. Some of them may be delayed by other
/// programs.
const RECENT: usize = 4;
/// Copying gets at least `1 / COPY_SHARE_MIN` of the budget, even if the fixed part needs the whole budget.
const COPY_SHARE_MIN: u32 = 4;
/// Maximum number of rounds. After this many rounds, a final stop follows in any case.
const ROUNDS_MAX: u32 = 32;
/// The same for a raised budget: each slice stops many threads, and takes much longer than its copying.
const ROUNDS_RAISED_MAX: u32 = 1;

/// A slice leaves `1 / SPARE_SHARE` of the budget unused for unexpected delays: interrupts, and time that a
/// hypervisor takes. Of many slices, some meet such a delay. A final stop leaves nothing unused, because it must
/// copy more pages than the subject dirties between two stops.
const SPARE_SHARE: u32 = 16;

/// Number of pages that are copied between two readings of the clock. Copying them takes 0.02 to 0.1 ms. A stop
/// ends its copying earlier than its deadline by this time.
pub(super) const CHUNK: PageCount = PageCount(64);
/// Maximum time for allocating a buffer of 2 MiB. An allocation takes 0.4 to 0.9 ms (docs/design/0009), and longer if a
/// hypervisor must find the memory first. If less time than this constant is left, a stop allocates no buffer.
pub(super) const BUFFER_MAKING: Duration = Duration::from_micros(3500);

/// The budget of one subject, and moving averages of the costs of its recent stops.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// The requested maximum length of a stop. `None`: no limit.
    asked: Option<Duration>,
    /// The maximum length of a stop: `asked`, or more if the budget is raised.
    pub(super) limit: Option<Duration>,
    page: Duration,
    /// Length of a final stop without the copying of pages.
    fixed: Duration,
    /// The part of `fixed` that follows the copying.
    after: Duration,
    last_stops: Recent,
    slices: Recent,
}

/// The lengths of the most recent stops of one kind, without the copying of pages.
#[derive(Clone, Copy, Debug, Default)]
struct Recent {
    lengths: [Duration; RECENT],
    next: usize,
}

impl Recent {
    fn note(&mut self, length: Duration) {
        self.lengths[self.next] = length;
        self.next = (self.next + 1) % RECENT;
    }

    /// Returns the median, or the upper one of two medians; zero if too few stops were made.
    fn median(&self) -> Duration {
        let mut sorted = self.lengths;
        sorted.sort_unstable();
        sorted[RECENT / 2]
    }
}

impl Budget {
    pub(super) fn new(asked: Option<Duration>) -> Self {
        Self {
            asked,
            limit: asked,
            page: PAGE_FIRST,
            fixed: FIXED_FIRST,
            after: Duration::ZERO,
            last_stops: Recent::default(),
            slices: Recent::default(),
        }
    }

    /// Raises or lowers the limit after a stop. The limit is raised if the fixed part leaves too little of the requested
    /// budget for copying.
    fn adjust(&mut self) {
        let (Some(asked), Some(limit)) = (self.asked, self.limit) else { return };
        let fixed = self.last_stops.median().max(self.slices.median());
        let needed = if fixed > asked - asked / COPY_SHARE_MIN { RAISE * fixed } else { asked };
        if needed > limit || needed < limit / LOWER {
            self.limit = Some(needed);
        }
    }

    /// Reports whether a stop that copies this many pages will probably keep the budget.
    pub(super) fn fits(&self, pages: PageCount) -> bool {
        self.limit.is_none_or(|limit| {
            let room = limit.saturating_sub(self.fixed).max(limit / COPY_SHARE_MIN);
            self.cost(pages) <= room
        })
    }

    /// Returns an upper limit for the number of pages that one stop can copy. The limit assumes that a page costs
    /// at least half of the average. Returns zero if the budget has no limit.
    pub(super) fn pages_max(&self) -> PageCount {
        let each = self.page.as_nanos().max(1);
        let most = self.limit.map_or(0, |limit| 2 * limit.as_nanos() / each);
        PageCount(u64::try_from(most).unwrap_or(u64::MAX))
    }

    /// Returns the time at which a final stop must end its copying. `spent` is the time at which the copying
    /// starts. Both times count from the start of the stop. The stop may last `stretch` times as long as the budget.
    /// Returns `None` if the budget has no limit.
    pub(super) fn copy_end(&self, spent: Duration, stretch: u32) -> Option<Duration> {
        let rest = self.after + self.cost(CHUNK);
        let limit = self.limit? * stretch;
        Some(limit.saturating_sub(rest).max(spent + limit / COPY_SHARE_MIN))
    }

    /// Returns the time at which a slice must end its copying. `spent` is the time at which the copying starts.
    /// Both times count from the start of the slice.
    pub(super) fn slice_end(&self, spent: Duration) -> Duration {
        let end = self.copy_end(spent, 1).unwrap_or_default();
        end.saturating_sub(self.limit.unwrap_or_default() / SPARE_SHARE).max(spent)
    }

    /// Returns approximately how many slices the copying of this many pages needs.
    pub(super) fn slices(&self, limit: Duration, pages: PageCount) -> u32 {
        let count = self.cost(pages).as_nanos().div_ceil(limit.as_nanos().max(1));
        u32::try_from(count).unwrap_or(u32::MAX).max(1)
    }

    pub(super) fn rounds_max(&self) -> u32 {
        if self.limit > self.asked { ROUNDS_RAISED_MAX } else { ROUNDS_MAX }
    }

    /// Records how long a final stop took before and after its copying.
    pub(super) fn note_fixed(&mut self, before: Duration, after: Duration) {
        self.fixed = average(self.fixed, before + after);
        self.after = average(self.after, after);
        self.last_stops.note(before + after);
        self.adjust();
    }

    /// Records how long a final stop that has not copied all pages took besides its copying.
    pub(super) fn note_part(&mut self, fixed: Duration) {
        self.last_stops.note(fixed);
        self.adjust();
    }

    /// Records how long a slice took before and after its copying.
    pub(super) fn note_slice(&mut self, before: Duration, after: Duration) {
        self.slices.note(before + after);
        self.adjust();
    }

    /// Records how long the copying of this many pages took.
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

fn average(old: Duration, new: Duration) -> Duration {
    old - old / MEMORY + new / MEMORY
}

#[cfg(test)]
mod tests {
    use super::super::copies::Copies;
    use super::super::throttle::{STRAIN_MAX, Step, Throttle};
    use super::*;

    const LIMIT: Duration = Duration::from_millis(5);

    /// A simulated subject and its machine. Rates are in pages per second.
    #[derive(Clone, Copy, Debug)]
    struct Machine {
        dirties: u64,
        copies: u64,
        /// Number of pages that the subject writes repeatedly.
        memory: u64,
        fixed: Duration,
        /// Minimum time from a resume to the next stop.
        gap: Duration,
        /// Length of a scan of the running subject. The preparation of a final stop takes equally long.
        scan: Duration,
        /// Number of pages for which there are buffers.
        held: u64,
        /// The time in which half of the buffers become free again.
        flush: Duration,
    }

    #[derive(Debug, Default)]
    struct Outcome {
        longest: Duration,
        stopped: Duration,
        ran: Duration,
        stops: u32,
        copies: u64,
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

        fn copies_of(&self, outcome: &Outcome) -> Copies {
            Copies { pages: PageCount(self.memory), done: PageCount(outcome.copies) }
        }

        /// Returns how long the subject may run, so that few copies are wasted.
        fn freedom(&self, outcome: &Outcome, dirty: u64) -> Duration {
            let copies = self.copies_of(outcome);
            let spare = copies.left().get().saturating_sub(dirty);
            if spare >= self.memory {
                Duration::MAX
            } else {
                Duration::from_secs(spare) / self.dirties as u32
            }
        }

        /// Simulates one checkpoint that begins with `dirty` pages after pre-copy.
        fn checkpoint(&self, budget: &mut Budget, mut dirty: u64) -> Outcome {
            let (mut throttle, mut outcome) = (Throttle::default(), Outcome::default());
            let mut held_max = self.held;
            loop {
                let freedom = self.freedom(&outcome, dirty);
                if let Step::Slices { run } = throttle.step(budget, PageCount(dirty), freedom) {
                    outcome.copies += dirty;
                    dirty = self.slices(budget, &mut outcome, dirty, run) + self.dirtied(self.scan);
                    continue;
                }
                dirty += self.dirtied(self.scan);
                dirty = self.last_stops((budget, &mut throttle), &mut outcome, dirty, held_max);
                if dirty == 0 {
                    return outcome;
                }
                if throttle.is_spent {
                    held_max = held_max.max((dirty + dirty / 4).saturating_add(self.held / 2));
                }
            }
        }

        /// Simulates final stops that follow each other at once, and hold at most about `held_max` pages. Returns the number of
        /// pages that they leave.
        fn last_stops(
            &self,
            (budget, throttle): (&mut Budget, &mut Throttle),
            outcome: &mut Outcome,
            mut dirty: u64,
            held_max: u64,
        ) -> u64 {
            let mut held = 0;
            loop {
                let bound = budget.copy_end(self.fixed, throttle.stretch()).filter(|_| throttle.is_bound());
                let room = bound.map_or(u64::MAX, |end| self.copied(end.saturating_sub(self.fixed)));
                let copies = dirty.min(room);
                let stop = self.fixed + self.copying(copies);
                budget.note_copied(PageCount(copies), self.copying(copies));
                if copies < dirty {
                    budget.note_part(self.fixed);
                } else {
                    budget.note_fixed(self.fixed, Duration::ZERO);
                }
                outcome.stops += 1;
                outcome.longest = outcome.longest.max(stop);
                outcome.stopped += stop;
                outcome.copies += copies;
                dirty -= copies;
                if dirty == 0 || !throttle.repeats(budget, PageCount(dirty), self.copies_of(outcome)) {
                    return dirty;
                }
                held += copies;
                if held.saturating_add(self.held / 2) > held_max && !throttle.is_strained() {
                    // The subject runs until there are buffers again.
                    outcome.ran += self.flush;
                    return (dirty + self.dirtied(self.flush)).min(self.memory);
                }
                outcome.ran += self.gap;
                dirty = (dirty + self.dirtied(self.gap)).min(self.memory);
                assert!(outcome.stops < 100_000, "it does not converge: {outcome:?}");
            }
        }

        /// Simulates slices that copy `dirty` pages. Returns the number of dirty pages afterwards.
        fn slices(&self, budget: &mut Budget, outcome: &mut Outcome, mut dirty: u64, run: Duration) -> u64 {
            let mut ran = Duration::ZERO;
            while dirty > 0 {
                let end = budget.slice_end(self.gap);
                let copies = dirty.min(self.copied(end - self.gap));
                let took = self.copying(copies) + self.gap;
                budget.note_copied(PageCount(copies), self.copying(copies));
                budget.note_slice(self.gap, Duration::ZERO);
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
        held: u64::MAX,
        flush: Duration::ZERO,
    };

    #[test]
    fn no_stop_is_longer_than_the_budget_whatever_is_written() {
        for (dirties, copies) in
            [(10_000, 900_000), (800_000, 900_000), (4_000_000, 900_000), (2_000_000, 400_000)]
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

    /// Between two stops, this subject dirties more pages than a stop can copy: the guardian waits for buffers, or the
    /// subject has many threads.
    #[test]
    fn a_checkpoint_that_does_not_converge_ends_with_longer_stops() {
        let waits = Machine {
            dirties: 2_000_000,
            memory: 1 << 17,
            held: 1 << 17,
            flush: Duration::from_millis(200),
            ..FILLER
        };
        let fast = Machine { dirties: 8_000_000, copies: 400_000, ..FILLER };
        let large = Machine { memory: 1 << 19, ..waits };
        for (machine, most) in [(waits, 1.5), (large, 2.25), (fast, 3.25)] {
            let mut budget = Budget::new(Some(LIMIT));
            for _ in 0..10 {
                let outcome = machine.checkpoint(&mut budget, machine.memory);
                let copies = outcome.copies as f64 / machine.memory as f64;
                assert!(copies < most, "{copies} {machine:?}: {outcome:?}");
                assert!(outcome.longest <= LIMIT * (1 << STRAIN_MAX), "{machine:?}: {outcome:?}");
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
        let outcome = FILLER.checkpoint(&mut budget, FILLER.memory / 2);
        assert!(outcome.ran > outcome.stopped / 4, "{outcome:?}");
    }

    #[test]
    fn a_subject_that_writes_everything_again_is_stopped_for_a_short_time() {
        for (dirties, copies) in [(800_000, 900_000), (2_000_000, 900_000), (1_000_000, 400_000)] {
            for memory in [1 << 14, 1 << 16, 1 << 20] {
                let machine = Machine { dirties, copies, memory, ..FILLER };
                let mut budget = Budget::new(Some(LIMIT));
                for number in 0..10 {
                    let outcome = machine.checkpoint(&mut budget, memory);
                    // What the subject dirties between a resume and the next stop is copied in stops.
                    let inevitable = machine.gap * outcome.stops + machine.scan * 4;
                    let is_kept = outcome.copies <= memory + memory / 6 + machine.dirtied(inevitable);
                    assert!(is_kept || number < 2, "{dirties}/s, {memory} pages: {outcome:?}");
                }
            }
        }
    }

    #[test]
    fn a_fixed_part_above_the_budget_raises_it() {
        let fixed = LIMIT * 3;
        let machine = Machine { fixed, ..FILLER };
        let mut budget = Budget::new(Some(LIMIT));
        for _ in 0..20 {
            let outcome = machine.checkpoint(&mut budget, 1 << 18);
            assert!(outcome.longest <= fixed * RAISE, "{outcome:?}");
        }
        assert_eq!(budget.limit, Some(fixed * RAISE));
        for _ in 0..RECENT {
            budget.note_fixed(LIMIT / 10, Duration::ZERO);
        }
        assert_eq!(budget.limit, Some(LIMIT), "the threads have ended");
    }

    /// 800 threads write to some pages each. A stop of all threads takes much longer than the budget.
    #[test]
    fn many_threads_are_not_stopped_again_and_again() {
        for stop_ms in [8, 20, 60] {
            let gap = Duration::from_millis(stop_ms);
            let machine = Machine { memory: 24_000, fixed: gap * 2, gap, ..FILLER };
            let mut budget = Budget::new(Some(LIMIT));
            for number in 0..20 {
                let outcome = machine.checkpoint(&mut budget, machine.memory);
                assert!(number < 2 || outcome.stops <= 8, "{stop_ms} ms: {outcome:?}");
            }
        }
    }

    #[test]
    fn one_delayed_stop_does_not_raise_the_budget() {
        let mut budget = Budget::new(Some(LIMIT));
        for number in 0..40 {
            let delay = if number % RECENT == 0 { LIMIT * 50 } else { Duration::ZERO };
            budget.note_fixed(LIMIT / 10 + delay, Duration::ZERO);
            assert_eq!(budget.limit, Some(LIMIT));
        }
    }

    #[test]
    fn pages_that_are_always_dirty_are_copied_in_one_stop_in_the_end() {
        let (mut throttle, budget) = (Throttle::default(), Budget::new(Some(LIMIT)));
        let always = PageCount(1 << 20);
        let mut steps = 0;
        while throttle.is_bound() {
            if throttle.step(&budget, always, Duration::ZERO) == Step::Last {
                throttle.repeats(&budget, always, Copies { pages: always, done: always });
            }
            steps += 1;
            assert!(steps < 100);
        }
    }
}
