//! What the state machine has decided, done.
//!
//! Owns: how each action is carried out, and the event that answers it.
//! Invariants: actions are carried out in their order; one that fails ends the run.
//! Does not: decide.

use std::collections::HashSet;
use std::time::SystemTime;

use engine::CheckpointOptions;
use model::Sequence;
use supervise::{Action, Event, FreshReason, LateReason, Notice, RestartLimit, RestoreError, Survey};

use super::super::Guarded;
use super::super::watching::{BEGINNING, Watching};
use super::Guard;
use crate::error::{GuardianError, Result};
use crate::event::{RunEvent, headline_of};
use crate::record::FreshReport;
use crate::signals::KILL;
use crate::time;

/// Why the last restart that the limit permits is one from the beginning.
const LAST_RESTART: &str =
    "restarts from its checkpoints end soon, and this is the last one that --max-restarts permits";

impl Guard<'_> {
    /// Carries out what was decided, and what follows from that.
    pub(super) fn act(&mut self) -> Result<()> {
        while let Some(action) = self.driver.actions.pop_front() {
            if let Some(answer) = self.carry_out(action)? {
                self.feed(answer);
            }
            if self.driver.actions.is_empty() && self.driver.machine.incarnation() > self.driver.incarnation {
                self.begin_incarnation()?;
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, action: Action) -> Result<Option<Event>> {
        match action {
            Action::Take(sequence) => return Ok(self.take(sequence)),
            Action::OpenLog => self.taking.tracer.open_again(),
            Action::KillRoot => self.subject.signal(KILL)?,
            Action::Signal(signal) => self.subject.signal(signal)?,
            Action::Late(reason, rounds) => self.hold_back(reason, rounds),
            Action::Tell(notice) => self.tell_notice(notice),
            Action::Clear => {
                let spared = self.tree.departed.before(Sequence(u64::MAX));
                self.host.household.clear(self.tree.owner, self.subject.pid(), &self.tree.known, &spared)?;
                self.files_ended();
                return Ok(Some(Event::Cleared));
            }
            Action::Survey => return Ok(Some(Event::Surveyed(self.survey()?))),
            Action::LeaveBehind { dropped, newest } => self.leave_behind(&dropped, newest),
            Action::Restore(sequence) => return self.restore(sequence).map(Some),
            Action::Start { is_with_files, why } => return self.start(is_with_files, why).map(Some),
        }
        Ok(None)
    }

    fn take(&mut self, sequence: Sequence) -> Option<Event> {
        if self.taking.tracer.log().is_none_or(|log| log.check().is_err()) {
            self.hear_log();
            self.taking.pending.clear();
            return Some(Event::LogLost);
        }
        let options = CheckpointOptions {
            kill: false,
            lose_connections: self.request.lose_connections,
            name: self.claim.name.to_string(),
            sequence,
            inherited: self.host.streams.identities(),
        };
        self.requests.taking(sequence);
        self.taking.tracer.take(self.subject.key(), options);
        None
    }

    fn hold_back(&mut self, reason: LateReason, rounds: u32) {
        let reason = match reason {
            LateReason::Copying => "the checkpoint before was still being copied",
            LateReason::Writing => "the store was still writing earlier checkpoints",
            LateReason::Held => "the program holds checkpoints back",
        };
        self.refusals.late.note_many(reason, rounds);
        self.voice.record.held_back = self.refusals.late.counts();
        self.voice.journal.set(&self.voice.record);
    }

    fn tell_notice(&mut self, notice: Notice) {
        let pid = self.subject.pid();
        match notice {
            Notice::Died(status) => self.report(RunEvent::died(pid, status)),
            Notice::ChildFailed => {
                if let Some(death) = self.tree.child_death {
                    let again = std::mem::replace(&mut self.voice.told.child, true);
                    let (pid, signal) = (death.pid.get(), death.signal.get());
                    self.report(RunEvent::ChildDied { pid, signal, again });
                }
            }
            Notice::GaveUp(RestartLimit { count, window }) => {
                let within_us = time::microseconds(window);
                self.report(RunEvent::GaveUp { restarts: count, within_us });
            }
            Notice::BacksOff(wait) => self.report(RunEvent::BackOff { wait_us: time::microseconds(wait) }),
            Notice::Poisoned(sequence) => self.report(RunEvent::Poisoned { seq: sequence.get() }),
            Notice::NotRestored { sequence, is_explained_next } => {
                let Some(error) = &self.driver.last_error else { return };
                let event = RunEvent::RestoreFailed { seq: sequence.get(), reason: error.to_string() };
                if is_explained_next {
                    self.voice.journal.tell(SystemTime::now(), event);
                } else {
                    self.report(event);
                }
            }
            Notice::Restored(sequence, took) => {
                let (pid, took_us) = (pid.get(), time::microseconds(took));
                self.report(RunEvent::Restored { pid, seq: sequence.get(), took_us });
                self.host.foreground.draw_again();
            }
        }
    }

    fn survey(&self) -> Result<Survey> {
        let found = self.store.list(&self.claim.name)?;
        let committed: Vec<Sequence> = found.into_iter().map(|(sequence, _)| sequence).collect();
        let mut known = committed.clone();
        known.extend(self.driver.machine.in_flight());
        let watching = self.files.watching.as_ref();
        Ok(Survey {
            committed,
            exact: watching.map(|watching| watching.exact(&known)).unwrap_or_default(),
            reaches_beginning: watching.is_some_and(Watching::reaches_beginning),
        })
    }

    /// The log drops what it has not written; an incarnation that begins at an older checkpoint has other ones.
    fn leave_behind(&mut self, dropped: &[Sequence], newest: Sequence) {
        self.taking.pending.clear();
        dropped.iter().for_each(|sequence| self.report(RunEvent::Dropped { seq: sequence.get() }));
        if let Some(log) = self.taking.tracer.log() {
            // One that has failed writes nothing any more, and is opened anew.
            let _ = log.void_above(newest);
        }
    }

    fn restore(&mut self, sequence: Sequence) -> Result<Event> {
        let spared = self.tree.departed.before(sequence);
        self.host.household.clear(self.tree.owner, self.subject.pid(), &[], &spared)?;
        let covered = match self.take_files_back(sequence) {
            Ok(covered) => covered,
            Err(error) => return Ok(Event::NotRestored(self.files_stay(error))),
        };
        let Err(error) = self.build(sequence, covered) else { return Ok(Event::Restored) };
        self.host.household.clear_construction(self.tree.owner, &spared)?;
        let is_of_files = error.names_changed_files();
        self.driver.last_error = Some(error);
        let why = if is_of_files { RestoreError::FilesChanged } else { RestoreError::Unusable };
        Ok(Event::NotRestored(why))
    }

    fn start(&mut self, is_with_files: bool, why: Option<FreshReason>) -> Result<Event> {
        let Guarded::Command(words) = self.request.what.clone() else {
            return Err(GuardianError::NoWayBack { name: self.claim.name.to_string() });
        };
        self.host.household.clear(self.tree.owner, self.subject.pid(), &[], &HashSet::new())?;
        if is_with_files {
            if let Err(error) = self.take_files_back(BEGINNING) {
                return Ok(Event::NotStarted(self.files_stay(error)));
            }
        } else {
            self.files_start_over()?;
        }
        let why = why.map(|why| self.words_of(why));
        if let Some(why) = &why {
            let time = time::rfc3339(SystemTime::now());
            self.voice.record.fresh = Some(FreshReport { reason: why.clone(), time });
        }
        self.start_program(&words, why.as_deref())?;
        Ok(Event::Started)
    }

    fn files_stay(&mut self, error: GuardianError) -> RestoreError {
        let is_half_way = matches!(&error, GuardianError::Undo(error) if error.is_half_way());
        self.driver.last_error = Some(error);
        // No program expects that mixture, and the journal that leads out of it would be lost.
        if is_half_way { RestoreError::FilesHalfWay } else { RestoreError::FilesStay }
    }

    fn words_of(&mut self, why: FreshReason) -> String {
        let last = self.driver.last_error.take();
        let headline = |error: Option<GuardianError>| error.as_ref().map(headline_of).unwrap_or_default();
        match why {
            FreshReason::LastRestart => LAST_RESTART.to_owned(),
            FreshReason::NotRestorable { tried } if self.files.watching.is_none() => {
                headline(last.map(|last| self.not_restorable(tried, last)))
            }
            FreshReason::NotRestorable { .. } | FreshReason::FilesChanged => headline(last),
            FreshReason::NoneExact => self.why_none_exact(),
            FreshReason::FilesStay(BEGINNING) => {
                format!("files cannot go back to the beginning: {}", headline(last))
            }
            FreshReason::FilesStay(to) => {
                format!("files cannot go back to checkpoint {to}: {}", headline(last))
            }
        }
    }

    pub(super) fn not_restorable(&self, tried: usize, last: GuardianError) -> GuardianError {
        GuardianError::NotRestorable { name: self.claim.name.to_string(), tried, last: Box::new(last) }
    }
}
