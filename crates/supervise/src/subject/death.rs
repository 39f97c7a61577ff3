//! What follows a death.
//!
//! Owns: the decisions between the notice of a death and the next incarnation.
//! Invariants: a checkpoint is restored only if it was committed before that, belongs to this program, was not passed
//! over, and, where files go back, if they can go back to it. What is still being written is waited for, or left
//! behind, before a new incarnation begins.
//! Does not: end a process, or build one.

use std::time::{Duration, Instant};

use model::{Sequence, Signal};

use super::event::{Action, Death, End, Failure, FreshReason, Notice, RestoreError, State, Step, Survey};
use super::{KilledFor, Subject};
use crate::status::{ChangedFiles, RestartPolicy, SubjectStatus};

/// How long after a signal that programs can survive, such as Ctrl-C, a death counts as requested.
const SOFT_REQUEST: Duration = Duration::from_secs(60);
/// How long the only checkpoint is waited for: a disk that takes longer has failed, and an hour's work is worth it.
const NO_OTHER_TIMEOUT: Duration = Duration::from_secs(600);
/// The part of the time between two checkpoints that a dead subject waits for one in flight: so a wait costs at most a
/// tenth of what it saves.
const EPOCH_SHARE: u32 = 10;
/// Waited for even at high rates: a fraction of what any restore takes.
const TIMEOUT_MIN: Duration = Duration::from_millis(20);
/// The longest such wait, however much it would save: below what people notice, and of the order of a restore.
const TIMEOUT_MAX: Duration = Duration::from_millis(100);
/// Stands for the beginning of the program. No checkpoint has this number.
const BEGINNING: Sequence = Sequence(0);

const HUP: Signal = Signal(1);
const INT: Signal = Signal(2);
const QUIT: Signal = Signal(3);

/// How long a dead subject waits for checkpoints in flight, while there is another one.
fn timeout(every: Duration) -> Duration {
    (every / EPOCH_SHARE).clamp(TIMEOUT_MIN, TIMEOUT_MAX)
}

impl Subject {
    pub(super) fn end_requested(&mut self, now: Instant, signal: Signal) {
        self.incarnation.ending = Some((signal, now));
        if let State::BackingOff(death, _) = self.state {
            self.state = State::Ended(End::Over(death.status));
        }
    }

    /// Kills the root. The first reason counts: for the first failure of a process, the restart goes back behind it.
    pub(super) fn kill(&mut self, killed_for: KilledFor) {
        let is_first = self.incarnation.killed_for.is_none() && self.incarnation.ending.is_none();
        if self.state.is_alive() && is_first {
            self.incarnation.killed_for = Some(killed_for);
            let notice = match killed_for {
                KilledFor::Child(_) => Notice::ChildFailed,
                KilledFor::Fault(fault) => Notice::Faulted(fault),
            };
            self.actions.extend([Action::Tell(notice), Action::KillRoot]);
        }
    }

    pub(super) fn died(&mut self, now: Instant, own: SubjectStatus, has_terminal: bool) {
        if !self.state.is_alive() {
            return;
        }
        if matches!(self.state, State::Checkpointing { .. }) {
            // What became of it was not reported: its number may be used.
            self.checkpoints.advance();
        }
        let (status, fault) = match self.incarnation.killed_for.take() {
            // The root may have exited successfully in the moment in which a child failed.
            Some(KilledFor::Child(signal)) if !own.is_clean() => (SubjectStatus::Killed(signal), None),
            Some(KilledFor::Fault(fault)) => (own, Some(fault)),
            _ => (own, None),
        };
        let was_asked_for = self.was_asked_for(now, status, has_terminal);
        self.incarnation.ending = None;
        let is_restarted = match fault {
            Some(_) => self.plan.restart != RestartPolicy::Never,
            None => self.plan.restart.restarts(status),
        };
        if was_asked_for || !is_restarted {
            self.state = State::Ended(End::Over(status));
            return;
        }
        self.state = State::Dying(Death { status, fault, noticed: now });
        // Until then, no process of an incarnation that is to be taken back serves or writes.
        self.actions.extend([Action::Tell(Notice::Died(own)), Action::Clear]);
    }

    /// Whether the subject was asked to end: by a signal to the guardian, or by its terminal, whose signals reach only
    /// the foreground group.
    fn was_asked_for(&self, now: Instant, status: SubjectStatus, has_terminal: bool) -> bool {
        let is_death_by = |signal| status == SubjectStatus::Killed(signal);
        match self.incarnation.ending {
            None => has_terminal && [HUP, INT, QUIT].into_iter().any(is_death_by),
            Some((signal, at)) => {
                let is_soft = signal == INT || signal == QUIT;
                !is_soft || is_death_by(signal) || now.saturating_duration_since(at) < SOFT_REQUEST
            }
        }
    }

    pub(super) fn cleared(&mut self, now: Instant) {
        let State::Dying(death) = self.state else { return };
        if self.incarnation.ending.is_some() {
            self.state = State::Ended(End::Over(death.status));
            return;
        }
        if death.is_own() && !self.restarts.admit(death.noticed) {
            self.actions.push(Action::Tell(Notice::GaveUp(self.plan.limit)));
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
            self.actions.push(Action::Tell(Notice::BacksOff(wait)));
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
        if death.is_clean() {
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
                self.start_with_files(Some(FreshReason::LastRestart), survey);
            }
            Step::Judging | Step::Choosing => self.choose(survey, death, has_failed),
            Step::Settling(_) | Step::Building(_) => {}
        }
    }

    /// Decides about the checkpoints that were being written when the subject died. They are waited for while that
    /// costs little, or when there are no others; else they are left behind.
    fn weigh(&mut self, now: Instant, survey: &Survey, death: Death) {
        let in_flight: Vec<Sequence> = self.checkpoints.in_flight.iter().copied().collect();
        let is_worth_it = !self.usable(survey, &in_flight).is_empty();
        // A reader may find those in flight whole already.
        let mut others = self.own(survey);
        others.retain(|sequence| !in_flight.contains(sequence));
        let has_other = self.suspicion.choose(&self.usable(survey, &others)).is_some() || !is_worth_it;
        // What a single checkpoint saves is a start.
        let has_other = has_other || self.plan.once;
        let until = death.noticed
            + if has_other { timeout(self.plan.every.unwrap_or_default()) } else { NO_OTHER_TIMEOUT };
        self.state = State::Restoring { death, step: Step::Settling(until), has_failed: false };
        if in_flight.is_empty() || now >= until {
            self.judge();
        }
    }

    /// Ends the wait for checkpoints in flight.
    pub(super) fn judge(&mut self) {
        let State::Restoring { death, .. } = self.state else { return };
        self.leave_behind();
        self.state = State::Restoring { death, step: Step::Judging, has_failed: false };
        self.actions.push(Action::Survey);
    }

    /// Invalidates the checkpoints in flight, since an older one is restored.
    fn leave_behind(&mut self) {
        let dropped: Vec<Sequence> = self.checkpoints.in_flight.drain(..).collect();
        dropped.iter().for_each(|sequence| self.suspicion.unusable(*sequence));
        let newest = self.checkpoints.descends.unwrap_or(BEGINNING);
        self.actions.push(Action::LeaveBehind { dropped, newest });
    }

    /// Judges the checkpoint that the death speaks against. Gives whether the program starts from its beginning since
    /// going on step by step would end in giving up, with no try left for the beginning.
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
        self.actions.extend(poisoned.map(|poisoned| Action::Tell(Notice::Poisoned(poisoned))));
        self.restarts.is_exhausted() && self.suspicion.has_avoided() && self.plan.can_start
    }

    /// Restores the newest checkpoint that may be used, else starts the program from its beginning.
    fn choose(&mut self, survey: &Survey, death: Death, has_failed: bool) {
        let committed = self.own(survey);
        // Going back drops what came later from the undo log: a later checkpoint is never chosen after an earlier one.
        if let Some(sequence) = self.suspicion.choose(&self.usable(survey, &committed)) {
            self.state = State::Restoring { death, step: Step::Building(sequence), has_failed };
            self.actions.push(Action::Restore(sequence));
            return;
        }
        let tried = committed.len();
        let why = if has_failed {
            Some(FreshReason::NotRestorable { tried })
        } else {
            (self.goes_back() && tried > 0).then_some(FreshReason::NoneExact)
        };
        if has_failed && !self.plan.can_start {
            self.state = State::Ended(End::Failed(Failure::NotRestorable { tried }));
        } else {
            self.start_with_files(why, survey);
        }
    }

    /// Starts the program from its beginning, with its files of then where these can go back to it.
    fn start_with_files(&mut self, why: Option<FreshReason>, survey: &Survey) {
        self.start(self.goes_back() && survey.reaches_beginning, why);
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
        self.actions.push(Action::Tell(Notice::Restored(sequence, took)));
        // Where it is now, it has been checkpointed before.
        self.begin_incarnation(now, true);
    }

    pub(super) fn not_restored(&mut self, error: RestoreError) {
        let State::Restoring { death, step: Step::Building(sequence), .. } = self.state else { return };
        let is_of_files = error == RestoreError::FilesChanged && !self.goes_back();
        let notice = Notice::NotRestored { sequence, is_explained_next: is_of_files };
        match error {
            RestoreError::FilesHalfWay => self.state = State::Ended(End::Failed(Failure::LastError)),
            RestoreError::FilesStay => self.start(false, Some(FreshReason::FilesStay(sequence))),
            RestoreError::FilesChanged if is_of_files => {
                self.actions.push(Action::Tell(notice));
                if self.plan.files == ChangedFiles::Refuse || !self.plan.can_start {
                    self.state = State::Ended(End::Failed(Failure::LastError));
                } else {
                    self.start(false, Some(FreshReason::FilesChanged));
                }
            }
            RestoreError::FilesChanged | RestoreError::Unusable => {
                self.suspicion.unusable(sequence);
                self.state = State::Restoring { death, step: Step::Choosing, has_failed: true };
                self.actions.extend([Action::Tell(notice), Action::Survey]);
            }
        }
    }

    pub(super) fn not_started(&mut self, error: RestoreError) {
        match (self.state, error) {
            (State::Starting { is_with_files: true }, RestoreError::FilesStay) => {
                self.start(false, Some(FreshReason::FilesStay(BEGINNING)));
            }
            (State::Starting { .. }, _) => self.state = State::Ended(End::Failed(Failure::LastError)),
            _ => {}
        }
    }

    /// An action could not be carried out.
    pub(super) fn fail(&mut self) {
        let is_restart = matches!(self.state, State::Starting { .. } | State::Restoring { .. });
        self.state = State::Ended(if is_restart { End::Failed(Failure::LastError) } else { End::Left });
    }

    fn goes_back(&self) -> bool {
        self.plan.files == ChangedFiles::Rewind
    }

    /// This program's own checkpoints.
    fn own(&self, survey: &Survey) -> Vec<Sequence> {
        let own = survey.committed.iter().filter(|sequence| **sequence >= self.checkpoints.first);
        own.copied().collect()
    }

    /// The checkpoints that a restart may use: all, or those that files can go back to.
    fn usable(&self, survey: &Survey, checkpoints: &[Sequence]) -> Vec<Sequence> {
        let is_usable = |sequence: &&Sequence| !self.goes_back() || survey.exact.contains(sequence);
        checkpoints.iter().filter(is_usable).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Beginning, Event, Plan};
    use super::*;
    use crate::back_off::BackOffPlan;
    use crate::fault::Fault;
    use crate::restarts::RestartLimit;

    fn subject(files: ChangedFiles, now: Instant) -> Subject {
        let plan = Plan {
            every: Some(Duration::from_secs(1)),
            once: false,
            awaits_ready: false,
            restart: RestartPolicy::OnFailure,
            limit: RestartLimit::default(),
            back_off: BackOffPlan::default(),
            files,
            can_start: true,
            in_flight_max: 4,
        };
        let beginning = Beginning { next: Sequence(7), first: Sequence(1), newest: Some(Sequence(6)) };
        let mut subject = Subject::new(plan, beginning, now);
        assert!(subject.step(now, Event::Started).is_empty());
        subject
    }

    /// Lets a subject crash; gives what is done once its checkpoints are known.
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
    fn a_restart_takes_the_newest_checkpoint_that_is_committed_exact_and_not_suspected() {
        let now = Instant::now();
        let mut subject = subject(ChangedFiles::Rewind, now);
        let numbers = |numbers: &[u64]| numbers.iter().copied().map(Sequence).collect();
        let survey = Survey {
            committed: numbers(&[3, 4, 5, 6]),
            exact: numbers(&[0, 2, 3, 5, 7]),
            reaches_beginning: true,
        };
        assert_eq!(crash(&mut subject, &survey, now), [Action::Restore(Sequence(5))]);
        subject.step(now, Event::Restored);
        // Incarnations that descend from a checkpoint that is not exact begin at the exact one before it.
        let poisoned = Action::Tell(Notice::Poisoned(Sequence(5)));
        assert_eq!(crash(&mut subject, &survey, now), [poisoned, Action::Restore(Sequence(3))]);
        let failed = subject.step(now, Event::NotRestored(RestoreError::Unusable));
        assert_eq!(failed.last(), Some(&Action::Survey));
        let why = Some(FreshReason::NotRestorable { tried: 4 });
        let start = Action::Start { is_with_files: true, why };
        assert_eq!(subject.step(now, Event::Surveyed(survey)), [start]);
    }

    fn all(numbers: &[u64]) -> Survey {
        let numbers: Vec<Sequence> = numbers.iter().copied().map(Sequence).collect();
        Survey { committed: numbers.clone(), exact: numbers, reaches_beginning: false }
    }

    fn end_for(subject: &mut Subject, fault: Fault, status: SubjectStatus, now: Instant) -> Vec<Action> {
        let killed = [Action::Tell(Notice::Faulted(fault)), Action::KillRoot];
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
        let poisoned = Action::Tell(Notice::Poisoned(Sequence(6)));
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
            pause: Duration::ZERO,
            arming: Duration::ZERO,
            sliced: None,
            is_store_slow: false,
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
        subject
            .step(again, Event::Taken { pause, arming: Duration::ZERO, sliced: None, is_store_slow: false });
        assert_eq!(subject.wake(again), None, "one is being written");
        subject.step(again, Event::Committed { sequence: Sequence(2), oldest: None });
        assert_eq!((subject.wake(again), subject.step(again + later, Event::Due)), (None, Vec::new()));
        let now = again + later;
        assert_eq!(crash(&mut subject, &all(&[2]), now), [Action::Restore(Sequence(2))]);
        subject.step(now, Event::Restored);
        assert_eq!(subject.step(now + later, Event::Due), []);
        // Files have changed: it starts anew, and so does its checkpoint.
        crash(&mut subject, &all(&[2]), now + later);
        subject.step(now + later, Event::NotRestored(RestoreError::FilesChanged));
        subject.step(now + later, Event::Started);
        subject.step(now + later, Event::Ready);
        assert_eq!(subject.step(now + 2 * later, Event::Due), [Action::Take(Sequence(3))]);
    }

    #[test]
    fn a_wait_costs_little_and_is_never_long() {
        assert_eq!(timeout(Duration::from_millis(10)), TIMEOUT_MIN);
        assert_eq!(timeout(Duration::from_millis(500)), Duration::from_millis(50));
        assert_eq!(timeout(Duration::from_secs(3600)), TIMEOUT_MAX);
    }
}
