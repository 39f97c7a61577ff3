//! Calls of the subject's threads that were answered and may still be in progress.
//!
//! Owns: for each thread, the name that its call may open, or the name to which its call may move a file.
//! Does not: record files; `crossing` does.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::OwnedFd;

use model::Tid;

use super::epoch::{Id, Part};

/// A name: the directory, and one path component.
pub(super) type Place = (Id, OsString);

/// A call of a thread that was answered and may still be in progress.
#[derive(Debug)]
pub(super) enum Doing {
    Opens(Place, Part),
    Moves(Place, OwnedFd),
}

/// The calls that may be in progress, by thread.
#[derive(Debug, Default)]
pub(super) struct Crossings(pub(super) HashMap<Tid, Doing>);

impl Crossings {
    /// Removes the call of a thread. The thread now makes another call, so that the earlier call is complete.
    pub(super) fn passed(&mut self, thread: Tid) {
        self.0.remove(&thread);
    }

    /// Removes all calls. All threads are stopped, so that no call is in progress.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
