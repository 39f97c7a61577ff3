//! What follows a death.
//!
//! Owns: the decisions between the notice of a death and the next life.
//! Invariants: nobody traces the dead when they are cleared away; what of the dead life is still being written is
//! waited for, or left behind, before a new life begins; a dead child keeps its number until the restore is about to
//! need it.
//! Does not: know policy; `policy` does.

use std::collections::HashSet;
use std::ffi::OsString;
use std::time::{Duration, Instant, SystemTime};

use engine::{Covered, EngineError, RestoreOptions};
use model::{Sequence, Signal};
use rustix::event::{PollFd, PollFlags, poll};
use supervise::SubjectStatus;

use super::super::children::{Children, Heard};
use super::super::events::RunEvent;
use super::super::leftovers::descendants;
use super::super::tracer::patience;
use super::super::watching::Watching;
use super::super::{ChangedFiles, Guarded, spawn};
use super::{Ending, Guard, InFlight};
use crate::aside::Parts;
use crate::error::{GuardianError, Result};
use crate::record::{Death, FreshReport, ProcessName};
use crate::signals::KILL;
use crate::subject::Subject;
use crate::time;

/// How long a death counts as asked for after a signal that programs may also survive, like Ctrl-C.
const SOFT_REQUEST: Duration = Duration::from_secs(60);
/// How long a number that is taken is waited for: its holder may be a process that is just ending.
const PID_PATIENCE: Duration = Duration::from_secs(2);
/// How often it is tried meanwhile.
const PID_NAP: Duration = Duration::from_millis(20);
/// How long the only checkpoint is waited for: a disk that takes longer has failed, and an hour's work is worth it.
const NO_OTHER_PATIENCE: Duration = Duration::from_secs(600);
/// Why the last restart that the limit permits is one from the beginning.
const LAST_RESTART: &str =
    "restarts from its checkpoints end soon, and this is the last one that --max-restarts permits";
const INT: Signal = Signal(2);
const QUIT: Signal = Signal(3);

/// What follows a death.
pub(super) enum Next {
    /// The run is over.
    End(SubjectStatus),
    /// There is a subject again.
    GoOn,
}

impl Guard<'_> {
    pub(super) fn after_death(&mut self, status: SubjectStatus) -> Result<Next> {
        self.hold_messages();
        let outcome = self.follow_death(status);
        self.release_messages();
        outcome
    }

    fn follow_death(&mut self, status: SubjectStatus) -> Result<Next> {
        let noticed = Instant::now();
        self.leave_subject();
        // A signal may have come just before: it decides whether anybody wanted this.
        self.take_signals()?;
        // What a failed child has caused may be seen before the failure.
        self.hear_children()?;
        self.record.last_death = Some(death(status));
        let own = status;
        let status = self.cause(own);
        let was_asked_for = self.was_asked_for(status);
        self.foreground.take_back(Some(own));
        if was_asked_for || !self.request.policy.restarts(status) {
            self.record.state = "ended".to_owned();
            return Ok(Next::End(status));
        }
        self.report(&RunEvent::Died { pid: self.subject.pid(), status: own });
        // Nothing of a life that is to be taken back goes on serving or writing meanwhile.
        let spared = self.departed.before(Sequence(u64::MAX));
        self.household.clear(self.subject.pid(), &self.known, &spared)?;
        self.files_ended();
        if !self.restarts.admit(noticed) {
            self.report(&RunEvent::GaveUp(self.request.limit));
            self.record.state = "gave-up".to_owned();
            return Ok(Next::End(status));
        }
        if !self.back_off(status)? {
            self.record.state = "ended".to_owned();
            return Ok(Next::End(status));
        }
        self.record.state = "restoring".to_owned();
        self.record.restarts += 1;
        self.write_record();
        let outcome = self.bring_back(status, noticed);
        if outcome.is_err() {
            self.record.state = "failed".to_owned();
            // Its number is free for a restore by hand.
            self.subject.release()?;
        }
        outcome?;
        self.begin_life()?;
        Ok(Next::GoOn)
    }

    /// Ends the root once another process of the subject has failed: the first such death is what the restart goes
    /// back behind.
    pub(super) fn hear_children(&mut self) -> Result<()> {
        while let Some(heard) = self.children.as_mut().map(Children::poll).transpose()?.flatten() {
            match heard {
                Heard::Lost => self.report(&RunEvent::ChildrenUnseen),
                Heard::Death(_) if self.ending.is_some() || self.child_death.is_some() => {}
                Heard::Death(death) => {
                    self.child_death = Some(death);
                    let again = std::mem::replace(&mut self.told.child, true);
                    self.report(&RunEvent::ChildDied { pid: death.pid, signal: death.signal, again });
                    self.subject.signal(KILL)?;
                }
            }
        }
        Ok(())
    }

    /// What the subject has died of: a failure elsewhere in the tree, or that of its root. The checkpoints that may
    /// know the tree without the failed process are passed over.
    fn cause(&mut self, own: SubjectStatus) -> SubjectStatus {
        let (Some(children), Some(death)) = (&self.children, self.child_death.take()) else { return own };
        for sequence in children.taken_after(death) {
            self.suspicion.unusable(sequence);
        }
        // The root may have ended well by itself in the same moment, its work done.
        if own.is_clean() { own } else { SubjectStatus::Killed(death.signal) }
    }

    /// Waits before the restart of a program that has hardly lived; false when the run was told to end meanwhile.
    fn back_off(&mut self, status: SubjectStatus) -> Result<bool> {
        let has_checkpoint = self.record.checkpoints > self.checkpoints_before;
        let wait = self.back_off.died(self.began.elapsed(), status, has_checkpoint);
        if wait.is_zero() {
            return Ok(true);
        }
        self.record.state = "backing-off".to_owned();
        self.report(&RunEvent::BacksOff(wait));
        self.write_record();
        let until = Instant::now() + wait;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            self.await_signal(left)?;
            self.take_signals()?;
            if self.ending.is_some() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits for a signal, at most for a time.
    fn await_signal(&self, wait: Duration) -> Result<()> {
        let mut waiting = [PollFd::from_borrowed_fd(self.signals.handle(), PollFlags::IN)];
        match poll(&mut waiting, Some(&time::timespec(wait))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(sys::Error::new("wait for a signal", errno).into()),
        }
    }

    /// Whether the subject was asked to end, by a signal to us.
    fn was_asked_for(&self, status: SubjectStatus) -> bool {
        let Some(Ending { signal, at }) = self.ending else { return self.foreground.has_ended(status) };
        let soft = signal == INT || signal == QUIT;
        !soft || status == SubjectStatus::Killed(signal) || at.elapsed() < SOFT_REQUEST
    }

    /// Makes the subject run again: from a checkpoint, or from its beginning.
    fn bring_back(&mut self, status: SubjectStatus, noticed: Instant) -> Result<()> {
        if status.is_clean() {
            self.leave_behind();
            return self.start_afresh();
        }
        self.settle_writes(noticed)?;
        let committed = self.committed()?;
        if let Some(from) = self.blamed(&committed)
            && let Some(poisoned) = self.suspicion.died(from, status, noticed)
        {
            self.report(&RunEvent::Poisoned(poisoned));
        }
        if self.restarts.is_exhausted() && self.suspicion.has_avoided() && self.can_start() {
            // Going on step by step would end in giving up, with no try left for the beginning.
            return self.start_from_beginning(Some(LAST_RESTART));
        }
        if self.watching.is_some() {
            return self.bring_back_with_files(&committed, noticed);
        }
        let mut last = None;
        while let Some(sequence) = self.suspicion.choose(&committed) {
            let spared = self.departed.before(sequence);
            self.household.clear(self.subject.pid(), &[], &spared)?;
            match self.restore(sequence, Covered::Nothing) {
                Ok(()) => {
                    self.restored(sequence, noticed);
                    return Ok(());
                }
                Err(error) => {
                    self.household.clear_construction(&spared)?;
                    let event = RunEvent::RestoreFailed(sequence, &error);
                    if error.names_changed_files() {
                        // What follows says why, to those who read along.
                        self.journal.tell(SystemTime::now(), event.what());
                        // Older checkpoints know less of what has changed since.
                        return self.without_checkpoint(error);
                    }
                    self.report(&event);
                    self.suspicion.unusable(sequence);
                    last = Some(error);
                }
            }
        }
        match last {
            Some(last) => self.without_checkpoint(GuardianError::NotRestorable {
                name: self.claim.name.to_string(),
                tried: committed.len(),
                last: Box::new(last),
            }),
            None => self.start_afresh(),
        }
    }

    pub(super) fn restored(&mut self, sequence: Sequence, noticed: Instant) {
        self.suspicion.begins(sequence, Instant::now());
        self.descends = Some(sequence);
        // Where it is now, it has been checkpointed before.
        self.is_ready = true;
        let (pid, took) = (self.subject.pid(), noticed.elapsed());
        self.report(&RunEvent::Restored { pid, sequence, took });
        self.foreground.draw_again();
    }

    /// Starts the program from its beginning since no checkpoint could be used; an adopted one cannot be started.
    fn without_checkpoint(&mut self, error: GuardianError) -> Result<()> {
        let refuses = self.files == ChangedFiles::Refuse && error.names_changed_files();
        if refuses || !self.can_start() {
            return Err(error);
        }
        let why = error.to_string();
        self.start_afresh_since(why.split("\nhelp:").next().unwrap_or_default())
    }

    pub(super) fn start_afresh_since(&mut self, why: &str) -> Result<()> {
        self.note_fresh(why);
        self.start_afresh()
    }

    pub(super) fn note_fresh(&mut self, why: &str) {
        self.record.fresh =
            Some(FreshReport { reason: why.to_owned(), time: time::rfc3339(SystemTime::now()) });
        self.fresh_reason = Some(why.to_owned());
    }

    /// An adopted program cannot be started.
    fn can_start(&self) -> bool {
        matches!(self.request.what, Guarded::Command(_))
    }

    /// Decides about the checkpoints that were being written when the subject died. They are waited for while that
    /// costs little, or when there are no others; else they are left behind.
    fn settle_writes(&mut self, noticed: Instant) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut others = self.committed()?;
        // A reader may find them whole already.
        others.retain(|sequence| self.pending.iter().all(|pending| pending.sequence != *sequence));
        let pending: Vec<Sequence> = self.pending.iter().map(|pending| pending.sequence).collect();
        let is_worth_it = !self.usable(&pending).is_empty();
        let has_other = self.suspicion.choose(&self.usable(&others)).is_some() || !is_worth_it;
        let patience = if has_other { patience(self.request.every) } else { NO_OTHER_PATIENCE };
        self.await_commits(Some(noticed + patience));
        self.leave_behind();
        Ok(())
    }

    /// Has the checkpoints that are still being written stand beside no life that begins at an older one.
    fn leave_behind(&mut self) {
        let newest = self.descends.unwrap_or(Sequence(0));
        self.record.in_flight = 0;
        for InFlight { sequence, .. } in std::mem::take(&mut self.pending) {
            self.suspicion.unusable(sequence);
            self.report(&RunEvent::CheckpointDropped(sequence));
        }
        if let Some(log) = self.tracer.log() {
            // One that has failed writes nothing any more, and is opened anew.
            let _ = log.void_above(newest);
        }
    }

    /// This program's own checkpoints, in rising order.
    fn committed(&self) -> Result<Vec<Sequence>> {
        let found = self.store.list(&self.claim.name)?.into_iter().map(|(sequence, _)| sequence);
        Ok(found.filter(|found| *found >= self.first).collect())
    }

    /// Builds the tree of a checkpoint; `covered` are the files that went back to it.
    pub(super) fn restore(&mut self, sequence: Sequence, covered: Covered) -> Result<()> {
        let path = self.store.get(&self.claim.name, sequence)?;
        let started = Instant::now();
        loop {
            let reader = self.store.read(&path)?;
            let parts = Parts::of_subject(&self.claim.directory);
            let options = RestoreOptions {
                pid: engine::PidPolicy::Same,
                inherited: self.streams.duplicates()?,
                files: self.files_at_restore(sequence, &parts, covered.clone()),
                connections_lost: true,
                terminal: self.foreground.offer(),
                watch: self.watching.as_ref().map(Watching::filter),
            };
            // Until here the dead root has kept its number from others.
            self.subject.release()?;
            let outcome = engine::restore(reader, options);
            parts.take().iter().for_each(|part| self.report(&RunEvent::MovedAside(part)));
            match outcome {
                Ok(restored) => {
                    self.foreground.accepted(restored.foreground);
                    self.resumed_after = restored.resumed_after;
                    self.subject = Subject::child(restored.root)?;
                    return Ok(());
                }
                Err(
                    EngineError::PidTaken(_)
                    | EngineError::PidUnreaped { .. }
                    | EngineError::PidOfGroup { .. },
                ) if started.elapsed() < PID_PATIENCE => {
                    self.household.clear_construction(&self.departed.before(sequence))?;
                    std::thread::sleep(PID_NAP);
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    pub(super) fn start_afresh(&mut self) -> Result<()> {
        let Guarded::Command(words) = &self.request.what else {
            return Err(GuardianError::NoWayBack { name: self.claim.name.to_string() });
        };
        self.household.clear(self.subject.pid(), &[], &HashSet::new())?;
        self.files_start_over()?;
        self.start_program(&words.clone())
    }

    /// Starts the program from its beginning, with files that are its own by now.
    pub(super) fn start_program(&mut self, words: &[OsString]) -> Result<()> {
        self.departed.forget();
        self.subject.release()?;
        self.resumed_after = sys::clock::monotonic();
        self.subject = spawn(words, &self.signals, &self.requests, self.watching.as_ref())?;
        self.is_ready = !self.request.await_ready;
        self.descends = None;
        self.suspicion.begins_afresh();
        // What older lives have left is not the past of this one.
        self.first = self.next;
        let why = self.fresh_reason.take();
        self.report(&RunEvent::StartedAfresh { pid: self.subject.pid(), why: why.as_deref() });
        Ok(())
    }

    fn begin_life(&mut self) -> Result<()> {
        if let Some(children) = &mut self.children {
            children.begin(self.subject.pid(), self.resumed_after)?;
        }
        self.ending = None;
        self.forget_failures();
        self.began = Instant::now();
        self.checkpoints_before = self.record.checkpoints;
        self.requests.forget();
        self.pace.begin(Instant::now());
        self.known = descendants(self.subject.pid());
        self.record.state = "running".to_owned();
        self.record.incarnation += 1;
        self.record.root = ProcessName::of(self.subject.key());
        self.record.first_sequence = self.first.get();
        self.write_record();
        self.hear_children()
    }
}

fn death(status: SubjectStatus) -> Death {
    Death { signal: status.signal(), exit: status.exit(), time: time::rfc3339(SystemTime::now()) }
}
