//! The first look at a subject, before anything is done to it.
//!
//! Owns: what is looked at while the subject runs, and what once it is stopped.
//! Invariants: a subject that replaces itself by exec, or holds for a moment what cannot be saved, is looked at again.
//! Does not: stop the subject, but where it cannot be looked at while it runs.

use model::Pid;
use tracee::StoppedTree;
use track::Moment;

use super::before::Before;
use super::options::CheckpointOptions;
use super::retry::{Retries, Verdict};
use crate::error::{EngineError, Result};
use crate::obstacles;

/// Runs everything that comes before the pause, and nothing else.
pub(crate) fn look_for_preflight(root: Pid, options: &CheckpointOptions) -> Result<()> {
    match look_while_it_runs(root, options)? {
        Some(_) => Ok(()),
        None => {
            let _stopped = StoppedTree::stop(root)?;
            look_while_it_stands(root, options).map(drop)
        }
    }
}

/// Looks at a subject that may replace itself by exec under the look, and may hold for a moment what cannot be saved;
/// `None` when it does so again and again, and can only be looked at once it stands.
pub(super) fn look_while_it_runs(root: Pid, options: &CheckpointOptions) -> Result<Option<Before>> {
    let mut retries = Retries::of_scans(root);
    loop {
        match Before::look(root, options, Moment::Running) {
            Ok(before) => return Ok(Some(before)),
            Err(error) => match retries.after(error) {
                Verdict::Again(wait) => std::thread::sleep(wait),
                Verdict::UsedUp(_) => return Ok(None),
                Verdict::Lasting(error) => return Err(error),
            },
        }
    }
}

pub(super) fn look_while_it_stands(root: Pid, options: &CheckpointOptions) -> Result<Before> {
    Before::look(root, options, Moment::Stopped).map_err(|error| match error.lacks_code() {
        Some(pid) => EngineError::Refused(vec![obstacles::of_code(pid)]),
        None => error,
    })
}
