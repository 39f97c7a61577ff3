//! The schedule of a subject's checkpoints, and the state of each checkpoint until it is durable.
//!
//! Owns: the sequence numbers of checkpoints, the checkpoints in flight, and the count of late checkpoints.
//! Invariants: at most one checkpoint is taken at a time, and only while the subject runs. At most
//! `Plan::in_flight_max` checkpoints are in flight. The sequence number rises after each attempt that may have used the
//! number.
//! Does not: decide about deaths.

use std::time::{Duration, Instant};

use model::Sequence;

use super::event::{Action, LateReason, NotTaken, Sliced, State, Step};
use super::{Checkpoints, Subject};
use crate::pace::Costs;

/// The requests that a checkpoint fulfils.
struct Requested {
    /// Whether a process of the subject has requested the checkpoint.
    is_wanted: bool,
    /// The time at which a requested restart expires.
    restart_by: Option<Instant>,
}

impl Subject {
    /// Reports whether a checkpoint could be taken now.
    pub(super) fn can_take(&self) -> bool {
        self.state == State::Running
            && !self.checkpoints.is_opening
            && self.checkpoints.in_flight.len() < self.in_flight_max()
            && self.incarnation.killed_for.is_none()
    }

    /// Returns the number of checkpoints in flight at which no further checkpoint is taken. The checkpoint of a requested
    /// restart waits for all earlier checkpoints, so that the subject is not stopped meanwhile.
    fn in_flight_max(&self) -> usize {
        if self.incarnation.request.by.is_some() { 1 } else { self.plan.in_flight_max }
    }

    /// Returns the time at which the next checkpoint is due: now, if a checkpoint or a restart was requested. `None` if
    /// no checkpoint is due.
    pub(super) fn due_time(&self, now: Instant) -> Option<Instant> {
        let next = self.pace.next?;
        if self.incarnation.is_wanted || self.incarnation.request.by.is_some() {
            return Some(now);
        }
        (self.incarnation.is_ready && !self.has_enough()).then_some(next)
    }

    /// Reports whether the schedule requires no further checkpoint.
    fn has_enough(&self) -> bool {
        let Checkpoints { descends, in_flight, .. } = &self.checkpoints;
        self.plan.once && (descends.is_some() || !in_flight.is_empty())
    }

    pub(super) fn take_if_due(&mut self, now: Instant) {
        let Some(due) = self.due_time(now).filter(|due| *due <= now) else { return };
        if self.can_take() {
            let (sequence, is_wanted) = (self.checkpoints.next, self.incarnation.is_wanted);
            self.incarnation.is_wanted = false;
            let restart_by = self.incarnation.request.by.take();
            self.state = State::Checkpointing { sequence, is_wanted, restart_by };
            let is_last = restart_by.is_some();
            self.actions.push(if is_last { Action::TakeAndHold(sequence) } else { Action::Take(sequence) });
            return;
        }
        // A due checkpoint that cannot be taken is skipped and not queued. Rounds that pass while a checkpoint is being
        // taken are counted at its end.
        let is_idle = matches!(self.state, State::Running | State::Held) && !self.checkpoints.is_opening;
        let is_round = self.pace.next == Some(due) && is_idle;
        if is_round && self.checkpoints.late.replace(due) != Some(due) {
            let reason = if self.incarnation.is_held { LateReason::Held } else { LateReason::Writing };
            self.actions.push(Action::Late(reason, 1));
        }
    }

    /// Ends the state `Checkpointing`. Returns the requests for the checkpoint; `None` in every other state.
    fn answered(&mut self) -> Option<Requested> {
        let State::Checkpointing { is_wanted, restart_by, .. } = self.state else { return None };
        self.rest();
        Some(Requested { is_wanted, restart_by })
    }

    /// Makes the next checkpoint answer the requests for a checkpoint that was not taken.
    fn request_again(&mut self, requested: Requested) {
        self.incarnation.is_wanted |= requested.is_wanted;
        self.incarnation.request.by = requested.restart_by;
    }

    pub(super) fn taken(
        &mut self,
        now: Instant,
        ago: Duration,
        (pause, arming, besides): (Duration, Duration, Duration),
        sliced: Option<Sliced>,
        is_store_slow: bool,
    ) {
        let Some(requested) = self.answered() else { return };
        let sequence = self.checkpoints.next;
        self.checkpoints.in_flight.push_back(sequence);
        // The work after the begin of the pause, and output that peers got after it, are not in the checkpoint.
        let began = now.checked_sub(ago).unwrap_or(now);
        self.run_time.taken(sequence, began);
        self.checkpoints.advance();
        if arming > Duration::ZERO {
            self.pace.paused(arming);
        }
        let mut before = arming;
        if let Some(Sliced { longest, total }) = sliced {
            self.pace.paused(longest);
            before += total;
        }
        let reason = if is_store_slow { LateReason::Writing } else { LateReason::Copying };
        self.pass(now, Costs { pause, before, total: pause + before + besides }, reason);
        if requested.restart_by.is_some() {
            self.run_time.see(began);
            self.stays_stopped(now, sequence);
        }
    }

    pub(super) fn scanned(&mut self, now: Instant, pause: Duration) {
        if let Some(requested) = self.answered() {
            self.pass(now, Costs { pause, before: Duration::ZERO, total: pause }, LateReason::Copying);
            self.pace.committed(now);
            self.not_taken_for_restart(requested.restart_by);
        }
    }

    /// Counts the rounds that have passed during a checkpoint. If the checkpoint began late, the rounds were already
    /// counted with the reason of the delay.
    fn pass(&mut self, now: Instant, costs: Costs, reason: LateReason) {
        let began_late = self.checkpoints.late == self.pace.next;
        let passed = self.pace.taken(costs, now);
        if passed > 0 && !began_late {
            self.actions.push(Action::Late(reason, passed));
        }
    }

    pub(super) fn not_taken(&mut self, now: Instant, why: NotTaken) {
        let Some(requested) = self.answered() else { return };
        match why {
            NotTaken::Behind => {
                self.request_again(requested);
                self.actions.push(Action::Late(LateReason::Writing, 1));
                return;
            }
            NotTaken::TrackerReplaced => self.request_again(requested),
            NotTaken::Refused => {
                self.pace.failed(now);
                self.not_taken_for_restart(requested.restart_by);
            }
            NotTaken::Dying => {}
        }
        self.checkpoints.advance();
    }

    pub(super) fn log_lost(&mut self) {
        let Some(requested) = self.answered() else { return };
        self.request_again(requested);
        self.checkpoints.in_flight.clear();
        self.checkpoints.is_opening = true;
        self.actions.push(Action::OpenLog);
    }

    pub(super) fn log_not_opened(&mut self, now: Instant, is_dying: bool) {
        if !std::mem::take(&mut self.checkpoints.is_opening) {
            return;
        }
        // A remaining request would immediately open the log again.
        self.incarnation.is_wanted = false;
        let restart_by = self.incarnation.request.by.take();
        self.not_taken_for_restart(restart_by);
        self.checkpoints.advance();
        if !is_dying {
            self.pace.failed(now);
        }
    }

    pub(super) fn committed(&mut self, now: Instant, sequence: Sequence, oldest: Option<Sequence>) {
        if !self.checkpoints.remove(sequence) {
            return;
        }
        self.pace.committed(now);
        self.checkpoints.descends = Some(sequence);
        self.suspicion.committed(sequence);
        self.incarnation.has_checkpoint = true;
        if let Some(oldest) = oldest {
            // An older checkpoint may still be in flight.
            let first = self.checkpoints.in_flight.front().copied();
            let oldest = first.map_or(oldest, |first| first.min(oldest));
            self.suspicion.forget_below(oldest);
            self.run_time.forget_below(oldest);
        }
        self.check_if_last(sequence);
        self.judge_if_settled();
    }

    pub(super) fn not_committed(&mut self, now: Instant, sequence: Sequence, is_failure: bool) {
        self.checkpoints.remove(sequence);
        if is_failure {
            self.pace.failed(now);
        }
        self.last_not_written(sequence);
        self.judge_if_settled();
    }

    fn judge_if_settled(&mut self) {
        let is_settling = matches!(self.state, State::Restoring { step: Step::Settling(_), .. });
        if is_settling && self.checkpoints.in_flight.is_empty() {
            self.judge();
        }
    }
}
