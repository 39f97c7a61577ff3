//! Descriptor kind `fd/tty`: pseudo terminal pairs of the program, and outside terminals, such as the terminal in
//! which the program was started.
//!
//! Owns: distinguishing pairs and outside terminals, payload and capture, and the controlling terminal of a session.
//! Invariants: a pair is restored with its number, since programs store the path of a terminal. An outside terminal
//! is opened again only if it is the same terminal. Otherwise, the terminal of the restoring process replaces the
//! outside terminal.
//! Does not: save unread bytes of a terminal whose master is outside the subject.

mod outside;
mod pair;
mod payload;
mod queue;
mod role;

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use model::{Address, DescriptionId, Fd, Pid};
use prost::Message;
use rustix::fs::OFlags;
use sys::Errno;
use sys::terminal;
use tracee::arch::numbers::IOCTL;
use tracee::{RemoteError, Stub, procfs};

use super::description::{Description, Known};
use super::kind::{FdCapture, FdConnect, FdCreate, FdFacts, FdKind, FdRecord, InheritedFile};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::outside as others;
use crate::support::path::{self, Name};
use pair::PairFiles;
use payload::{NAME, Node, Slaves, State, TtyPayload, node_of};
use queue::Pair;
pub(super) use role::is_terminal;
use role::{
    Role, SLAVE_MAJOR, device_of, encode, has_slave, is_hung_up, is_terminal_that, master_number, role_of,
};

/// Descriptor kind ([`FdKind`]) of terminals.
#[derive(Clone, Copy, Debug)]
pub struct Tty;

impl FdKind for Tty {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<TtyPayload>(NAME).without_files()
    }

    fn claims(&self, description: &Description) -> bool {
        is_terminal(description)
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        let mut found = Vec::new();
        let discipline = terminal::line_discipline(description.as_fd()).unwrap_or(0);
        if discipline != 0 {
            found.push(description.obstacle(
                "terminal",
                &format!("it has line discipline {discipline}, whose state cannot be saved"),
                "let the program end the protocol on this line (SLIP, PPP …)",
            ));
        }
        match role_of(description, scope) {
            Role::Outside if !scope.is_inherited(&description.stat) => {
                found.extend(outside::obstacle(description));
            }
            Role::Master => found.extend(slave_outside(description, scope)),
            Role::Outside | Role::Slave => {}
        }
        found.extend(leader_without_descriptor(description, scope));
        found
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        let role = role_of(description, scope);
        let (major, minor) = match master_number(description) {
            Some(number) => (SLAVE_MAJOR, number),
            None => device_of(description),
        };
        Ok(Box::new(TtyCapture {
            role,
            device: (major, minor),
            inherited: scope.is_inherited(&description.stat),
            leader: leader_of((major, minor), scope),
            foreground: 0,
            exclusive: false,
            state: None,
            node: None,
        }))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        let payload: TtyPayload = crate::error::decode(NAME, payload)?;
        payload.state.map_or(Ok(()), |state| state.modes().map(drop))
    }

    fn check_outside(&self, records: &[FdRecord], inherited: &[InheritedFile]) -> Result<()> {
        for record in records {
            let payload: TtyPayload = crate::error::decode(NAME, &record.payload)?;
            if payload.role() == Role::Outside {
                outside::check(record, &payload, inherited)?;
            }
        }
        Ok(())
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        let mut pairs = PairFiles::default();
        let mut decoded = Vec::new();
        for record in records {
            decoded.push((record, crate::error::decode::<TtyPayload>(NAME, &record.payload)?));
        }
        let mut outsiders = outside::Outsiders::of(&decoded);
        for (record, payload) in decoded {
            match payload.role() {
                Role::Outside => {
                    let file = outsiders.open(record, &payload, context)?;
                    context.created.insert(record.id, file);
                }
                Role::Master | Role::Slave => pairs.add(record, payload),
            }
        }
        pairs.create(context)
    }

    fn lead(
        &self,
        records: &[FdRecord],
        created: &HashMap<DescriptionId, OwnedFd>,
        leader: &mut Stub,
    ) -> Result<()> {
        for record in records {
            let payload: TtyPayload = crate::error::decode(NAME, &record.payload)?;
            if payload.session == leader.pid().get()
                && payload.role() != Role::Master
                && let Some(file) = created.get(&record.id)
            {
                return take_control(&payload, Fd(file.as_raw_fd()), leader);
            }
        }
        Ok(())
    }

    /// Sets the foreground group through the session leader. Runs when the process groups exist.
    fn connect(&self, records: &[&FdRecord], context: &mut FdConnect<'_>) -> Result<()> {
        let leader = context.stub.pid();
        for record in records {
            let payload: TtyPayload = crate::error::decode(NAME, &record.payload)?;
            let held = context.table.iter().find(|(_, id)| *id == record.id);
            if let Some((fd, _)) = held
                && payload.session == leader.get()
                && payload.role() != Role::Master
            {
                return set_foreground(&payload, *fd, context);
            }
        }
        Ok(())
    }
}

fn slave_outside(description: &Description, scope: &CaptureScope<'_>) -> Option<Obstacle> {
    let number = master_number(description)?;
    let holder = others::holder(scope, &format!("/dev/pts/{number}"))?;
    Some(description.obstacle(
        "pseudo terminal",
        &format!(
            "its other end is used by {}, which is not part of the subject",
            others::describe(Some(holder))
        ),
        "checkpoint that process with it, or end it",
    ))
}

/// Returns the obstacle of a session leader that has no descriptor of its controlling terminal. The leader needs a
/// descriptor to set a foreground group other than its own group.
fn leader_without_descriptor(description: &Description, scope: &CaptureScope<'_>) -> Option<Obstacle> {
    if master_number(description).is_some() {
        return None;
    }
    let device = device_of(description);
    let leader = leader_of(device, scope)?;
    let is_its = |other: &Description| master_number(other).is_none() && device_of(other) == device;
    let of_terminal =
        |id| scope.descriptions.iter().any(|other| other.id == id && is_terminal_that(other, scope, is_its));
    if foreground_of(leader).is_ok_and(|group| group == leader.get()) {
        return None;
    }
    let holds = scope.table.iter().any(|(pid, _, id)| *pid == leader && of_terminal(*id));
    (!holds).then(|| {
        description.obstacle(
            "controlling terminal",
            &format!("pid {leader} leads the session of this terminal, has no descriptor of the terminal, and another process group is in the foreground"),
            "let the session leader keep its terminal open",
        )
    })
}

/// Returns the session leader of the subject whose controlling terminal is this device.
fn leader_of(device: (u32, u32), scope: &CaptureScope<'_>) -> Option<Pid> {
    let number = encode(device);
    scope
        .pids
        .iter()
        .copied()
        .find(|pid| procfs::stat(*pid).is_ok_and(|stat| stat.session == *pid && stat.tty_nr == number))
}

/// Returns the foreground group of a session leader's terminal: field 8 of `/proc/PID/stat`.
fn foreground_of(leader: Pid) -> Result<i32> {
    let text = procfs::read_text(format!("/proc/{leader}/stat"))?;
    let behind_name = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    Ok(behind_name.split_whitespace().nth(5).and_then(|word| word.parse().ok()).unwrap_or(0))
}

/// Makes a terminal the controlling terminal of a session leader, before the leader has children that inherit it. Has
/// no effect if the leader already has this controlling terminal.
fn take_control(payload: &TtyPayload, fd: Fd, leader: &mut Stub) -> Result<()> {
    let taken = leader.call(IOCTL, [fd.get() as u64, terminal::TAKE_CONTROL_REQUEST, 0, 0, 0, 0]);
    taken.map(drop).map_err(|error| ResourceError::Unsupported {
        pid: leader.pid(),
        what: format!("controlling terminal {}", path::from_bytes(&payload.path).display()),
        why: format!("it cannot become the controlling terminal: {error}"),
        fix: "restore from a terminal that controls no other session".to_owned(),
    })
}

fn set_foreground(payload: &TtyPayload, fd: Fd, context: &mut FdConnect<'_>) -> Result<()> {
    take_control(payload, fd, context.stub)?;
    if payload.foreground > 0 {
        let number = fd.get() as u64;
        let group = payload.foreground.to_ne_bytes();
        let call = |at: Address| [number, terminal::SET_FOREGROUND_REQUEST, at.get(), 0, 0, 0];
        match context.stub.call_with(context.memory, IOCTL, &group, call) {
            // The process group has no process left. As at the checkpoint, no existing group is in the foreground.
            Err(RemoteError::Refused { errno: Errno::ESRCH, .. }) => {}
            outcome => drop(outcome?),
        }
    }
    Ok(())
}

#[derive(Debug)]
struct TtyCapture {
    role: Role,
    device: (u32, u32),
    inherited: bool,
    leader: Option<Pid>,
    foreground: i32,
    exclusive: bool,
    state: Option<State>,
    node: Option<Node>,
}

impl FdCapture for TtyCapture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        let file = description.duplicate.as_fd();
        self.node = match self.role {
            Role::Master => None,
            Role::Slave | Role::Outside => node_of(&description.stat, self.device),
        };
        self.state = match self.role {
            // A terminal that was hung up returns errors.
            Role::Outside => State::of(file).ok(),
            Role::Master | Role::Slave => None,
        };
        self.exclusive = self.role != Role::Outside && terminal::is_exclusive(file).unwrap_or(false);
        self.foreground = match self.leader {
            Some(leader) => foreground_of(leader)?,
            None => 0,
        };
        Ok(())
    }

    fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        if self.role == Role::Master {
            let slaves = if has_slave(self.device.1, scope) {
                Slaves::Open
            } else if is_hung_up(description) {
                Slaves::Closed
            } else {
                Slaves::Never
            };
            self.state = Some(state_of_pair(description.duplicate.as_fd(), slaves)?);
        }
        Ok(())
    }

    fn after(&mut self, description: &Known) -> Result<Vec<u8>> {
        let stat = &description.stat;
        let payload = TtyPayload {
            path: path::to_bytes(Name::of(description).path()),
            role: self.role.into(),
            major: self.device.0,
            minor: self.device.1,
            file_system: stat.st_dev,
            inode: stat.st_ino,
            inherited: self.inherited,
            node: self.node,
            state: self.state.clone(),
            session: self.leader.map_or(0, Pid::get),
            foreground: self.foreground,
            exclusive: self.exclusive,
        };
        Ok(payload.encode_to_vec())
    }
}

fn state_of_pair(master: BorrowedFd<'_>, slaves: Slaves) -> Result<State> {
    let mut state = State {
        packets: terminal::is_packet_mode(master)?,
        locked: terminal::is_locked(master)?,
        slaves: slaves.into(),
        ..State::of(master)?
    };
    if slaves != Slaves::Never && !state.locked {
        // The slave is closed again at once. While it is open, the master does not report that the subject has closed
        // its last slave.
        let slave = terminal::open_slave(master, (OFlags::RDWR | OFlags::NONBLOCK).bits())?;
        let pair = Pair { master, slave: slave.as_fd() };
        state.queues = Some(pair.copy(&state.modes()?)?);
    }
    Ok(state)
}

#[cfg(test)]
mod tests;
