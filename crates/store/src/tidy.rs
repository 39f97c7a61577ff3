//! Tidying a store: named copies, merging, and what nothing refers to.
//!
//! Owns: what is a copy and what is a subject; what is garbage.
//! Invariants: a subject is never taken for a copy, nor the unfinished work of a living writer for garbage.
//! Does not: choose what to keep; `Store::prune` does.

use std::path::{Path, PathBuf};

use model::ByteCount;

use crate::error::{Error, Result};
use crate::log::{self, Squashed};
use crate::name::SubjectName;
use crate::staging;
use crate::store::Store;

/// What nothing refers to, and what could not be inspected.
#[derive(Clone, Debug, Default)]
pub struct Garbage {
    /// Files and directories, with their sizes.
    pub found: Vec<(PathBuf, ByteCount)>,
    /// Subjects whose log is being written. Its writer tidies it itself.
    pub busy: Vec<SubjectName>,
    /// Subjects that are damaged or cannot be read, and left as they are.
    pub damaged: Vec<(SubjectName, Error)>,
}

impl Store {
    /// The subject that the images under this name were copied from; `None` when the name is a subject's own,
    /// or nothing. Fails when the store cannot be read.
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

    /// Keeps an image, a path as `resolve` gives it, as a copy under a name that nothing has yet. What a dead writer
    /// left behind under the name is removed first.
    ///
    /// # Errors
    ///
    /// `Exists` when the name is taken; otherwise as `link`.
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

    /// Removes a copy and its name. Who is reading it reads on.
    ///
    /// # Errors
    ///
    /// `NotFound`; `NotACopy` when it is a subject's own; or why it cannot be removed.
    pub fn remove_copy(&self, name: &SubjectName) -> Result<()> {
        let entries = self.entries(name)?;
        if self.copy_of(name)?.is_none() {
            let there = self.medium.kind(&self.subject(name))?.is_some();
            return Err(if there { Error::NotACopy(name.to_string()) } else { self.not_found(name, None) });
        }
        for entry in entries {
            self.remove(name, entry.sequence)?;
        }
        // Something of another's may have come meanwhile: then the name stays.
        if self.medium.list(&self.subject(name))?.is_empty() {
            self.medium.remove_directory(&self.subject(name))?;
            self.medium.sync_directory(&self.root)?;
        }
        Ok(())
    }

    /// Writes the newest checkpoint of a subject's log anew, in order and with one index; `None` when it has no
    /// log. Images in directories hold no deltas.
    ///
    /// # Errors
    ///
    /// `LogBusy` when it is being written; `NotFound`; what is damaged; or `Io`.
    pub fn squash(&self, name: &SubjectName) -> Result<Option<Squashed>> {
        if self.newest(name)?.is_none() {
            return Err(self.not_found(name, None));
        }
        if self.medium.kind(&self.log(name))?.is_none() {
            return Ok(None);
        }
        log::squash::squash(&self.medium, &self.log(name))
    }

    /// Finds what nothing refers to, and removes it if it is to: what dead writers left behind, and segments that
    /// no checkpoint needs.
    ///
    /// # Errors
    ///
    /// When the store cannot be listed. What is wrong with one subject is in the answer.
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
        // Held to the end: a writer that came meanwhile would make segments that no checkpoint names yet.
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
