//! A requested restart: an operator lets a subject continue from a checkpoint of this moment. A hold
//! begins in the same way: the subject is stopped for a checkpoint, and stays stopped until an operator ends the hold.
//!
//! For a restart, the subject is stopped for the checkpoint, and stays stopped until the checkpoint is durable and was checked. Then
//! the subject is killed, and the steps after a death follow. The death counts neither for the limit on restarts nor
//! against a checkpoint.
//!
//! Owns: the steps from the request to the kill, and their time limits.
//! Invariants: the subject is killed only if a restart would now restore the checkpoint of this moment. Otherwise the
//! subject continues as it was. A subject that is stopped for a restart is either killed or resumed within
//! [`STOPPED_MAX`]. A hold has a time limit.
//! Does not: restore the checkpoint; `death` does.

use std::time::{Duration, Instant};

use model::Sequence;

use super::event::{Action, NotRestarted, Notice, State, StopStep};
use super::survey::{Prospect, Survey};
use super::{KilledFor, Subject};
use crate::fault::Fault;

/// The longest time from a request until the subject is stopped. Meanwhile, earlier checkpoints are written, or the
/// program defers checkpoints.
const REQUEST_MAX: Duration = Duration::from_secs(30);
/// The longest time for which the subject is stopped until its checkpoint is durable. Peers wait longer than this time
/// before they give up.
const STOPPED_MAX: Duration = Duration::from_secs(10);

impl StopStep {
    /// Returns the time at which the step is called off.
    pub(super) fn until(self) -> Option<Instant> {
        match self {
            Self::Writing(until) | Self::Holding(until) => Some(until),
            Self::Checking | Self::Killing | Self::Resuming => None,
        }
    }
}

impl Subject {
    /// Accepts a request for a restart, or reports why the program cannot be restarted. A request during another
    /// request has no effect.
    pub(super) fn restart_requested(&mut self, now: Instant) {
        if self.is_restart_requested() {
            return;
        }
        match self.why_not_restarted() {
            Some(why) => self.report_not_restarted(why),
            None => self.incarnation.request.by = Some(now + REQUEST_MAX),
        }
    }

    /// Accepts a request for a hold, or reports why the program cannot be held. A request during another request has no
    /// effect.
    pub(super) fn hold_requested(&mut self, now: Instant, time: Duration) {
        if !self.is_restart_requested() {
            self.incarnation.request.holds = Some(time);
            self.restart_requested(now);
        }
    }

    /// Ends a hold. Does nothing if the subject is not held.
    pub(super) fn release(&mut self, is_late: bool) {
        if let State::Stopped { step: step @ StopStep::Holding(_), .. } = &mut self.state {
            *step = StopStep::Resuming;
            self.actions.extend([Action::ResumeHeld, Action::Report(Notice::Released { is_late })]);
        }
    }

    /// Reports whether a restart or a hold is in progress.
    #[must_use]
    pub fn is_restart_requested(&self) -> bool {
        self.incarnation.request.by.is_some()
            || matches!(self.state, State::Checkpointing { restart_by: Some(_), .. } | State::Stopped { .. })
    }

    fn why_not_restarted(&self) -> Option<NotRestarted> {
        if self.plan.every.is_none() {
            return Some(NotRestarted::NoCheckpoints);
        }
        if self.plan.once {
            return Some(NotRestarted::OnlyInitial);
        }
        if !self.state.is_alive() || self.is_ending() {
            return Some(NotRestarted::Ending);
        }
        (!self.incarnation.is_ready).then_some(NotRestarted::NotReady)
    }

    fn is_ending(&self) -> bool {
        self.incarnation.ending.is_some() || self.incarnation.killed_for.is_some()
    }

    fn report_not_restarted(&mut self, why: NotRestarted) {
        self.incarnation.request.holds = None;
        self.actions.push(Action::Report(Notice::NotRestarted(why)));
    }

    /// Drops a request whose checkpoint is not being taken yet.
    pub(super) fn drop_request(&mut self, why: NotRestarted) {
        if self.incarnation.request.by.take().is_some() {
            self.report_not_restarted(why);
        }
    }

    pub(super) fn expire_request(&mut self, now: Instant) {
        if self.incarnation.request.by.is_some_and(|until| now >= until) {
            self.drop_request(NotRestarted::Late);
        }
    }

    /// Reports that the checkpoint for a requested restart was not taken. Does nothing without a request.
    pub(super) fn not_taken_for_restart(&mut self, restart_by: Option<Instant>) {
        if restart_by.is_some() {
            self.report_not_restarted(NotRestarted::NotTaken);
        }
    }

    /// Handles the last checkpoint, after which the subject stays stopped.
    pub(super) fn stays_stopped(&mut self, now: Instant, sequence: Sequence) {
        let step = match self.incarnation.request.holds.take() {
            Some(time) => StopStep::Holding(now + time),
            None => StopStep::Writing(now + STOPPED_MAX),
        };
        self.state = State::Stopped { sequence, step };
        if self.is_ending() {
            self.call_off(NotRestarted::Ending);
        }
    }

    /// Resumes the stopped subject, unless it is already being killed or resumed.
    pub(super) fn call_off(&mut self, why: NotRestarted) {
        self.release(why == NotRestarted::Late);
        if let State::Stopped { step: step @ (StopStep::Writing(_) | StopStep::Checking), .. } =
            &mut self.state
        {
            *step = StopStep::Resuming;
            self.actions.push(Action::ResumeHeld);
            self.report_not_restarted(why);
        }
    }

    pub(super) fn check_if_last(&mut self, committed: Sequence) {
        if let State::Stopped { sequence, step: step @ StopStep::Writing(_) } = &mut self.state
            && *sequence == committed
        {
            *step = StopStep::Checking;
            self.actions.push(Action::Check(committed));
        }
    }

    pub(super) fn last_not_written(&mut self, failed: Sequence) {
        if matches!(self.state, State::Stopped { sequence, step: StopStep::Writing(_) } if sequence == failed)
        {
            self.call_off(NotRestarted::NotWritten);
        }
    }

    /// Kills the subject, if a restart would restore its last checkpoint.
    pub(super) fn checked(&mut self, survey: &Survey) {
        let State::Stopped { sequence, step: StopStep::Checking } = self.state else { return };
        if matches!(self.incarnation.request.deferred_kill, Some(KilledFor::Child(_))) {
            // The child may have died before the checkpoint, which then lacks the child.
            return self.call_off(NotRestarted::Ending);
        }
        // The subject is stopped since the checkpoint, so this time does not count.
        if self.prospect(survey, self.run_time.seen) == Prospect::Restored(sequence) {
            self.state = State::Stopped { sequence, step: StopStep::Killing };
            self.actions.extend([Action::Report(Notice::Faulted(Fault::Requested)), Action::KillHeld]);
        } else {
            self.call_off(NotRestarted::NotUsable);
        }
    }

    /// Continues after a stop. A failure that was reported during the stop is handled now.
    pub(super) fn held_resumed(&mut self, now: Instant) {
        if !matches!(self.state, State::Stopped { step: StopStep::Resuming, .. }) {
            return;
        }
        self.continued(now);
        self.rest();
        if let Some(killed_for) = self.incarnation.request.deferred_kill.take() {
            self.kill(killed_for);
        }
    }

    /// Ends the stop of a subject that has died. Returns the fault of a requested death.
    pub(super) fn died_stopped(&mut self, now: Instant) -> Option<Fault> {
        let State::Stopped { step, .. } = self.state else { return None };
        self.run_time.continues(now);
        (step == StopStep::Killing).then_some(Fault::Requested)
    }
}
