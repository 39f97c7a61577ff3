//! Repeats a failed capture or scan.
//!
//! Owns: which failures are transient, how often an attempt is repeated, and how long the subject runs before
//! the next attempt.
//! Invariants: the number of attempts is bounded. An attempt is repeated only while the root process of the
//! subject lives. A transient failure never means that an image is damaged.
//! Does not: wait, or clean up after an attempt.

use std::time::Duration;

use model::Pid;
use resource::{Obstacle, ResourceError};
use tracee::{Roots, procfs};

use crate::error::{EngineError, Result};

/// The rules for the repetition of one type of attempt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    attempts_max: usize,
    /// The number of attempts with the same obstacle after which the obstacle is final.
    refusals_max: usize,
    /// The wait before the second attempt. It doubles with each further attempt. A subject may have been
    /// stopped while it held the obstacle. On a busy machine, it takes some milliseconds until such a subject
    /// runs again.
    wait: Duration,
}

/// Scans of the running subject. A scan takes some milliseconds. In a build, many programs live for a shorter
/// time between two calls of execve(2). `refusals_max` is lower than `attempts_max`, because the kernel walks
/// all pages of the subject for each scan.
pub(crate) const SCANS: Policy = Policy {
    attempts_max: 5,
    refusals_max: 3,
    // About the time from execve(2) until the C library is mapped. Most obstacles that disappear exist for a
    // shorter time.
    wait: Duration::from_millis(1),
};
/// Captures of the stopped subject. Each capture costs a pause. A program that opens files of `/proc` without
/// a break has such a file open in 7 % of the stops. All six attempts then fail in one of ten million
/// checkpoints.
pub(crate) const CAPTURES: Policy =
    Policy { attempts_max: 6, refusals_max: 6, wait: Duration::from_millis(2) };

/// The attempts of one scan or capture.
#[derive(Debug)]
pub(crate) struct Retries {
    policy: Policy,
    roots: Roots,
    failed: usize,
    refused: usize,
    /// The obstacles that all refusals so far have found.
    lasting: Vec<Obstacle>,
}

/// The consequence of a failed attempt.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Make another attempt after this time.
    Again(Duration),
    /// All attempts had transient failures. Contains the last failure.
    UsedUp(EngineError),
    /// The failure is not transient.
    Lasting(EngineError),
}

impl Verdict {
    /// Returns the wait before the next attempt. Returns the failure if no attempt follows.
    pub(crate) fn again(self) -> Result<Duration> {
        match self {
            Self::Again(wait) => Ok(wait),
            Self::UsedUp(error) | Self::Lasting(error) => Err(error),
        }
    }
}

impl Retries {
    pub(crate) fn of(policy: Policy, roots: impl Into<Roots>) -> Self {
        Self { policy, roots: roots.into(), failed: 0, refused: 0, lasting: Vec::new() }
    }

    /// Decides whether another attempt follows a failed attempt.
    pub(crate) fn after(&mut self, error: EngineError) -> Verdict {
        let dead = self.roots.iter().find(|root| !is_alive(*root));
        if let Some(root) = dead.filter(|_| error.says_gone()) {
            return Verdict::Lasting(EngineError::NoProcess(root));
        }
        if !is_transient(&error) || dead.is_some() {
            return Verdict::Lasting(error);
        }
        let error = match self.refusal(error) {
            Ok(passing) => passing,
            Err(lasting) => return Verdict::Lasting(lasting),
        };
        self.failed += 1;
        if self.failed == self.policy.attempts_max {
            return Verdict::UsedUp(if error.says_gone() { self.ended(&error) } else { error });
        }
        Verdict::Again(self.policy.wait * (1 << (self.failed - 1)))
    }

    /// Returns the failure of a tree in which processes ended during each attempt, although its root process lives.
    fn ended(&self, error: &EngineError) -> EngineError {
        let text = error.to_string();
        let first = text.lines().next().unwrap_or_default();
        EngineError::Changed(format!("processes below pid {} ended: {first}", self.roots.first()))
    }

    /// Counts a refusal. After `refusals_max` refusals, returns `Err` for an obstacle that all refusals have
    /// found, and for an `Unsupported` error.
    fn refusal(&mut self, error: EngineError) -> std::result::Result<EngineError, EngineError> {
        let lasting = match &error {
            EngineError::Refused(found) if self.refused == 0 => found.clone(),
            EngineError::Refused(found) => {
                found.iter().filter(|obstacle| self.lasting.contains(obstacle)).cloned().collect()
            }
            EngineError::Resource(ResourceError::Unsupported { .. }) => Vec::new(),
            _ => return Ok(error),
        };
        self.lasting = lasting;
        self.refused += 1;
        if self.refused < self.policy.refusals_max {
            return Ok(error);
        }
        match error {
            EngineError::Refused(_) if self.lasting.is_empty() => Ok(error),
            EngineError::Refused(_) => Err(EngineError::Refused(std::mem::take(&mut self.lasting))),
            unsupported => Err(unsupported),
        }
    }
}

/// Reports whether a failure may soon disappear. This is so if the tree changed during the capture, or if a
/// process ended or has just started a program. It is also so if the subject held an object that cannot be
/// saved.
fn is_transient(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Refused(_)
            | EngineError::Changed(_)
            | EngineError::Resource(ResourceError::Unsupported { .. })
    ) || error.says_gone()
        || error.lacks_code().is_some()
}

/// Reports whether the process lives. The memory of an ending process is removed before the process becomes a zombie.
/// For a large process, this takes longer than all attempts.
fn is_alive(pid: Pid) -> bool {
    procfs::stat(pid).is_ok_and(|stat| !stat.is_ending())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the pid of a process that lives.
    fn root() -> Pid {
        Pid(std::process::id() as i32)
    }

    fn changed() -> EngineError {
        EngineError::Changed("pid 7 left the tree".to_owned())
    }

    fn refused(places: &[&str]) -> EngineError {
        let obstacle = |place: &&str| Obstacle {
            pid: Pid(7),
            what: "a file".to_owned(),
            place: (*place).to_owned(),
            why: "because".to_owned(),
            fix: "close it".to_owned(),
        };
        EngineError::Refused(places.iter().map(obstacle).collect())
    }

    /// Repeats a failing attempt. Returns the number of attempts, whether the last failure was lasting, and
    /// the last failure.
    fn attempts(
        mut retries: Retries,
        mut failure: impl FnMut(usize) -> EngineError,
    ) -> (usize, bool, EngineError) {
        for attempt in 1.. {
            match retries.after(failure(attempt)) {
                Verdict::Again(wait) => assert!(!wait.is_zero() && attempt < 100),
                Verdict::UsedUp(error) => return (attempt, false, error),
                Verdict::Lasting(error) => return (attempt, true, error),
            }
        }
        unreachable!("an attempt is the last one")
    }

    #[test]
    fn a_tree_that_changes_is_captured_again_a_bounded_number_of_times() {
        let (made, lasts, error) = attempts(Retries::of(CAPTURES, root()), |_| changed());
        assert_eq!((made, lasts), (CAPTURES.attempts_max, false));
        assert!(matches!(error, EngineError::Changed(_)));
        assert_eq!(attempts(Retries::of(SCANS, root()), |_| changed()).0, SCANS.attempts_max);
    }

    #[test]
    fn each_wait_is_twice_the_one_before() {
        let mut retries = Retries::of(CAPTURES, root());
        for factor in [1, 2, 4, 8, 16] {
            let Verdict::Again(wait) = retries.after(changed()) else { panic!("no attempt follows") };
            assert_eq!(wait, CAPTURES.wait * factor);
        }
        assert!(matches!(retries.after(changed()), Verdict::UsedUp(_)));
    }

    #[test]
    fn what_another_attempt_would_find_too_is_not_tried_again() {
        let damaged = |_| EngineError::Incomplete(String::new());
        assert!(matches!(attempts(Retries::of(CAPTURES, root()), damaged), (1, true, _)));
    }

    #[test]
    fn a_subject_that_has_ended_is_not_tried_again() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(child.id() as i32);
        child.wait().unwrap();
        assert!(matches!(attempts(Retries::of(SCANS, pid), |_| EngineError::NoProcess(pid)), (1, true, _)));
    }

    #[test]
    fn a_subject_whose_memory_is_being_removed_has_ended() {
        let mut command = std::process::Command::new("python3");
        let mut child =
            command.args(["-c", "import os; x = bytearray(1 << 28); os._exit(0)"]).spawn().unwrap();
        let pid = Pid(child.id() as i32);
        let link = format!("/proc/{pid}/exe");
        let error = loop {
            if let Err(error) = std::fs::metadata(&link) {
                break sys::Error::path("look at", &link, error);
            }
        };
        let verdict = Retries::of(SCANS, pid).after(error.into());
        assert!(matches!(verdict, Verdict::Lasting(EngineError::NoProcess(_))), "{verdict:?}");
        child.wait().unwrap();
    }

    #[test]
    fn a_tree_whose_processes_end_all_the_time_has_changed() {
        let (made, lasts, error) = attempts(Retries::of(SCANS, root()), |_| EngineError::NoProcess(Pid(7)));
        assert_eq!((made, lasts), (SCANS.attempts_max, false));
        assert!(matches!(&error, EngineError::Changed(text) if text.contains('7')), "{error}");
    }

    #[test]
    fn only_what_all_attempts_have_found_refuses_early() {
        let (made, lasts, error) = attempts(Retries::of(SCANS, root()), |attempt| {
            if attempt == 2 { changed() } else { refused(&["/kept", &format!("/{attempt}")]) }
        });
        assert_eq!((made, lasts), (SCANS.refusals_max + 1, true));
        let EngineError::Refused(found) = error else { panic!("{error}") };
        assert_eq!(found.iter().map(|obstacle| obstacle.place.as_str()).collect::<Vec<_>>(), ["/kept"]);
        let (made, lasts, _) =
            attempts(Retries::of(SCANS, root()), |attempt| refused(&[&format!("/{attempt}")]));
        assert_eq!((made, lasts), (SCANS.attempts_max, false));
    }
}
