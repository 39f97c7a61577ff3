//! Restores pseudo terminal pairs.
//!
//! Owns: creating pairs with their saved numbers, opening their slaves, and restoring the state of both ends.
//! Invariants: if the number of a pair is in use, the restore is refused by name. Masters that were opened before the
//! wanted number was reached are closed. Modes are set before bytes are written. Modes that forbid opening are set
//! last.
//! Does not: choose another number for a pair whose master is open. If the master is closed, the slave cannot be
//! opened by path, so the pair may have any number.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::{DescriptionId, Fd, Pid};
use rustix::fs::{FileType, Mode, OFlags, Stat, major, minor};
use sys::{Error, terminal};

use super::payload::{NAME, Node, Slaves, State, TtyPayload, slave_path};
use super::queue::Pair;
use super::role::{Role, SLAVE_MAJOR};
use crate::error::{ResourceError, Result};
use crate::fd::kind::{FdCreate, FdRecord};
use crate::opener::Opener;
use crate::support::opening::{self, flags_for};
use crate::support::ownership::owner;
use crate::support::path;

/// Paths of the master device, tried in this order if the path of the image does not work.
const FRONTS: [&str; 2] = ["/dev/ptmx", "/dev/pts/ptmx"];

/// All pseudo terminal pairs of a restore, by number.
#[derive(Debug, Default)]
pub(super) struct PairFiles {
    pairs: BTreeMap<u32, PairFile>,
}

#[derive(Debug, Default)]
struct PairFile {
    master: Option<DescriptionId>,
    path: PathBuf,
    state: Option<State>,
    slaves: Vec<(DescriptionId, u32)>,
    exclusive: Vec<DescriptionId>,
    node: Option<Node>,
    holder: Option<(Pid, Fd)>,
}

impl PairFiles {
    pub(super) fn add(&mut self, record: &FdRecord, payload: TtyPayload) {
        let pair = self.pairs.entry(payload.minor).or_default();
        pair.holder.get_or_insert(record.holder);
        if payload.exclusive {
            pair.exclusive.push(record.id);
        }
        if payload.role() == Role::Master {
            pair.master = Some(record.id);
            pair.path = path::from_bytes(&payload.path);
            pair.state = payload.state;
        } else {
            pair.slaves.push((record.id, record.flags));
            pair.node = pair.node.or(payload.node);
        }
    }

    pub(super) fn create(self, context: &mut FdCreate<'_>) -> Result<()> {
        let mut masters = Masters::default();
        for (number, pair) in self.pairs {
            let master = match masters.open(number, &pair.path)? {
                Some(master) => master,
                None if pair.master.is_none() => open_master(&pair.path)?,
                None => return Err(pair.taken(number)),
            };
            pair.create(master, context)?;
        }
        Ok(())
    }
}

/// Opens masters with wanted numbers. The kernel assigns the lowest free number, so masters with lower numbers are
/// kept open until the wanted number is reached.
#[derive(Debug, Default)]
struct Masters {
    spare: BTreeMap<u32, OwnedFd>,
}

impl Masters {
    /// Returns the master with a number; `None` if another program uses the number.
    fn open(&mut self, wanted: u32, path: &Path) -> Result<Option<OwnedFd>> {
        loop {
            if let Some(master) = self.spare.remove(&wanted) {
                return Ok(Some(master));
            }
            let master = open_master(path)?;
            let number = terminal::pair_number(master.as_fd())?;
            self.spare.insert(number, master);
            if number > wanted {
                return Ok(None);
            }
        }
    }
}

/// Opens the master device. The paths may be symbolic links. Their directories belong to root.
fn open_master(saved: &Path) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let opener = Opener::default();
    if let Ok(found) = opener.find(saved, None)
        && found.stat().is_ok_and(|stat| is_front(&stat))
        && let Ok(master) = found.open(flags)
    {
        return Ok(master);
    }
    let there = |path: &&Path| rustix::fs::stat(*path).is_ok_and(|stat| is_front(&stat));
    let path = FRONTS.map(Path::new).into_iter().find(there).unwrap_or(Path::new(FRONTS[0]));
    Ok(opening::open(path, flags)?)
}

fn is_front(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && (major(stat.st_rdev), minor(stat.st_rdev)) == (5, 2)
}

impl PairFile {
    fn create(&self, master: OwnedFd, context: &mut FdCreate<'_>) -> Result<()> {
        terminal::set_locked(master.as_fd(), false)?;
        self.set_node(master.as_fd())?;
        if let Some(state) = &self.state {
            self.set_state(master.as_fd(), state)?;
        }
        for (id, flags) in &self.slaves {
            let flags = flags_for(*flags).bits();
            context.created.insert(*id, terminal::open_slave(master.as_fd(), flags)?);
        }
        if let Some(state) = &self.state {
            terminal::set_packet_mode(master.as_fd(), state.packets)?;
            terminal::set_locked(master.as_fd(), state.locked)?;
        }
        // If the subject has no master, the drop of this master hangs up the slaves, as at the checkpoint.
        if let Some(id) = self.master {
            context.created.insert(id, master);
        }
        for file in self.exclusive.iter().filter_map(|id| context.created.get(id)) {
            terminal::set_exclusive(file.as_fd())?;
        }
        Ok(())
    }

    fn set_state(&self, master: BorrowedFd<'_>, state: &State) -> Result<()> {
        let modes = state.modes()?;
        terminal::set_modes(master, &modes)?;
        rustix::termios::tcsetwinsize(master, state.window())
            .map_err(|errno| Error::new("set the window size of a terminal", errno))?;
        if state.slaves() == Slaves::Never {
            return Ok(());
        }
        let slave = terminal::open_slave(master, (OFlags::RDWR | OFlags::NONBLOCK).bits())?;
        if let Some(queues) = &state.queues {
            Pair { master, slave: slave.as_fd() }.fill(queues, &modes)?;
        }
        Ok(())
    }

    /// Sets owner and mode of the slave's file.
    fn set_node(&self, master: BorrowedFd<'_>) -> Result<()> {
        let Some(node) = self.node else { return Ok(()) };
        let path = slave_path(terminal::pair_number(master)?);
        let Ok(now) = rustix::fs::stat(&path) else { return Ok(()) };
        if major(now.st_rdev) != SLAVE_MAJOR {
            return Ok(());
        }
        if (now.st_uid, now.st_gid) != (node.user, node.group) {
            let (user, group) = owner(node.user, node.group)?;
            rustix::fs::chown(&path, Some(user), Some(group))
                .map_err(|errno| Error::path("set the owner of", &path, errno))?;
        }
        if now.st_mode & 0o7777 != node.mode {
            rustix::fs::chmod(&path, Mode::from_raw_mode(node.mode))
                .map_err(|errno| Error::path("set the mode of", &path, errno))?;
        }
        Ok(())
    }

    fn taken(&self, number: u32) -> ResourceError {
        let (pid, fd) = self.holder.unwrap_or((Pid(0), Fd(0)));
        ResourceError::Unsupported {
            pid,
            what: format!("fd {fd} ({NAME})"),
            why: format!(
                "the program created the pseudo terminal /dev/pts/{number}, and another program now uses that number"
            ),
            fix: format!("close the terminal /dev/pts/{number} (`fuser /dev/pts/{number}` lists its users)"),
        }
    }
}
