//! Reports of the tracer thread and of the log, and their effect on the guard.
//!
//! Owns: each checkpoint from its capture to its commit: its facts in the status, its event, and the replies to its
//! requests.
//! Invariants: each captured checkpoint is reported once: as durable, as failed or as discarded.
//! Does not: take checkpoints, or decide what a death means.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use engine::{Comparison, Phase, Phases, Slices, Taken};
use image::ImageKind;
use model::{ByteCount, PageCount, Sequence};
use store::{Completion, LogCommitted, LogWriter};
use supervise::{Event, NotTaken, Sliced, State};
use sys::packet_hold::PacketNumber;
use tracee::procfs;

use super::super::connections::IdleConnections;
use super::super::reasons::Reasons;
use super::super::tracer_news::{News, TakenNews};
use super::parts::Guard;
use crate::error::GuardianError;
use crate::event::reason::headline;
use crate::event::{CheckpointEvent, PhaseTimes, RunEvent};
use crate::record::{Failing, PauseMicroseconds, SlicesReport, StoredReport};
use crate::time;

/// How long the guard waits to see whether a failure was caused by a dying process.
const DYING: Duration = Duration::from_millis(20);

impl Guard {
    pub(super) fn note_news(&mut self, news: News) {
        match news {
            News::Taken(news) => self.note_taken(*news),
            News::Scanned(found) => self.note_scan(found),
            News::Behind => {
                self.requests.not_taken(self.driver.machine.next_sequence());
                self.feed(Event::NotTaken(NotTaken::Behind));
            }
            News::LetGo => self.note_let_go(),
            News::Opened(_) => {
                self.feed(Event::LogOpened);
                supervise::hold_newest(self);
            }
            News::Tracking(name, error) => {
                self.requests.not_taken(self.driver.machine.next_sequence());
                self.feed(Event::NotTaken(NotTaken::TrackerReplaced));
                self.voice.record.facts.tracker = name.to_owned();
                let event = RunEvent::Tracker { tracker: name.to_owned(), reason: error.to_string() };
                // The better tracker is tried again from time to time. Its repeated failure is reported only once.
                if self.refusals.reasons.note(&format!("{event:#}")) {
                    self.report(event);
                }
                self.voice.record.facts.refusals = self.refusals.reasons.counts();
            }
            News::Failed(error) => self.note_failed(error),
        }
    }

    /// Handles a checkpoint that was not taken, or a log that was not opened. An access to a dying process fails a
    /// little before the process has ended. The guard therefore waits before it handles an error of this kind.
    fn note_failed(&mut self, error: GuardianError) {
        let says_gone = matches!(&error, GuardianError::Engine(error) if error.says_gone());
        if says_gone && !self.rebuild.subject.has_ended() {
            self.taking.recheck = Some((error, self.rebuild.host.clock.now() + DYING));
        } else {
            self.judge_failure(&error);
        }
    }

    /// Handles a failure after the wait, because the death of the subject may have been the cause.
    pub(super) fn settle_recheck(&mut self) {
        let now = self.rebuild.host.clock.now();
        let Some((_, until)) = &mut self.taking.recheck else { return };
        if !self.rebuild.subject.has_ended() {
            if *until > now {
                return;
            }
            // A process that frees gigabytes of memory takes longer to end.
            if procfs::stat(self.rebuild.subject.pid()).is_ok_and(|stat| stat.is_ending()) {
                *until = now + DYING;
                return;
            }
        }
        if let Some((error, _)) = self.taking.recheck.take() {
            self.judge_failure(&error);
        }
    }

    fn judge_failure(&mut self, error: &GuardianError) {
        let next = self.driver.machine.next_sequence();
        let was_taking = matches!(self.driver.machine.state(), State::Checkpointing { .. });
        if !was_taking {
            // The pending requests would otherwise wait for the log forever.
            self.requests.taking(next);
        }
        self.requests.answer_for(next, &refusal(error));
        self.driver.restart.note_failure(error);
        // The death of the subject is no reason against checkpoints. The event loop detects the death itself.
        let is_dying = self.rebuild.subject.has_ended();
        self.feed(match (was_taking, is_dying) {
            (true, true) => Event::NotTaken(NotTaken::Dying),
            (true, false) => Event::NotTaken(NotTaken::Refused),
            (false, is_dying) => Event::LogNotOpened { is_dying },
        });
        if !is_dying {
            self.note_failure(error);
        }
    }

    /// Records a scan of dirty pages without a checkpoint.
    fn note_scan(&mut self, found: engine::Tracking) {
        let us = time::microseconds;
        let (pages, scan_us, pause_us) = (found.pages.get(), us(found.scan), us(found.pause));
        let arming_us = us(found.arming);
        self.voice.journal.record_event(RunEvent::Scan { pages, scan_us, pause_us, arming_us });
        let next = self.driver.machine.next_sequence();
        self.requests.answer_for(next, "error a dry run takes no checkpoints\n");
        self.feed(Event::Scanned { pause: found.pause + found.arming });
        self.voice.record.facts.achieved_hz = self.driver.machine.pace().achieved_hz();
        self.note_pauses();
        self.voice.journal.set(&self.voice.record);
    }

    fn note_connections(
        &mut self,
        sequence: Sequence,
        connections: Vec<Arc<OwnedFd>>,
        through: Option<PacketNumber>,
    ) {
        if let Some(output) = &mut self.output {
            output.taken(sequence, through, connections);
            return;
        }
        self.keep_idle(connections);
    }

    /// Keeps idle connections, if checkpoints are frequent enough to detect soon that the program has closed a
    /// connection.
    pub(super) fn keep_idle(&mut self, connections: Vec<Arc<OwnedFd>>) {
        let interval = self.driver.machine.pace().longer_interval().or(self.request.every);
        let is_often = interval.is_some_and(|interval| interval <= IdleConnections::INTERVAL_MAX);
        let is_kept = is_often && !self.request.once || self.is_stopped();
        let kept = if is_kept { connections } else { Vec::new() };
        self.connections.renew(kept);
        self.voice.record.facts.connections.idle = self.connections.sockets().len();
    }

    fn note_comparison(&mut self, sequence: Sequence, found: &Comparison) {
        self.voice.record.facts.verified.checkpoints += 1;
        self.voice.record.facts.verified.pages += found.pages.get();
        self.voice.record.facts.verified.differences += found.differences.get();
        let event = RunEvent::verified(sequence, found);
        if found.differences == PageCount(0) {
            self.voice.journal.record_event(event);
        } else {
            self.report(event);
            self.feed(Event::Differs(sequence));
        }
    }

    fn note_taken(&mut self, news: TakenNews) {
        let TakenNews { taken, descendants, comparison, tracker } = news;
        let sequence = taken.ticket.sequence();
        self.voice.record.facts.tracker = tracker.to_owned();
        if let Some(children) = &mut self.tree.children {
            // The time since the end of the pause: a process that is born after the pause needs no check.
            let ago = taken.phases.began.elapsed().saturating_sub(taken.phases.pause());
            children.note_taken(sequence, &descendants, ago);
        }
        let is_store_slow = waited_for_store(&taken.phases);
        let Slices { count, longest, total } = taken.slices;
        let sliced = (count > 0).then_some(Sliced { longest, total });
        let waits = self.taking.waits.measure(descendants.iter().map(|key| key.pid).chain([self.root()]));
        self.feed(Event::Taken {
            ago: taken.phases.began.elapsed(),
            pause: taken.timings.pause,
            arming: taken.arming,
            sliced,
            is_store_slow,
            besides: self.rebuild.host.costs.charge(taken.precopied + taken.residual, waits),
        });
        if let Some(found) = comparison {
            self.note_comparison(sequence, &found);
        }
        self.taking.pending.push_back(taken_event(&taken));
        self.note_budget(taken.max_pause);
        self.note_costs();
        self.rebuild.host.reaper.note(self.rebuild.owner, &descendants);
        self.tree.known = descendants;
        self.report_departed(sequence, false);
        self.note_files(sequence, &taken.files);
        self.rebuild.mapped.taken(sequence, taken.mapped);
        self.note_connections(sequence, taken.connections, taken.held_through);
        self.note_boundary(sequence, taken.boundary.as_ref());
        self.voice.record.facts.slices = SlicesReport::of(taken.slices);
        self.note_pauses();
        self.voice.journal.set(&self.voice.record);
        self.report_stop();
        if let Some(completion) = self.taking.early.take() {
            self.note_completion(completion);
        }
    }

    /// Records the pause budget in force. Reports when it is raised, and when it has doubled since.
    fn note_budget(&mut self, now: Option<Duration>) {
        let asked = self.request.tuning.max_pause;
        let raised = now.zip(asked).filter(|(now, asked)| now > asked);
        self.voice.record.facts.max_pause_us = now.map(time::microseconds);
        self.voice.record.facts.max_pause_asked_us = raised.and(asked).map(time::microseconds);
        if let Some((now, asked)) = raised.filter(|(now, _)| *now > self.taking.raised * 2) {
            self.taking.raised = now;
            let (asked_us, max_pause_us) = (time::microseconds(asked), time::microseconds(now));
            self.report(RunEvent::PauseRaised { asked_us, max_pause_us });
        }
    }

    /// Records the costs of checkpoints. Reports when they make the interval longer than requested, and when it has doubled
    /// since.
    fn note_costs(&mut self) {
        let longer = self.driver.machine.pace().longer_interval();
        let facts = &mut self.voice.record.facts;
        facts.costs.percent = 100.0 * self.driver.machine.pace().cost_share();
        facts.costs.interval_us = longer.map(time::microseconds);
        let Some((now, asked)) = longer.zip(self.request.every) else { return };
        if let Some(max_percent) = facts.costs.max_percent
            && now > (asked + asked / 2).max(self.taking.longest * 2)
        {
            self.taking.longest = now;
            let (asked_us, interval_us) = (time::microseconds(asked), time::microseconds(now));
            self.report(RunEvent::IntervalRaised { asked_us, interval_us, max_percent });
        }
    }

    pub(super) fn note_completion(&mut self, (sequence, outcome): Completion) {
        if sequence >= self.driver.machine.next_sequence() {
            self.taking.early = Some((sequence, outcome));
            return;
        }
        let place = self.taking.pending.iter().position(|pending| pending.seq == sequence.get());
        let found = place.and_then(|place| self.taking.pending.remove(place));
        match (outcome, found) {
            (Ok(committed), Some(taken)) => {
                let event = checkpoint_event(&committed, taken);
                self.voice
                    .record
                    .facts
                    .costs
                    .note_copies(event.precopied_pages + event.residual_pages, event.pages);
                self.voice.journal.record_event_at(committed.commit.time, RunEvent::Checkpoint(event));
                self.note_commit(sequence);
            }
            // The checkpoint was dropped together with its incarnation.
            (Ok(_), None) | (Err(store::Error::CalledOff), _) => self.feed(Event::CalledOff(sequence)),
            (Err(error), _) => {
                if let Some(output) = &mut self.output {
                    output.failed(sequence);
                }
                let error = error.into();
                self.requests.answer_for(sequence, &refusal(&error));
                self.driver.restart.note_failure(&error);
                self.feed(Event::WriteFailed(sequence));
                self.note_failure(&error);
            }
        }
    }

    fn note_commit(&mut self, sequence: Sequence) {
        self.rebuild.mapped.committed(sequence);
        let is_used = supervise::committed(self, sequence);
        if let Some(output) = &self.output {
            self.voice.record.facts.connections.held = output.connections();
            self.voice.record.facts.connections.unheld = output.hold().unheld();
        }
        let answer = match &self.files.deferred_now {
            Some(why) if !is_used => {
                format!("error files cannot be rolled back to checkpoint {sequence}: {}\n", headline(why))
            }
            _ => format!("ok {sequence}\n"),
        };
        self.requests.answer_for(sequence, &answer);
        self.voice.record.facts.achieved_hz = self.driver.machine.pace().achieved_hz();
        self.voice.record.facts.checkpoints += 1;
        self.voice.record.last_checkpoint = Some(self.time());
        if let Some(status) = self.taking.tracer.log().map(LogWriter::status) {
            self.voice.record.store_bytes = Some(status.disk.get());
            self.voice.record.facts.stored = StoredReport {
                kept: status.kept.len(),
                max_bytes: status.size_max.map(ByteCount::get),
                is_shortened: status.is_shortened,
            };
        }
        self.note_on_time(sequence);
        self.renew_outlook();
        self.voice.journal.set(&self.voice.record);
        self.voice.record.failing = None;
        if std::mem::take(&mut self.refusals.is_reported) {
            self.report(RunEvent::Resumed { seq: sequence.get() });
        }
    }

    fn note_failure(&mut self, error: &GuardianError) {
        let reason = error.to_string();
        if self.refusals.reasons.note(&reason) {
            self.refusals.is_reported = true;
            self.report(RunEvent::Refused { reason: reason.clone() });
        }
        let since = self.voice.record.failing.take().map_or_else(|| self.time(), |failing| failing.since);
        self.voice.record.failing = Some(Failing { reason, since });
        self.voice.record.facts.refusals = self.refusals.reasons.counts();
        self.voice.journal.set(&self.voice.record);
    }

    /// Forgets the failures of the previous incarnation, which do not apply to the new incarnation.
    pub(super) fn forget_failures(&mut self) {
        self.refusals.reasons = Reasons::default();
        self.refusals.is_reported = false;
        self.voice.record.failing = None;
        self.voice.record.facts.refusals.clear();
    }

    fn note_pauses(&mut self) {
        let (pauses, us) = (self.driver.machine.pace().pauses(), time::microseconds);
        let (p50, p99, max) = (us(pauses.p50), us(pauses.p99), us(pauses.max));
        self.voice.record.facts.pause_us = PauseMicroseconds { p50, p99, max };
    }
}

/// Reports whether a checkpoint spent most of its time waiting for buffers, which the store returns as it writes.
fn waited_for_store(phases: &Phases) -> bool {
    phases[Phase::Backpressure] > phases[Phase::Precopy] + phases[Phase::Prepare] + phases.pause()
}

/// Returns the reply to a request for a checkpoint that was not taken.
fn refusal(error: &GuardianError) -> String {
    format!("error {}\n", headline(&error.to_string()))
}

/// Builds the event of a captured checkpoint that is not durable yet.
fn taken_event(taken: &Taken) -> CheckpointEvent {
    let us = time::microseconds;
    CheckpointEvent {
        seq: taken.ticket.sequence().get(),
        arming_us: us(taken.arming),
        max_pause_us: taken.max_pause.map(us),
        slices: SlicesReport::of(taken.slices),
        phases: PhaseTimes::of(&taken.phases),
        scanned_pages: taken.phases.scanned.get(),
        rounds: taken.rounds,
        precopied_pages: taken.precopied.get(),
        residual_pages: taken.residual.get(),
        ..CheckpointEvent::default()
    }
}

/// Completes the event of a captured checkpoint that is now durable.
fn checkpoint_event(committed: &LogCommitted, taken: CheckpointEvent) -> CheckpointEvent {
    let (commit, us) = (&committed.commit, time::microseconds);
    CheckpointEvent {
        full: commit.kind == ImageKind::Full,
        pause_us: us(commit.timings.pause),
        hash_us: us(committed.timings.hash),
        write_us: us(committed.timings.write),
        commit_us: us(committed.timings.commit),
        pages: commit.pages.get(),
        bytes: committed.written.get(),
        moved_pages: committed.moved.get(),
        ..taken
    }
}
