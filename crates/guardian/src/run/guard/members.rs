//! The members of a subject with several roots: a group of components that is checkpointed and restored together.
//!
//! Owns: the programs that are to join the subject, the roots that leave it, and the condition for checkpoints.
//! Invariants: the end of a root that leaves is no death of the subject. A death of the subject calls off everything
//! that is pending here.
//! Does not: start or end a program; `joining` does.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

use model::Pid;
use supervise::{SubjectStatus, Success};

use super::super::request::RunRequest;
use super::outbox::MemberNumber;

/// How long the guard waits for the death of another root, after a root has ended with success. A program that ends
/// because its connection was closed can be reported before the program that has closed the connection by its death.
const SETTLES: Duration = Duration::from_millis(100);

#[derive(Default)]
pub(super) struct Members {
    pub(super) joining: VecDeque<(MemberNumber, RunRequest)>,
    /// Roots that are being ended while the others continue.
    pub(super) leaving: BTreeSet<Pid>,
    /// The ends of each root that count as success.
    success: BTreeMap<Pid, Success>,
    /// Roots that have ended with success, and the time when this counts.
    settles: BTreeMap<Pid, Instant>,
    /// Whether checkpoints wait, because a member is not ready.
    pub(super) is_incomplete: bool,
}

impl Members {
    /// Reports whether the end of a root is expected, or known already.
    pub(super) fn is_leaving(&self, root: Pid) -> bool {
        self.leaving.contains(&root) || self.settles.contains_key(&root)
    }

    /// Returns the time when the next end of a root counts.
    pub(super) fn due(&self) -> Option<Instant> {
        self.settles.values().min().copied()
    }

    /// Reports whether the other roots continue after this end of a root.
    pub(super) fn leaves(&self, root: Pid, status: SubjectStatus) -> bool {
        self.leaving.contains(&root) || self.success.get(&root).is_some_and(|success| success.has(status))
    }

    /// Reports whether it is not yet known that no other root has died.
    pub(super) fn is_unsettled(&mut self, root: Pid, now: Instant) -> bool {
        !self.leaving.contains(&root) && now < *self.settles.entry(root).or_insert(now + SETTLES)
    }

    pub(super) fn forget(&mut self, root: Pid) {
        self.leaving.remove(&root);
        self.settles.remove(&root);
    }

    /// Reports whether a program is to join.
    pub(super) fn is_pending(&self) -> bool {
        !self.joining.is_empty()
    }

    /// Records a root. A restore gives it the same pid again.
    pub(super) fn note_root(&mut self, root: Pid, success: Success) {
        self.success.insert(root, success);
    }

    /// Calls everything off, because the subject has died.
    pub(super) fn died(&mut self) {
        self.joining.clear();
        self.leaving.clear();
        self.settles.clear();
    }
}
