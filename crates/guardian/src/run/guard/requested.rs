//! Requests to restart a guarded subject from a checkpoint of this moment.
//!
//! Owns: the events of such a restart, and the answer to the callers.
//! Invariants: each caller gets one answer: when the subject runs again, when the restart is called off, or when the
//! run ends.
//! Does not: decide whether the subject is restarted; `supervise` does.

use std::time::{Duration, Instant};

use engine::PreparedRestore;
use model::Sequence;
use supervise::{Event, NotRestarted, State, StopStep, Survey};

use super::super::rebuild::Rebuild;
use super::super::request::HELD_MAX;
use super::super::requests::Asker;
use super::outbox::SubjectReport;
use super::parts::Guard;
use crate::error::Result;
use crate::event::RunEvent;
use crate::record::HeldReport;
use crate::signals::KILL;
use crate::time;

impl Guard {
    /// Reports whether the subject is stopped for a requested restart.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.driver.machine.state(), State::Stopped { .. })
    }

    pub(super) fn want_restart(&mut self, asker: Asker) {
        if !asker.is_owner {
            let line = "error only root and the user of the guardian restart the program\n";
            return self.requests.answer(&asker, line);
        }
        if self.request.dry_run_tracking {
            return self.requests.answer(&asker, "error a dry run takes no checkpoints\n");
        }
        self.driver.restart.askers.push(asker);
        if self.request.launch.is_service && !self.driver.restart.is_ready {
            // A restored component counts as ready.
            return self.not_restarted(NotRestarted::NotReady);
        }
        self.feed(Event::RestartRequested);
    }

    /// Handles a request to stop the subject for a while.
    pub(super) fn want_hold(&mut self, asker: Asker, time: Duration) {
        if !asker.is_owner {
            return self
                .requests
                .answer(&asker, "error only root and the user of the guardian hold the program\n");
        }
        if self.driver.machine.is_restart_requested() || self.request.dry_run_tracking {
            let why = "error it is being restarted or held already, or a dry run takes no checkpoints\n";
            return self.requests.answer(&asker, why);
        }
        self.driver.restart.askers.push(asker);
        self.driver.restart.is_hold = true;
        self.feed(Event::HoldRequested(time.min(HELD_MAX)));
    }

    /// Handles a request to end a hold.
    pub(super) fn want_release(&mut self, asker: &Asker) {
        let is_held =
            matches!(self.driver.machine.state(), State::Stopped { step: StopStep::Holding(_), .. });
        let line = match (asker.is_owner, is_held) {
            (false, _) => "error only root and the user of the guardian release the program\n",
            (true, false) => "error it is not held\n",
            (true, true) => "ok\n",
        };
        if asker.is_owner {
            self.feed(Event::ReleaseRequested);
        }
        self.requests.answer(asker, line);
    }

    /// Reports that the subject is stopped: until its last checkpoint is durable, or for a hold.
    pub(super) fn report_stop(&mut self) {
        if let State::Stopped { sequence, step: StopStep::Holding(until) } = self.driver.machine.state() {
            return self.report_hold(sequence, until);
        }
        if let State::Stopped { sequence, .. } = self.driver.machine.state() {
            self.driver.restart.last = Some(sequence);
            let pid = self.rebuild.subject.pid().get();
            // The rollback would cut this message off.
            self.hold_messages();
            self.voice.outbox.report(SubjectReport::Stopped);
            self.report(RunEvent::StoppedForRestart { pid, seq: sequence.get() });
        }
    }

    fn report_hold(&mut self, sequence: Sequence, until: Instant) {
        let line = format!("ok {sequence}\n");
        for asker in std::mem::take(&mut self.driver.restart.askers) {
            self.requests.answer(&asker, &line);
        }
        self.driver.restart.is_hold = false;
        let clock = &self.rebuild.host.clock;
        let left = until.saturating_duration_since(clock.now());
        let until = time::rfc3339(clock.wall() + left);
        let pid = self.rebuild.subject.pid().get();
        self.voice.record.facts.held = Some(HeldReport { seq: sequence.get(), until: until.clone() });
        self.voice.outbox.report(SubjectReport::Stopped);
        self.report(RunEvent::Held { pid, seq: sequence.get(), until });
        self.write_record();
    }

    /// Reports that a hold has ended.
    pub(super) fn released(&mut self, is_late: bool) {
        self.voice.record.facts.held = None;
        let pid = self.rebuild.subject.pid().get();
        self.voice.outbox.report(SubjectReport::Resumed);
        self.report(RunEvent::Released { pid, is_late });
        self.write_record();
    }

    /// Handles the report that the stopped subject was resumed or killed.
    pub(super) fn note_let_go(&mut self) {
        if matches!(self.driver.machine.state(), State::Stopped { step: StopStep::Killing, .. }) {
            // Usually, the root has ended. An error means that it is about to end.
            let _ = self.rebuild.subject.signal(KILL);
        }
        self.feed(Event::HeldResumed);
    }

    /// Checks on a worker that a restore can use the last checkpoint.
    pub(super) fn check_last(&mut self, sequence: Sequence) {
        let work = move |rebuild: &Rebuild| rebuild.check(sequence);
        self.order(work, |guard, checked| {
            Ok(checked.map_or_else(
                |error| {
                    guard.driver.restart.note_failure(&error);
                    Event::NotUsable
                },
                Event::Checked,
            ))
        });
    }

    /// Reports that the restart is called off, and answers the callers.
    pub(super) fn not_restarted(&mut self, why: NotRestarted) {
        let reason = self.why_not_restarted(why);
        let what = if std::mem::take(&mut self.driver.restart.is_hold) { "held" } else { "restarted" };
        let line = format!("error {} is not {what}, and continues: {reason}\n", self.claim.name);
        for asker in std::mem::take(&mut self.driver.restart.askers) {
            self.requests.answer(&asker, &line);
        }
        self.driver.restart.last = None;
        self.voice.outbox.report(SubjectReport::Resumed);
        self.report(RunEvent::NotRestarted { reason });
    }

    fn why_not_restarted(&mut self, why: NotRestarted) -> String {
        let failure = self.driver.restart.failure.take();
        let reason = match why {
            NotRestarted::NoCheckpoints => "no checkpoints are taken of it",
            NotRestarted::OnlyInitial => "its checkpoints contain only its state after the start",
            NotRestarted::NotReady => "it is not ready yet",
            NotRestarted::Ending => "it is being ended",
            NotRestarted::NotTaken => "no checkpoint could be taken",
            NotRestarted::NotWritten => "its checkpoint could not be written",
            NotRestarted::NotUsable => match self.files.deferred_now.clone().filter(|_| failure.is_none()) {
                Some(why) => return format!("files cannot be rolled back to its checkpoint: {why}"),
                None => "a restart would not use its checkpoint",
            },
            NotRestarted::Late => return format!("no checkpoint was durable in time: {}", self.why_behind()),
        };
        failure.map_or_else(|| reason.to_owned(), |failure| format!("{reason}: {failure}"))
    }

    /// Answers the callers after a death, when the subject runs again or the run has ended.
    pub(super) fn answer_restarts(&mut self) {
        let outcome = self.driver.restart.outcome.take();
        let line = outcome.unwrap_or_else(|| "error the program has ended\n".to_owned());
        for asker in std::mem::take(&mut self.driver.restart.askers) {
            self.requests.answer(&asker, &line);
        }
        (self.driver.restart.last, self.driver.restart.is_ready) = (None, false);
    }
}

impl Rebuild {
    /// Checks that a restore can read a checkpoint of the living subject and accepts the present files. Returns the
    /// checkpoints of the subject.
    fn check(&self, sequence: Sequence) -> Result<Survey> {
        let reader = self.store.read(&self.store.get(&self.name, sequence)?)?;
        self.check_files(&PreparedRestore::read(reader)?)?;
        self.survey(&[])
    }
}
