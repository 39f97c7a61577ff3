//! Calls that the kernel will refuse because of the present names: unlink(2) of a directory, rmdir(2) of a file or of a
//! directory with content, rename(2) onto a name of another type.
//!
//! Such a call changes nothing and is not recorded. Otherwise, a rollback would revert later changes of these names by
//! other programs. But another thread of the subject can change a name before the kernel executes the call, so that the
//! call succeeds.
//!
//! Owns: the decision that a call will be refused, and recording the call if another thread changes one of its names.
//! Invariants: a call counts as refused only if the subject has not changed its names in the present epoch. Therefore,
//! no other thread is changing these names at the time of the decision.
//! Does not: check permissions.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::Tid;
use rustix::fs::{Dir, FileType, Mode, OFlags, Stat};

use super::crossings::{Doing, Refused, place_of};
use super::descriptors::{duplicate, key_of, stat};
use super::paths::Entry;
use super::state::State;
use crate::error::Result;

/// A file that a name leads to.
pub(super) type Found = (OwnedFd, Stat);

impl State {
    /// Reports whether the kernel will refuse the removal of a name.
    pub(super) fn refuses_removal(
        &mut self,
        thread: Tid,
        entry: &Entry,
        found: &Found,
        is_directory: bool,
    ) -> Result<bool> {
        let is_other = is_folder(&found.1) != is_directory;
        if !is_other && (!is_directory || is_empty(found.0.as_fd())) {
            return Ok(false);
        }
        self.is_refused(thread, &[entry], (!is_other).then_some(found))
    }

    /// Reports whether the kernel will refuse to replace the file `target` by the file `source`, or will change nothing
    /// because both are the same file.
    pub(super) fn refuses_rename(
        &mut self,
        thread: Tid,
        (from, source): (&Entry, &Found),
        (to, target): (&Entry, &Found),
    ) -> Result<bool> {
        let is_same = (source.1.st_dev, source.1.st_ino) == (target.1.st_dev, target.1.st_ino);
        let is_other = is_same || is_folder(&source.1) != is_folder(&target.1);
        if !is_other && (!is_folder(&target.1) || is_empty(target.0.as_fd())) {
            return Ok(false);
        }
        self.is_refused(thread, &[from, to], (!is_other).then_some(target))
    }

    /// Notes a call that will be refused. Returns `false` if the subject has changed one of its names in this epoch.
    fn is_refused(&mut self, thread: Tid, entries: &[&Entry], full: Option<&Found>) -> Result<bool> {
        for entry in entries {
            let key = key_of(entry.directory.as_fd(), &stat(entry.directory.as_fd())?)?;
            if self.epoch.directories.get(&key).is_some_and(|names| names.has(&entry.name)) {
                return Ok(false);
            }
        }
        if let Some((file, stat)) = full
            && self.epoch.directories.contains_key(&key_of(file.as_fd(), stat)?)
        {
            return Ok(false);
        }
        let copy = |entry: &&Entry| -> Result<Entry> {
            Ok(Entry { directory: duplicate(entry.directory.as_fd())?, name: entry.name.clone() })
        };
        let refused = Refused {
            names: entries.iter().map(|entry| place_of(entry)).collect::<Result<_>>()?,
            inside: full.map(|(_, stat)| (stat.st_dev, stat.st_ino)),
            entries: entries.iter().map(copy).collect::<Result<_>>()?,
            rights: self.calls.limit.clone().or_else(|| self.calls.rights.clone()),
        };
        self.calls.crossings.note(thread, Doing::Refused(refused));
        Ok(true)
    }

    /// Records the calls that may succeed after all, because the present call changes a name. Returns whether such a call
    /// exists.
    pub(super) fn unrefuse(&mut self, entry: &Entry) -> Result<bool> {
        if !self.calls.crossings.has_refused() {
            return Ok(false);
        }
        let place = place_of(entry)?;
        let meets = |refused: &Refused| refused.names.contains(&place) || refused.inside == Some(place.0);
        let mut has_met = false;
        while let Some((thread, refused)) = self.calls.crossings.take_refused(meets) {
            has_met = true;
            let own = std::mem::replace(&mut self.calls.rights, refused.rights.clone());
            let limit = self.calls.limit.take();
            let outcome = match &refused.entries[..] {
                [from, to] => self.replace(from, to),
                all => all.iter().try_for_each(|entry| self.take_away(entry)),
            };
            (self.calls.rights, self.calls.limit) = (own, limit);
            if outcome.is_err() {
                // The next attempt records the call.
                self.calls.crossings.note(thread, Doing::Refused(refused));
                outcome?;
            }
        }
        Ok(has_met)
    }
}

fn is_folder(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

/// Reports whether a directory may be empty.
fn is_empty(directory: BorrowedFd<'_>) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::openat(directory, ".", flags, Mode::empty()) else { return true };
    let Ok(entries) = Dir::new(opened) else { return true };
    !entries.flatten().any(|entry| ![c".", c".."].contains(&entry.file_name()))
}
