//! What the tracer and the log have told, and what a guard makes of it.
//!
//! Owns: the way of a checkpoint from being taken to being durable, in the record, in the history and for those who
//! asked for it.
//! Invariants: each one that was taken is told of once, as durable, as failed or as left behind.
//! Does not: take checkpoints, or judge deaths.

use std::time::{Duration, Instant, SystemTime};

use engine::{Comparison, Phases};
use model::{PageCount, Sequence};
use store::{Completion, LogWriter};

use super::super::events::RunEvent;
use super::super::reasons::Reasons;
use super::super::tracer::{News, TakenNews};
use super::telling::{checkpoint_event, refusal};
use super::{DYING, Guard, InFlight, SLOW_COPY, SLOW_STORE};
use crate::error::GuardianError;
use crate::journal::What;
use crate::record::{Failing, PauseMicroseconds, SlicesReport};
use crate::time;

impl Guard<'_> {
    pub(super) fn note_news(&mut self, news: News) {
        match news {
            News::Taken(news) => self.note_taken(*news),
            News::Looked(found) => self.note_look(found),
            // As many as it takes are counted here too; between two looks it may be one more.
            News::Behind => {
                self.requests.not_taken(self.next);
                self.hold_back(SLOW_STORE, 1);
            }
            News::Opened(_) => self.hold_exact(),
            News::Tracking(name, error) => {
                self.requests.not_taken(self.next);
                self.advance_number();
                self.record.tracker = name.to_owned();
                let event = RunEvent::TrackerReplaced { name, error: &error };
                // The one before is tried again now and then.
                if self.reasons.note(&event.to_string()) {
                    self.report(&event);
                }
                self.record.refusals = self.reasons.counts();
            }
            News::Failed(error) => {
                if self.tracer.log().is_none() {
                    // Or it would be opened again at once, for those who wait.
                    self.requests.taking(self.next);
                }
                self.requests.answer_for(self.next, &refusal(&error));
                self.advance_number();
                // One that has died is no reason against checkpoints; the loop will see.
                if !self.has_died_of(&error) {
                    self.note_failure(&error);
                }
            }
        }
    }

    /// Whether a failure was the subject's death. What a dying process is asked fails a little before it has ended.
    fn has_died_of(&self, error: &GuardianError) -> bool {
        let says_gone = matches!(error, GuardianError::Engine(error) if error.says_gone());
        let patience = if says_gone { DYING } else { Duration::ZERO };
        self.subject.ends_within(patience)
    }

    /// Dirty pages were looked for, and there is no checkpoint of it.
    fn note_look(&mut self, found: engine::Tracking) {
        let us = time::microseconds;
        let (pages, scan_us, pause_us) = (found.pages.get(), us(found.scan), us(found.pause));
        let arming_us = us(found.arming);
        self.journal.tell(SystemTime::now(), What::Scan { pages, scan_us, pause_us, arming_us });
        self.requests.answer_for(self.next, "error a dry run takes no checkpoints\n");
        self.advance(found.pause + found.arming, SLOW_COPY);
        self.pace.committed(Instant::now());
        self.record.achieved_hz = self.pace.achieved_hz();
        self.note_pauses();
        self.journal.set(&self.record);
    }

    fn note_comparison(&mut self, sequence: Sequence, found: &Comparison) {
        self.record.verified.checkpoints += 1;
        self.record.verified.pages += found.pages.get();
        self.record.verified.differences += found.differences.get();
        let event = RunEvent::Verified(sequence, found);
        if found.differences == PageCount(0) {
            self.journal.tell(SystemTime::now(), event.what());
        } else {
            self.report(&event);
            self.suspicion.unusable(sequence);
        }
    }

    fn note_taken(&mut self, news: TakenNews) {
        let TakenNews { taken, descendants, comparison, tracker } = news;
        self.record.tracker = tracker.to_owned();
        self.advance_number();
        if let Some(children) = &mut self.children {
            // A process that is born after the pause is in no doubt.
            let ago = taken.phases.began.elapsed().saturating_sub(taken.phases.pause());
            children.note_taken(taken.ticket.sequence(), &descendants, ago);
        }
        if let Some(found) = comparison {
            self.note_comparison(taken.ticket.sequence(), &found);
        }
        self.pending.push_back(InFlight {
            sequence: taken.ticket.sequence(),
            arming: taken.arming,
            phases: taken.phases,
            slices: taken.slices,
            rounds: taken.rounds,
            precopied: taken.precopied,
            residual: taken.residual,
        });
        self.record.in_flight = self.pending.len();
        self.known = descendants;
        self.report_departed(taken.ticket.sequence(), false);
        self.note_files(taken.ticket.sequence(), &taken.files);
        self.note_boundary(taken.ticket.sequence(), taken.boundary.as_ref());
        if taken.arming > Duration::ZERO {
            self.pace.paused(taken.arming);
        }
        self.advance(taken.timings.pause, slowest_of(&taken.phases));
        if taken.slices.count > 0 {
            self.pace.sliced(taken.slices.longest, taken.slices.total, Instant::now());
        }
        self.record.slices = SlicesReport::of(taken.slices);
        self.note_pauses();
        self.journal.set(&self.record);
        if let Some(completion) = self.early.take() {
            self.note_completion(completion);
        }
    }

    /// The log takes no number twice, whatever became of it.
    fn advance_number(&mut self) {
        self.next = Sequence(self.next.get().saturating_add(1));
    }

    pub(super) fn note_completion(&mut self, (sequence, outcome): Completion) {
        if sequence >= self.next {
            self.early = Some((sequence, outcome));
            return;
        }
        let place = self.pending.iter().position(|pending| pending.sequence == sequence);
        let found = place.and_then(|place| self.pending.remove(place));
        self.record.in_flight = self.pending.len();
        match (outcome, found) {
            (Ok(committed), Some(taken)) => {
                let max_pause = self.request.tuning.max_pause;
                let event = checkpoint_event(&committed, taken, max_pause);
                self.journal.tell(committed.commit.time, event);
                self.note_commit(sequence);
            }
            // Left behind with the life that it is of.
            (Ok(_), None) | (Err(store::Error::CalledOff), _) => {}
            (Err(error), _) => {
                let error = error.into();
                self.requests.answer_for(sequence, &refusal(&error));
                self.note_failure(&error);
            }
        }
    }

    fn note_commit(&mut self, sequence: Sequence) {
        self.requests.answer_for(sequence, &format!("ok {sequence}\n"));
        self.pace.committed(Instant::now());
        self.record.achieved_hz = self.pace.achieved_hz();
        self.descends = Some(sequence);
        self.suspicion.committed(sequence);
        self.record.checkpoints += 1;
        self.record.last_checkpoint = Some(time::rfc3339(SystemTime::now()));
        if let Some(status) = self.tracer.log().map(LogWriter::status) {
            self.record.store_bytes = Some(status.disk.get());
            if let Some(oldest) = status.kept.first() {
                self.suspicion.forget_below(*oldest);
            }
            self.retain_files(&status.kept);
        }
        self.hold_exact();
        self.journal.set(&self.record);
        self.record.failing = None;
        if std::mem::take(&mut self.has_told_failure) {
            self.report(&RunEvent::CheckpointsAgain(sequence));
        }
    }

    fn note_failure(&mut self, error: &GuardianError) {
        self.pace.failed(Instant::now());
        let reason = error.to_string();
        if self.reasons.note(&reason) {
            self.has_told_failure = true;
            self.report(&RunEvent::CheckpointFailed(error));
        }
        let since = self.record.failing.take().map(|failing| failing.since);
        let since = since.unwrap_or_else(|| time::rfc3339(SystemTime::now()));
        self.record.failing = Some(Failing { reason, since });
        self.record.refusals = self.reasons.counts();
        self.journal.set(&self.record);
    }

    /// A new life is not refused for what the one before held.
    pub(super) fn forget_failures(&mut self) {
        self.reasons = Reasons::default();
        self.has_told_failure = false;
        self.record.failing = None;
        self.record.refusals.clear();
    }

    fn note_pauses(&mut self) {
        let pauses = self.pace.pauses();
        self.record.pause_us = PauseMicroseconds {
            p50: time::microseconds(pauses.p50),
            p99: time::microseconds(pauses.p99),
            max: time::microseconds(pauses.max),
        };
    }
}

/// What most of a checkpoint that took longer than its round was spent on: buffers come back as the store writes.
fn slowest_of(phases: &Phases) -> &'static str {
    if phases.room > phases.precopy + phases.prepare + phases.pause() { SLOW_STORE } else { SLOW_COPY }
}
