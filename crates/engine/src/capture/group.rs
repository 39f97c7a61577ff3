//! Captures several subjects at one moment: all are stopped before the first is captured.
//!
//! Owns: the barrier at which their tracer threads wait for each other.
//! Invariants: all members are stopped at one moment, or none is captured. No stopped subject waits longer than
//! `GATE_WAIT_MAX`.
//! Does not: decide what happens to the captured subjects. If one has failed, the caller resumes all of them, because
//! the checkpoints of the others are not consistent then.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{EngineError, Result};

/// How long a stopped subject waits for the others to stop: more than a thread takes in an uninterruptible wait.
const GATE_WAIT_MAX: Duration = Duration::from_secs(1);

/// Where the members of a group wait until all are stopped.
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

/// One subject of a group, for the thread that traces it: see [`Continuous::checkpoint_of_group`].
///
/// A member that is dropped before its subject was stopped breaks the group: no other member waits any longer.
///
/// [`Continuous::checkpoint_of_group`]: super::Continuous::checkpoint_of_group
#[derive(Debug)]
pub struct GroupMember {
    gate: Arc<Gate>,
    pub(super) has_passed: bool,
}

impl GroupMember {
    /// The members of a group of so many subjects.
    #[must_use]
    pub fn of_group(subjects: usize) -> Vec<Self> {
        let state = Mutex::new(State { missing: subjects, is_broken: false });
        let gate = Arc::new(Gate { state, changed: Condvar::new() });
        (0..subjects).map(|_| Self { gate: Arc::clone(&gate), has_passed: false }).collect()
    }

    /// Waits until all members are stopped, as the caller's is. A subject passes once: what follows cannot be repeated.
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

    /// The outcomes of members that pass, or give up, after so many milliseconds.
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
