//! Attempts to capture a subject within one epoch. An attempt consists of pre-copy and of final stops. A final stop
//! tries to capture everything; the attempt ends when one final stop has succeeded.
//!
//! Owns: the order of the steps of an attempt; the steps between two attempts; the decision to repeat an
//! attempt.
//! Invariants: an attempt begins only if every page that a tracker has reported dirty is in the epoch or is
//! deferred.
//! Does not: classify failures; `retry` does. Copy pages; `spaces` does.

use std::time::Duration;

use model::PageCount;
use sys::clock::Stopwatch;
use tracee::Urgent;

use super::super::before::Before;
use super::super::copier::PageSink;
use super::super::phases::{Phase, Phases};
use super::super::pipeline::{Capture, Captured, Stopped};
use super::super::reserve::Reserve;
use super::super::retry::{CAPTURES, Retries};
use super::Continuous;
use super::precopy::{LAST_ROUND_MAX, RESIDUAL_GOAL, STOPPED_WAIT_MAX};
use super::spaces::Writing;
use super::taken::StoppedCapture;
use super::tuning::Preference;
use crate::error::Result;

/// Maximum predicted number of pages for an urgent round: a pre-copy round with the real-time priority of the
/// stop. The copying of 2048 pages takes about 2.5 ms, and makes the pause shorter.
const URGENT_ROUND_MAX: PageCount = PageCount(2048);
/// Maximum number of urgent rounds. A round copies the pages that were dirtied during the previous round, and
/// takes about a quarter of the time of the previous round.
const URGENT_ROUNDS_MAX: usize = 2;

impl Continuous {
    /// Repeats an attempt within the same epoch after a transient failure. Examples are a file that is open
    /// only briefly, and a child process that ends. The pages that the failed attempt has copied are in the
    /// epoch. The next attempt copies only the pages that have changed since their last copy.
    pub(super) fn retry_transient<T>(
        &mut self,
        before: &mut Before,
        sink: &dyn PageSink,
        mut attempt: impl FnMut(&mut Self, &mut Before) -> Result<T>,
    ) -> Result<T> {
        self.aborted = Duration::ZERO;
        self.spaces.is_orderly = true;
        let mut retries = Retries::of(CAPTURES, &self.roots);
        loop {
            let error = match attempt(self, before) {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            if !self.spaces.is_orderly {
                return Err(error);
            }
            let wait = retries.after(error).again()?;
            before.descriptors.release();
            before.descriptors.forget();
            sink.pool().limit_waits(None);
            std::thread::sleep(wait);
            before.processes.survey(&mut before.objects, self.spaces.freezer.files())?;
        }
    }

    /// Executes all steps of a checkpoint up to the end of the capture. When this function returns, the
    /// subject is stopped and completely captured.
    pub(super) fn stop<'a>(
        &mut self,
        before: &mut Before,
        sink: &'a dyn PageSink,
        mut phases: Phases,
    ) -> Result<StoppedCapture<'a>> {
        let arming = self.arm(before, sink)?;
        let mut laps = Stopwatch::start();
        // Waits for buffers here, while the subject runs. If the store is slow, this wait lowers the rate of
        // checkpoints.
        let reserve = Reserve::new(sink, self.expected.before.average(), self.expected.inside.pages())?;
        phases[Phase::Backpressure] = laps.lap();
        let is_new = self.last.is_none() || !arming.is_zero();
        match self.copy_and_stop(before, &reserve, is_new, phases) {
            Ok(captured) => Ok(StoppedCapture { captured, reserve, arming }),
            Err(error) => {
                // The trackers do not report the copied pages again. Therefore `end` passes these pages to the
                // epoch, for the next attempt.
                self.spaces.is_orderly &= reserve.end().is_ok();
                Err(error)
            }
        }
    }

    /// Pre-copies pages, and captures the subject in the final stop. `is_new` means that a process was never
    /// copied.
    fn copy_and_stop(
        &mut self,
        before: &mut Before,
        reserve: &Reserve<'_>,
        is_new: bool,
        mut phases: Phases,
    ) -> Result<Captured> {
        let mut laps = Stopwatch::start();
        self.spaces.precopy(before, reserve, is_new)?;
        phases[Phase::Precopy] = laps.lap();
        before.survey_descriptors()?;
        phases[Phase::Prepare] = laps.lap();
        // The inspection of the descriptors takes as long as one or two rounds, and the subject dirties pages
        // during the inspection. Therefore one more round can follow.
        let may_hurry = self.spaces.counts.rounds > 0 && self.spaces.tuning.prefer == Preference::Pause;
        let least = if may_hurry { URGENT_ROUND_MAX } else { RESIDUAL_GOAL };
        if may_hurry && self.spaces.has_dirtied(least, LAST_ROUND_MAX) {
            self.spaces.round(before, reserve)?;
        }
        loop {
            self.spaces.slice(before, reserve)?;
            let before_urgent = self.spaces.counts.precopied;
            let urgent = self.approach(before, reserve, may_hurry)?;
            phases[Phase::Precopy] += laps.lap();
            reserve.pool().limit_waits(Some(STOPPED_WAIT_MAX));
            if let Some(captured) = self.stop_last(before, reserve, (urgent, phases))? {
                let counts = &self.spaces.counts;
                let urgently = counts.precopied.get() - before_urgent.get();
                self.expected.inside.note(counts.residual + PageCount(urgently));
                if !is_new {
                    self.expected.before.note(before_urgent);
                }
                return Ok(captured);
            }
            reserve.pool().limit_waits(None);
            reserve.end_stop()?;
            if self.spaces.counts.throttle.is_spent {
                reserve.hold_more(self.spaces.due_at_most())?;
            }
            laps.lap();
        }
    }

    /// Prepares everything that a final stop needs, and executes urgent rounds with the priority of the stop.
    fn approach(&mut self, before: &mut Before, reserve: &Reserve<'_>, may_hurry: bool) -> Result<Urgent> {
        self.spaces.prepare_workers(before);
        // From here on, no buffer is passed to the log, because this would wake the threads of the log.
        reserve.begin_stop(self.expected.inside.pages().max(self.spaces.due_in_last(before)))?;
        let urgent = Urgent::begin();
        for _ in 0..URGENT_ROUNDS_MAX {
            if may_hurry && self.spaces.has_dirtied(self.spaces.worth_urgency(), URGENT_ROUND_MAX) {
                self.spaces.round(before, reserve)?;
            }
        }
        Ok(urgent)
    }

    /// Executes final stops until one stop has captured everything. Returns `None` if slices (short stops that
    /// only copy pages) are needed before the next final stop.
    fn stop_last(
        &mut self,
        before: &mut Before,
        reserve: &Reserve<'_>,
        (mut urgent, phases): (Urgent, Phases),
    ) -> Result<Option<Captured>> {
        loop {
            let captured = self.capture(before, reserve, (urgent, phases))?;
            if captured.is_some() {
                return Ok(captured);
            }
            let left = self.spaces.deferred(before);
            let counts = &mut self.spaces.counts;
            counts.precopied += std::mem::take(&mut counts.residual);
            let copies = counts.copies();
            let repeats = counts.throttle.repeats(&self.spaces.budget, left, copies);
            if !repeats || (reserve.is_half_full() && !counts.throttle.is_strained()) {
                return Ok(None);
            }
            // The previous stop may have used all reserved buffers. The next stop needs at least one buffer.
            reserve.begin_stop(PageCount(0))?;
            urgent = Urgent::begin();
            self.spaces.prepare_workers(before);
        }
    }

    /// Executes one final stop. If not all pages fit into the pause budget, resumes the subject and returns
    /// `None`. The stop then counts as a slice.
    fn capture(
        &mut self,
        before: &mut Before,
        sink: &Reserve<'_>,
        (urgent, phases): (Urgent, Phases),
    ) -> Result<Option<Captured>> {
        let stopped = Stopped::stop(&mut self.spaces.freezer, &self.roots, urgent, phases)?;
        let began = stopped.phases.began;
        let mut memory = Writing { spaces: &mut self.spaces, watched: &mut self.watched, sink };
        let outcome = match stopped.capture(before, &mut memory) {
            Ok(Capture::Whole(captured)) => return Ok(Some(captured)),
            Ok(Capture::Part(stopped, _)) => stopped.resume().map(|phases| {
                let pause = phases.pause();
                self.spaces.budget.note_part(pause.saturating_sub(phases[Phase::Copy]));
                self.spaces.counts.slices.note(pause);
            }),
            Err(error) => Err(error),
        };
        self.watched.resumed();
        outcome.inspect_err(|_| self.aborted += began.elapsed()).map(|()| None)
    }
}
