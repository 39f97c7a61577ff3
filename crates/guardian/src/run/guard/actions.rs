//! Execution of the actions that the state machine of a subject has decided.
//!
//! Owns: how each action is executed, and the event that reports its result.
//! Invariants: actions are executed in their order. An action that fails ends the run. A worker thread executes an
//! action that may block.
//! Does not: decide on actions; `supervise` does.

use std::collections::HashSet;
use std::sync::Arc;

use engine::CheckpointOptions;
use engine::Kept;
use model::{ProcessKey, Sequence};
use supervise::{Action, Event, FreshReason, LateReason, Notice, RestartLimit, State};

use super::super::blame;
use super::super::rebuild::{Attempt, Rebuild};
use super::super::request::Guarded;
use super::super::tracer::{LetGo, Target};
use super::super::watching::BEGINNING;
use super::outbox::SubjectReport;
use super::parts::{After, Guard, Progress};
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::event::reason::{changed_since, headline_of, output_sent, told};
use crate::record::FreshReport;
use crate::signals::KILL;
use crate::time;

/// Why no checkpoint is used although files can be rolled back to some.
pub(super) const EACH_DIED: &str = "each of its checkpoints led to another death";
/// Why the last restart that the limit permits is a start from the beginning.
const LAST_RESTART: &str = "incarnations restored from its checkpoints die soon, and this is the last restart that --max-restarts permits";

impl Guard {
    /// Executes the decided actions and their consequences, until a worker has to execute an action.
    pub(super) fn act(&mut self) -> Result<()> {
        loop {
            while matches!(self.driver.progress, Progress::Own)
                && let Some(action) = self.driver.actions.pop_front()
            {
                if let Some(answer) = self.carry_out(action)? {
                    self.feed(answer);
                }
            }
            if self.driver.machine.incarnation() == self.driver.incarnation {
                return Ok(());
            }
            self.begin_incarnation()?;
        }
    }

    fn carry_out(&mut self, action: Action) -> Result<Option<Event>> {
        match action {
            Action::Take(sequence) => return Ok(self.take(sequence, false)),
            Action::TakeAndHold(sequence) => return Ok(self.take(sequence, true)),
            Action::Check(sequence) => self.check_last(sequence),
            Action::KillHeld => self.taking.tracer.let_go(LetGo::Kill),
            Action::ResumeHeld => self.taking.tracer.let_go(LetGo::Resume),
            Action::OpenLog => self.taking.tracer.open_again(),
            Action::KillRoot => self.rebuild.subject.signal(KILL)?,
            Action::Signal(signal) => self.rebuild.subject.ask_to_end(signal)?,
            Action::Late(reason, rounds) => self.hold_back(reason, rounds),
            Action::Report(notice) => self.report_notice(notice),
            Action::Clear => self.clear(),
            Action::Survey => self.survey(),
            Action::LeaveBehind { dropped, newest } => self.leave_behind(&dropped, newest),
            Action::Restore(sequence) => self.restore(sequence),
            Action::Start { is_with_files, why } => self.start(is_with_files, why)?,
        }
        Ok(None)
    }

    fn take(&mut self, sequence: Sequence, is_held: bool) -> Option<Event> {
        if self.taking.tracer.log().is_none_or(|log| log.check().is_err()) {
            self.receive_completions();
            self.taking.pending.clear();
            return Some(Event::LogLost);
        }
        let options = CheckpointOptions {
            kill: false,
            lose_connections: self.request.lose_connections,
            keep_connections: is_held,
            name: self.claim.name.to_string(),
            sequence,
            inherited: self.rebuild.streams.identities(),
        };
        self.requests.taking(sequence);
        let is_wanted = matches!(self.driver.machine.state(), State::Checkpointing { is_wanted: true, .. });
        if let Some(watching) = self.rebuild.watching().filter(|_| is_wanted || is_held) {
            watching.watch.demand_exact();
        }
        let target = Target { first: self.rebuild.subject.key(), roots: self.rebuild.subject.roots() };
        if is_held {
            self.taking.tracer.take_and_hold(target, options);
        } else {
            self.taking.tracer.take(target, options);
        }
        None
    }

    fn hold_back(&mut self, reason: LateReason, rounds: u32) {
        let reason = match reason {
            LateReason::Copying => "the checkpoint before was still being copied",
            LateReason::Writing => "the store was still writing earlier checkpoints",
            LateReason::Held => "the program holds checkpoints back",
        };
        self.refusals.late.note_many(reason, rounds);
        self.voice.record.facts.held_back = self.refusals.late.counts();
        self.voice.journal.set(&self.voice.record);
    }

    fn report_notice(&mut self, notice: Notice) {
        let pid = self.rebuild.subject.pid();
        if matches!(notice, Notice::ChildFailed | Notice::Faulted(_)) {
            // The root is killed next. A rollback would cut this message off.
            self.hold_messages();
        }
        match notice {
            Notice::Died(status) => {
                let (signal, exit) = (status.signal(), status.exit());
                let root = self.tree.dead;
                self.voice.outbox.report(SubjectReport::Died { root, status });
                self.report(RunEvent::Died { pid: root.get(), signal, exit });
            }
            Notice::ChildFailed => {
                if let Some(death) = self.tree.child_death {
                    let again = std::mem::replace(&mut self.voice.reported.child, true);
                    let (pid, signal) = (death.pid.get(), death.signal.get());
                    self.report(RunEvent::ChildDied { pid, signal, again });
                }
            }
            Notice::Faulted(fault) => {
                self.voice.outbox.report(SubjectReport::Faulted(fault));
                self.report(RunEvent::Faulted { pid: pid.get(), fault });
            }
            Notice::NotRestarted(why) => self.not_restarted(why),
            Notice::Released { is_late } => self.released(is_late),
            Notice::GaveUp(RestartLimit { count, window }) => {
                let within_us = time::microseconds(window);
                self.voice.outbox.report(SubjectReport::GaveUp);
                self.report(RunEvent::GaveUp { restarts: count, within_us });
            }
            Notice::BacksOff(wait) => self.report(RunEvent::BackOff { wait_us: time::microseconds(wait) }),
            Notice::Repeats(wait) => {
                let Some(error) = &self.driver.last_error else { return };
                let (reason, wait_us) = (error.to_string(), time::microseconds(wait));
                self.report(RunEvent::RestartRepeated { reason, wait_us });
            }
            Notice::Poisoned(sequence) => self.report(RunEvent::Poisoned { seq: sequence.get() }),
            Notice::NotRestored { sequence, is_explained_next } => {
                let Some(error) = &self.driver.last_error else { return };
                let event = RunEvent::RestoreFailed { seq: sequence.get(), reason: error.to_string() };
                if is_explained_next {
                    self.voice.journal.record_event(event);
                } else {
                    self.report(event);
                }
            }
            Notice::Restored { sequence, took, age } => {
                let (pid, took_us) = (pid.get(), time::microseconds(took));
                let age_us = age.map(time::microseconds);
                self.voice.record.facts.restored_age_us = age_us;
                self.driver.restart.restored(sequence);
                let roots = self.rebuild.subject.roots();
                self.voice.outbox.report(SubjectReport::Restored { roots });
                self.report(RunEvent::Restored { pid, seq: sequence.get(), took_us, age_us });
                self.voice.redraws = true;
            }
            Notice::EndedAgain(status) => {
                let exit = status.exit().unwrap_or_default();
                self.report(RunEvent::EndedAgain { exit });
            }
            Notice::NotBegunAnew => self.report(RunEvent::NotBegunAnew {}),
        }
    }

    /// Orders work from a worker. Afterwards, `after` handles the result in the guard.
    pub(super) fn order<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Rebuild) -> T + Send + 'static,
        after: impl FnOnce(&mut Self, T) -> Result<Event> + Send + 'static,
    ) {
        let rebuild = self.rebuild.clone();
        self.driver.progress = Progress::Ordered(Box::new(move || -> After {
            let done = work(&rebuild);
            Box::new(move |guard| after(guard, done))
        }));
    }

    fn clear(&mut self) {
        let spared = self.tree.departed.before(Sequence(u64::MAX));
        let known = self.tree.known.clone();
        let work = move |rebuild: &Rebuild| rebuild.clear(&known, &spared);
        self.order(work, |guard, cleared| Ok(guard.answer(cleared.map(|()| Event::Cleared))));
    }

    fn survey(&mut self) {
        let in_flight: Vec<Sequence> = self.driver.machine.in_flight().collect();
        let work = move |rebuild: &Rebuild| rebuild.survey(&in_flight);
        self.order(work, |guard, survey| Ok(guard.answer(survey.map(Event::Surveyed))));
    }

    /// Returns the event that answers a step of a restart.
    fn answer(&mut self, outcome: Result<Event>) -> Event {
        outcome.unwrap_or_else(|error| {
            let blamed = blame::of(&error);
            self.driver.last_error = Some(error);
            Event::StepFailed(blamed)
        })
    }

    /// Drops checkpoints that are not written yet. The next incarnation starts from an older checkpoint, so that
    /// incarnation has different data.
    fn leave_behind(&mut self, dropped: &[Sequence], newest: Sequence) {
        self.taking.pending.clear();
        dropped.iter().for_each(|sequence| self.report(RunEvent::Dropped { seq: sequence.get() }));
        if let Some(log) = self.taking.tracer.log() {
            // An error means that the log has failed. A failed log writes nothing more, and is opened again.
            let _ = log.void_above(newest);
        }
    }

    fn restore(&mut self, sequence: Sequence) {
        let spared: HashSet<ProcessKey> = self.tree.departed.before(sequence);
        let opened_later = self.files.written.later_than(sequence);
        let kept = match &mut self.output {
            Some(output) => output.go_back(sequence),
            None => Kept { sockets: self.connections.sockets(), ..Kept::default() },
        };
        // Beyond the bound, a file that has grown is not truncated, and prevents the restore.
        let is_beyond = self.driver.machine.is_beyond_bound(sequence, self.rebuild.host.clock.now());
        let work = move |rebuild: &Rebuild| {
            let policy = if is_beyond { rebuild.policy.beyond_bound() } else { rebuild.policy };
            let rebuild = Rebuild { policy, ..rebuild.clone() };
            rebuild.restore(sequence, &opened_later, &spared, &kept)
        };
        self.order(work, |guard, attempt| {
            Ok(guard.take_built(attempt).map_or(Event::Restored, Event::NotRestored))
        });
    }

    fn start(&mut self, is_with_files: bool, why: Option<FreshReason>) -> Result<()> {
        let Guarded::Command(words) = self.request.what.clone() else {
            return Err(GuardianError::NoWayBack { name: self.claim.name.to_string() });
        };
        let requests = self.requests.name.clone();
        if let Some(output) = &mut self.output {
            output.abandon();
        }
        let work = move |rebuild: &Rebuild| rebuild.start(&words, &requests, is_with_files);
        self.order(work, move |guard, attempt| {
            // The earlier error is the reason for this start. If the attempt fails, the error of the attempt is kept
            // instead.
            let before = guard.driver.last_error.take();
            if let Some(error) = guard.take_built(attempt) {
                return Ok(Event::NotStarted(error));
            }
            guard.driver.last_error = before;
            guard.started(why);
            Ok(Event::Started)
        });
        Ok(())
    }

    /// Takes over the subject that an attempt has started or restored. Otherwise returns why the attempt has failed.
    fn take_built(&mut self, attempt: Attempt) -> Option<supervise::RestoreError> {
        let mut events = attempt.events;
        if attempt.outcome.is_err() {
            // A repeated attempt finds the files already at the checkpoint.
            events.retain(|event| !matches!(event, RunEvent::FilesWentBack { changed: 0, aside: 0, .. }));
        }
        events.into_iter().for_each(|event| self.report(event));
        match attempt.outcome {
            Ok(built) => {
                self.rebuild.subject = Arc::new(built.subject);
                self.tree.resumed_after = built.resumed_after;
                let connections = &mut self.voice.record.facts.connections;
                connections.kept += built.connections.kept as u64;
                connections.rewound += built.connections.rewound as u64;
                connections.ended += built.connections.ended as u64;
                if built.connections.ended > 0 {
                    self.feed(Event::ConnectionsEnded);
                }
                let now = self.rebuild.host.clock.now();
                match &mut self.output {
                    Some(output) => output.is_back(built.connections.sockets, now),
                    None => self.keep_idle(built.connections.sockets),
                }
                None
            }
            Err((why, error)) => {
                self.driver.last_error = Some(error);
                Some(why)
            }
        }
    }

    fn started(&mut self, why: Option<FreshReason>) {
        self.tree.departed.forget();
        let why = why.map(|why| self.words_of(why));
        self.driver.restart.started_anew(why.as_deref());
        if let Some(why) = &why {
            let time = self.time();
            self.voice.record.facts.fresh = Some(FreshReport { reason: why.clone(), time });
        }
        let root = self.rebuild.subject.pid();
        self.tree.members.note_root(root, self.request.success);
        self.voice.outbox.report(SubjectReport::Started { root });
        self.report(RunEvent::Started { pid: root.get(), why });
    }

    fn words_of(&mut self, why: FreshReason) -> String {
        let last = self.driver.last_error.take();
        let headline = |error: Option<GuardianError>| error.as_ref().map(headline_of).unwrap_or_default();
        match why {
            FreshReason::LastRestart => LAST_RESTART.to_owned(),
            FreshReason::NotRestorable { tried } if self.rebuild.watching().is_none() => {
                headline(last.map(|last| self.not_restorable(tried, last)))
            }
            FreshReason::NotRestorable { .. } | FreshReason::FilesChanged => headline(last),
            FreshReason::NoneExact => self.why_none_exact(),
            FreshReason::EachDied => EACH_DIED.to_owned(),
            FreshReason::TooOld(sequence) => self.why_too_old(sequence),
            FreshReason::OutputSent(sequence) => output_sent(sequence.get(), &self.why_behind()),
            FreshReason::Told(sequence) => told(sequence.get()),
            FreshReason::ChangedSince(sequence) => changed_since(sequence.get()),
            FreshReason::FilesStay(BEGINNING) => {
                format!("files cannot be rolled back to the beginning: {}", headline(last))
            }
            FreshReason::FilesStay(to) => {
                format!("files cannot be rolled back to checkpoint {to}: {}", headline(last))
            }
        }
    }

    pub(super) fn not_restorable(&self, tried: usize, last: GuardianError) -> GuardianError {
        GuardianError::NotRestorable { name: self.claim.name.to_string(), tried, last: Box::new(last) }
    }
}
