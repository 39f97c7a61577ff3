//! Outside terminals: the terminal in which the program was started, serial lines, consoles.
//!
//! Owns: finding such a terminal again, and setting the modes that the program had set.
//! Invariants: a terminal is opened by its path only if it is the same terminal. If the terminal no longer exists, an
//! inherited terminal of the restoring process replaces it. An inherited terminal also replaces a standard stream
//! whose terminal now controls another session. Without a replacement, the restore is refused, since the program
//! would read the input of that session. The window size is not changed. Modes are not set from a background process
//! group, or on a terminal that controls a session of other processes.
//! Does not: save or restore unread bytes of the terminal.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::{Inode, Pid};
use rustix::fs::{FileType, major, minor};
use sys::terminal;
use tracee::procfs;

use super::payload::{Node, TtyPayload, slave_path};
use super::role::{Role, SLAVE_MAJOR, device_of, encode};
use crate::error::{ResourceError, Result};
use crate::fd::description::Description;
use crate::fd::kind::{FdCreate, FdRecord, InheritedFile};
use crate::obstacle::Obstacle;
use crate::support::inherited::Inherited;
use crate::support::opening;
use crate::support::path;

/// The highest fd of a standard stream.
const STANDARD_MAX: i32 = 2;

/// Returns the usual path of a terminal.
fn usual_path(device: (u32, u32), saved: &Path) -> PathBuf {
    if device.0 == SLAVE_MAJOR { slave_path(device.1) } else { saved.to_owned() }
}

/// Returns the obstacle of a terminal that a restore would not find.
pub(super) fn obstacle(description: &Description) -> Option<Obstacle> {
    let device = device_of(description);
    let path = usual_path(device, Path::new(description.target()));
    let found = rustix::fs::stat(&path).is_ok_and(|stat| {
        // The device number of /dev/console and /dev/tty is not the device number of the terminal behind them.
        let own = (major(stat.st_rdev), minor(stat.st_rdev));
        own == device || stat.st_rdev == description.stat.st_rdev
    });
    (!found).then(|| {
        description.obstacle(
            "terminal",
            &format!("device {}:{} has no file {}", device.0, device.1, path.display()),
            "run undying where the program's terminal has a file, or redirect the program's input and output",
        )
    })
}

/// Opens the outside terminals of an image.
#[derive(Debug, Default)]
pub(super) struct Outsiders {
    inherited: Inherited,
    /// Terminals of the program's standard streams that control neither the program's session nor the session of the
    /// restoring process.
    foreign: HashSet<(u32, u32)>,
}

impl Outsiders {
    /// Finds the terminals of these records that may now control another session.
    pub(super) fn of(records: &[(&FdRecord, TtyPayload)]) -> Self {
        let outside = || records.iter().filter(|(_, payload)| payload.role() == Role::Outside);
        let device = |payload: &TtyPayload| (payload.major, payload.minor);
        let is_stream = |record: &FdRecord| record.holder.1.get() <= STANDARD_MAX;
        let mut foreign: HashSet<_> =
            outside().filter(|(record, _)| is_stream(record)).map(|(_, payload)| device(payload)).collect();
        let own = procfs::stat(own_pid()).map_or(0, |stat| stat.tty_nr);
        foreign.retain(|device| device.0 == SLAVE_MAJOR && encode(*device) != own);
        for (_, payload) in outside().filter(|(_, payload)| payload.session != 0) {
            foreign.remove(&device(payload));
        }
        Self { inherited: Inherited::default(), foreign }
    }

    pub(super) fn open(
        &mut self,
        record: &FdRecord,
        payload: &TtyPayload,
        context: &FdCreate<'_>,
    ) -> Result<OwnedFd> {
        let file = self.find(record, payload, context)?;
        if let Some(state) = &payload.state
            && may_set_modes(&file)
            && terminal::modes(file.as_fd())? != state.modes()?
        {
            terminal::set_modes(file.as_fd(), &state.modes()?)?;
        }
        Ok(file)
    }

    fn find(&mut self, record: &FdRecord, payload: &TtyPayload, context: &FdCreate<'_>) -> Result<OwnedFd> {
        if payload.inherited
            && let Some(file) =
                self.inherited.take(context, payload.file_system, Inode(payload.inode), record.flags)?
        {
            return Ok(file);
        }
        let device = (payload.major, payload.minor);
        if self.foreign.contains(&device) {
            // For a terminal that does not control our session, tcgetpgrp(3) fails with ENOTTY.
            let is_own = |entry: &InheritedFile| rustix::termios::tcgetpgrp(&entry.2).is_ok();
            if let Some(file) = self.inherited.take_if(context, record.flags, is_own)? {
                return Ok(file);
            }
            if let Some(other) = controlled_by(device) {
                return Err(two_readers(record, device, other));
            }
        }
        reopen(record, payload).or_else(|error| {
            let is_terminal = |entry: &InheritedFile| rustix::termios::isatty(&entry.2);
            self.inherited.take_if(context, record.flags, is_terminal)?.ok_or(error)
        })
    }
}

/// Checks that the outside terminal of a record exists, or a terminal that can replace it.
pub(super) fn check(record: &FdRecord, payload: &TtyPayload, inherited: &[InheritedFile]) -> Result<()> {
    let is_it = |(device, inode, _): &InheritedFile| {
        payload.inherited && (*device, inode.get()) == (payload.file_system, payload.inode)
    };
    let can_replace = |file: &InheritedFile| is_it(file) || rustix::termios::isatty(&file.2);
    if inherited.iter().any(can_replace) { Ok(()) } else { reopen(record, payload).map(drop) }
}

fn two_readers(record: &FdRecord, device: (u32, u32), other: Pid) -> ResourceError {
    let name = procfs::stat(other).map_or_else(|_| String::new(), |stat| format!(" ({})", stat.comm));
    ResourceError::Unsupported {
        pid: record.holder.0,
        what: format!("terminal {}", slave_path(device.1).display()),
        why: format!(
            "this terminal controls the session of pid {other}{name}, and the restored program would read the input of that session"
        ),
        fix: "restore with a terminal as standard input, which the program then uses (`script -qc COMMAND /dev/null` \
              creates one)"
            .to_owned(),
    }
}

fn reopen(record: &FdRecord, payload: &TtyPayload) -> Result<OwnedFd> {
    let device = (payload.major, payload.minor);
    let path = usual_path(device, &path::from_bytes(&payload.path));
    let gone = |why: String| {
        ResourceError::File {
        path: path.display().to_string(),
        why,
        fix: "restore from the terminal that the program should use, or start it with input and output redirected"
            .to_owned(),
    }
    };
    // A new terminal can have the number and the inode of a closed terminal. Equal numbers prove nothing, so the
    // terminal is opened with the rights of the holders.
    let found = record
        .opener
        .find(&path, None)
        .map_err(|refusal| gone(format!("the program's terminal does not exist: {refusal}")))?;
    let stat = found.stat().map_err(|refusal| gone(refusal.to_string()))?;
    let is_terminal = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice;
    let is_slave = device.0 == SLAVE_MAJOR;
    if !is_terminal || (is_slave && (major(stat.st_rdev), minor(stat.st_rdev)) != device) {
        return Err(gone("it is no longer the program's terminal".to_owned()));
    }
    if is_slave && payload.node != Some(Node::of(&stat)) {
        return Err(gone("it is another terminal".to_owned()));
    }
    found.open(opening::flags_for(record.flags)).map_err(|refusal| gone(refusal.to_string()))
}

/// Reports whether the modes of a terminal may be set. From a background process group of its session, the kernel
/// would stop this process. A terminal that controls another session is not changed.
fn may_set_modes(file: &OwnedFd) -> bool {
    match rustix::termios::tcgetpgrp(file) {
        Ok(foreground) => {
            let own = sys::session::group_of(own_pid());
            own.is_ok_and(|own| own.get() == foreground.as_raw_nonzero().get())
        }
        Err(_) => terminal::device(file.as_fd()).is_ok_and(|device| controlled_by(device).is_none()),
    }
}

/// Returns a process in the session that a terminal controls; the session leader if it exists.
fn controlled_by(device: (u32, u32)) -> Option<Pid> {
    let number = encode(device);
    let of_terminal = |pid: &Pid| procfs::stat(*pid).is_ok_and(|stat| stat.tty_nr == number);
    let found: Vec<Pid> = procfs::processes().ok()?.into_iter().filter(of_terminal).collect();
    let leads = |pid: &&Pid| procfs::stat(**pid).is_ok_and(|stat| stat.session == **pid);
    found.iter().find(leads).or(found.first()).copied()
}

fn own_pid() -> Pid {
    Pid(std::process::id() as i32)
}
