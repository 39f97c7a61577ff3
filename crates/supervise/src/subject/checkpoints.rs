//! The schedule of a subject's checkpoints, and the state of each checkpoint until it is durable.
//!
//! A subject is a protected program. A checkpoint in flight was taken, and is not yet durable. A round is one interval
//! of the schedule.
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

impl Subject {
    /// Reports whether a checkpoint could be taken now.
    pub(super) fn can_take(&self) -> bool {
        self.state == State::Running
            && !self.checkpoints.is_opening
            && self.checkpoints.in_flight.len() < self.plan.in_flight_max
            && self.incarnation.killed_for.is_none()
    }

    /// Returns the time at which the next checkpoint is due: now, if a process has requested a checkpoint. `None` if no
    /// checkpoint is due.
    pub(super) fn due_time(&self, now: Instant) -> Option<Instant> {
        let next = self.pace.next()?;
        if self.incarnation.is_wanted {
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
            self.state = State::Checkpointing { sequence, is_wanted };
            self.actions.push(Action::Take(sequence));
            return;
        }
        // A due checkpoint that cannot be taken is skipped and not queued. Rounds that pass while a checkpoint is being
        // taken are counted at its end.
        let is_idle = matches!(self.state, State::Running | State::Held) && !self.checkpoints.is_opening;
        let is_round = self.pace.next() == Some(due) && is_idle;
        if is_round && self.checkpoints.late.replace(due) != Some(due) {
            let reason = if self.incarnation.is_held { LateReason::Held } else { LateReason::Writing };
            self.actions.push(Action::Late(reason, 1));
        }
    }

    /// Ends the state `Checkpointing`. Returns whether a process had requested the checkpoint; `None` in every other
    /// state.
    fn answered(&mut self) -> Option<bool> {
        let State::Checkpointing { is_wanted, .. } = self.state else { return None };
        self.rest();
        Some(is_wanted)
    }

    pub(super) fn taken(
        &mut self,
        now: Instant,
        ago: Duration,
        (pause, arming, besides): (Duration, Duration, Duration),
        sliced: Option<Sliced>,
        is_store_slow: bool,
    ) {
        if self.answered().is_none() {
            return;
        }
        self.checkpoints.in_flight.push_back(self.checkpoints.next);
        // The work after the begin of the pause, and output that peers got after it, are not in the checkpoint.
        self.run_time.taken(self.checkpoints.next, now.checked_sub(ago).unwrap_or(now));
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
    }

    pub(super) fn scanned(&mut self, now: Instant, pause: Duration) {
        if self.answered().is_some() {
            self.pass(now, Costs { pause, before: Duration::ZERO, total: pause }, LateReason::Copying);
            self.pace.committed(now);
        }
    }

    /// Counts the rounds that have passed during a checkpoint. If the checkpoint began late, the rounds were already
    /// counted with the reason of the delay.
    fn pass(&mut self, now: Instant, costs: Costs, reason: LateReason) {
        let began_late = self.checkpoints.late == self.pace.next();
        let passed = self.pace.taken(costs, now);
        if passed > 0 && !began_late {
            self.actions.push(Action::Late(reason, passed));
        }
    }

    pub(super) fn not_taken(&mut self, now: Instant, why: NotTaken) {
        let Some(was_wanted) = self.answered() else { return };
        match why {
            NotTaken::Behind => {
                self.incarnation.is_wanted |= was_wanted;
                self.actions.push(Action::Late(LateReason::Writing, 1));
                return;
            }
            NotTaken::TrackerReplaced => self.incarnation.is_wanted |= was_wanted,
            NotTaken::Refused => self.pace.failed(now),
            NotTaken::Dying => {}
        }
        self.checkpoints.advance();
    }

    pub(super) fn log_lost(&mut self) {
        let Some(was_wanted) = self.answered() else { return };
        self.incarnation.is_wanted |= was_wanted;
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
        self.judge_if_settled();
    }

    pub(super) fn not_committed(&mut self, now: Instant, sequence: Sequence, is_failure: bool) {
        self.checkpoints.remove(sequence);
        if is_failure {
            self.pace.failed(now);
        }
        self.judge_if_settled();
    }

    fn judge_if_settled(&mut self) {
        let is_settling = matches!(self.state, State::Restoring { step: Step::Settling(_), .. });
        if is_settling && self.checkpoints.in_flight.is_empty() {
            self.judge();
        }
    }
}
