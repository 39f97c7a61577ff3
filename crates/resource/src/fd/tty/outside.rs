//! Terminals of somebody else: the one the program was started in, serial lines, consoles.
//!
//! Owns: finding such a terminal again, and giving it the modes the program had set.
//! Invariants: only the very same terminal is opened by its path; where it is gone, a terminal that the restorer
//! hands on takes its place. The window size stays what it is now, and a terminal is not touched from the background.
//! Does not: save or replace what waits in it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::{Inode, Pid};
use rustix::fs::{FileType, major, minor};
use sys::terminal;

use super::{Node, SLAVE_MAJOR, TtyPayload, device_of, slave_path};
use crate::error::{ResourceError, Result};
use crate::fd::{Description, FdCreate, FdRecord};
use crate::obstacle::Obstacle;
use crate::support::inherited::Inherited;
use crate::support::opening;
use crate::support::path;

/// The usual file of a terminal.
fn usual_path(device: (u32, u32), saved: &Path) -> PathBuf {
    if device.0 == SLAVE_MAJOR { slave_path(device.1) } else { saved.to_owned() }
}

/// Refuses a terminal that could not be found again.
pub(super) fn obstacle(description: &Description) -> Option<Obstacle> {
    let device = device_of(description);
    let path = usual_path(device, Path::new(description.target()));
    let found = rustix::fs::stat(&path).is_ok_and(|stat| {
        // /dev/console and /dev/tty stand for another device than their own.
        let own = (major(stat.st_rdev), minor(stat.st_rdev));
        own == device || stat.st_rdev == description.stat.st_rdev
    });
    (!found).then(|| {
        description.obstacle(
            "terminal",
            &format!("device {}:{} has no file {} here", device.0, device.1, path.display()),
            "run undying where the program's terminal can be seen, or redirect the program's input and output",
        )
    })
}

/// Opens the terminals of somebody else.
#[derive(Debug, Default)]
pub(super) struct Outsiders {
    inherited: Inherited,
}

impl Outsiders {
    pub(super) fn open(
        &mut self,
        record: &FdRecord,
        payload: &TtyPayload,
        context: &FdCreate<'_>,
    ) -> Result<OwnedFd> {
        let handed_on = if payload.inherited {
            self.inherited.take(context, payload.file_system, Inode(payload.inode), record.flags)?
        } else {
            None
        };
        let file = match handed_on {
            Some(file) => file,
            None => match reopen(record, payload) {
                Ok(file) => file,
                Err(error) => {
                    let is_terminal = |entry: &(u64, Inode, OwnedFd)| rustix::termios::isatty(&entry.2);
                    self.inherited.take_if(context, record.flags, is_terminal)?.ok_or(error)?
                }
            },
        };
        if let Some(state) = &payload.state
            && may_set_modes(&file)
            && terminal::modes(file.as_fd())? != state.modes()?
        {
            terminal::set_modes(file.as_fd(), &state.modes()?)?;
        }
        Ok(file)
    }
}

fn reopen(record: &FdRecord, payload: &TtyPayload) -> Result<OwnedFd> {
    let device = (payload.major, payload.minor);
    let path = usual_path(device, &path::from_bytes(&payload.path));
    let gone = |why: String| {
        ResourceError::File {
        path: path.display().to_string(),
        why,
        fix: "restore from the terminal that the program shall have, or start it with input and output redirected"
            .to_owned(),
    }
    };
    // The kernel gives number and inode of a closed terminal to the next one: only the holders' rights decide.
    let found = record
        .opener
        .find(&path, None)
        .map_err(|refusal| gone(format!("the program's terminal is not there: {refusal}")))?;
    let stat = found.stat().map_err(|refusal| gone(refusal.to_string()))?;
    let is_terminal = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    let is_slave = device.0 == SLAVE_MAJOR;
    if !is_terminal || (is_slave && (major(stat.st_rdev), minor(stat.st_rdev)) != device) {
        return Err(gone("it is no longer the program's terminal".to_owned()));
    }
    if is_slave && payload.node != Some(Node::of(&stat)) {
        return Err(gone("it is another terminal by now".to_owned()));
    }
    found.open(opening::flags_for(record.flags)).map_err(|refusal| gone(refusal.to_string()))
}

/// Whether setting modes would stop this very process: it would in the background of a session the terminal controls.
fn may_set_modes(terminal: &OwnedFd) -> bool {
    match rustix::termios::tcgetpgrp(terminal) {
        Ok(foreground) => {
            let own = sys::session::group_of(Pid(std::process::id() as i32));
            own.is_ok_and(|own| own.get() == foreground.as_raw_nonzero().get())
        }
        Err(_) => true,
    }
}
