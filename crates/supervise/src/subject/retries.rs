//! Repetition of a step of a restart that has failed, and whose failure is not the fault of a checkpoint.
//!
//! A step is one of the actions `Clear`, `Survey`, `Restore` and `Start`. The guardian carries out one step at a time.
//!
//! Owns: the last step, the number of its failed attempts, and the time of the next attempt.
//! Invariants: a step is repeated unchanged, so that a failed restore is repeated with the same checkpoint. Both the
//! time and, for failures that waiting may not mend, the number of attempts are limited.
//! Does not: decide whose fault a failure is; the guardian does.

use std::time::{Duration, Instant};

use super::event::{Action, RestoreError};
use crate::status::SubjectStatus;

/// The first wait before a repetition. A pid that is still in use becomes free in about this time.
const WAIT_FIRST: Duration = Duration::from_millis(20);
/// The longest wait before a repetition. A person who has freed space on a disk waits no longer than this.
const WAIT_MAX: Duration = Duration::from_secs(1);
/// How long a step is repeated that fails because a resource is missing now. A full disk or a limit on processes is
/// noticed and mended by people or by other programs within this time, or not at all.
const TIME_MAX: Duration = Duration::from_secs(60);
/// The number of attempts of a step that fails for a reason that waiting does not mend, or may not mend. One failure can
/// be an accident; three equal failures are none.
const ATTEMPTS_MAX: u32 = 3;

/// The repetition of the last step.
#[derive(Debug, Default)]
pub(super) struct Retries {
    step: Option<Action>,
    /// The time of the first failure of `step`.
    since: Option<Instant>,
    failures: u32,
    /// The time of the next attempt.
    pub(super) until: Option<Instant>,
    /// The status of the death that the restart follows.
    status: Option<SubjectStatus>,
}

impl Retries {
    /// Records the death that the next steps follow.
    pub(super) fn begin(&mut self, status: SubjectStatus) {
        *self = Self { status: Some(status), ..Self::default() };
    }

    /// Records the steps among `actions`. A step that differs from the last step has not failed yet.
    pub(super) fn note(&mut self, actions: &[Action]) {
        for step in actions.iter().filter(|action| action.is_step()) {
            if self.step.as_ref() != Some(step) {
                *self = Self { step: Some(step.clone()), status: self.status, ..Self::default() };
            }
        }
    }

    /// Records a failure of the last step. Returns the wait before the next attempt, and whether the failure was the
    /// first one; `None` if the step is not repeated.
    pub(super) fn failed(&mut self, now: Instant, error: RestoreError) -> Option<(Duration, bool)> {
        self.step.as_ref()?;
        let since = *self.since.get_or_insert(now);
        self.failures = self.failures.saturating_add(1);
        let is_repeated = match error {
            RestoreError::NotNow => now.saturating_duration_since(since) < TIME_MAX,
            RestoreError::Unclear | RestoreError::Configuration => self.failures < ATTEMPTS_MAX,
            _ => false,
        };
        if !is_repeated {
            return None;
        }
        let wait = WAIT_FIRST.saturating_mul(1 << (self.failures - 1).min(16)).min(WAIT_MAX);
        self.until = Some(now + wait);
        Some((wait, self.failures == 1))
    }

    /// Returns the step if its next attempt is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<Action> {
        self.until.take_if(|until| now >= *until)?;
        self.step.clone()
    }

    /// Ends the wait for the next attempt. Returns the status of the death that the restart follows, if there was a
    /// wait.
    pub(super) fn call_off(&mut self) -> Option<SubjectStatus> {
        self.until.take()?;
        self.status
    }
}

#[cfg(test)]
mod tests {
    use model::Sequence;

    use super::*;

    fn failing(error: RestoreError) -> (u32, Duration) {
        let begun = Instant::now();
        let (mut now, mut retries) = (begun, Retries::default());
        retries.note(&[Action::Restore(Sequence(4))]);
        let mut repeated = 0;
        while let Some((wait, is_first)) = retries.failed(now, error) {
            assert_eq!(is_first, repeated == 0);
            assert_eq!(retries.due(now), None, "the wait is not over");
            now += wait;
            assert_eq!(retries.due(now), Some(Action::Restore(Sequence(4))), "the same checkpoint is tried");
            assert_eq!(retries.until, None);
            repeated += 1;
        }
        (repeated, now - begun)
    }

    #[test]
    fn a_missing_resource_is_waited_for_up_to_a_limit() {
        let (repeated, took) = failing(RestoreError::NotNow);
        assert!(took >= TIME_MAX && took <= TIME_MAX + WAIT_MAX, "{took:?}");
        assert!((60..80).contains(&repeated), "{repeated}");
    }

    #[test]
    fn a_failure_that_waiting_does_not_mend_is_repeated_twice() {
        for error in [RestoreError::Unclear, RestoreError::Configuration] {
            assert_eq!(failing(error).0, ATTEMPTS_MAX - 1);
        }
        for error in [RestoreError::Unusable, RestoreError::FilesStay, RestoreError::FilesHalfWay] {
            assert_eq!(failing(error).0, 0);
        }
    }

    #[test]
    fn another_step_begins_with_all_its_attempts() {
        let now = Instant::now();
        let mut retries = Retries::default();
        for step in [Action::Survey, Action::Restore(Sequence(2)), Action::Survey] {
            retries.note(std::slice::from_ref(&step));
            let repeat = |retries: &mut Retries| retries.failed(now, RestoreError::Unclear).is_some();
            assert_eq!(
                [repeat(&mut retries), repeat(&mut retries), repeat(&mut retries)],
                [true, true, false]
            );
        }
    }
}
