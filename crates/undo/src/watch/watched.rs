//! Files that the subject has opened for writing under the watch.
//!
//! An epoch is the time between two successive exact checkpoints, to which files can be rolled back. A boundary ends
//! one epoch and begins the next epoch.
//!
//! Owns: the fanotify(7) marks of these files, and descriptors for reading their old content.
//! Invariants: a file stays marked until a boundary finds no open description of the file.
//! Does not: receive events.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::Stat;

use super::descriptors::{key_of, reopen};
use super::epoch::Id;
use super::marks::ContentSource;
use crate::error::Result;
use crate::key::FileKey;

/// Maximum number of files that are held open for reading. Other files are opened when their content is read. The
/// kernel opens the file of each event in this process. Without a free descriptor, the kernel would fail the write of
/// the subject.
const READERS_MAX: usize = 256;

/// The state of a fanotify mark. `Active` reports changes. `Silent` reports no change, but descriptions that are opened
/// in the meantime can report later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    Active,
    Silent,
}

/// The marked files of a subject.
#[derive(Debug)]
pub(super) struct WatchedFiles {
    source: Box<dyn ContentSource>,
    files: HashMap<Id, Watched>,
}

#[derive(Debug)]
struct Watched {
    mark: Mark,
    /// A descriptor for reading old content. The descriptor was opened before the mark was set, so that most reads
    /// cause no event.
    reader: Option<OwnedFd>,
    key: FileKey,
}

impl WatchedFiles {
    pub(super) fn new(source: Box<dyn ContentSource>) -> Self {
        Self { source, files: HashMap::new() }
    }

    pub(super) fn source(&self) -> &dyn ContentSource {
        &*self.source
    }

    /// Sets the mark of a file, so that descriptions that are opened from now on can report changes.
    pub(super) fn mark(&mut self, file: BorrowedFd<'_>, stat: &Stat, mark: Mark) -> Result<()> {
        let id = (stat.st_dev, stat.st_ino);
        let key = key_of(file, stat)?;
        match self.files.get_mut(&id) {
            Some(watched) if watched.key == key && watched.mark == mark => return Ok(()),
            // With another key, the entry belongs to a removed file that had the same inode number. The mark of this
            // file is gone.
            Some(watched) if watched.key == key => watched.mark = mark,
            _ => {
                // Open before the mark is set: this description then causes no events, unless events were enabled on
                // its mount.
                let reader = if self.files.len() < READERS_MAX { reopen(file).ok() } else { None };
                self.files.insert(id, Watched { mark, reader, key });
            }
        }
        match mark {
            Mark::Active => self.source.watch(file)?,
            Mark::Silent => self.source.silence(file)?,
        }
        Ok(())
    }

    /// Records that the log contains all of a file, so that no more content is read in this epoch. Closes the reader,
    /// because one epoch can record many files.
    pub(super) fn note_kept(&mut self, file: BorrowedFd<'_>, stat: &Stat) -> Result<()> {
        let Some(watched) = self.files.get_mut(&(stat.st_dev, stat.st_ino)) else { return Ok(()) };
        watched.reader = None;
        if watched.mark == Mark::Active { self.mark(file, stat, Mark::Silent) } else { Ok(()) }
    }

    pub(super) fn is_active(&self, id: Id) -> bool {
        self.files.get(&id).is_some_and(|watched| watched.mark == Mark::Active)
    }

    /// Reports whether a file with this inode number is watched. The number may meanwhile belong to another file.
    pub(super) fn has_id(&self, id: Id) -> bool {
        self.files.contains_key(&id)
    }

    /// Reports whether the file with this key is watched.
    pub(super) fn has(&self, key: &FileKey) -> bool {
        self.files.get(&(key.device, key.inode)).is_some_and(|watched| watched.key == *key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &FileKey> {
        self.files.values().map(|watched| &watched.key)
    }

    /// Returns the descriptor for reading the old content of a file, if the file is held open.
    pub(super) fn reader(&self, id: Id) -> Option<BorrowedFd<'_>> {
        Some(self.files.get(&id)?.reader.as_ref()?.as_fd())
    }

    /// Removes the marks of files that are not `needed` any more.
    pub(super) fn sweep(&mut self, needed: impl Fn(&Id) -> bool, open: impl Fn(&FileKey) -> Option<OwnedFd>) {
        for (_, watched) in self.files.extract_if(|id, _| !needed(id)) {
            let file = watched.reader.or_else(|| open(&watched.key));
            // The mark of a removed file is gone together with the file.
            let _ = file.map(|file| self.source.forget(file.as_fd()));
        }
    }
}
