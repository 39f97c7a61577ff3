//! The decisions after the death of a subject.
//!
//! After a death, the state machine takes these steps:
//!
//! - The remaining processes of the subject are ended.
//! - The restart waits, if the back-off of restarts requires a wait. If the limit on restarts is reached, the run ends.
//! - The restart waits for checkpoints in flight. Checkpoints that do not become durable in time are invalidated.
//! - The newest usable checkpoint is restored, or the program starts from its beginning; `prospect` decides which.
//!
//! Owns: all decisions from the detection of a death to the beginning of the next incarnation.
//! Invariants: only a usable checkpoint is restored. If a restart has rolled files back to a checkpoint, the restart
//! does not try a newer checkpoint afterwards. An older checkpoint is tried only if the fault is the checkpoint's; a
//! step that fails for another reason is repeated (`retries`). Before a new incarnation begins, each checkpoint in
//! flight has become durable, has failed, or is invalidated. If files were rolled back to a checkpoint, the program
//! starts from its beginning only with files that were rolled back to the beginning.
//! Does not: end a process, or build one.

use std::time::{Duration, Instant};

use model::{Sequence, Signal};

use super::event::{Action, BEGINNING, Death, End, Failure, NotRestarted, Notice, RestoreError, State, Step};
use super::survey::{FreshReason, Prospect, Survey};
use super::{Exit, KilledFor, Subject};
use crate::fault::Fault;
use crate::status::{ChangedFiles, RestartPolicy, SubjectStatus};

/// A signal to the guardian requests the end of the subject, but a program in a terminal can ignore SIGINT and SIGQUIT. After
/// SIGINT or SIGQUIT, a death counts as requested if the same signal has killed the program, or if the death follows
/// within this time.
const SOFT_REQUEST: Duration = Duration::from_secs(60);
/// The longest wait for a checkpoint in flight if no other checkpoint exists. Without a checkpoint, the restart would
/// lose all work of the program. A disk that needs more time than this wait has failed.
const NO_OTHER_TIMEOUT: Duration = Duration::from_secs(600);
/// If another checkpoint exists, the wait for a checkpoint in flight is the time between two checkpoints, divided by
/// this number. A checkpoint saves the work of the program between two checkpoints, and the wait costs a tenth of this
/// time.
const EPOCH_SHARE: u32 = 10;
/// The shortest wait for a checkpoint in flight. Any restore takes longer than this wait.
const TIMEOUT_MIN: Duration = Duration::from_millis(20);
/// The longest wait for a checkpoint in flight if another checkpoint exists: about as long as a restore, and too short
/// for people to notice.
const TIMEOUT_MAX: Duration = Duration::from_millis(100);
/// An exit within this time after a restore can be an effect of the restore.
const RESTORE_EFFECT: Duration = Duration::from_secs(1);
/// How much longer than before the repetition of the same work can take.
const REPETITION_SLOWER: u32 = 2;

const HUP: Signal = Signal(1);
const INT: Signal = Signal(2);
const QUIT: Signal = Signal(3);

/// Returns the wait for checkpoints in flight if another checkpoint exists.
fn timeout(every: Duration) -> Duration {
    (every / EPOCH_SHARE).clamp(TIMEOUT_MIN, TIMEOUT_MAX)
}

impl Subject {
    pub(super) fn end_requested(&mut self, now: Instant, signal: Signal) {
        self.incarnation.ending = Some((signal, now));
        self.drop_request(NotRestarted::Ending);
        self.call_off(NotRestarted::Ending);
        if let State::BackingOff(death, _) = self.state {
            self.state = State::Ended(End::Over(death.status));
        } else if let Some(status) = self.retries.call_off() {
            self.state = State::Ended(End::Over(status));
        }
    }

    /// Kills the root for this reason. Does nothing if the root is already being killed or is asked to end: the restart
    /// must use a checkpoint from before the first failure. If the root is stopped for a requested restart, it is killed
    /// when it is resumed.
    pub(super) fn kill(&mut self, killed_for: KilledFor) {
        let is_first = self.incarnation.killed_for.is_none() && self.incarnation.ending.is_none();
        if matches!(self.state, State::Stopped { .. }) {
            self.incarnation.request.deferred_kill.get_or_insert(killed_for);
        } else if self.state.is_alive() && is_first {
            self.incarnation.killed_for = Some(killed_for);
            self.drop_request(NotRestarted::Ending);
            let notice = match killed_for {
                KilledFor::Child(_) => Notice::ChildFailed,
                KilledFor::Fault(fault) => Notice::Faulted(fault),
            };
            self.actions.extend([Action::Report(notice), Action::KillRoot]);
        }
    }

    pub(super) fn died(&mut self, now: Instant, own: SubjectStatus, has_terminal: bool) {
        if !self.state.is_alive() {
            return;
        }
        if matches!(self.state, State::Checkpointing { .. }) {
            // The guardian has not reported whether the checkpoint was taken. The log may already contain the sequence
            // number.
            self.checkpoints.advance();
        }
        let requested = self.died_stopped(now);
        let (status, fault) = match self.incarnation.killed_for.take() {
            _ if requested.is_some() => (own, requested),
            // If the root has ended successfully, the failure of the other process is ignored.
            Some(KilledFor::Child(signal)) if !self.plan.success.has(own) => {
                (SubjectStatus::Killed(signal), None)
            }
            Some(KilledFor::Fault(fault)) => (own, Some(fault)),
            _ => (own, None),
        };
        let was_asked_for = self.was_asked_for(now, status, has_terminal);
        self.incarnation.ending = None;
        let is_restarted = match fault {
            Some(Fault::Requested) => true,
            Some(_) => self.plan.restart != RestartPolicy::Never,
            None => self.plan.restart.restarts(status, self.plan.success),
        };
        if was_asked_for || !is_restarted {
            self.state = State::Ended(End::Over(status));
            return;
        }
        if fault.is_none() && self.has_ended_again(now, status) {
            self.actions.push(Action::Report(Notice::EndedAgain(status)));
            self.state = State::Ended(End::Over(status));
            return;
        }
        // `repeats` replaces the duration when the checkpoint of the next incarnation is known.
        let is_own_end = fault.is_none() && self.is_beyond_restore(now);
        let code = status.exit().filter(|_| is_own_end);
        self.incarnation.after = code.map(|code| Exit { code, repeats: Duration::ZERO });
        self.state = State::Dying(Death { status, fault, noticed: now });
        self.retries.begin(status);
        // `Clear` ends all remaining processes. Otherwise, a process could serve requests or write files during the
        // restore.
        self.actions.extend([Action::Report(Notice::Died(own)), Action::Clear]);
    }

    /// Reports whether the program has exited by itself with the same code as before the restart, and as soon as a
    /// repetition can be expected. A program that fails for the same reason again, and a program whose result is its
    /// exit code, would exit in the same way after every restart.
    ///
    /// Without checkpoints, and with `RestartPolicy::Always`, only the limit on restarts ends such a repetition.
    fn has_ended_again(&self, now: Instant, status: SubjectStatus) -> bool {
        let lived = now.saturating_duration_since(self.incarnation.began);
        let is_soon = |before: Exit| lived <= before.repeats * REPETITION_SLOWER + self.plan.limit.window;
        let is_same = |before: Exit| status == SubjectStatus::Exited(before.code);
        self.plan.every.is_some()
            && self.plan.restart == RestartPolicy::OnFailure
            && self.incarnation.after.is_some_and(|before| is_same(before) && is_soon(before))
    }

    /// Reports whether the incarnation has run for some time by itself. Soon after a restore, a program can exit because
    /// of the restore, for example if a connection has ended.
    fn is_beyond_restore(&self, now: Instant) -> bool {
        let incarnation = &self.incarnation;
        let lived = now.saturating_duration_since(incarnation.began);
        !incarnation.is_restored || incarnation.has_checkpoint || lived >= RESTORE_EFFECT
    }

    /// Records that the next incarnation begins at this checkpoint.
    pub(super) fn repeats(&mut self, from: Sequence) {
        let at = self.run_time.seen;
        if let Some(exit) = &mut self.incarnation.after {
            exit.repeats = self.run_time.since(from, at).unwrap_or_default();
        }
    }

    /// Reports whether the end of the subject was requested by a signal to the guardian, or by the terminal.
    ///
    /// The terminal sends signals only to the foreground process group. Therefore, the signals of the terminal count
    /// only if `has_terminal` is `true`.
    fn was_asked_for(&self, now: Instant, status: SubjectStatus, has_terminal: bool) -> bool {
        let is_death_by = |signal| status == SubjectStatus::Killed(signal);
        match self.incarnation.ending {
            None => has_terminal && [HUP, INT, QUIT].into_iter().any(is_death_by),
            Some((signal, at)) => {
                !self.is_soft(signal)
                    || is_death_by(signal)
                    || now.saturating_duration_since(at) < SOFT_REQUEST
            }
        }
    }

    /// Reports whether a program may take this signal as a request for something else than its end.
    pub(super) fn is_soft(&self, signal: Signal) -> bool {
        !self.plan.ends_on_request && (signal == INT || signal == QUIT)
    }

    pub(super) fn cleared(&mut self, now: Instant) {
        let State::Dying(death) = self.state else { return };
        if self.incarnation.ending.is_some() {
            self.state = State::Ended(End::Over(death.status));
            return;
        }
        if death.is_own() && !self.restarts.admit(death.noticed) {
            self.actions.push(Action::Report(Notice::GaveUp(self.plan.limit)));
            self.state = State::Ended(End::GaveUp(death.status));
            return;
        }
        let lived = now.saturating_duration_since(self.incarnation.began);
        let wait = if !death.is_own() {
            Duration::ZERO
        } else if death.is_from_outside() && self.incarnation.has_checkpoint {
            self.back_off.died_healthy()
        } else {
            self.back_off.died(lived)
        };
        if wait.is_zero() {
            self.begin_restore(death);
        } else {
            self.state = State::BackingOff(death, now + wait);
            self.actions.push(Action::Report(Notice::BacksOff(wait)));
        }
    }

    pub(super) fn begin_restore(&mut self, death: Death) {
        self.restart_count += 1;
        if self.plan.every.is_none() {
            self.start(false, None);
            return;
        }
        let step = if self.checkpoints.in_flight.is_empty() { Step::Judging } else { Step::Weighing };
        self.state = State::Restoring { death, step, has_failed: false };
        if death.fault.is_none() && self.plan.success.has(death.status) {
            self.leave_behind();
            self.start(false, None);
        } else {
            self.actions.push(Action::Survey);
        }
    }

    pub(super) fn surveyed(&mut self, now: Instant, survey: &Survey) {
        let State::Restoring { death, step, has_failed } = self.state else { return };
        match step {
            Step::Weighing => self.weigh(now, survey, death),
            Step::Judging if self.is_better_begun_anew(survey, death) => {
                self.start(self.goes_back(), Some(FreshReason::LastRestart));
            }
            Step::Judging | Step::Choosing => self.choose(survey, death, has_failed),
            Step::Settling(_) | Step::Building(_) => {}
        }
    }

    /// Decides how long the restore waits for the checkpoints that were in flight at the death.
    ///
    /// The wait is short if another usable checkpoint exists, or if no checkpoint in flight would be usable. Otherwise,
    /// the wait is at most `NO_OTHER_TIMEOUT`. At the end of the wait, `judge` invalidates the checkpoints that are not
    /// durable.
    fn weigh(&mut self, now: Instant, survey: &Survey, death: Death) {
        let in_flight: Vec<Sequence> = self.checkpoints.in_flight.iter().copied().collect();
        let is_worth_it = !self.usable(survey, &in_flight).is_empty();
        // The list of committed checkpoints can contain a checkpoint in flight, whose commit the guardian has not
        // reported yet.
        let mut others = self.own(survey);
        others.retain(|sequence| !in_flight.contains(sequence));
        let other = self.suspicion.choose(&self.usable(survey, &others));
        let has_other =
            other.is_some_and(|other| !self.is_too_old(other, survey, death.noticed)) || !is_worth_it;
        // With `Plan::once`, a checkpoint only replaces a start from the beginning. A long wait would take more time
        // than it saves.
        let has_other = has_other || self.plan.once;
        let until = death.noticed
            + if has_other { timeout(self.plan.every.unwrap_or_default()) } else { NO_OTHER_TIMEOUT };
        self.state = State::Restoring { death, step: Step::Settling(until), has_failed: false };
        if in_flight.is_empty() || now >= until {
            self.judge();
        }
    }

    /// Ends the wait for checkpoints in flight, and requests the list of checkpoints.
    pub(super) fn judge(&mut self) {
        let State::Restoring { death, .. } = self.state else { return };
        self.leave_behind();
        self.state = State::Restoring { death, step: Step::Judging, has_failed: false };
        self.actions.push(Action::Survey);
    }

    /// Invalidates the checkpoints in flight, because the next incarnation will not descend from these checkpoints.
    fn leave_behind(&mut self) {
        let dropped: Vec<Sequence> = self.checkpoints.in_flight.drain(..).collect();
        dropped.iter().for_each(|sequence| self.suspicion.unusable(*sequence));
        let newest = self.checkpoints.descends.unwrap_or(BEGINNING);
        self.actions.push(Action::LeaveBehind { dropped, newest });
    }

    /// Records the death as evidence against a checkpoint. Reports whether the program should start from its beginning.
    ///
    /// The program should start from its beginning if this restart is the last restart that the limit allows, and
    /// repeated deaths have already excluded a checkpoint. Otherwise, all restarts of the run could be restores that
    /// lead to a death. If the plan rolls files back, a rollback to the beginning must be possible.
    fn is_better_begun_anew(&mut self, survey: &Survey, death: Death) -> bool {
        if !death.is_own() {
            return false;
        }
        let blamed = if self.goes_back() {
            self.suspicion.choose(&self.usable(survey, &self.own(survey)))
        } else {
            self.checkpoints.descends
        };
        let poisoned = blamed
            .filter(|_| !death.is_from_outside())
            .and_then(|from| self.suspicion.died(from, death.noticed));
        self.actions.extend(poisoned.map(|poisoned| Action::Report(Notice::Poisoned(poisoned))));
        let has_files = !self.goes_back() || self.can_begin_again(survey, death.noticed);
        self.restarts.is_exhausted() && self.suspicion.has_avoided() && self.plan.can_start && has_files
    }

    /// Restores a checkpoint, starts the program from its beginning, or ends the run.
    fn choose(&mut self, survey: &Survey, death: Death, has_failed: bool) {
        let tried = self.own(survey).len();
        let failed = has_failed.then_some(FreshReason::NotRestorable { tried });
        match self.prospect(survey, death.noticed) {
            // A rollback to a checkpoint removes all newer epochs from the undo log. A newer checkpoint cannot be
            // reached afterwards. Therefore, `choose` returns checkpoints in falling order.
            Prospect::Restored(sequence) => {
                self.state = State::Restoring { death, step: Step::Building(sequence), has_failed };
                self.actions.push(Action::Restore(sequence));
            }
            Prospect::BegunAgain(why) => self.start(true, failed.or(why)),
            Prospect::BegunAnew(_) | Prospect::GivenUp
                if has_failed && (self.goes_back() || !self.plan.can_start) =>
            {
                self.state = State::Ended(End::Failed(Failure::NotRestorable { tried }));
            }
            Prospect::GivenUp => {
                self.actions.push(Action::Report(Notice::NotBegunAnew));
                self.state = State::Ended(End::GaveUp(death.status));
            }
            Prospect::Refused(newest) => {
                self.state = State::Ended(End::Failed(Failure::ChangedSince(newest)));
            }
            Prospect::BegunAnew(why) => self.start(false, failed.or(why)),
        }
    }

    fn start(&mut self, is_with_files: bool, why: Option<FreshReason>) {
        if self.plan.can_start {
            self.state = State::Starting { is_with_files };
            self.actions.push(Action::Start { is_with_files, why });
        } else {
            self.state = State::Ended(End::Failed(Failure::NoWayBack));
        }
    }

    pub(super) fn restored(&mut self, now: Instant) {
        let State::Restoring { death, step: Step::Building(sequence), .. } = self.state else { return };
        self.suspicion.begins(sequence, now);
        self.checkpoints.descends = Some(sequence);
        let took = now.saturating_duration_since(death.noticed);
        let age = self.run_time.since(sequence, death.noticed);
        self.actions.push(Action::Report(Notice::Restored { sequence, took, age }));
        self.repeats(sequence);
        self.run_time.restored(sequence, now);
        // A restored program counts as ready, because a checkpoint of the program has already been taken.
        self.begin_incarnation(now, true);
        self.incarnation.is_restored = true;
    }

    pub(super) fn not_restored(&mut self, now: Instant, error: RestoreError) {
        let State::Restoring { death, step: Step::Building(sequence), has_failed } = self.state else {
            return;
        };
        // An earlier attempt may have rolled the files back.
        let files_went_back = self.incarnation.files_went_back;
        self.incarnation.files_went_back |= self.goes_back() && error != RestoreError::FilesStay;
        if self.is_repeated(now, error) {
            return;
        }
        let is_of_files = error == RestoreError::FilesChanged && !self.goes_back();
        let notice = Notice::NotRestored { sequence, is_explained_next: is_of_files };
        match error {
            RestoreError::FilesHalfWay => self.state = State::Ended(End::Failed(Failure::LastError)),
            // An earlier attempt of this restart has rolled the files back.
            RestoreError::FilesStay if has_failed || files_went_back => {
                self.state = State::Ended(End::Failed(Failure::LastError))
            }
            RestoreError::NotNow | RestoreError::Configuration => {
                self.state = State::Ended(End::Failed(Failure::Stopped(sequence)));
            }
            RestoreError::FilesStay => self.start(false, Some(FreshReason::FilesStay(sequence))),
            RestoreError::FilesChanged if is_of_files => {
                self.actions.push(Action::Report(notice));
                if self.plan.files == ChangedFiles::Refuse || !self.plan.can_start {
                    self.state = State::Ended(End::Failed(Failure::LastError));
                } else {
                    self.start(false, Some(FreshReason::FilesChanged));
                }
            }
            RestoreError::FilesChanged | RestoreError::Unclear | RestoreError::Unusable => {
                self.suspicion.unusable(sequence);
                self.state = State::Restoring { death, step: Step::Choosing, has_failed: true };
                self.actions.extend([Action::Report(notice), Action::Survey]);
            }
        }
    }

    pub(super) fn not_started(&mut self, now: Instant, error: RestoreError) {
        match (self.state, error) {
            (State::Starting { .. }, _) if self.is_repeated(now, error) => {}
            (State::Starting { is_with_files: true }, RestoreError::FilesStay)
                if !self.incarnation.files_went_back && !self.suspicion.has_avoided() =>
            {
                self.start(false, Some(FreshReason::FilesStay(BEGINNING)));
            }
            (State::Starting { .. }, _) => self.state = State::Ended(End::Failed(Failure::LastError)),
            _ => {}
        }
    }

    /// Handles a failure to end the remaining processes, or to list the checkpoints.
    pub(super) fn step_failed(&mut self, now: Instant, error: RestoreError) {
        if self.is_repeated(now, error) {
            return;
        }
        if error == RestoreError::NotNow {
            self.state = State::Ended(End::Failed(Failure::LastError));
        } else {
            self.fail();
        }
    }

    /// Reports whether the step that has failed is repeated. If the end of the subject was requested meanwhile, ends the
    /// run instead.
    fn is_repeated(&mut self, now: Instant, error: RestoreError) -> bool {
        let Some((wait, is_first)) = self.retries.failed(now, error) else { return false };
        if self.incarnation.ending.is_some()
            && let Some(status) = self.retries.call_off()
        {
            self.state = State::Ended(End::Over(status));
        } else if is_first {
            self.actions.push(Action::Report(Notice::Repeats(wait)));
        }
        true
    }

    /// Handles a failed action by ending the run.
    pub(super) fn fail(&mut self) {
        let is_restart = matches!(self.state, State::Starting { .. } | State::Restoring { .. });
        self.state = State::Ended(if is_restart { End::Failed(Failure::LastError) } else { End::Left });
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Beginning, Event, Plan};
    use super::*;
    use crate::back_off::BackOffPlan;
    use crate::restarts::RestartLimit;
    use crate::status::Success;

    fn subject(files: ChangedFiles, now: Instant) -> Subject {
        let plan = Plan {
            every: Some(Duration::from_secs(1)),
            cost_limit: None,
            once: false,
            awaits_ready: false,
            restart: RestartPolicy::OnFailure,
            success: Success::default(),
            limit: RestartLimit::default(),
            back_off: BackOffPlan::default(),
            files,
            files_back_max: Duration::from_secs(10),
            can_start: true,
            ends_on_request: false,
            in_flight_max: 4,
        };
        let beginning = Beginning { next: Sequence(7), first: Sequence(1), newest: Some(Sequence(6)) };
        let mut subject = Subject::new(plan, beginning, now);
        assert!(subject.step(now, Event::Started).is_empty());
        subject
    }

    /// Simulates a crash of the subject, up to the list of checkpoints. Returns the actions that follow the list.
    fn crash(subject: &mut Subject, survey: &Survey, now: Instant) -> Vec<Action> {
        let status = SubjectStatus::Killed(Signal(11));
        subject.step(now, Event::Died { status, has_terminal: false, after_child: Vec::new() });
        subject.step(now, Event::Cleared);
        if let Some(until) = subject.wake(now) {
            subject.step(until, Event::Due);
        }
        subject.step(now, Event::Surveyed(survey.clone()))
    }

    #[test]
    fn a_late_end_after_a_soft_request_is_requested_only_of_a_service() {
        let now = Instant::now();
        for is_service in [false, true] {
            let mut subject = subject(ChangedFiles::Rewind, now);
            subject.plan.restart = RestartPolicy::Always;
            subject.plan.ends_on_request = is_service;
            subject.step(now, Event::EndRequested(INT));
            let (status, late) = (SubjectStatus::Exited(0), now + SOFT_REQUEST * 2);
            subject.step(late, Event::Died { status, has_terminal: false, after_child: Vec::new() });
            assert_eq!(subject.state == State::Ended(End::Over(status)), is_service);
        }
    }

    #[test]
    fn a_restart_takes_the_newest_checkpoint_that_is_committed_exact_and_not_suspected() {
        let now = Instant::now();
        let mut subject = subject(ChangedFiles::Rewind, now);
        let numbers = |numbers: &[u64]| numbers.iter().copied().map(Sequence).collect();
        let survey = Survey {
            committed: numbers(&[3, 4, 5, 6]),
            exact: numbers(&[0, 2, 3, 5, 7]),
            reaches_beginning: true,
            ..Survey::default()
        };
        assert_eq!(crash(&mut subject, &survey, now), [Action::Restore(Sequence(5))]);
        subject.step(now, Event::Restored);
        // Files cannot be rolled back to checkpoint 6. Therefore, both deaths are evidence against checkpoint 5, and
        // the second death excludes checkpoint 5.
        let poisoned = Action::Report(Notice::Poisoned(Sequence(5)));
        assert_eq!(crash(&mut subject, &survey, now), [poisoned, Action::Restore(Sequence(3))]);
        let failed = subject.step(now, Event::NotRestored(RestoreError::Unusable));
        assert_eq!(failed.last(), Some(&Action::Survey));
        let why = Some(FreshReason::NotRestorable { tried: 4 });
        let start = Action::Start { is_with_files: true, why };
        assert_eq!(subject.step(now, Event::Surveyed(survey)), [start]);
    }

    #[test]
    fn a_failure_that_is_not_the_checkpoints_is_repeated_with_the_same_checkpoint_and_then_ends_the_run() {
        let mut now = Instant::now();
        let mut subject = subject(ChangedFiles::Rewind, now);
        assert_eq!(crash(&mut subject, &all(&[5, 6]), now), [Action::Restore(Sequence(6))]);
        let mut attempts = 0;
        loop {
            let actions = subject.step(now, Event::NotRestored(RestoreError::NotNow));
            let Some(until) = subject.wake(now) else { break };
            assert!(actions.iter().all(|action| matches!(action, Action::Report(Notice::Repeats(_)))));
            assert_eq!(actions.is_empty(), attempts > 0, "only the first repetition is reported");
            assert_eq!(subject.step(now, Event::Due), []);
            now = until;
            assert_eq!(subject.step(now, Event::Due), [Action::Restore(Sequence(6))]);
            attempts += 1;
        }
        assert_eq!(subject.state(), State::Ended(End::Failed(Failure::Stopped(Sequence(6)))));
        assert!(attempts > 10, "{attempts}");
    }

    #[test]
    fn an_unclear_failure_is_the_checkpoints_only_if_it_repeats() {
        let mut now = Instant::now();
        let mut subject = subject(ChangedFiles::Rewind, now);
        crash(&mut subject, &all(&[5, 6]), now);
        for _ in 0..2 {
            subject.step(now, Event::NotRestored(RestoreError::Unclear));
            now = subject.wake(now).unwrap();
            assert_eq!(subject.step(now, Event::Due), [Action::Restore(Sequence(6))]);
        }
        let failed = subject.step(now, Event::NotRestored(RestoreError::Unclear));
        assert_eq!(failed.last(), Some(&Action::Survey));
        let next = subject.step(now, Event::Surveyed(all(&[5, 6])));
        assert_eq!(next, [Action::Restore(Sequence(5))]);
    }

    #[test]
    fn a_request_to_end_is_obeyed_while_a_step_waits_for_its_repetition() {
        let now = Instant::now();
        let mut subject = subject(ChangedFiles::Rewind, now);
        crash(&mut subject, &all(&[6]), now);
        subject.step(now, Event::NotRestored(RestoreError::NotNow));
        subject.step(now, Event::EndRequested(Signal(15)));
        assert_eq!(subject.state(), State::Ended(End::Over(SubjectStatus::Killed(Signal(11)))));
    }

    #[test]
    fn a_survey_that_fails_is_repeated() {
        let now = Instant::now();
        let mut subject = subject(ChangedFiles::Rewind, now);
        let status = SubjectStatus::Killed(Signal(9));
        subject.step(now, Event::Died { status, has_terminal: false, after_child: Vec::new() });
        assert_eq!(subject.step(now, Event::Cleared), [Action::Survey]);
        subject.step(now, Event::StepFailed(RestoreError::NotNow));
        let later = subject.wake(now).unwrap();
        assert_eq!(subject.step(later, Event::Due), [Action::Survey]);
        assert_eq!(subject.step(later, Event::Surveyed(all(&[5, 6]))), [Action::Restore(Sequence(6))]);
    }

    fn all(numbers: &[u64]) -> Survey {
        let numbers: Vec<Sequence> = numbers.iter().copied().map(Sequence).collect();
        Survey { committed: numbers.clone(), exact: numbers, ..Survey::default() }
    }

    fn end_for(subject: &mut Subject, fault: Fault, status: SubjectStatus, now: Instant) -> Vec<Action> {
        let killed = [Action::Report(Notice::Faulted(fault)), Action::KillRoot];
        assert_eq!(subject.step(now, Event::Faulted(fault)), killed);
        assert_eq!(subject.step(now, Event::Faulted(Fault::Hang)), [], "it is killed once");
        subject.step(now, Event::Died { status, has_terminal: false, after_child: Vec::new() });
        subject.step(now, Event::Cleared);
        if let Some(until) = subject.wake(now) {
            subject.step(until, Event::Due);
        }
        subject.step(now, Event::Surveyed(all(&[5, 6])))
    }

    #[test]
    fn a_fault_counts_like_a_crash_whatever_the_root_ends_with() {
        let now = Instant::now();
        let mut subject = subject(ChangedFiles::Keep, now);
        let clean = SubjectStatus::Exited(0);
        assert_eq!(end_for(&mut subject, Fault::Hang, clean, now), [Action::Restore(Sequence(6))]);
        subject.step(now, Event::Restored);
        let killed = SubjectStatus::Killed(Signal(9));
        let poisoned = Action::Report(Notice::Poisoned(Sequence(6)));
        let again = end_for(&mut subject, Fault::MissedHeartbeat, killed, now);
        assert_eq!(again, [poisoned, Action::Restore(Sequence(5))]);
        assert_eq!(subject.step(now, Event::Faulted(Fault::Hang)), [], "it is dead");
    }

    #[test]
    fn deaths_from_outside_blame_no_checkpoint() {
        let now = Instant::now();
        let mut subject = subject(ChangedFiles::Keep, now);
        let killed = SubjectStatus::Killed(Signal(9));
        for _ in 0..4 {
            subject.step(now, Event::Died { status: killed, has_terminal: false, after_child: Vec::new() });
            subject.step(now, Event::Cleared);
            if let Some(until) = subject.wake(now) {
                subject.step(until, Event::Due);
            }
            let actions = subject.step(now, Event::Surveyed(all(&[5, 6])));
            assert_eq!(actions, [Action::Restore(Sequence(6))]);
            subject.step(now, Event::Restored);
        }
    }

    #[test]
    fn the_death_of_another_member_of_the_group_counts_for_nothing() {
        let now = Instant::now();
        let mut subject = subject(ChangedFiles::Keep, now);
        let killed = SubjectStatus::Killed(Signal(9));
        for _ in 0..20 {
            assert_eq!(end_for(&mut subject, Fault::Group, killed, now), [Action::Restore(Sequence(6))]);
            subject.step(now, Event::Restored);
        }
    }

    #[test]
    fn a_checkpoint_that_commits_after_a_later_one_stays_unusable() {
        let mut now = Instant::now();
        let mut subject = subject(ChangedFiles::Keep, now);
        let taken = Event::Taken {
            ago: Duration::ZERO,
            pause: Duration::ZERO,
            arming: Duration::ZERO,
            sliced: None,
            is_store_slow: false,
            besides: Duration::ZERO,
        };
        for _ in 0..2 {
            now += Duration::from_secs(1);
            subject.step(now, Event::Due);
            subject.step(now, taken.clone());
        }
        let status = SubjectStatus::Killed(Signal(11));
        let after_child = vec![Sequence(7), Sequence(8)];
        subject.step(now, Event::Died { status, has_terminal: false, after_child });
        assert_eq!(subject.step(now, Event::Cleared), [Action::Survey]);
        subject.step(now, Event::Surveyed(Survey::default()));
        subject.step(now, Event::Committed { sequence: Sequence(8), oldest: Some(Sequence(8)) });
        subject.step(now, Event::Committed { sequence: Sequence(7), oldest: Some(Sequence(7)) });
        let actions = subject.step(now, Event::Surveyed(all(&[7, 8])));
        assert!(matches!(actions[..], [Action::Start { .. }]), "{actions:?}");
    }

    #[test]
    fn a_fault_follows_the_policy() {
        let now = Instant::now();
        let mut subject = subject(ChangedFiles::Keep, now);
        subject.plan.restart = RestartPolicy::Never;
        let killed = SubjectStatus::Killed(Signal(9));
        assert_eq!(end_for(&mut subject, Fault::Memory, killed, now), []);
        assert_eq!(subject.state(), State::Ended(End::Over(killed)));
    }

    #[test]
    fn without_checkpoints_a_restart_starts_the_program_at_once() {
        let now = Instant::now();
        let plan = Plan { every: None, ..subject(ChangedFiles::Rewind, now).plan };
        let beginning = Beginning { next: Sequence(1), first: Sequence(1), newest: None };
        let mut subject = Subject::new(plan, beginning, now);
        subject.step(now, Event::Started);
        subject.step(now, Event::Wanted);
        let later = now + Duration::from_secs(3_600);
        assert_eq!((subject.wake(later), subject.step(later, Event::Due)), (None, Vec::new()));
        let status = SubjectStatus::Killed(Signal(11));
        subject.step(later, Event::Died { status, has_terminal: false, after_child: Vec::new() });
        let start = Action::Start { is_with_files: false, why: None };
        assert_eq!(subject.step(later, Event::Cleared), [start]);
    }

    #[test]
    fn one_checkpoint_is_taken_of_each_incarnation_that_starts_from_its_beginning() {
        let (began, later) = (Instant::now(), Duration::from_secs(3_600));
        let plan = Plan { once: true, awaits_ready: true, ..subject(ChangedFiles::Append, began).plan };
        let beginning = Beginning { next: Sequence(1), first: Sequence(1), newest: None };
        let mut subject = Subject::new(plan, beginning, began);
        subject.step(began, Event::Started);
        assert_eq!(subject.wake(began), None, "it is not ready");
        subject.step(began, Event::Ready);
        let due = began + Duration::from_secs(1);
        assert_eq!(
            (subject.wake(began), subject.step(due, Event::Due)),
            (Some(due), vec![Action::Take(Sequence(1))])
        );
        subject.step(due, Event::NotTaken(super::super::event::NotTaken::Refused));
        let again = subject.wake(due).unwrap();
        assert_eq!(subject.step(again, Event::Due), [Action::Take(Sequence(2))]);
        let pause = Duration::from_millis(1);
        subject.step(
            again,
            Event::Taken {
                ago: Duration::ZERO,
                pause,
                arming: Duration::ZERO,
                sliced: None,
                is_store_slow: false,
                besides: Duration::ZERO,
            },
        );
        assert_eq!(subject.wake(again), None, "one is being written");
        subject.step(again, Event::Committed { sequence: Sequence(2), oldest: None });
        assert_eq!((subject.wake(again), subject.step(again + later, Event::Due)), (None, Vec::new()));
        let now = again + later;
        assert_eq!(crash(&mut subject, &all(&[2]), now), [Action::Restore(Sequence(2))]);
        subject.step(now, Event::Restored);
        assert_eq!(subject.step(now + later, Event::Due), []);
        // If files have changed, the program starts from its beginning. A new checkpoint is taken of the new
        // incarnation.
        crash(&mut subject, &all(&[2]), now + later);
        subject.step(now + later, Event::NotRestored(RestoreError::FilesChanged));
        subject.step(now + later, Event::Started);
        subject.step(now + later, Event::Ready);
        assert_eq!(subject.step(now + 2 * later, Event::Due), [Action::Take(Sequence(3))]);
    }

    fn exits(subject: &mut Subject, code: i32, now: Instant) -> Vec<Action> {
        let status = SubjectStatus::Exited(code);
        subject.step(now, Event::Died { status, has_terminal: false, after_child: Vec::new() })
    }

    #[test]
    fn a_program_that_exits_with_the_same_code_again_has_ended() {
        let mut now = Instant::now();
        let mut subject = subject(ChangedFiles::Keep, now);
        let unsatisfiable = SubjectStatus::Exited(20);
        assert!(exits(&mut subject, 20, now).contains(&Action::Clear));
        subject.step(now, Event::Cleared);
        assert_eq!(subject.step(now, Event::Surveyed(all(&[6]))), [Action::Restore(Sequence(6))]);
        subject.step(now, Event::Restored);
        now += Duration::from_secs(1);
        let ended = [Action::Report(Notice::EndedAgain(unsatisfiable))];
        assert_eq!(exits(&mut subject, 20, now), ended);
        assert_eq!(subject.state(), State::Ended(End::Over(unsatisfiable)));
    }

    #[test]
    fn an_exit_directly_after_a_restore_is_not_the_end_of_the_program() {
        let now = Instant::now();
        let mut subject = subject(ChangedFiles::Keep, now);
        let killed = SubjectStatus::Killed(Signal(9));
        subject.step(now, Event::Died { status: killed, has_terminal: false, after_child: Vec::new() });
        for _ in 0..2 {
            subject.step(now, Event::Cleared);
            if let Some(until) = subject.wake(now) {
                subject.step(until, Event::Due);
            }
            subject.step(now, Event::Surveyed(all(&[5, 6])));
            subject.step(now, Event::Restored);
            // A connection of the restored program has ended.
            assert!(exits(&mut subject, 1, now).contains(&Action::Clear));
        }
    }

    #[test]
    fn another_code_or_a_later_exit_is_another_failure() {
        let long = RestartLimit::default().window + Duration::from_secs(1);
        for (code, lived) in [(21, Duration::ZERO), (20, long)] {
            let mut now = Instant::now();
            let mut subject = subject(ChangedFiles::Keep, now);
            exits(&mut subject, 20, now);
            subject.step(now, Event::Cleared);
            subject.step(now, Event::Surveyed(all(&[6])));
            subject.step(now, Event::Restored);
            now += lived;
            assert!(exits(&mut subject, code, now).contains(&Action::Clear), "{code}");
        }
    }

    #[test]
    fn an_exit_that_counts_as_success_ends_the_run() {
        let now = Instant::now();
        for (code, success) in [(20, Success::default().with_code(20)), (143, Success::default())] {
            let mut subject = subject(ChangedFiles::Rewind, now);
            subject.plan.success = success;
            assert_eq!(exits(&mut subject, code, now), []);
            assert_eq!(subject.state(), State::Ended(End::Over(SubjectStatus::Exited(code))));
        }
    }

    #[test]
    fn a_wait_costs_little_and_is_never_long() {
        assert_eq!(timeout(Duration::from_millis(10)), TIMEOUT_MIN);
        assert_eq!(timeout(Duration::from_millis(500)), Duration::from_millis(50));
        assert_eq!(timeout(Duration::from_secs(3600)), TIMEOUT_MAX);
    }
}
