//! What a restart of a subject does: the decision from the checkpoints, their age and the plan.
//!
//! A usable checkpoint is committed, belongs to this program, and is not excluded. Repeated deaths or a failed restore
//! exclude a checkpoint. If the plan rolls files back, a rollback to the checkpoint must be possible. The undo log,
//! which contains earlier contents of files, determines the checkpoints to which a rollback is possible. If the changes
//! of files are noticed, the program must not have changed a file after the checkpoint.
//!
//! A rollback discards what the program has written since the checkpoint. The plan bounds this loss: if the newest
//! usable checkpoint is older than `Plan::files_back_max`, and files have changed since, the program starts from its
//! beginning with its present files, as it would without `undying`. The same applies in two other cases. First, peers
//! have received output that the checkpoint does not contain, although the output was to be held. Second, the program
//! has synced files after the checkpoint, and has then sent data to a peer.
//!
//! Owns: this decision. The restart uses it, and `status` shows it in advance.
//! Does not: consider the number of restarts, or the cause of a death.

use std::time::{Duration, Instant};

use model::Sequence;

use super::Subject;
use super::event::{BEGINNING, State};
use super::survey::{FreshReason, Prospect, Survey};
use crate::status::{ChangedFiles, RestartPolicy};

impl Subject {
    /// Returns what a restart does after a death at the time `at`.
    #[must_use]
    pub fn prospect(&self, survey: &Survey, at: Instant) -> Prospect {
        if self.plan.every.is_none() {
            return Prospect::BegunAnew(None);
        }
        let committed = self.own(survey);
        let usable = self.usable(survey, &committed);
        let newest = self.suspicion.choose(&usable);
        if let Some(newest) = newest.filter(|newest| !self.is_too_old(*newest, survey, at)) {
            return Prospect::Restored(newest);
        }
        if let Some(newest) = committed.last().filter(|_| usable.is_empty() && !self.goes_back()) {
            return match self.plan.files {
                ChangedFiles::Refuse => Prospect::Refused(*newest),
                _ => Prospect::BegunAnew(Some(FreshReason::ChangedSince(*newest))),
            };
        }
        let has_avoided = self.suspicion.has_avoided();
        let unused = if has_avoided { FreshReason::EachDied } else { FreshReason::NoneExact };
        if self.can_begin_again(survey, at) {
            return Prospect::BegunAgain((!committed.is_empty()).then_some(unused));
        }
        // Excluded checkpoints count here: a rollback to the newest of them would already discard too much.
        let reached = usable.last().copied().or_else(|| survey.reaches_beginning.then_some(BEGINNING));
        match reached.filter(|reached| self.is_too_old(*reached, survey, at)) {
            Some(reached) if self.is_older_than_bound(reached, at) => {
                Prospect::BegunAnew(Some(FreshReason::TooOld(reached)))
            }
            Some(reached) if self.run_time.has_sent_since(reached) => {
                Prospect::BegunAnew(Some(FreshReason::OutputSent(reached)))
            }
            Some(reached) => Prospect::BegunAnew(Some(FreshReason::Told(reached))),
            None if self.goes_back() && has_avoided && !self.begins_in_any_case() => Prospect::GivenUp,
            None => Prospect::BegunAnew(self.goes_back().then_some(unused)),
        }
    }

    /// Returns the time of `prospect` up to which a checkpoint is not too old, even if files change.
    #[must_use]
    pub fn files_back_until(&self, sequence: Sequence, now: Instant) -> Option<Instant> {
        let age = self.run_time.since(sequence, now)?;
        now.checked_add(self.plan.files_back_max.saturating_sub(age))
    }

    /// Returns the work of the program since a checkpoint: until now, or until its death. `None` if an earlier guardian
    /// has taken the checkpoint. The number 0 means the beginning of the program.
    #[must_use]
    pub fn work_since(&self, sequence: Sequence, now: Instant) -> Option<Duration> {
        let at = match self.state {
            State::Dying(death) | State::BackingOff(death, _) | State::Restoring { death, .. } => {
                death.noticed
            }
            State::Starting { .. } | State::Ended(_) => self.run_time.seen,
            _ => now,
        };
        self.run_time.since(sequence, at)
    }

    /// Reports whether the present restart would discard too much if it set files back to a checkpoint.
    #[must_use]
    pub fn is_beyond_bound(&self, sequence: Sequence, now: Instant) -> bool {
        self.work_since(sequence, now).is_some_and(|age| age > self.plan.files_back_max)
    }

    pub(super) fn goes_back(&self) -> bool {
        self.plan.files == ChangedFiles::Rewind
    }

    /// Reports whether a rollback to a checkpoint would discard more than the plan permits. If no file has changed
    /// since the checkpoint, a rollback discards nothing.
    pub(super) fn is_too_old(&self, sequence: Sequence, survey: &Survey, at: Instant) -> bool {
        let discards = self.goes_back() && survey.unchanged_from.is_none_or(|from| sequence < from);
        let is_known = self.run_time.has_sent_since(sequence) || survey.told.contains(&sequence);
        discards && (self.is_older_than_bound(sequence, at) || is_known)
    }

    fn is_older_than_bound(&self, sequence: Sequence, at: Instant) -> bool {
        self.run_time.since(sequence, at).is_some_and(|age| age > self.plan.files_back_max)
    }

    /// Reports whether the files can be rolled back to the beginning of the program, and the beginning is not too old.
    pub(super) fn can_begin_again(&self, survey: &Survey, at: Instant) -> bool {
        self.goes_back() && survey.reaches_beginning && !self.is_too_old(BEGINNING, survey, at)
    }

    /// Reports whether the program is begun beside its files although each checkpoint has led to another death. The files
    /// are then those of the oldest checkpoint that was restored, as after a crash at that time.
    fn begins_in_any_case(&self) -> bool {
        let is_sound = self.plan.restart == RestartPolicy::Always || self.suspicion.has_ended_connections;
        self.plan.can_start && is_sound
    }

    /// Returns the committed checkpoints of this program. The store can also contain checkpoints of earlier programs
    /// with the same name.
    pub(super) fn own(&self, survey: &Survey) -> Vec<Sequence> {
        let own = survey.committed.iter().filter(|sequence| **sequence >= self.checkpoints.first);
        own.copied().collect()
    }

    /// Returns the given checkpoints to which files can be rolled back. If the plan does not roll files back, returns
    /// the given checkpoints after which no change of a file was noticed.
    pub(super) fn usable(&self, survey: &Survey, checkpoints: &[Sequence]) -> Vec<Sequence> {
        let is_usable = |sequence: &&Sequence| {
            if self.goes_back() { survey.exact.contains(sequence) } else { survey.changes.permit(**sequence) }
        };
        checkpoints.iter().filter(is_usable).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::event::{Action, End, Event, Failure, Notice, RestoreError};
    use super::super::survey::FileChanges;
    use super::super::{Beginning, Plan};
    use super::*;
    use crate::back_off::BackOffPlan;
    use crate::restarts::RestartLimit;
    use crate::status::{RestartPolicy, SubjectStatus, Success};

    const SECOND: Duration = Duration::from_secs(1);
    const MAX: Duration = Duration::from_secs(10);

    /// Returns a subject that rolls files back, and that has committed checkpoint 1 at `now`.
    fn subject(now: Instant) -> Subject {
        let plan = Plan {
            every: Some(SECOND),
            cost_limit: None,
            once: false,
            awaits_ready: false,
            restart: RestartPolicy::OnFailure,
            success: Success::default(),
            limit: RestartLimit::default(),
            back_off: BackOffPlan::default(),
            files: ChangedFiles::Rewind,
            files_back_max: MAX,
            can_start: true,
            ends_on_request: false,
            in_flight_max: 4,
        };
        let beginning = Beginning { next: Sequence(1), first: Sequence(1), newest: None };
        let began = now.checked_sub(SECOND).unwrap();
        let mut subject = Subject::new(plan, beginning, began);
        subject.step(began, Event::Started);
        assert_eq!(subject.step(now, Event::Due), [Action::Take(Sequence(1))]);
        let (pause, arming) = (Duration::ZERO, Duration::ZERO);
        subject.step(
            now,
            Event::Taken {
                ago: Duration::ZERO,
                pause,
                arming,
                sliced: None,
                is_store_slow: false,
                besides: Duration::ZERO,
            },
        );
        subject.step(now, Event::Committed { sequence: Sequence(1), oldest: Some(Sequence(1)) });
        subject
    }

    fn reached(numbers: &[u64]) -> Survey {
        let exact: Vec<Sequence> = numbers.iter().copied().map(Sequence).collect();
        Survey { committed: exact.clone(), exact, ..Survey::default() }
    }

    fn crash(subject: &mut Subject, survey: &Survey, now: Instant) -> Vec<Action> {
        let status = SubjectStatus::Killed(model::Signal(11));
        subject.step(now, Event::Died { status, has_terminal: false, after_child: Vec::new() });
        subject.step(now, Event::Cleared);
        if let Some(until) = subject.wake(now) {
            subject.step(until, Event::Due);
        }
        subject.step(now, Event::Surveyed(survey.clone()))
    }

    #[test]
    fn changed_files_are_not_set_back_beyond_the_bound() {
        let now = Instant::now();
        let anew = |to| Prospect::BegunAnew(Some(FreshReason::TooOld(Sequence(to))));
        let mut subject = subject(now);
        let (last, beyond) = (now + MAX, now + MAX + Duration::from_millis(1));
        assert_eq!(subject.prospect(&reached(&[1]), last), Prospect::Restored(Sequence(1)));
        assert_eq!(subject.prospect(&reached(&[1]), beyond), anew(1));
        assert_eq!(subject.files_back_until(Sequence(1), now + SECOND), Some(last));
        // If no file has changed, a rollback discards nothing.
        let unchanged = Survey { unchanged_from: Some(Sequence(1)), ..reached(&[1]) };
        assert_eq!(subject.prospect(&unchanged, beyond), Prospect::Restored(Sequence(1)));
        // A newer checkpoint is still being written.
        let unchanged = Survey { unchanged_from: Some(Sequence(0)), ..reached(&[1]) };
        assert_eq!(subject.prospect(&unchanged, beyond), Prospect::Restored(Sequence(1)));
        let changed = Survey { unchanged_from: Some(Sequence(2)), ..reached(&[1]) };
        assert_ne!(subject.prospect(&changed, beyond), Prospect::Restored(Sequence(1)));
        // The beginning of the program is a checkpoint, too.
        let beginning = Survey { reaches_beginning: true, ..Survey::default() };
        assert_eq!(subject.prospect(&beginning, now), Prospect::BegunAgain(None));
        assert_eq!(subject.prospect(&beginning, last), anew(0));
        // Files that do not go back have no bound.
        for files in [ChangedFiles::Keep, ChangedFiles::Fresh, ChangedFiles::Refuse, ChangedFiles::Trim] {
            subject.plan.files = files;
            assert_eq!(
                subject.prospect(&reached(&[1]), beyond),
                Prospect::Restored(Sequence(1)),
                "{files:?}"
            );
        }
    }

    #[test]
    fn no_memory_is_restored_beside_files_that_the_program_has_changed() {
        let now = Instant::now();
        let survey = |changes| Survey { changes, ..reached(&[1]) };
        let (none, newer) = (FileChanges::NoneSince(Sequence(1)), FileChanges::NoneSince(Sequence(2)));
        for files in [ChangedFiles::Fresh, ChangedFiles::Refuse, ChangedFiles::Trim] {
            let mut subject = subject(now);
            subject.plan.files = files;
            for changes in [FileChanges::Unknown, none] {
                let restored = Prospect::Restored(Sequence(1));
                assert_eq!(subject.prospect(&survey(changes), now), restored, "{files:?} {changes:?}");
            }
            let is_refused = files == ChangedFiles::Refuse;
            let anew = Prospect::BegunAnew(Some(FreshReason::ChangedSince(Sequence(1))));
            let expected = if is_refused { Prospect::Refused(Sequence(1)) } else { anew };
            for changes in [FileChanges::AfterNewest, newer] {
                assert_eq!(subject.prospect(&survey(changes), now), expected, "{files:?} {changes:?}");
            }
            let without_checkpoints = Survey { committed: Vec::new(), ..survey(FileChanges::AfterNewest) };
            assert_eq!(subject.prospect(&without_checkpoints, now), Prospect::BegunAnew(None));
            let actions = crash(&mut subject, &survey(FileChanges::AfterNewest), now);
            if is_refused {
                let failure = Failure::ChangedSince(Sequence(1));
                assert_eq!((actions, subject.state()), (Vec::new(), State::Ended(End::Failed(failure))));
            } else {
                let why = Some(FreshReason::ChangedSince(Sequence(1)));
                assert_eq!(actions, [Action::Start { is_with_files: false, why }]);
            }
        }
    }

    #[test]
    fn files_are_not_rolled_back_past_output_that_peers_have() {
        let now = Instant::now();
        let mut subject = subject(now);
        subject.step(now + SECOND, Event::OutputSent);
        let (later, survey) = (now + SECOND * 2, reached(&[1]));
        let anew = Prospect::BegunAnew(Some(FreshReason::OutputSent(Sequence(1))));
        assert_eq!(subject.prospect(&survey, later), anew);
        let unchanged = Survey { unchanged_from: Some(Sequence(1)), ..survey };
        assert_eq!(subject.prospect(&unchanged, later), Prospect::Restored(Sequence(1)));
        // A later checkpoint contains the output.
        assert_eq!(subject.step(later, Event::Due), [Action::Take(Sequence(2))]);
        let (pause, arming) = (Duration::ZERO, Duration::ZERO);
        subject.step(
            later,
            Event::Taken {
                ago: Duration::ZERO,
                pause,
                arming,
                sliced: None,
                is_store_slow: false,
                besides: Duration::ZERO,
            },
        );
        subject.step(later, Event::Committed { sequence: Sequence(2), oldest: Some(Sequence(1)) });
        assert_eq!(subject.prospect(&reached(&[1, 2]), later), Prospect::Restored(Sequence(2)));
    }

    /// The report of a checkpoint can come after a late release of output that was sent after the pause.
    #[test]
    fn a_checkpoint_whose_pause_was_before_the_release_of_output_does_not_contain_it() {
        let now = Instant::now();
        let mut subject = subject(now);
        let later = now + SECOND * 2;
        assert_eq!(subject.step(later, Event::Due), [Action::Take(Sequence(2))]);
        subject.step(later + SECOND / 10, Event::OutputSent);
        let (pause, arming, ago) = (SECOND / 20, Duration::ZERO, SECOND / 5);
        let reported = later + SECOND / 4;
        subject.step(
            reported,
            Event::Taken { ago, pause, arming, sliced: None, is_store_slow: false, besides: Duration::ZERO },
        );
        subject.step(reported, Event::Committed { sequence: Sequence(2), oldest: Some(Sequence(1)) });
        let anew = Prospect::BegunAnew(Some(FreshReason::OutputSent(Sequence(2))));
        assert_eq!(subject.prospect(&reached(&[1, 2]), reported), anew);
    }

    #[test]
    fn files_are_not_rolled_back_past_durable_data_that_a_peer_may_rely_on() {
        let now = Instant::now();
        let subject = subject(now);
        let told =
            |told: &[u64]| Survey { told: told.iter().copied().map(Sequence).collect(), ..reached(&[1]) };
        let anew = Prospect::BegunAnew(Some(FreshReason::Told(Sequence(1))));
        assert_eq!(subject.prospect(&told(&[0, 1]), now), anew);
        assert_eq!(subject.prospect(&told(&[0]), now), Prospect::Restored(Sequence(1)));
        let unchanged = Survey { unchanged_from: Some(Sequence(1)), ..told(&[0, 1]) };
        assert_eq!(subject.prospect(&unchanged, now), Prospect::Restored(Sequence(1)));
        // The beginning of the program is a checkpoint, too.
        let beginning = Survey { reaches_beginning: true, told: vec![BEGINNING], ..Survey::default() };
        let anew = Prospect::BegunAnew(Some(FreshReason::Told(BEGINNING)));
        assert_eq!(subject.prospect(&beginning, now), anew);
    }

    #[test]
    fn the_restart_does_what_was_announced_and_reports_the_age() {
        let now = Instant::now();
        let mut subject = subject(now);
        let death = now + SECOND * 7;
        assert_eq!(crash(&mut subject, &reached(&[1]), death), [Action::Restore(Sequence(1))]);
        let restored = subject.step(death + SECOND, Event::Restored);
        let (took, age) = (SECOND, Some(SECOND * 7));
        assert_eq!(restored, [Action::Report(Notice::Restored { sequence: Sequence(1), took, age })]);
        // The restored program has the state of the checkpoint, so its work begins to count there.
        let again = death + SECOND * 11;
        assert_eq!(subject.work_since(Sequence(1), again), Some(MAX));
        let why = Some(FreshReason::TooOld(Sequence(1)));
        let start = Action::Start { is_with_files: false, why };
        assert_eq!(crash(&mut subject, &reached(&[1]), again + SECOND).last(), Some(&start));
    }

    #[test]
    fn a_program_is_not_begun_beside_files_that_were_rolled_back() {
        let now = Instant::now();
        let mut subject = subject(now);
        crash(&mut subject, &reached(&[1]), now);
        subject.step(now, Event::NotRestored(RestoreError::Unusable));
        assert_eq!(subject.step(now, Event::Surveyed(reached(&[1]))), []);
        let failure = Failure::NotRestorable { tried: 1 };
        assert_eq!(subject.state(), State::Ended(End::Failed(failure)));
    }

    #[test]
    fn a_program_that_died_after_each_restore_is_begun_anew_only_with_its_first_files() {
        let now = Instant::now();
        for reaches_beginning in [false, true] {
            let mut subject = subject(now);
            let survey = Survey { reaches_beginning, ..reached(&[1]) };
            assert_eq!(crash(&mut subject, &survey, now), [Action::Restore(Sequence(1))]);
            subject.step(now, Event::Restored);
            let actions = crash(&mut subject, &survey, now);
            let last = actions.last().unwrap();
            if reaches_beginning {
                let why = Some(FreshReason::EachDied);
                assert_eq!(last, &Action::Start { is_with_files: true, why });
            } else {
                assert_eq!(last, &Action::Report(Notice::NotBegunAnew));
                assert!(matches!(subject.state(), State::Ended(End::GaveUp(_))));
            }
        }
    }

    #[test]
    fn a_program_that_died_of_its_lost_connections_is_begun_anew() {
        let now = Instant::now();
        for is_always in [false, true] {
            let restart = if is_always { RestartPolicy::Always } else { RestartPolicy::OnFailure };
            let mut subject = subject(now);
            subject.plan.restart = restart;
            assert_eq!(crash(&mut subject, &reached(&[1]), now), [Action::Restore(Sequence(1))]);
            if !is_always {
                subject.step(now, Event::ConnectionsEnded);
            }
            subject.step(now, Event::Restored);
            let actions = crash(&mut subject, &reached(&[1]), now);
            let start = Action::Start { is_with_files: false, why: Some(FreshReason::EachDied) };
            assert_eq!(actions.last(), Some(&start), "{restart:?}");
        }
    }
}
