//! Maintenance of a store: named copies (images that are stored under a name of their own), rewriting logs, and garbage
//! collection.
//!
//! Owns: the distinction between copies and subjects; the definition of garbage.
//! Invariants: a subject is never treated as a copy. Unfinished work of a living writer is never treated as garbage.
//! Does not: choose which checkpoints are kept; `Store::prune` does.

use std::path::{Path, PathBuf};

use model::ByteCount;

use crate::error::{Error, Result};
use crate::log::{self, Squashed};
use crate::name::SubjectName;
use crate::staging;
use crate::store::Store;

/// Unreferenced files and directories, and the subjects that could not be inspected.
#[derive(Clone, Debug, Default)]
pub struct Garbage {
    /// Unreferenced files and directories, with their sizes.
    pub found: Vec<(PathBuf, ByteCount)>,
    /// Subjects whose log has a running writer. The writer removes unneeded segments.
    pub busy: Vec<SubjectName>,
    /// Subjects that are damaged or cannot be read, with the error. The logs of these subjects remain unchanged.
    pub damaged: Vec<(SubjectName, Error)>,
}

impl Store {
    /// Returns the name of the subject from which the images under this name were copied. Returns `None` if the name
    /// belongs to a subject, or if nothing has this name. Fails if the store cannot be read.
    pub fn copy_of(&self, name: &SubjectName) -> Result<Option<String>> {
        if self.medium.kind(&self.log(name))?.is_some() {
            return Ok(None);
        }
        let entries = self.entries(name)?;
        let is_copied = |commit: &Result<image::Commit>| {
            commit.as_ref().is_ok_and(|commit| commit.subject != name.as_str())
        };
        if !entries.iter().all(|entry| is_copied(&entry.commit)) {
            return Ok(None);
        }
        Ok(entries.into_iter().last().and_then(|entry| Some(entry.commit.ok()?.subject)))
    }

    /// Copies an image under a name that is not in use. `image` is a path that `resolve` has returned. Removes the
    /// leftovers of dead writers under the name first.
    ///
    /// # Errors
    ///
    /// Returns `Exists` if the name is in use; otherwise returns the errors of `link`.
    pub fn keep_copy(&self, image: &Path, name: &SubjectName) -> Result<PathBuf> {
        let directory = self.subject(name);
        if self.medium.kind(&directory)?.is_some() {
            self.sweep(name)?;
            if !self.medium.list(&directory)?.is_empty() {
                return Err(Error::Exists(directory));
            }
        }
        self.link(image, name)
    }

    /// Removes a copy and its name. Readers that have opened the copy can continue to read.
    ///
    /// # Errors
    ///
    /// Returns `NotFound`, `NotACopy` if the name belongs to a subject, or an error of the removal.
    pub fn remove_copy(&self, name: &SubjectName) -> Result<()> {
        let entries = self.entries(name)?;
        if self.copy_of(name)?.is_none() {
            let there = self.medium.kind(&self.subject(name))?.is_some();
            return Err(if there { Error::NotACopy(name.to_string()) } else { self.not_found(name, None) });
        }
        for entry in entries {
            self.remove(name, entry.sequence)?;
        }
        // Another process may have created an entry in the directory. In this case the name remains.
        if self.medium.list(&self.subject(name))?.is_empty() {
            self.medium.remove_directory(&self.subject(name))?;
            self.medium.sync_directory(&self.root)?;
        }
        Ok(())
    }

    /// Writes the newest checkpoint of a subject's log again, with pages in order of address and one index. Returns
    /// `None` if the subject has no log: an image directory already has this form.
    ///
    /// # Errors
    ///
    /// Returns `LogBusy` if another process is writing the log, `NotFound`, the damage found, or `Io`.
    pub fn squash(&self, name: &SubjectName) -> Result<Option<Squashed>> {
        if self.newest(name)?.is_none() {
            return Err(self.not_found(name, None));
        }
        if self.medium.kind(&self.log(name))?.is_none() {
            return Ok(None);
        }
        log::squash::squash(&self.medium, &self.log(name))
    }

    /// Finds leftovers of dead writers and segments that no checkpoint needs. Removes these files if `remove` is true.
    ///
    /// # Errors
    ///
    /// Fails if the store cannot be listed. Errors of single subjects are part of the result.
    pub fn garbage(&self, remove: bool) -> Result<Garbage> {
        let mut garbage = Garbage::default();
        for name in self.names()? {
            if let Err(error) = self.garbage_of(&name, remove, &mut garbage) {
                garbage.damaged.push((name, error));
            }
        }
        Ok(garbage)
    }

    fn garbage_of(&self, name: &SubjectName, remove: bool, garbage: &mut Garbage) -> Result<()> {
        self.medium.check_directory(&self.subject(name))?;
        let left = staging::leftovers(&*self.medium, &self.subject(name), remove)?;
        garbage.found.extend(left);
        let directory = self.log(name);
        if self.medium.kind(&directory)?.is_none() {
            return Ok(());
        }
        self.medium.check_directory(&directory)?;
        // The lock is held to the end. Otherwise a new writer could create segments that no checkpoint names yet.
        let Some(_lock) = self.medium.lock(&directory)? else {
            garbage.busy.push(name.clone());
            return Ok(());
        };
        for path in log::space::garbage(&*self.medium, &directory)? {
            let length = self.medium.open_pages(&path)?.length()?;
            if remove {
                self.medium.remove_file(&path)?;
            }
            garbage.found.push((path, length));
        }
        Ok(())
    }
}
