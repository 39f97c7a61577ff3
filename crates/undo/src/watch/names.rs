//! Recording of names that are about to change.
//!
//! Owns: the record of a name at its first change in an epoch, and hard links that preserve inodes whose names are
//! removed.
//! Invariants: a record names the inode that the name led to when the epoch began. An old inode keeps a name, or the
//! log contains its whole state.
//! Does not: record content.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use model::Tid;
use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::descriptors::{self, key_of, recorded_path, stat};
use super::epoch::{Content, Names, Touched};
use super::paths::Entry;
use super::state::State;
use crate::descriptor::path_of;
use crate::error::Result;
use crate::key::{Attributes, FileKey};
use crate::rights::Aspects;

impl State {
    /// Records a name before its first change. Returns the present file with this name, opened with O_PATH.
    pub(super) fn name(&mut self, entry: &Entry) -> Result<Option<(OwnedFd, Stat)>> {
        let found = open(entry)?;
        self.name_of(entry, found.as_ref())?;
        Ok(found)
    }

    /// Records a name before the name is created. Does nothing if the name exists, because the call then fails.
    pub(super) fn make(&mut self, entry: &Entry) -> Result<()> {
        match open(entry)? {
            Some(_) => Ok(()),
            None => self.name_of(entry, None),
        }
    }

    fn name_of(&mut self, entry: &Entry, found: Option<&(OwnedFd, Stat)>) -> Result<()> {
        self.unrefuse(entry)?;
        let (key, by) = (self.directory(entry)?, self.by()?);
        let Some(names) = self.epoch.directories.get(&key) else { return Ok(()) };
        let id = names.id;
        let before = match (names.touched(&entry.name, by), found) {
            (Touched::Known, _) => return Ok(()),
            (Touched::Never, Some((file, stat))) => Some(self.old(file.as_fd(), stat, Aspects::NONE)?.id),
            // The target of a rollback uses the oldest inode, and all rights.
            (Touched::Never, None) | (Touched::WithOtherRights, _) => None,
        };
        self.epoch.is_touched = true;
        self.log.name(id, &entry.name, before, by)?;
        if let Some(names) = self.epoch.directories.get_mut(&key) {
            names.note(&entry.name, by);
        }
        Ok(())
    }

    /// Records the directory of a name.
    fn directory(&mut self, entry: &Entry) -> Result<FileKey> {
        let stat = stat(entry.directory.as_fd())?;
        self.file_systems.note_mount(entry.directory.as_fd(), stat.st_dev);
        let key = key_of(entry.directory.as_fd(), &stat)?;
        if !self.epoch.directories.contains_key(&key) {
            let path = recorded_path(entry.directory.as_fd())?;
            let id = self.log.directory(&key, &Attributes::read(&entry.directory, &stat)?, &path)?;
            self.epoch.directories.insert(key.clone(), Names::new(id));
        }
        Ok(key)
    }

    /// Records a name before its removal. Preserves the file that loses the name. Does nothing if the call fails because
    /// of the type of the file, or because a directory is not empty.
    pub(super) fn remove(&mut self, thread: Tid, entry: &Entry, is_directory: bool) -> Result<()> {
        match open(entry)? {
            Some(found) if self.refuses_removal(thread, entry, &found, is_directory)? => Ok(()),
            _ => self.take_away(entry),
        }
    }

    /// Records a name before its removal. Preserves the file that loses the name.
    pub(super) fn take_away(&mut self, entry: &Entry) -> Result<()> {
        let Some(found) = open(entry)? else { return Ok(()) };
        self.name_of(entry, Some(&found))?;
        self.outlive(entry, found.0.as_fd(), &found.1)
    }

    /// Records both names before a rename. Preserves a file that the rename replaces. Does nothing if the call changes
    /// nothing: because the file is missing, because the names are on different file systems or lead to the same file, or
    /// because of the types of the files. A call that exchanges two names does not depend on the types.
    pub(super) fn rename(&mut self, thread: Tid, from: &Entry, to: &Entry, is_exchange: bool) -> Result<()> {
        let Some(source) = open(from)? else { return Ok(()) };
        if source.1.st_dev != descriptors::stat(to.directory.as_fd())?.st_dev {
            return Ok(());
        }
        if !is_exchange
            && let Some(target) = open(to)?
            && self.refuses_rename(thread, (from, &source), (to, &target))?
        {
            return Ok(());
        }
        self.replace(from, to)
    }

    /// Records both names before a rename. Preserves a file that the rename replaces.
    pub(super) fn replace(&mut self, from: &Entry, to: &Entry) -> Result<()> {
        let Some(found) = open(from)? else { return Ok(()) };
        let source = found.1;
        self.name_of(from, Some(&found))?;
        if self.unrefuse(to)? {
            // Another thread may remove the file under its new name.
            self.outlive(from, found.0.as_fd(), &source)?;
        }
        let target = self.name(to)?;
        match target {
            Some((file, stat)) if (stat.st_dev, stat.st_ino) != (source.st_dev, source.st_ino) => {
                self.outlive(to, file.as_fd(), &stat)
            }
            _ => Ok(()),
        }
    }

    /// Records a name that a file is about to get.
    pub(super) fn link(&mut self, from: &Entry, to: &Entry) -> Result<()> {
        let Some((file, stat)) = open(from)? else { return Ok(()) };
        // The call fails if the file is on another file system.
        if stat.st_dev != descriptors::stat(to.directory.as_fd())?.st_dev {
            return Ok(());
        }
        // Record the file, so that the file counts as old under its new name.
        if !self.is_made(from, file.as_fd(), &stat)? {
            self.old(file.as_fd(), &stat, Aspects::NONE)?;
        }
        self.make(to)
    }

    /// Reports whether the file with a name was created in this epoch. In this case, the name has changed in this epoch
    /// and the file is not old.
    pub(super) fn is_made(&mut self, entry: &Entry, file: BorrowedFd<'_>, stat: &Stat) -> Result<bool> {
        let id = (stat.st_dev, stat.st_ino);
        if self.is_old(file, stat)? {
            return Ok(false);
        }
        if self.epoch.made.contains(&id) {
            return Ok(true);
        }
        let directory = descriptors::stat(entry.directory.as_fd())?;
        let key = key_of(entry.directory.as_fd(), &directory)?;
        let is_made = self.epoch.directories.get(&key).is_some_and(|names| names.has(&entry.name));
        if is_made {
            self.epoch.made.insert(id);
        }
        Ok(is_made)
    }

    /// Preserves an old inode before the inode loses a name.
    fn outlive(&mut self, entry: &Entry, file: BorrowedFd<'_>, stat: &Stat) -> Result<()> {
        let id = (stat.st_dev, stat.st_ino);
        let kind = FileType::from_raw_mode(stat.st_mode);
        let Some(old) = self.epoch.inodes.get(&id).filter(|old| !old.is_kept) else { return Ok(()) };
        let number = old.id;
        // A removed directory is empty, so that its attributes are its whole state.
        let link = match kind {
            FileType::Directory => None,
            _ => self.keep.link(file, entry.directory.as_fd()).ok(),
        };
        match &link {
            Some(link) => self.log.linked(number, link)?,
            None if kind == FileType::RegularFile => {
                self.old(file, stat, Aspects::CONTENT)?;
                self.whole(file, stat)?;
            }
            // The log contains the attributes. A file of another type has no other state.
            None => {}
        }
        let gone = if link.is_none() { Some(key_of(file, stat)?) } else { None };
        if let Some(old) = self.epoch.inodes.get_mut(&id) {
            (old.is_kept, old.gone) = (true, gone);
            debug_assert!(kind == FileType::RegularFile || old.content == Content::Whole);
        }
        Ok(())
    }
}

pub(super) fn open(entry: &Entry) -> Result<Option<(OwnedFd, Stat)>> {
    match entry.open() {
        Ok(file) => {
            let stat = stat(file.as_fd())?;
            Ok(Some((file, stat)))
        }
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => {
            let path = path_of(entry.directory.as_fd()).join(&entry.name);
            Err(sys::Error::path("inspect", path, errno).into())
        }
    }
}
