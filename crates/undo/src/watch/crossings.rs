//! What the threads of a subject may be doing since their last calls were answered.
//!
//! Owns: the names that calls of each thread may still open, or move files to.
//! Does not: keep files; `crossing` does.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;

use model::Tid;

use super::epoch::{Id, Part};

/// A name: the directory, and the component.
pub(super) type Place = (Id, OsString);

/// What a thread may be doing since its last call was answered.
#[derive(Debug)]
pub(super) enum Doing {
    Opens(Place, Part),
    Moves(Place, OwnedFd),
}

/// What the threads of the subject may be doing.
#[derive(Debug, Default)]
pub(super) struct Crossings(pub(super) HashMap<Tid, Doing>);

impl Crossings {
    /// The thread makes another call: the one before is over.
    pub(super) fn passed(&mut self, thread: Tid) {
        self.0.remove(&thread);
    }

    /// Every thread is stopped: no call is under way.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
