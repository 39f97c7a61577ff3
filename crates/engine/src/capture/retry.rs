//! Repeating a failed capture.
//!
//! Owns: which failures are transient, how often an attempt is repeated, how long the subject runs before.
//! Invariants: an attempt is repeated a bounded number of times, and only while the root of the subject lives. No
//! transient failure means that an image is damaged.
//! Does not: wait, or clean up after an attempt.

use std::time::Duration;

use model::Pid;
use resource::{Obstacle, ResourceError};
use tracee::procfs;

use crate::error::{EngineError, Result};

/// How attempts of one kind are repeated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Policy {
    attempts_max: usize,
    /// So many attempts that find the same obstacle refuse.
    refusals_max: usize,
    /// The wait before the second attempt; it doubles with each further one. On a busy machine, a subject that was
    /// stopped while it held the obstacle needs some milliseconds until it runs again.
    wait: Duration,
}

/// Scans of the running subject. Each takes some milliseconds; a program that lives shorter between two execs is common
/// in a build. Fewer scans refuse, since each scans all memory of the subject.
pub(crate) const SCANS: Policy = Policy {
    attempts_max: 5,
    refusals_max: 3,
    // About the time from exec until the C library is mapped. Most of what is held for a moment is held for less.
    wait: Duration::from_millis(1),
};
/// Captures of the stopped subject, of which each costs a pause. A program that opens files of `/proc` at full speed
/// holds one in 7 % of the stops; six attempts in succession then fail once in ten million checkpoints.
pub(crate) const CAPTURES: Policy =
    Policy { attempts_max: 6, refusals_max: 6, wait: Duration::from_millis(2) };

/// The attempts of one scan or capture.
#[derive(Debug)]
pub(crate) struct Retries {
    policy: Policy,
    root: Pid,
    failed: usize,
    refused: usize,
    /// What all refusals have found.
    lasting: Vec<Obstacle>,
}

/// What follows a failed attempt.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Another attempt, after this time.
    Again(Duration),
    /// Only transient failures, in all attempts. This is the last of them.
    UsedUp(EngineError),
    /// A failure that another attempt would find, too.
    Lasting(EngineError),
}

impl Verdict {
    /// How long to wait before another attempt, or the failure if none follows.
    pub(crate) fn again(self) -> Result<Duration> {
        match self {
            Self::Again(wait) => Ok(wait),
            Self::UsedUp(error) | Self::Lasting(error) => Err(error),
        }
    }
}

impl Retries {
    pub(crate) fn of(policy: Policy, root: Pid) -> Self {
        Self { policy, root, failed: 0, refused: 0, lasting: Vec::new() }
    }

    /// Judges a failed attempt.
    pub(crate) fn after(&mut self, error: EngineError) -> Verdict {
        if !is_transient(&error) || !is_alive(self.root) {
            return Verdict::Lasting(error);
        }
        let error = match self.refusal(error) {
            Ok(passing) => passing,
            Err(lasting) => return Verdict::Lasting(lasting),
        };
        self.failed += 1;
        if self.failed == self.policy.attempts_max {
            return Verdict::UsedUp(error);
        }
        Verdict::Again(self.policy.wait * (1 << (self.failed - 1)))
    }

    /// Counts a refusal. An error if as many as refuse have found the same.
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

/// Whether a failure may be gone in a moment: the tree changed while it was captured, a process ended or had just begun
/// a program, something that cannot be saved was held.
fn is_transient(error: &EngineError) -> bool {
    matches!(
        error,
        EngineError::Refused(_)
            | EngineError::Changed(_)
            | EngineError::Resource(ResourceError::Unsupported { .. })
    ) || error.says_gone()
        || error.lacks_code().is_some()
}

fn is_alive(pid: Pid) -> bool {
    procfs::stat(pid).is_ok_and(|stat| !stat.is_zombie())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The root of a subject that lives.
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

    /// How many attempts are made when all fail, and whether the last failure counts as one that lasts.
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
        assert!(matches!(
            attempts(Retries::of(CAPTURES, root()), |_| EngineError::GroupBroken),
            (1, true, _)
        ));
    }

    #[test]
    fn a_subject_that_has_ended_is_not_tried_again() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = Pid(child.id() as i32);
        child.wait().unwrap();
        assert!(matches!(attempts(Retries::of(SCANS, pid), |_| EngineError::NoProcess(pid)), (1, true, _)));
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
