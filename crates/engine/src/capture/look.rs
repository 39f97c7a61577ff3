//! The first look at a subject, before anything is done to it.
//!
//! Owns: when a look is repeated, and which refusals last.
//! Invariants: a subject that replaces itself by exec, or holds for a moment what cannot be saved, is looked at again.
//! Does not: stop the subject, but where it cannot be looked at while it runs.

use std::time::Duration;

use model::Pid;
use resource::Obstacle;
use tracee::{StoppedTree, procfs};
use track::Moment;

use super::before::Before;
use super::options::CheckpointOptions;
use crate::error::{EngineError, Result};
use crate::obstacles;

/// Looks at a running subject before it is stopped for the look: each takes a few milliseconds, and a program that
/// lives shorter between two execs is no rare sight in a build.
const LOOKS_MAX: usize = 5;
/// How many of them must find the same in the way, one after the other, to refuse; less than all, as each look is one
/// at all the memory of the subject.
const REFUSING_LOOKS: usize = 3;
/// About how long a program takes from exec until its C library is mapped, and longer than most hold what is held for a
/// moment only.
pub(super) const LOADING: Duration = Duration::from_millis(1);

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
    let mut refusals = Refusals::default();
    for _ in 0..LOOKS_MAX {
        match Before::look(root, options, Moment::Running) {
            Err(error) if error.says_gone() && is_alive(root) => {}
            Err(EngineError::Changed(_)) => std::thread::sleep(LOADING),
            Err(EngineError::Refused(found)) => {
                refusals.note(found)?;
                std::thread::sleep(LOADING);
            }
            // It may stand between exec and the loading of its libraries.
            Err(error) if error.lacks_code().is_some() => std::thread::sleep(LOADING),
            outcome => return outcome.map(Some),
        }
    }
    Ok(None)
}

/// What looks at a running subject have found in the way.
#[derive(Default)]
struct Refusals {
    looks: usize,
    /// Found by all of them.
    lasting: Vec<Obstacle>,
}

impl Refusals {
    /// Takes in one more look; refuses when enough of them have found the same.
    fn note(&mut self, mut found: Vec<Obstacle>) -> Result<()> {
        if self.looks > 0 {
            found.retain(|obstacle| self.lasting.contains(obstacle));
        }
        self.lasting = found;
        self.looks += 1;
        if self.looks >= REFUSING_LOOKS && !self.lasting.is_empty() {
            return Err(EngineError::Refused(std::mem::take(&mut self.lasting)));
        }
        Ok(())
    }
}

pub(super) fn look_while_it_stands(root: Pid, options: &CheckpointOptions) -> Result<Before> {
    Before::look(root, options, Moment::Stopped).map_err(|error| match error.lacks_code() {
        Some(pid) => EngineError::Refused(vec![obstacles::of_code(pid)]),
        None => error,
    })
}

pub(super) fn is_alive(pid: Pid) -> bool {
    procfs::stat(pid).is_ok_and(|stat| !stat.is_zombie())
}
