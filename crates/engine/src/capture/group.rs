//! Captures several subjects at one moment: all subjects are stopped before the first subject is captured.
//!
//! Owns: the barrier (gate) at which the tracer threads of the subjects wait for each other.
//! Invariants: either all members of the group are stopped at one moment, or no member is captured. A stopped
//! subject waits at most `GATE_WAIT_MAX`.
//! Does not: decide what happens to the captured subjects. If the capture of one subject fails, the
//! checkpoints of the other subjects are not consistent with each other. The caller must then resume all
//! subjects.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{EngineError, Result};

/// The maximum time that a stopped subject waits for the other subjects to stop. It is longer than a usual
/// uninterruptible wait of a thread.
const GATE_WAIT_MAX: Duration = Duration::from_secs(1);

/// The barrier at which the members of a group wait until all members are stopped.
#[derive(Debug)]
struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug)]
struct State {
    missing: usize,
    is_broken: bool,
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

/// The membership of one subject in a group, used by the thread that traces the subject. See
/// [`Continuous::checkpoint_of_group`].
///
/// Dropping a member before its subject was stopped breaks the group: the other members stop waiting.
///
/// [`Continuous::checkpoint_of_group`]: super::Continuous::checkpoint_of_group
#[derive(Debug)]
pub struct GroupMember {
    gate: Arc<Gate>,
    pub(super) has_passed: bool,
}

impl GroupMember {
    /// Returns the members of a new group, one for each subject.
    #[must_use]
    pub fn of_group(subjects: usize) -> Vec<Self> {
        let state = Mutex::new(State { missing: subjects, is_broken: false });
        let gate = Arc::new(Gate { state, changed: Condvar::new() });
        (0..subjects).map(|_| Self { gate: Arc::clone(&gate), has_passed: false }).collect()
    }

    /// Waits until the subjects of all members are stopped. The subject of the caller is already stopped. A
    /// member can pass only once, because the steps after the barrier cannot be repeated.
    pub(super) fn pass(&mut self) -> Result<()> {
        if self.has_passed {
            return Err(EngineError::GroupBroken);
        }
        self.has_passed = true;
        self.gate.change(|state| state.missing -= 1);
        let state = self.gate.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_waiting = |state: &mut State| state.missing > 0 && !state.is_broken;
        let waited = self.gate.changed.wait_timeout_while(state, GATE_WAIT_MAX, is_waiting);
        let state = *waited.unwrap_or_else(PoisonError::into_inner).0;
        if state.missing == 0 && !state.is_broken {
            return Ok(());
        }
        self.gate.change(|state| state.is_broken = true);
        Err(EngineError::GroupBroken)
    }
}

impl Drop for GroupMember {
    fn drop(&mut self) {
        if !self.has_passed {
            self.gate.change(|state| state.is_broken = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    /// Returns whether each member has passed. After its delay in milliseconds, a member calls `pass`, or
    /// drops itself.
    fn outcomes(members: &[(u64, bool)]) -> Vec<bool> {
        let group = GroupMember::of_group(members.len()).into_iter().zip(members);
        let threads = group.map(|(mut member, &(after, passes))| {
            thread::spawn(move || {
                thread::sleep(Duration::from_millis(after));
                passes && member.pass().is_ok()
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    }

    #[test]
    fn all_members_pass_or_none() {
        assert_eq!(outcomes(&[(0, true), (20, true), (5, true)]), [true; 3]);
        assert_eq!(outcomes(&[(0, true), (20, false), (5, true)]), [false; 3]);
        assert_eq!(outcomes(&[(0, false), (20, true)]), [false; 2]);
        assert_eq!(outcomes(&[(0, true)]), [true]);
    }

    #[test]
    fn a_member_passes_once() {
        let mut member = GroupMember::of_group(1).remove(0);
        assert!(member.pass().is_ok() && member.has_passed);
        assert!(matches!(member.pass(), Err(EngineError::GroupBroken)));
    }
}
