//! When a checkpoint is taken, and the way of each one until it is durable.
//!
//! Owns: the numbers of checkpoints, those in flight, checkpoints that are late.
//! Invariants: one is taken at a time, of a subject that runs; at most `Plan::in_flight_max` are in flight; a number
//! rises with each attempt that may have used it.
//! Does not: judge deaths.

use std::time::{Duration, Instant};

use model::Sequence;

use super::event::{Action, LateReason, NotTaken, Sliced, State, Step};
use super::{Checkpoints, Subject};

impl Subject {
    /// Whether a checkpoint could be taken now.
    pub(super) fn can_take(&self) -> bool {
        self.state == State::Running
            && !self.checkpoints.is_opening
            && self.checkpoints.in_flight.len() < self.plan.in_flight_max
            && self.incarnation.killed_for.is_none()
    }

    /// When the next checkpoint is due; never without checkpoints.
    pub(super) fn due_time(&self, now: Instant) -> Option<Instant> {
        let next = self.pace.next()?;
        if self.incarnation.is_wanted {
            return Some(now);
        }
        (self.incarnation.is_ready && !self.has_enough()).then_some(next)
    }

    /// Whether no further checkpoint is due by the clock.
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
        // The rate falls, and nothing piles up. Rounds that pass while one is taken are counted when it was.
        let is_idle = matches!(self.state, State::Running | State::Held) && !self.checkpoints.is_opening;
        let is_round = self.pace.next() == Some(due) && is_idle;
        if is_round && self.checkpoints.late.replace(due) != Some(due) {
            let reason = if self.incarnation.is_held { LateReason::Held } else { LateReason::Writing };
            self.actions.push(Action::Late(reason, 1));
        }
    }

    /// Whether `Take` was waiting for this answer; the subject is at rest then.
    fn answered(&mut self) -> Option<bool> {
        let State::Checkpointing { is_wanted, .. } = self.state else { return None };
        self.rest();
        Some(is_wanted)
    }

    pub(super) fn taken(
        &mut self,
        now: Instant,
        (pause, arming): (Duration, Duration),
        sliced: Option<Sliced>,
        is_store_slow: bool,
    ) {
        if self.answered().is_none() {
            return;
        }
        self.checkpoints.in_flight.push_back(self.checkpoints.next);
        self.checkpoints.advance();
        if arming > Duration::ZERO {
            self.pace.paused(arming);
        }
        self.pass(now, pause, if is_store_slow { LateReason::Writing } else { LateReason::Copying });
        if let Some(Sliced { longest, total }) = sliced {
            self.pace.sliced(longest, total, now);
        }
    }

    pub(super) fn looked(&mut self, now: Instant, pause: Duration) {
        if self.answered().is_some() {
            self.pass(now, pause, LateReason::Copying);
            self.pace.committed(now);
        }
    }

    /// One was taken, and rounds may have passed meanwhile. If it began late, they were counted with the reason of that.
    fn pass(&mut self, now: Instant, pause: Duration, reason: LateReason) {
        let began_late = self.checkpoints.late == self.pace.next();
        let passed = self.pace.taken(pause, now);
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
        // Otherwise it would be opened again immediately, for the waiting callers.
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
            // An older one may still be in flight.
            let first = self.checkpoints.in_flight.front().copied();
            self.suspicion.forget_below(first.map_or(oldest, |first| first.min(oldest)));
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
