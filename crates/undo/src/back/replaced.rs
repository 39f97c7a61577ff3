//! Files of the checkpoint that another program has removed or replaced.
//!
//! The undo log records each name that the subject changes. Therefore, a path whose names have no record still leads to
//! the inode to which it led when this inode was recorded. If it does not, another program has changed a name. If the
//! subject has renamed a directory since the checkpoint, nothing is known about recorded paths through this name.
//!
//! Owns: the comparison of recorded paths with the present names.
//! Invariants: the comparison changes nothing.
//! Does not: find changes of content; `survey` does.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::FileType;

use super::files::{FileSystem, Status};
use super::permission::kept_links;
use super::survey::Survey;
use crate::error::Result;
use crate::key::Time;
use crate::log::target::{Index, Target};

/// The recorded names of a target.
pub(crate) struct RecordedNames<'a> {
    target: &'a Target,
    /// The present directories of the target, by device and inode number.
    directories: HashMap<(u64, u64), Index>,
}

/// The present end of a path that another program leads away from a file.
pub(crate) struct LedAway {
    /// The change time of the last inode on the path that exists.
    pub(crate) changed: Time,
    /// Whether the path leads to another file.
    is_taken: bool,
}

impl<'a> RecordedNames<'a> {
    pub(crate) fn of<Files: FileSystem>(files: &Files, target: &'a Target) -> Result<Self> {
        let mut directories = HashMap::new();
        for (index, inode) in target.inodes.iter().enumerate() {
            if inode.attributes.kind() == FileType::Directory
                && files.find(&inode.key, &inode.path)?.is_some()
            {
                directories.insert((inode.key.device, inode.key.inode), index);
            }
        }
        Ok(Self { target, directories })
    }

    /// Returns where a recorded path leads now, if it does not lead to `file`. `None` as `file` means an inode that does
    /// not exist any more. Returns `None` if the subject has changed a name of the path, because the rollback sets this
    /// name back.
    pub(crate) fn led_away<Files: FileSystem>(
        &self,
        files: &Files,
        path: &Path,
        file: Option<(u64, u64)>,
    ) -> Result<Option<LedAway>> {
        if !path.is_absolute() || path.as_os_str().as_bytes().ends_with(b" (deleted)") {
            return Ok(None);
        }
        let Some(way) = files.way(path, file)? else { return Ok(None) };
        let is_by_subject = way.iter().zip(path.iter().skip(1)).any(|(passed, name)| {
            let index = self.directories.get(&passed.file);
            index.is_some_and(|index| self.target.names.contains_key(&(*index, name.as_bytes().to_vec())))
        });
        let is_taken = way.len() == path.iter().count();
        // A change of a name changes the ctime of the directory, and of the inode that gets the name. The ctime of a
        // directory further up says little: it changes with every file that is created there.
        let changed = way.last().map(|passed| passed.changed);
        Ok(changed.filter(|_| !is_by_subject).map(|changed| LedAway { changed, is_taken }))
    }
}

impl Survey {
    /// Returns the paths of files that do not exist any more, if another program has put other files there. The program
    /// would take these files for its own.
    pub(crate) fn replaced<Files: FileSystem>(&self, files: &Files, target: &Target) -> Result<Vec<PathBuf>> {
        let names = RecordedNames::of(files, target)?;
        let mut paths = Vec::new();
        for (index, inode) in target.inodes.iter().enumerate() {
            let now = match &self.now[index] {
                Some(now) if !self.belongs[index] || now.is_directory() => continue,
                now => now.as_ref(),
            };
            let file = now.map(|now| (now.key.device, now.key.inode));
            let is_taken = names.led_away(files, &inode.path, file)?.is_some_and(|away| away.is_taken);
            // Whether all names of an inode are in keep directories.
            let is_only_kept =
                |now: &Status| -> Result<bool> { Ok(kept_links(files, &now.key)? >= now.links) };
            if is_taken && now.map_or(Ok(true), is_only_kept)? {
                paths.push(inode.path.clone());
            }
        }
        Ok(paths)
    }

    /// Returns the recorded paths that other programs have led to other files, or to none, since `ended`.
    pub(crate) fn led_away<Files: FileSystem>(
        &self,
        files: &Files,
        target: &Target,
        ended: Time,
    ) -> Result<Vec<PathBuf>> {
        let names = RecordedNames::of(files, target)?;
        let mut paths = Vec::new();
        for (index, inode) in target.inodes.iter().enumerate() {
            if self.now[index].is_none() || self.belongs[index] {
                let file = self.now[index].as_ref().map(|now| (now.key.device, now.key.inode));
                let Some(away) = names.led_away(files, &inode.path, file)? else { continue };
                // A rename changes the ctime of the file. Therefore, a log that was rotated while the program ran is no
                // conflict, whatever happens in its directory later.
                let changed = match &self.now[index] {
                    Some(now) if files.has_name_beside(&inode.path, now.key.inode)? => now.changed,
                    _ => away.changed,
                };
                if changed > ended {
                    paths.push(inode.path.clone());
                }
            }
        }
        Ok(paths)
    }
}

impl RecordedNames<'_> {
    /// Returns the path of a file that the subject had open for writing, if another program leads the path away from the
    /// file. `now` is the present inode of the file.
    pub(crate) fn opened_elsewhere<Files: FileSystem>(
        &self,
        files: &Files,
        path: PathBuf,
        now: (u64, u64),
    ) -> Result<Option<PathBuf>> {
        let is_known = self.target.inodes.iter().any(|inode| (inode.key.device, inode.key.inode) == now);
        if is_known || self.target.uncovered.contains(&now) {
            return Ok(None);
        }
        // The restore opens such a file by its identity.
        if files.has_name_beside(&path, now.1)? {
            return Ok(None);
        }
        Ok(self.led_away(files, &path, Some(now))?.map(|_| path))
    }
}
