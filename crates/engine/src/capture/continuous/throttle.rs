//! The throttling of a subject during one checkpoint, see `budget`.
//!
//! Owns: the choice of the next step: slices, one more final stop, or a stop that copies everything.
//! Invariants: the number of rounds is bounded. The number of successive final stops without progress is also bounded.
//! If pages were copied twice on average, each further final stop may be longer.
//! Does not: measure or predict the length of stops; `budget` does.

use std::time::Duration;

use model::PageCount;

use super::budget::Budget;
use super::copies::Copies;

/// Minimum run time. A shorter run time is replaced by zero: the subject is resumed and stopped again at once.
/// The resume and the stop alone take more than this time.
const RUN_MIN: Duration = Duration::from_micros(100);
/// Maximum number of successive final stops that do not reduce the number of deferred pages. The stop after them copies
/// all pages and ignores the budget. Either the fixed part alone needs more than the budget. Or the subject has too
/// many pages that no tracker can protect.
const STALLED_MAX: u32 = 8;
/// A checkpoint has copied each page twice, and the subject still dirties pages as fast as final stops copy them. Then each
/// further final stop may last twice as long as the one before, up to this power of two: a checkpoint without an end would
/// cost the subject far more than one long stop.
pub(super) const STRAIN_MAX: u32 = 5;
/// If the remaining pages fit into this many final stops, final stops follow each other, and no further round is
/// made. A round would copy more pages in the same time. But before a round, the subject runs during a scan, and
/// dirties more pages.
const REPEATS_MAX: u64 = 8;

/// The next step for the deferred pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Make the final stop.
    Last,
    /// Copy all deferred pages in slices. In turns, the subject is stopped for at most the budget, and runs
    /// for `run`.
    Slices { run: Duration },
}

/// The throttling of the subject during one checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Throttle {
    run: Duration,
    rounds: u32,
    left: PageCount,
    stalled: u32,
    left_by_last: PageCount,
    /// The next final stop may last two to this power times as long as the budget.
    strain: u32,
    /// The checkpoint has wasted as many copies as it may: the subject rewrites pages faster than the store accepts
    /// them.
    pub(super) is_spent: bool,
}

impl Default for Throttle {
    fn default() -> Self {
        const MOST: PageCount = PageCount(u64::MAX);
        Self {
            run: Duration::MAX,
            rounds: 0,
            left: MOST,
            stalled: 0,
            left_by_last: MOST,
            strain: 0,
            is_spent: false,
        }
    }
}

impl Throttle {
    /// Returns the next step for this number of dirty pages. While the pages are copied, the subject should run for
    /// at most the time `freedom`. Otherwise it would write too many pages again.
    pub(super) fn step(&mut self, budget: &Budget, pages: PageCount, freedom: Duration) -> Step {
        let Some(limit) = budget.limit.filter(|_| !budget.fits(pages) && self.rounds < budget.rounds_max())
        else {
            return Step::Last;
        };
        let has_halved = self.rounds == 0 || pages.get() <= self.left.get() / 2;
        if self.run.is_zero() && !has_halved && is_little(budget, pages) {
            // Before another round, the subject would run during a scan, and could dirty as many pages as the round
            // copies. A final stop scans while the subject is stopped.
            return Step::Last;
        }
        if self.rounds > 0 && freedom.is_zero() {
            // A round begins with a scan while the subject runs, and more copies would be wasted.
            self.is_spent = true;
            return Step::Last;
        }
        self.run = self.run.min(limit).min(freedom / budget.slices(limit, pages));
        if !has_halved {
            self.run /= 2;
        }
        if self.run < RUN_MIN {
            self.run = Duration::ZERO;
        }
        self.rounds += 1;
        self.left = pages;
        Step::Slices { run: self.run }
    }

    /// Records that a final stop has left this many pages. Returns whether another final stop follows at once,
    /// without a round.
    pub(super) fn repeats(&mut self, budget: &Budget, left: PageCount, copies: Copies) -> bool {
        if copies.are_excessive() {
            (self.is_spent, self.strain) = (true, (self.strain + 1).min(STRAIN_MAX));
        }
        let repeats = self.is_spent || is_little(budget, left) || self.rounds >= budget.rounds_max();
        if repeats {
            self.stalled = if left < self.left_by_last { 0 } else { self.stalled + 1 };
            self.left_by_last = left;
        } else {
            self.rounds += 1;
            self.left_by_last = PageCount(u64::MAX);
        }
        repeats
    }

    /// Returns how many times as long as the budget the next final stop may last.
    pub(super) fn stretch(&self) -> u32 {
        1 << self.strain
    }

    /// Reports whether final stops may exceed the budget.
    pub(super) fn is_strained(&self) -> bool {
        self.strain > 0
    }

    /// Reports whether the next final stop keeps the budget. If not, it copies all pages.
    pub(super) fn is_bound(&self) -> bool {
        self.stalled < STALLED_MAX
    }
}

/// Reports whether this many pages fit into `REPEATS_MAX` final stops.
fn is_little(budget: &Budget, pages: PageCount) -> bool {
    budget.fits(PageCount(pages.get() / REPEATS_MAX))
}
