//! Concurrent calls on one name: one thread opens the name while another thread moves a file to this name.
//!
//! Owns: the detection of these calls, and recording the moved file.
//! Invariants: if a file can get a name while another thread opens this name, the file is recorded like an opened file.
//! The order in which the kernel executes the two calls does not matter.
//! Does not: handle a directory that is renamed while another thread opens a file below this directory. The next
//! checkpoint detects the file if the file is still open.

use std::os::fd::AsFd;

use model::Tid;

use super::crossings::{Doing, place_of};
use super::descriptors::duplicate;
use super::epoch::Part;
use super::names::open;
use super::paths::Entry;
use super::state::State;
use crate::error::Result;

impl State {
    /// Notes that a thread is about to open a name. Records files that another thread is about to move to this name.
    pub(super) fn opens(&mut self, thread: Tid, entry: &Entry, part: Part) -> Result<()> {
        let place = place_of(entry)?;
        let mut moving = Vec::new();
        for doing in self.calls.crossings.all() {
            if let Doing::Moves(to, file) = doing
                && *to == place
            {
                moving.push(duplicate(file.as_fd())?);
            }
        }
        self.calls.crossings.note(thread, Doing::Opens(place, part));
        moving.iter().try_for_each(|file| self.change(file.as_fd(), part))
    }

    /// Notes that a thread is about to give a file a name. Records the file if another thread is about to open this
    /// name.
    pub(super) fn moves(&mut self, thread: Tid, from: &Entry, to: &Entry) -> Result<()> {
        let Some((file, _)) = open(from)? else { return Ok(()) };
        let place = place_of(to)?;
        let parts: Vec<Part> = self
            .calls
            .crossings
            .all()
            .filter_map(|doing| match doing {
                Doing::Opens(opened, part) if *opened == place => Some(*part),
                _ => None,
            })
            .collect();
        for part in parts {
            self.change_named(from, file.as_fd(), part)?;
        }
        self.calls.crossings.note(thread, Doing::Moves(place, file));
        Ok(())
    }
}
