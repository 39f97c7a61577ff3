//! The thread that joins epochs of the undo log whose checkpoints are no longer retained.
//!
//! Owns: when the thread runs, and the exclusion of rollbacks while files of the log are exchanged.
//! Invariants: calls of the subject wait only for changes in memory, not for the disk. If epochs cannot be joined, the log
//! stays as it is.
//! Does not: choose the epochs; `log::join` does.

use std::sync::{Arc, MutexGuard, PoisonError};

use super::Watch;
use super::state::State;
use super::threads::{Shared, spawn};
use crate::error::Result;
use crate::log::Joint;

impl Watch {
    /// Starts a thread that joins epochs, if it is worth it and no such thread runs.
    pub(super) fn join_epochs(&self, mut state: MutexGuard<'_, State>) {
        if state.is_joining {
            return;
        }
        let Some(joint) = state.log.to_join() else { return };
        let shared = Arc::clone(&self.shared);
        state.is_joining = spawn("undying-join", move || shared.join_epochs(joint)).is_ok();
    }
}

impl Shared {
    /// Excludes other threads that exchange files of the log, read the log or open it again.
    pub(super) fn log_files(&self) -> MutexGuard<'_, ()> {
        self.log_files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn join_epochs(&self, joint: Joint) {
        let has_joined = self.try_join(joint).unwrap_or(false);
        let mut state = self.state();
        if !has_joined {
            state.log.join_failed();
        }
        state.is_joining = false;
    }

    /// Returns `false` if the epochs cannot be joined.
    fn try_join(&self, joint: Joint) -> Result<bool> {
        let Some(joined) = joint.write()? else { return Ok(false) };
        let _exclusive = self.log_files();
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
