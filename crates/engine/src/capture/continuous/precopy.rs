//! Pre-copy: copies pages before the last stop, so that this stop copies few. First in rounds while the subject runs,
//! then in slices: stops that copy for at most the pause budget. It ends when the rest fits into one stop.
//!
//! Owns: the rounds, and the decision whether a further round is worth its cost; the loop that alternates between the
//! stopped and the running subject.
//! Invariants: a round copies all pages that its scan has found. Before a slice copies a page, the tracker is armed to
//! report the next change of it. While the subject is stopped, no wait for the store exceeds the budget.
//! Does not: decide about slices; `budget` does.

use std::time::{Duration, Instant};

use model::PageCount;
use sys::clock::{Deadline, Stopwatch};
use tracee::Urgent;
use track::Moment;

use super::super::before::Before;
use super::super::copier::PageSink;
use super::super::phases::{Phase, Phases};
use super::super::reserve::HANDED_ON_FROM;
use super::budget::Step;
use super::spaces::Spaces;
use super::taken::Counts;
use crate::error::Result;

/// How long a subject stays stopped for one buffer of a store that does not keep up: many times what a disk takes that
/// works, and short enough for those who wait for the subject.
pub(super) const STANDING_WAIT_MAX: Duration = Duration::from_millis(250);

/// How long to sleep where no buffer is free: a fraction of the time in which a disk takes one.
const BUFFER_POLL: Duration = Duration::from_micros(200);
/// How much longer such a sleep can take: 1 ms and more on a virtual processor that has been idle.
const BUFFER_POLL_LATE: Duration = Duration::from_micros(1500);

/// A residual that is small enough: some 30 microseconds of copying.
pub(super) const RESIDUAL_GOAL: PageCount = PageCount(32);
/// Pages that one more round may have to copy while descriptors are held, which the subject may want closed: some 5 ms.
pub(super) const LAST_ROUND_MAX: PageCount = PageCount(4096);

/// Whether one more round, after one of so many pages and one of so many before it, leaves less to the pause. Where the
/// processor or the store is busy, rounds get less only slowly, and a pause that copies thousands of pages is long.
fn is_worth_another(round: PageCount, before: PageCount) -> bool {
    let shrinks_to = if round > LAST_ROUND_MAX { before.get() - before.get() / 8 } else { before.get() / 2 };
    round.get() <= shrinks_to
}

impl Spaces {
    /// Whether the subject has probably dirtied more than some pages by now, and at most others.
    pub(super) fn has_dirtied(&self, least: PageCount, most: PageCount) -> bool {
        let dirtied = self.pace.since(self.clock.now());
        least < dirtied && dirtied <= most
    }

    /// Copies what is dirty while the subject runs, until little is left or it does not get less.
    pub(super) fn precopy(&mut self, before: &Before, sink: &dyn PageSink, is_new: bool) -> Result<()> {
        self.counts = Counts::default();
        // A page that a read past the cache has pinned changes without a fault.
        if !self.kind.properties().rearms_running || self.bypasses_cache {
            return Ok(());
        }
        // Of a process that was never copied, all is.
        let dirty = if is_new { PageCount(u64::MAX) } else { self.pace.since(self.clock.now()) };
        let mut last = PageCount(u64::MAX);
        while self.counts.rounds < self.tuning.prefer.rounds_max(dirty) {
            let round = self.round(before, sink)?;
            if round <= RESIDUAL_GOAL || !is_worth_another(round, last) {
                break;
            }
            last = round;
        }
        Ok(())
    }

    /// Copies what is dirty now; how many pages that were.
    pub(super) fn round(&mut self, before: &Before, sink: &dyn PageSink) -> Result<PageCount> {
        let pages = self.scan_running(before, sink, true)?;
        self.counts.rounds += 1;
        self.counts.precopied += pages;
        Ok(pages)
    }

    /// Copies dirty pages in slices until a last stop probably fits into the pause budget.
    pub(super) fn slice(&mut self, before: &Before, sink: &dyn PageSink) -> Result<()> {
        if !self.can_slice() || (self.budget.fits(self.due(before)) && !self.counts.has_deferred_fresh) {
            return Ok(());
        }
        loop {
            self.scan_running(before, sink, false)?;
            let due = self.due(before);
            match self.counts.throttle.step(&self.budget, due) {
                Step::Last => return Ok(()),
                Step::Slices { run } => self.copy_in_slices(before, sink, run)?,
            }
        }
    }

    /// Whether pages that change after they were copied are reported while the subject runs, and a budget is set. With
    /// O_DIRECT, pages change unnoticed.
    fn can_slice(&self) -> bool {
        self.budget.limit.is_some() && self.kind.properties().rearms_running && !self.bypasses_cache
    }

    /// Whether new mappings of so many pages should be scanned before the last stop. At most once in a checkpoint.
    pub(super) fn defers_fresh(&mut self, fresh: PageCount) -> bool {
        let defers = !self.counts.has_deferred_fresh && self.can_slice() && !self.budget.fits(fresh);
        self.counts.has_deferred_fresh |= defers;
        defers
    }

    /// Until when a last stop copies that began then. `None`: until all is copied.
    pub(super) fn copy_end(&self, began: Instant) -> Option<Deadline> {
        let spent = self.clock.now().saturating_duration_since(began);
        let end = if self.can_slice() { self.budget.copy_end(spent) } else { None };
        end.map(|end| Deadline::after(end.saturating_sub(spent)))
    }

    pub(super) fn deferred(&self, before: &Before) -> PageCount {
        let known = before.processes.living.keys();
        known
            .filter_map(|pid| self.tracked.get(pid))
            .fold(PageCount(0), |sum, tracked| sum + tracked.deferred.pages)
    }

    /// Pages that a stop would copy now, as far as that can be told.
    pub(super) fn due(&self, before: &Before) -> PageCount {
        self.deferred(before) + self.pace.since(self.clock.now())
    }

    /// Pages that last stops may copy: several can follow slices, since such a subject writes a lot. To make a buffer in
    /// one of them takes longer than copying into it.
    pub(super) fn due_in_last(&self, before: &Before) -> PageCount {
        let due = self.due(before);
        if self.counts.slices.count > 0 { due.max(HANDED_ON_FROM + self.budget.pages_max()) } else { due }
    }

    /// Scans the running subject, and defers what is dirty or copies it at once. How many pages that are.
    pub(super) fn scan_running(
        &mut self,
        before: &Before,
        sink: &dyn PageSink,
        copies: bool,
    ) -> Result<PageCount> {
        let begun = self.clock.now();
        let mut pages = PageCount(0);
        self.is_orderly = false;
        for (pid, tracked) in &mut self.tracked {
            let Some(process) = before.processes.living.get(pid) else { continue };
            pages += tracked.find(process, Moment::Running, &mut self.dirty, sink)?.pages;
            if copies {
                tracked.copy_deferred(process, sink, None)?;
            }
        }
        self.is_orderly = true;
        self.pace.scanned(begun, pages);
        Ok(pages)
    }

    /// Copies all deferred pages, in turns with the subject.
    fn copy_in_slices(&mut self, before: &Before, sink: &dyn PageSink, run: Duration) -> Result<()> {
        let mut progress = Stopwatch::start();
        while self.deferred(before) > PageCount(0) {
            sink.prepare(self.deferred(before).min(self.budget.pages_max()))?;
            let mut copied = self.stop_and_copy(before, sink)?;
            if !run.is_zero() {
                copied += self.copy_until(before, sink, Deadline::after(run), Duration::ZERO)?;
            } else if copied == PageCount(0) {
                std::thread::sleep(BUFFER_POLL);
            }
            self.counts.precopied += copied;
            if copied > PageCount(0) {
                progress = Stopwatch::start();
            } else if progress.elapsed() > STANDING_WAIT_MAX {
                // The store takes nothing. The subject runs until it does.
                sink.keep(sink.buffer()?)?;
                progress = Stopwatch::start();
            }
        }
        Ok(())
    }

    /// One slice. How many pages it has copied.
    fn stop_and_copy(&mut self, before: &Before, sink: &dyn PageSink) -> Result<PageCount> {
        let urgent = Urgent::begin();
        let tree = self.freezer.stop(before.processes.root)?;
        let began = tree.began;
        let copying = Stopwatch::start();
        let spent = self.clock.now().saturating_duration_since(began);
        let until = Deadline::after(self.budget.slice_end(spent).saturating_sub(spent));
        let copied = self.copy_until(before, sink, until, BUFFER_POLL_LATE)?;
        self.budget.note_copied(copied, copying.elapsed());
        tree.resume()?;
        self.counts.slices.note(began.elapsed());
        drop(urgent);
        Ok(copied)
    }

    /// Copies deferred pages until a deadline. Where no buffer is free, it sleeps unless less than `late` is left.
    fn copy_until(
        &mut self,
        before: &Before,
        sink: &dyn PageSink,
        until: Deadline,
        late: Duration,
    ) -> Result<PageCount> {
        let mut pages = PageCount(0);
        loop {
            self.is_orderly = false;
            let mut left = PageCount(0);
            for (pid, tracked) in &mut self.tracked {
                let Some(process) = before.processes.living.get(pid) else { continue };
                pages += tracked.copy_deferred(process, sink, Some(until))?;
                left += tracked.deferred.pages;
            }
            self.is_orderly = true;
            let rest = until.left();
            if left == PageCount(0) || rest <= late {
                return Ok(pages);
            }
            std::thread::sleep(rest.min(BUFFER_POLL));
        }
    }

    /// Learns from a stop that has taken everything.
    pub(super) fn note_stop(&mut self, phases: &Phases) {
        let after = phases.after_copy();
        self.budget.note_fixed(phases.pause().saturating_sub(phases[Phase::Copy] + after), after);
    }
}
