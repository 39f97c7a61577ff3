//! Files that were opened for writing under the watch.
//!
//! Owns: which of them report changes, and descriptors for reading their old content.
//! Invariants: a file stays marked until no description of it is left at a boundary.
//! Does not: receive events.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::Stat;

use super::descriptors::{key_of, reopen};
use super::epoch::Id;
use super::marks::ContentSource;
use crate::error::Result;
use crate::key::FileKey;

/// Files that are held open for reading. A process that has no descriptor left cannot open the file of an event, and the
/// kernel then fails the write of the subject; others are opened when they are read.
const READERS_MAX: usize = 256;

/// Whether changes of a file are reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    Active,
    Silent,
}

/// The files of a subject that are marked.
#[derive(Debug)]
pub(super) struct WatchedFiles {
    source: Box<dyn ContentSource>,
    files: HashMap<Id, Watched>,
}

#[derive(Debug)]
struct Watched {
    mark: Mark,
    /// For reading old content. Opened before the mark was set, so that reading mostly reports nothing.
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

    /// Sets the mark of a file, so that a description that is opened now can report.
    pub(super) fn mark(&mut self, file: BorrowedFd<'_>, stat: &Stat, mark: Mark) -> Result<()> {
        let id = (stat.st_dev, stat.st_ino);
        let key = key_of(file, stat)?;
        match self.files.get_mut(&id) {
            Some(watched) if watched.key == key && watched.mark == mark => return Ok(()),
            // The number may be that of a file which is gone, and its mark with it.
            Some(watched) if watched.key == key => watched.mark = mark,
            _ => {
                // Before the mark: this description reports nothing, unless its mount was enabled.
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

    /// All of a file is kept: nothing more is read of it in this epoch, and many files may be kept in one.
    pub(super) fn note_kept(&mut self, file: BorrowedFd<'_>, stat: &Stat) -> Result<()> {
        let Some(watched) = self.files.get_mut(&(stat.st_dev, stat.st_ino)) else { return Ok(()) };
        watched.reader = None;
        if watched.mark == Mark::Active { self.mark(file, stat, Mark::Silent) } else { Ok(()) }
    }

    pub(super) fn is_active(&self, id: Id) -> bool {
        self.files.get(&id).is_some_and(|watched| watched.mark == Mark::Active)
    }

    /// Whether a file of this number is watched; it may be gone, and its number another's.
    pub(super) fn has_number(&self, id: Id) -> bool {
        self.files.contains_key(&id)
    }

    /// Whether this very file is watched.
    pub(super) fn has(&self, key: &FileKey) -> bool {
        self.files.get(&(key.device, key.inode)).is_some_and(|watched| watched.key == *key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &FileKey> {
        self.files.values().map(|watched| &watched.key)
    }

    /// For reading the old content of a file, if it is held open for that.
    pub(super) fn reader(&self, id: Id) -> Option<BorrowedFd<'_>> {
        Some(self.files.get(&id)?.reader.as_ref()?.as_fd())
    }

    /// Ends the marks of files that are not `needed` any more.
    pub(super) fn sweep(&mut self, needed: impl Fn(&Id) -> bool, open: impl Fn(&FileKey) -> Option<OwnedFd>) {
        for (_, watched) in self.files.extract_if(|id, _| !needed(id)) {
            let file = watched.reader.or_else(|| open(&watched.key));
            // A file that is gone has taken its mark with it.
            let _ = file.map(|file| self.source.forget(file.as_fd()));
        }
    }
}
