//! Slices: stops that copy for at most the pause budget, until what is left fits into one last stop.
//!
//! Owns: the loop that alternates between the stopped and the running subject.
//! Invariants: a page is copied in a slice only after the tracker was told to report its next change. No wait for the
//! store happens while the subject is stopped, beyond the budget.
//! Does not: decide; `budget` does.

use std::time::{Duration, Instant};

use model::PageCount;
use sys::clock::{Deadline, Stopwatch};
use tracee::Urgent;
use track::Moment;

use super::super::before::Before;
use super::super::copier::PageSink;
use super::super::phases::{Phase, Phases};
use super::attempt::STANDING_WAIT_MAX;
use super::budget::Step;
use super::spaces::Spaces;
use super::taken::Counts;
use crate::error::Result;

/// How long to sleep where no buffer is free: a fraction of the time in which a disk takes one.
const BUFFER_POLL: Duration = Duration::from_micros(200);
/// How much longer such a sleep can take: 1 ms and more on a virtual processor that has been idle.
const BUFFER_POLL_LATE: Duration = Duration::from_micros(1500);

impl Spaces {
    /// Copies dirty pages in slices until a last stop probably fits into the pause budget.
    pub(super) fn slice(&mut self, before: &Before, sink: &dyn PageSink, counts: &mut Counts) -> Result<()> {
        if !self.can_slice() || (self.budget.fits(self.due(before)) && !counts.has_deferred_fresh) {
            return Ok(());
        }
        loop {
            self.scan_running(before, sink, false)?;
            match counts.throttle.step(&self.budget, self.due(before)) {
                Step::Last => return Ok(()),
                Step::Slices { run } => self.copy_in_slices(before, sink, run, counts)?,
            }
        }
    }

    /// Whether pages that change after they were copied are reported while the subject runs, and a budget is set. With
    /// O_DIRECT, pages change unnoticed.
    fn can_slice(&self) -> bool {
        self.budget.limit.is_some() && self.kind.properties().rearms_running && !self.bypasses_cache
    }

    /// Whether new mappings of so many pages should be scanned before the last stop. At most once in a checkpoint.
    pub(super) fn defers_fresh(&self, fresh: PageCount, counts: &mut Counts) -> bool {
        let defers = !counts.has_deferred_fresh && self.can_slice() && !self.budget.fits(fresh);
        counts.has_deferred_fresh |= defers;
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

    /// Pages that last stops will probably copy: more than one may follow slices, since such a subject writes a lot.
    pub(super) fn due_in_last(&self, before: &Before, counts: &Counts) -> PageCount {
        let due = self.due(before);
        if counts.slices.count > 0 { due.max(self.budget.pages_max()) } else { due }
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
    fn copy_in_slices(
        &mut self,
        before: &Before,
        sink: &dyn PageSink,
        run: Duration,
        counts: &mut Counts,
    ) -> Result<()> {
        let mut progress = Stopwatch::start();
        while self.deferred(before) > PageCount(0) {
            sink.prepare(self.deferred(before).min(self.budget.pages_max()))?;
            let mut copied = self.stop_and_copy(before, sink, counts)?;
            if !run.is_zero() {
                copied += self.copy_until(before, sink, Deadline::after(run), Duration::ZERO)?;
            } else if copied == PageCount(0) {
                std::thread::sleep(BUFFER_POLL);
            }
            counts.precopied += copied;
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
    fn stop_and_copy(
        &mut self,
        before: &Before,
        sink: &dyn PageSink,
        counts: &mut Counts,
    ) -> Result<PageCount> {
        let urgent = Urgent::begin();
        let tree = self.freezer.stop(before.processes.root)?;
        let began = tree.began;
        let copying = Stopwatch::start();
        let until = self.copy_end(began).unwrap_or_else(|| Deadline::after(Duration::ZERO));
        let copied = self.copy_until(before, sink, until, BUFFER_POLL_LATE)?;
        self.budget.note_copied(copied, copying.elapsed());
        tree.resume()?;
        counts.slices.note(began.elapsed());
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
