//! The death of a subject, the next incarnation, and the end of a guard.
//!
//! Owns: the report of a death, the values that are reset for an incarnation, and the result of the run.
//! Invariants: when a death is reported, no thread of this process traces the dead subject.
//! Does not: decide what follows a death; `supervise` does.

use std::collections::HashSet;

use model::{Pid, Sequence};
use supervise::{End, Event, Failure, State, SubjectStatus};

use super::super::children::{ChildEvent, Children};
use super::super::leftovers::descendants;
use super::super::rebuild::lock;
use super::outbox::SubjectReport;
use super::parts::Guard;
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::record::Death;

/// If more processes have left the tree at once, one event reports all of them.
const DEPARTED_MAX: usize = 3;

/// The result of a run that is over.
pub(crate) struct EndedRun {
    /// How the subject has ended.
    pub(crate) outcome: Result<SubjectStatus>,
    pub(crate) name: String,
    /// Reports that the director does not know yet.
    pub(crate) reports: Vec<SubjectReport>,
    /// Messages that people have not received yet.
    pub(crate) messages: Vec<RunEvent>,
}

impl Guard {
    /// Reports a death to the state machine. All earlier events that can change the decision about this death must
    /// already be reported.
    pub(super) fn died(&mut self, (root, status): (Pid, SubjectStatus)) -> Result<()> {
        (self.tree.death, self.tree.dead) = (None, root);
        self.tree.members.died();
        self.taking.tracer.call_off_waits(false);
        self.voice.record.facts.last_death =
            Some(Death { signal: status.signal(), exit: status.exit(), time: self.time() });
        let mut foreground = lock(&self.rebuild.foreground);
        let has_terminal = foreground.is_given();
        foreground.take_back(Some(status));
        drop(foreground);
        let child = self.tree.children.as_ref().zip(self.tree.child_death.take());
        // These checkpoints were possibly taken after the child had died. Their image then lacks the child.
        let after_child = child.map(|(children, death)| children.taken_after(death)).unwrap_or_default();
        self.feed(Event::Died { status, has_terminal, after_child });
        self.act()
    }

    /// Receives the failures of processes other than the root, and reports them to the state machine.
    pub(super) fn receive_child_failures(&mut self) -> Result<()> {
        while let Some(event) = self.tree.children.as_mut().map(Children::poll).transpose()?.flatten() {
            match event {
                ChildEvent::Lost => self.report(RunEvent::ChildrenUnseen),
                ChildEvent::Death(death) => {
                    self.feed(Event::ChildFailed(death.signal));
                    if self.driver.machine.has_failed_child() {
                        self.tree.child_death.get_or_insert(death);
                    }
                    self.act()?;
                }
            }
        }
        Ok(())
    }

    /// Resets the values of the previous incarnation.
    pub(super) fn begin_incarnation(&mut self) -> Result<()> {
        self.driver.incarnation = self.driver.machine.incarnation();
        if let Some(children) = &mut self.tree.children {
            children.begin(self.rebuild.subject.pid(), self.tree.resumed_after)?;
        }
        self.rebuild.host.reaper.begin(self.rebuild.owner, self.rebuild.subject.keys());
        self.tree.child_death = None;
        self.forget_failures();
        self.refusals.on_time = self.rebuild.host.clock.now();
        self.voice.record.facts.late = None;
        self.files.deferred_now = None;
        self.renew_outlook();
        self.requests.forget();
        self.tree.known = descendants(self.rebuild.subject.roots());
        self.rebuild.host.reaper.note(self.rebuild.owner, &self.tree.known);
        self.voice.record.facts.incarnation = self.driver.incarnation;
        self.record_roots();
        self.voice.record.first_sequence = self.driver.machine.first_sequence().get();
        self.write_record();
        self.answer_restarts();
        self.receive_child_failures()
    }

    /// Reports the processes that have left the tree since the last call. Called after a checkpoint, and at the end of
    /// the run.
    pub(super) fn report_departed(&mut self, sequence: Sequence, is_end: bool) {
        if !self.tree.departed.is_due(self.rebuild.host.clock.now()) && !is_end {
            return;
        }
        let listed = self.rebuild.host.reaper.departed(self.rebuild.owner, self.rebuild.subject.pid());
        // If the root has died meanwhile, its children are in the list. They have not left the tree, and end with it.
        if !is_end && self.rebuild.subject.has_ended() {
            return;
        }
        let departed = self.tree.departed.note(sequence, &listed);
        let each = if departed.len() > DEPARTED_MAX { departed.len() } else { 1 };
        for group in departed.chunks(each) {
            let [first, others @ ..] = group else { continue };
            let program = tracee::procfs::stat(first.pid).map_or_else(|_| String::new(), |stat| stat.comm);
            let others = others.iter().map(|key| key.pid.get()).collect();
            self.report(RunEvent::Departed { pid: first.pid.get(), program, others, is_end });
        }
    }

    /// Ends the guard. The subject has ended for good, or can no longer be watched.
    pub(crate) fn leave(mut self) -> EndedRun {
        if let State::Ended(End::Failed(Failure::Stopped(sequence))) = self.driver.machine.state() {
            let events = self.rebuild.leave_files_at(sequence);
            events.into_iter().for_each(|event| self.report(event));
        }
        let outcome = self.outcome();
        self.answer_restarts();
        self.connections.end();
        for news in self.taking.tracer.leave_subject() {
            self.note_news(news);
        }
        // The last checkpoints are committed even if an operator has ended the program, because a later restore can use
        // them.
        self.await_commits();
        self.taking.tracer.end();
        if let Ok(status) = outcome {
            let (pid, signal, exit) = (self.rebuild.subject.dead_pid().get(), status.signal(), status.exit());
            self.voice.journal.record_event(RunEvent::Ended { pid, signal, exit });
            if self.request.ends_tree {
                // The remaining processes would occupy addresses and files. An error means that a process hangs in the
                // kernel. The hanging process occupies no address any more.
                let _ = self.rebuild.clear(&self.tree.known, &HashSet::new());
            }
            self.rebuild.host.reaper.reap_orphans(self.rebuild.owner, Pid(0));
            if let Some(watching) = self.rebuild.watching() {
                // Without the record, a later rollback by `undying restore` reports no changes by other programs.
                let _ = watching.watch.subject_ended();
            }
            self.report_departed(self.driver.machine.next_sequence(), true);
        }
        self.rebuild.host.reaper.dismiss(self.rebuild.owner);
        self.write_record();
        self.voice.journal.end();
        let outbox = &mut self.voice.outbox;
        // Nothing is rolled back any more.
        outbox.hold(false);
        let (reports, messages) = (outbox.take_reports(), outbox.take_messages());
        EndedRun { outcome, name: self.name().to_owned(), reports, messages }
    }

    fn outcome(&mut self) -> Result<SubjectStatus> {
        let no_way_back = GuardianError::NoWayBack { name: self.claim.name.to_string() };
        let last = self.driver.last_error.take();
        let error = match self.driver.machine.state() {
            State::Ended(End::Over(status) | End::GaveUp(status)) => return Ok(status),
            State::Ended(End::Failed(Failure::NoWayBack)) => no_way_back,
            State::Ended(End::Failed(Failure::LastError)) => last.unwrap_or(no_way_back),
            State::Ended(End::Failed(Failure::ChangedSince(sequence))) => {
                GuardianError::FilesChangedSince { image: format!("{}@{sequence}", self.claim.name) }
            }
            State::Ended(End::Failed(Failure::Stopped(sequence))) => last.map_or(no_way_back, |last| {
                let image = format!("{}@{sequence}", self.claim.name);
                GuardianError::RestoreStopped { image, last: Box::new(last) }
            }),
            State::Ended(End::Failed(Failure::NotRestorable { tried })) => {
                last.map_or(no_way_back, |last| self.not_restorable(tried, last))
            }
            _ => return Err(last.unwrap_or(no_way_back)),
        };
        // The pid must be free for a manual restore.
        self.rebuild.subject.release()?;
        Err(error)
    }

    /// Waits until no write is in flight.
    fn await_commits(&mut self) {
        self.receive_completions();
        while self.driver.machine.in_flight().len() > 0 && self.taking.tracer.log().is_some() {
            self.taking.tracer.await_log();
            self.receive_completions();
        }
    }
}
