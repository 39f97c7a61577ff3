//! Files that the subject has opened for writing under the watch.
//!
//! Owns: the fanotify(7) marks of these files, and descriptors for reading their old content.
//! Invariants: a file stays marked until a boundary finds no open description of the file.
//! Does not: receive events.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::Stat;

use super::descriptors::{key_of, reopen};
use super::epoch::Id;
use super::mapped::MappedFiles;
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
    /// Large mapped files.
    pub(super) mapped: MappedFiles,
}

#[derive(Debug)]
struct Watched {
    /// The state of the mark; `None` if setting the mark has failed.
    mark: Option<Mark>,
    /// A descriptor for reading old content. The descriptor was opened before the mark was set, so that most reads
    /// cause no event.
    reader: Option<OwnedFd>,
    key: FileKey,
}

impl WatchedFiles {
    pub(super) fn new(source: Box<dyn ContentSource>) -> Self {
        Self { source, files: HashMap::new(), mapped: MappedFiles::default() }
    }

    pub(super) fn source(&self) -> &dyn ContentSource {
        &*self.source
    }

    /// Sets the mark of a file, so that descriptions that are opened from now on can report changes.
    pub(super) fn mark(&mut self, file: BorrowedFd<'_>, stat: &Stat, mark: Mark) -> Result<()> {
        let id = (stat.st_dev, stat.st_ino);
        let mark = if self.mapped.needs_events(id) { Mark::Active } else { mark };
        let key = key_of(file, stat)?;
        // With another key, the entry belongs to a removed file that had the same inode number. The mark of this file is
        // gone.
        let has_room = self.files.len() < READERS_MAX;
        let known = self.files.get_mut(&id).filter(|watched| watched.key == key);
        let reader = match known {
            Some(watched) if watched.mark == Some(mark) => return Ok(()),
            // After a failure, the mark can be in either state, and the next call sets it.
            Some(watched) => {
                watched.mark = None;
                watched.reader.take()
            }
            // Open before the mark is set: this description then causes no events, unless events were enabled on its
            // mount.
            None if has_room => reopen(file).ok(),
            None => None,
        };
        match mark {
            Mark::Active => self.source.watch(file)?,
            Mark::Silent => self.source.silence(file)?,
        }
        self.files.insert(id, Watched { mark: Some(mark), reader, key });
        Ok(())
    }

    /// Records that the log contains all of a file, so that no more content is read in this epoch. Closes the reader,
    /// because one epoch can record many files.
    pub(super) fn note_kept(&mut self, file: BorrowedFd<'_>, stat: &Stat) -> Result<()> {
        let Some(watched) = self.files.get_mut(&(stat.st_dev, stat.st_ino)) else { return Ok(()) };
        watched.reader = None;
        if watched.mark == Some(Mark::Active) { self.mark(file, stat, Mark::Silent) } else { Ok(()) }
    }

    pub(super) fn is_active(&self, id: Id) -> bool {
        self.files.get(&id).is_some_and(|watched| watched.mark == Some(Mark::Active))
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::watch::descriptors::stat;

    /// A source whose first calls fail.
    #[derive(Debug)]
    struct Failing {
        failures: AtomicU32,
        marks: Arc<AtomicU32>,
    }

    impl Failing {
        fn set(&self) -> sys::Result<()> {
            if self
                .failures
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1))
                .is_ok()
            {
                return Err(sys::Error::new("mark a file", sys::Errno::ENOSPC));
            }
            self.marks.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }
    }

    impl ContentSource for Failing {
        fn watch(&self, _: BorrowedFd<'_>) -> sys::Result<()> {
            self.set()
        }
        fn silence(&self, _: BorrowedFd<'_>) -> sys::Result<()> {
            self.set()
        }
        fn forget(&self, _: BorrowedFd<'_>) -> sys::Result<()> {
            Ok(())
        }
        fn enable(&self, _: BorrowedFd<'_>) -> sys::Result<()> {
            Ok(())
        }
        fn disable(&self, _: BorrowedFd<'_>) -> sys::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_mark_that_could_not_be_set_is_set_by_the_next_call() {
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        let found = stat(file.as_fd()).unwrap();
        let id = (found.st_dev, found.st_ino);
        let marks = Arc::new(AtomicU32::new(0));
        let with = |failures| Failing { failures: AtomicU32::new(failures), marks: Arc::clone(&marks) };
        let mut files = WatchedFiles::new(Box::new(with(1)));
        files.mark(file.as_fd(), &found, Mark::Active).unwrap_err();
        assert!(!files.has_id(id), "a file without a mark does not count as seen");
        files.mark(file.as_fd(), &found, Mark::Active).unwrap();
        files.mark(file.as_fd(), &found, Mark::Active).unwrap();
        assert_eq!((marks.load(Ordering::Relaxed), files.is_active(id)), (1, true));
        files.source = Box::new(with(1));
        files.mark(file.as_fd(), &found, Mark::Silent).unwrap_err();
        assert!(!files.is_active(id) && files.has_id(id), "the state of the mark is not known");
        files.mark(file.as_fd(), &found, Mark::Active).unwrap();
        assert_eq!((marks.load(Ordering::Relaxed), files.is_active(id)), (2, true));
    }
}
