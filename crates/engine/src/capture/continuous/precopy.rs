//! Pre-copy: copies pages before the final stop, in which the checkpoint is captured. So the final stop copies few
//! pages. First, dirty pages are copied in rounds, while the subject runs. If too many pages remain, pages are copied
//! in slices. Pre-copy ends when the remaining pages fit into one stop.
//!
//! Owns: the rounds; the decision whether one more round is worth its cost; the slices, and the times between
//! slices, in which the subject runs.
//! Invariants: a round copies all pages that its scan has found, unless the subject writes too many of them again
//! meanwhile. Before a slice copies a page, the tracker (which finds written pages) is armed to report the next change
//! of the page. In a slice, no wait for a free buffer exceeds the pause budget.
//! Does not: decide about slices; `budget` does.

use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use model::PageCount;
use sys::clock::{Deadline, Stopwatch};
use tracee::Urgent;
use track::Moment;

use super::super::before::Before;
use super::super::phases::{Phase, Phases};
use super::super::reserve::Reserve;
use super::copies::are_worth_it;
use super::spaces::Spaces;
use super::taken::Counts;
use super::throttle::Step;
use crate::error::Result;

/// Maximum time that a stopped subject waits for one buffer of a slow store. The limit is much longer than a
/// write takes on a working disk, and short enough for the clients of the subject. If slices copy no page for
/// this time, the subject runs until the store has a free buffer.
pub(super) const STOPPED_WAIT_MAX: Duration = Duration::from_millis(250);

/// Time to sleep if no buffer is free: a fraction of the time in which a disk writes one buffer.
const BUFFER_POLL: Duration = Duration::from_micros(200);
/// Assumed maximum length of a sleep of `BUFFER_POLL`. On a virtual processor that was idle, the sleep takes
/// at least 1 ms.
const BUFFER_POLL_LATE: Duration = Duration::from_micros(1500);

/// The rounds end when a round has found at most this number of pages. An urgent round follows only if the subject has
/// probably written more since. The copying of these pages takes about 30 µs.
pub(super) const RESIDUAL_GOAL: PageCount = PageCount(32);
/// The rounds also end when the subject has probably written at most this number of pages since. The urgent rounds copy
/// these pages in about 0.5 ms, and a round before them would scan the whole memory once more.
const URGENT_GOAL: PageCount = PageCount(512);
/// Maximum predicted number of pages for the round after the inspection of the descriptors. The copying of
/// 4096 pages takes about 5 ms.
pub(super) const LAST_ROUND_MAX: PageCount = PageCount(4096);

/// While the subject runs, pages are copied for this time before a look at the pages that it has written again.
const PART_MIN: Duration = Duration::from_millis(10);
/// Pages are copied at least this many times as long as the last look took.
const LOOK_SHARE: u32 = 8;
/// Without a look, at most this many pages are copied. Copying them takes about 5 ms.
const UNLOOKED_MAX: PageCount = PageCount(4096);

/// Between the slices, the subject is expected to write one of this many pages again.
const AGAIN_SHARE: u64 = 4;

/// Reports whether one more round is worth its cost. `round` is the number of pages of the last round,
/// `before` that of the previous round. A small round must halve the number. If the processor or the store is
/// busy, the number falls slowly. A pause with thousands of pages is long, so for large rounds a decrease by
/// an eighth is enough.
fn is_worth_another(round: PageCount, before: PageCount) -> bool {
    let shrinks_to = if round > LAST_ROUND_MAX { before.get() - before.get() / 8 } else { before.get() / 2 };
    round.get() <= shrinks_to
}

/// Adds the pages that the subject writes again between the stops that copy these pages.
fn with_again(pages: PageCount) -> PageCount {
    pages + PageCount(pages.get() / AGAIN_SHARE)
}

pub(super) struct Round {
    /// The number of dirty pages that the scan has found.
    pages: PageCount,
    is_copied: bool,
}

impl Spaces {
    /// Reports whether the subject has probably dirtied more than `least` and at most `most` pages since the
    /// last scan.
    pub(super) fn has_dirtied(&self, least: PageCount, most: PageCount) -> bool {
        let dirtied = self.habits.pace.since(self.clock.now());
        least < dirtied && dirtied <= most
    }

    /// Copies dirty pages in rounds while the subject runs. Ends when few pages are left, or when the number
    /// of pages no longer falls enough.
    pub(super) fn precopy(&mut self, before: &Before, sink: &Reserve<'_>, is_new: bool) -> Result<()> {
        self.counts = Counts::default();
        // A read with O_DIRECT pins pages. A pinned page changes without a page fault, so that the tracker
        // misses the change.
        if !self.kind.properties().rearms_running || self.bypasses_cache {
            return Ok(());
        }
        // In a process that was never copied, all pages are dirty.
        let dirty = if is_new { PageCount(u64::MAX) } else { self.habits.pace.since(self.clock.now()) };
        let rounds_max = self.tuning.prefer.rounds_max(dirty);
        if rounds_max > 1 && !self.habits.precopies.begin() {
            return Ok(());
        }
        let mut last = PageCount(u64::MAX);
        while self.counts.rounds < rounds_max {
            let Round { pages: round, is_copied } = self.round(before, sink)?;
            // A further scan would only make the subject pay for further page faults.
            let is_enough = round <= RESIDUAL_GOAL || !self.has_dirtied(URGENT_GOAL, PageCount(u64::MAX));
            if !is_copied || is_enough || !is_worth_another(round, last) {
                break;
            }
            last = round;
        }
        Ok(())
    }

    /// Executes one round: copies the pages that are dirty now, unless the subject will probably write too many of them
    /// again.
    pub(super) fn round(&mut self, before: &Before, sink: &Reserve<'_>) -> Result<Round> {
        let pages = self.scan_running(before, sink)?;
        self.counts.rounds += 1;
        match self.counts.rounds {
            1 => self.counts.found_first = pages,
            2 => {
                let first = self.counts.found_first;
                let rewritten = self.rewritten(before).unwrap_or_else(|| pages.min(first));
                self.habits.precopies.note(first, rewritten);
            }
            _ => {}
        }
        let is_copied =
            self.counts.copies().allow(self.deferred(before)) && self.copy_running(before, sink, pages)?;
        Ok(Round { pages, is_copied })
    }

    /// Returns how many pages of the first round the subject has written again before the second round. `None`: unknown.
    fn rewritten(&self, before: &Before) -> Option<PageCount> {
        let mut known = before.processes.living.keys().filter_map(|pid| self.tracked.get(pid));
        known.try_fold(PageCount(0), |sum, tracked| {
            // With groups, rounds are not recorded.
            let is_recorded = tracked.granularity == NonZeroU64::MIN;
            tracked.hot.rewritten().filter(|_| is_recorded).map(|pages| sum + pages)
        })
    }

    /// Copies dirty pages in slices, until a final stop will probably fit into the pause budget.
    pub(super) fn slice(&mut self, before: &mut Before, sink: &Reserve<'_>) -> Result<()> {
        if !self.can_slice() || (self.budget.fits(self.due(before)) && !self.counts.has_deferred_fresh) {
            return Ok(());
        }
        // The scan protects the pages again. Between the scan and the last stop, the subject writes to pages, so all slow
        // work comes first. The allocation of buffers takes longer than the copying of the pages.
        self.start_workers(before);
        self.prepare_workers(before);
        sink.prepare(self.due_in_slices(before))?;
        loop {
            self.scan_running(before, sink)?;
            let due = self.due(before);
            let spare = self.counts.copies().left().get().saturating_sub(due.get());
            match self.counts.throttle.step(&self.budget, due, self.habits.pace.time_for(PageCount(spare))) {
                Step::Last => return Ok(()),
                Step::Slices { run } => self.copy_in_slices(before, sink, run)?,
            }
        }
    }

    /// Reports whether slices are possible. There must be a pause budget, and the tracker must report every
    /// change of a copied page while the subject runs. With O_DIRECT, pages change without a report.
    fn can_slice(&self) -> bool {
        self.budget.limit.is_some() && self.kind.properties().rearms_running && !self.bypasses_cache
    }

    /// Reports whether new mappings with `fresh` pages should be scanned while the subject runs, before the
    /// final stop. Returns `true` at most once in a checkpoint.
    pub(super) fn defers_fresh(&mut self, fresh: PageCount) -> bool {
        let defers = !self.counts.has_deferred_fresh && self.can_slice() && !self.budget.fits(fresh);
        self.counts.has_deferred_fresh |= defers;
        defers
    }

    /// Returns the deadline for the copying in a final stop that began at `began`. `None` means that the stop
    /// copies all pages.
    pub(super) fn copy_end(&self, began: Instant) -> Option<Deadline> {
        let spent = self.clock.now().saturating_duration_since(began);
        let end =
            if self.can_slice() { self.budget.copy_end(spent, self.counts.throttle.stretch()) } else { None };
        end.map(|end| Deadline::after(end.saturating_sub(spent)))
    }

    pub(super) fn deferred(&self, before: &Before) -> PageCount {
        let known = before.processes.living.keys();
        known
            .filter_map(|pid| self.tracked.get(pid))
            .fold(PageCount(0), |sum, tracked| sum + tracked.deferred.pages)
    }

    /// Returns the predicted number of pages that a stop would copy now.
    pub(super) fn due(&self, before: &Before) -> PageCount {
        self.deferred(before) + self.habits.pace.since(self.clock.now())
    }

    /// Returns the number of pages for which buffers are prepared before the slices. The final stops copy the pages again
    /// that the subject has written between the slices.
    fn due_in_slices(&self, before: &Before) -> PageCount {
        with_again(self.due(before)) + self.budget.pages_max()
    }

    /// Returns the predicted number of copies until the checkpoint is complete, if the subject writes all its dirty pages
    /// again now, and hardly runs after that.
    pub(super) fn due_at_most(&self) -> PageCount {
        with_again(self.counts.found_most)
    }

    /// Returns the number of pages for which buffers are prepared before the final stops. A subject that needs
    /// slices writes much, so several final stops may follow each other. Inside a stop, the allocation of a
    /// buffer takes longer than the copying of pages into the buffer. Between two stops, the subject would write
    /// pages again during the allocation.
    pub(super) fn due_in_last(&self, before: &Before) -> PageCount {
        let due = self.due(before);
        if self.counts.slices.count > 0 { due + self.budget.pages_max() } else { due }
    }

    /// Scans the running subject, and defers the copies of the dirty pages. Returns the number of these pages.
    pub(super) fn scan_running(&mut self, before: &Before, sink: &Reserve<'_>) -> Result<PageCount> {
        let begun = self.clock.now();
        let mut pages = PageCount(0);
        self.counts.has_scanned = true;
        self.is_orderly = false;
        for (pid, tracked) in &mut self.tracked {
            let Some(process) = before.processes.living.get(pid) else { continue };
            pages += tracked.find(process, Moment::Running, &mut self.dirty, sink)?.pages;
        }
        self.is_orderly = true;
        self.note_scan(begun, pages);
        self.counts.scan = self.clock.now().saturating_duration_since(begun);
        Ok(pages)
    }

    /// Returns the number of pages for which an urgent round is worth its cost. While the round scans, the subject dirties
    /// pages. A round must find at least twice as many.
    pub(super) fn worth_urgency(&self) -> PageCount {
        RESIDUAL_GOAL.max(self.habits.pace.within(2 * self.counts.scan))
    }

    /// Copies all deferred pages while the subject runs. `found` is the number of pages that the last scan has found. Ends
    /// early when the subject has written to too many of them since. Returns whether all pages were copied.
    fn copy_running(&mut self, before: &Before, sink: &Reserve<'_>, found: PageCount) -> Result<bool> {
        let mut part = PART_MIN;
        loop {
            let until = (self.deferred(before) > UNLOOKED_MAX).then(|| Deadline::after(part));
            let copied = self.copy_deferred(before, sink, until)?;
            self.counts.precopied += copied;
            if self.deferred(before) == PageCount(0) {
                return Ok(true);
            }
            if copied == PageCount(0) {
                // No buffer was free.
                sink.keep(sink.buffer()?)?;
            }
            let looking = Stopwatch::start();
            if let Some(again) = self.changed(before)
                && !are_worth_it(found, again)
            {
                self.habits.precopies.note(found, again);
                return Ok(false);
            }
            part = PART_MIN.max(LOOK_SHARE * looking.elapsed());
        }
    }

    /// Copies deferred pages while the subject runs, at most until a deadline. Returns the number of copied pages.
    fn copy_deferred(
        &mut self,
        before: &Before,
        sink: &Reserve<'_>,
        until: Option<Deadline>,
    ) -> Result<PageCount> {
        let mut pages = PageCount(0);
        self.is_orderly = false;
        for (pid, tracked) in &mut self.tracked {
            let Some(process) = before.processes.living.get(pid) else { continue };
            pages += tracked.copy_deferred(process, Moment::Running, sink, until, None)?;
        }
        self.is_orderly = true;
        Ok(pages)
    }

    /// Returns the number of anonymous pages that the subject has written since the last scan. `None`: unknown.
    fn changed(&self, before: &Before) -> Option<PageCount> {
        let mut known = before.processes.living.keys().filter_map(|pid| self.tracked.get(pid));
        known.try_fold(PageCount(0), |sum, tracked| tracked.changed().map(|pages| sum + pages))
    }

    /// Records the start time of a scan and the number of dirty pages that the scan has found.
    pub(super) fn note_scan(&mut self, begun: Instant, pages: PageCount) {
        self.habits.pace.scanned(begun, pages);
        self.counts.found_most = self.counts.found_most.max(pages);
    }

    /// Copies all deferred pages in slices. After each slice, the subject runs for the time `run`, and the
    /// copying continues.
    fn copy_in_slices(&mut self, before: &Before, sink: &Reserve<'_>, run: Duration) -> Result<()> {
        let mut progress = Stopwatch::start();
        // Between two slices, the subject would write pages again during an allocation.
        sink.prepare(self.deferred(before))?;
        while self.deferred(before) > PageCount(0) {
            sink.prepare(self.deferred(before).min(self.budget.pages_max()))?;
            let mut copied = self.stop_and_copy(before, sink)?;
            if !run.is_zero() {
                copied += self.copy_until(before, Moment::Running, sink, Deadline::after(run))?;
            } else if copied == PageCount(0) {
                std::thread::sleep(BUFFER_POLL);
            }
            self.counts.precopied += copied;
            if copied > PageCount(0) {
                progress = Stopwatch::start();
            } else if progress.elapsed() > STOPPED_WAIT_MAX {
                // The store accepts no data. The subject runs until the store has a free buffer.
                sink.keep(sink.buffer()?)?;
                progress = Stopwatch::start();
            }
        }
        Ok(())
    }

    /// Executes one slice. Returns the number of copied pages.
    fn stop_and_copy(&mut self, before: &Before, sink: &Reserve<'_>) -> Result<PageCount> {
        let urgent = Urgent::begin();
        let tree = self.freezer.stop(&before.processes.roots)?;
        let began = tree.began;
        let copying = Stopwatch::start();
        let spent = self.clock.now().saturating_duration_since(began);
        let until = Deadline::after(self.budget.slice_end(spent).saturating_sub(spent));
        let copied = self.copy_until(before, Moment::Stopped, sink, until)?;
        let took = copying.elapsed();
        self.budget.note_copied(copied, took);
        tree.resume()?;
        let stopped = began.elapsed();
        self.budget.note_slice(spent, stopped.saturating_sub(spent + took));
        self.counts.slices.note(stopped);
        drop(urgent);
        Ok(copied)
    }

    /// Copies deferred pages until a deadline. If no buffer is free, sleeps and tries again. In a stop, the sleep must
    /// not end after the deadline.
    fn copy_until(
        &mut self,
        before: &Before,
        moment: Moment,
        sink: &Reserve<'_>,
        until: Deadline,
    ) -> Result<PageCount> {
        let (workers, late) = match moment {
            Moment::Running => (None, Duration::ZERO),
            Moment::Stopped => (self.worker_pool.get().and_then(Option::as_deref), BUFFER_POLL_LATE),
        };
        let mut pages = PageCount(0);
        loop {
            self.is_orderly = false;
            let mut left = PageCount(0);
            for (pid, tracked) in &mut self.tracked {
                let Some(process) = before.processes.living.get(pid) else { continue };
                // With many processes, even the first few pages of each need more time than the deadline allows.
                if pages == PageCount(0) || !until.has_passed() {
                    pages += tracked.copy_deferred(process, moment, sink, Some(until), workers)?;
                }
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

    /// Updates the measured costs after a stop that has captured everything.
    pub(super) fn note_stop(&mut self, phases: &Phases) {
        let after = phases.after_copy();
        self.budget.note_fixed(phases.pause().saturating_sub(phases[Phase::Copy] + after), after);
    }
}
