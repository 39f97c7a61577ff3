//! Calls of the subject's threads that were answered and may still be in progress.
//!
//! Owns: for each thread, the name that its call may open, the name to which its call may move a file, or the names that
//! make its call fail.
//! Does not: record files; `crossing` does.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};

use model::Tid;

use super::descriptors::stat;
use super::epoch::{Id, Part};
use super::paths::Entry;
use crate::error::Result;
use crate::rights::Rights;

/// A name: the directory, and one path component.
pub(super) type Place = (Id, OsString);

/// A call of a thread that was answered and may still be in progress.
#[derive(Debug)]
pub(super) enum Doing {
    Opens(Place, Part),
    Moves(Place, OwnedFd),
    /// The call will be refused, and is not recorded.
    Refused(Refused),
}

/// A call that will be refused unless another thread changes one of these names.
#[derive(Debug)]
pub(super) struct Refused {
    pub(super) names: Vec<Place>,
    /// A directory that is not empty.
    pub(super) inside: Option<Id>,
    /// The entry to remove, or the two entries of a rename.
    pub(super) entries: Vec<Entry>,
    /// The rights of the thread.
    pub(super) rights: Option<Rights>,
}

pub(super) fn place_of(entry: &Entry) -> Result<Place> {
    let directory = stat(entry.directory.as_fd())?;
    Ok(((directory.st_dev, directory.st_ino), entry.name.clone()))
}

/// The calls that may be in progress, by thread.
#[derive(Debug, Default)]
pub(super) struct Crossings(HashMap<Tid, Vec<Doing>>);

impl Crossings {
    /// Removes the call of a thread. The thread now makes another call, so that the earlier call is complete.
    pub(super) fn passed(&mut self, thread: Tid) {
        self.0.remove(&thread);
    }

    /// Adds what the present call of a thread may do.
    pub(super) fn note(&mut self, thread: Tid, doing: Doing) {
        self.0.entry(thread).or_default().push(doing);
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Doing> {
        self.0.values().flatten()
    }

    pub(super) fn has_refused(&self) -> bool {
        self.all().any(|doing| matches!(doing, Doing::Refused(_)))
    }

    /// Removes and returns one of those refused calls that meet a condition, with its thread.
    pub(super) fn take_refused(&mut self, meets: impl Fn(&Refused) -> bool) -> Option<(Tid, Refused)> {
        self.0.iter_mut().find_map(|(thread, doings)| {
            let mut met = doings.extract_if(.., |doing| matches!(doing, Doing::Refused(one) if meets(one)));
            match met.next() {
                Some(Doing::Refused(refused)) => Some((*thread, refused)),
                _ => None,
            }
        })
    }

    /// Removes all calls. All threads are stopped, so that no call is in progress.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}
