//! Calls of two threads that meet at one name.
//!
//! Owns: what each thread was last allowed to do with a name.
//! Invariants: a file that can come to have a name while another thread opens that name is kept as if it were opened
//! itself, whichever of the two calls the kernel carries out first.
//! Does not: follow directories that are renamed while a path through them is opened; such a file is found at the next
//! boundary if it is still open then.

use std::os::fd::AsFd;

use model::Tid;

use super::crossings::{Doing, Place};
use super::descriptors::{duplicate, stat};
use super::epoch::Part;
use super::paths::Entry;
use super::state::State;
use crate::error::Result;

impl State {
    /// A thread is about to open a name. Files that another thread is about to move there are kept.
    pub(super) fn opens(&mut self, thread: Tid, entry: &Entry, part: Part) -> Result<()> {
        let place = place_of(entry)?;
        let mut moving = Vec::new();
        for doing in self.crossings.0.values() {
            if let Doing::Moves(to, file) = doing
                && *to == place
            {
                moving.push(duplicate(file.as_fd())?);
            }
        }
        self.crossings.0.insert(thread, Doing::Opens(place, part));
        moving.iter().try_for_each(|file| self.change(file.as_fd(), part))
    }

    /// A thread is about to give a file a name. It is kept if another thread is about to open that name.
    pub(super) fn moves(&mut self, thread: Tid, from: &Entry, to: &Entry) -> Result<()> {
        let Ok(file) = from.open() else { return Ok(()) };
        let place = place_of(to)?;
        let parts: Vec<Part> = self
            .crossings
            .0
            .values()
            .filter_map(|doing| match doing {
                Doing::Opens(opened, part) if *opened == place => Some(*part),
                _ => None,
            })
            .collect();
        for part in parts {
            self.change_named(from, file.as_fd(), part)?;
        }
        self.crossings.0.insert(thread, Doing::Moves(place, file));
        Ok(())
    }
}

fn place_of(entry: &Entry) -> Result<Place> {
    let directory = stat(entry.directory.as_fd())?;
    Ok(((directory.st_dev, directory.st_ino), entry.name.clone()))
}
