//! Requests to restart a guarded subject (a protected process tree) from a checkpoint of this moment.
//!
//! Owns: the events of such a restart, and the answer to the callers.
//! Invariants: each caller gets one answer: when the subject runs again, when the restart is called off, or when the run
//! ends.
//! Does not: decide whether the subject is restarted; `supervise` does.

use engine::PreparedRestore;
use model::Sequence;
use supervise::{Event, NotRestarted, State, StopStep, Survey};

use super::super::rebuild::Rebuild;
use super::super::requests::Asker;
use super::outbox::SubjectReport;
use super::parts::Guard;
use crate::error::Result;
use crate::event::RunEvent;
use crate::signals::KILL;

impl Guard {
    /// Reports whether the subject is stopped for a requested restart.
    pub(super) fn is_stopped(&self) -> bool {
        matches!(self.driver.machine.state(), State::Stopped { .. })
    }

    /// Handles a request for a restart.
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

    /// Reports that the subject is stopped until its last checkpoint is durable.
    pub(super) fn report_stop(&mut self) {
        if let State::Stopped { sequence, .. } = self.driver.machine.state() {
            self.driver.restart.last = Some(sequence);
            let pid = self.rebuild.subject.pid().get();
            // The rollback would cut this message off.
            self.hold_messages();
            self.voice.outbox.report(SubjectReport::Stopped);
            self.report(RunEvent::StoppedForRestart { pid, seq: sequence.get() });
        }
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
        let line = format!("error {} is not restarted, and continues: {reason}\n", self.claim.name);
        for asker in std::mem::take(&mut self.driver.restart.askers) {
            self.requests.answer(&asker, &line);
        }
        self.driver.restart.last = None;
        self.voice.outbox.report(SubjectReport::NotRestarted);
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
