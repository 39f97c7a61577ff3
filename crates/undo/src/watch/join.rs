//! The thread that joins epochs of the undo log whose checkpoints are no longer retained.
//!
//! Owns: when the thread runs.
//! Invariants: calls of the subject wait only for changes in memory, not for the disk. If epochs cannot be joined, the log
//! stays as it is.
//! Does not: choose the epochs; `log::join` does.

use std::sync::{Arc, MutexGuard};

use super::Watch;
use super::state::State;
use super::threads::{Shared, spawn};
use crate::error::Result;
use crate::log::Joint;

impl Watch {
    /// Starts a thread that joins epochs, if it is worth it and no such thread runs.
    pub(super) fn join_epochs(&self, state: MutexGuard<'_, State>) {
        if self.shared.joins.is_running() {
            return;
        }
        let Some(joint) = state.log.to_join() else { return };
        drop(state);
        self.shared.joins.set_running(true);
        let shared = Arc::clone(&self.shared);
        if spawn("undying-join", move || shared.join_epochs(joint)).is_err() {
            self.shared.joins.set_running(false);
        }
    }
}

impl Shared {
    fn join_epochs(&self, joint: Joint) {
        if !self.try_join(joint).unwrap_or(false) {
            self.state().log.join_failed();
        }
        self.joins.set_running(false);
    }

    /// Returns `false` if the epochs cannot be joined.
    fn try_join(&self, joint: Joint) -> Result<bool> {
        let Some(joined) = joint.write()? else { return Ok(false) };
        let _exclusive = self.joins.exclude();
        if !self.state().log.can_join(&joined) {
            return joined.discard().map(|()| false);
        }
        if joined.publish().is_err() {
            return joined.discard().map(|()| false);
        }
        let mut state = self.state();
        let outcome = state.log.joined(joined);
        state.or_break(outcome, "older epochs");
        Ok(true)
    }
}
