//! Properties of every open file description, independent of its kind: status flags, position, signal owner, locks.
//!
//! Owns: reading them inside the pause, the record with these and the kind's payload, setting them at a restore.
//! Invariants: a position is saved only where the kernel permits setting it. O_ASYNC is set last, in the process that
//! holds the descriptor, when the process that receives the signals exists.
//! Does not: depend on kinds. Flags that only open(2) can set are set by the kind.

use std::os::fd::{AsFd, BorrowedFd};

use image::{Owner, Record};
use model::{DescriptionId, Fd, Pid, Signal};
use prost::Message;
use rustix::fs::{OFlags, SeekFrom};
use sys::file_owner::{self, FileOwner};
use sys::{Errno, Error};
use tracee::arch::numbers::FCNTL;
use tracee::{ProcessMemory, Stub, procfs};

use super::description::{Description, Known};
use super::kind::{FdKind, FdRecord};
use super::locks::Holding;
use super::locks::{self, Lock};
use super::scope::CaptureScope;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::Opener;

/// Status flags that fcntl(2) can change without the target process: all but O_ASYNC.
const CHANGEABLE: OFlags =
    OFlags::APPEND.union(OFlags::NONBLOCK).union(OFlags::DIRECT).union(OFlags::NOATIME);
const O_ASYNC: u32 = 0o20_000;

/// A whole description as it is in the image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The name of its kind.
    pub kind: String,
    /// The version of the payload.
    pub version: u32,
    /// What the kind saved.
    pub payload: Vec<u8>,
    /// A process and fd that held it, for error messages.
    pub holder: (Pid, Fd),
    /// Status flags, the access mode included.
    pub flags: u32,
    /// Position; `None` where the kernel has none.
    pub position: Option<u64>,
    /// The receiver of its signals.
    pub owner: Option<FileOwner>,
    /// The signal number; `None` for the default.
    pub signal: Option<Signal>,
    /// Result of [`locks::read`] inside the pause; the caller sets it.
    pub locks: Vec<Lock>,
}

/// `message Description` of docs/format.md. Kind and version are in the header of its record.
#[derive(Clone, PartialEq, Message)]
struct EnvelopeMessage {
    #[prost(bytes = "vec", tag = "1")]
    payload: Vec<u8>,
    #[prost(int32, tag = "2")]
    holder_pid: i32,
    #[prost(int32, tag = "3")]
    holder_fd: i32,
    #[prost(uint32, tag = "4")]
    flags: u32,
    #[prost(uint64, optional, tag = "5")]
    position: Option<u64>,
    /// F_OWNER_* of the owner; meaningful if `owner` is not 0.
    #[prost(int32, tag = "6")]
    owner_type: i32,
    #[prost(int32, tag = "7")]
    owner: i32,
    #[prost(int32, tag = "8")]
    signal: i32,
    #[prost(message, repeated, tag = "9")]
    locks: Vec<Lock>,
}

impl Envelope {
    /// Inside the pause: reads all but the kind's payload; four system calls, no allocation.
    pub fn inside(description: &Description) -> Result<Self> {
        let file = description.duplicate.as_fd();
        let flags = rustix::fs::fcntl_getfl(file)
            .map_err(|errno| failed(description, "get the status flags", errno))?
            .bits();
        let empty = Self {
            kind: String::new(),
            version: 0,
            payload: Vec::new(),
            holder: (description.pid, description.fd),
            flags,
            position: None,
            owner: None,
            signal: None,
            locks: Vec::new(),
        };
        if is_path_only(flags) {
            return Ok(empty);
        }
        Ok(Self {
            position: position(description)?,
            owner: file_owner::owner(file)?,
            signal: file_owner::signal(file)?,
            ..empty
        })
    }

    /// Inside the pause: an obstacle that is visible only through a duplicate.
    #[must_use]
    pub fn obstacle(&self, description: &Known, scope: &CaptureScope<'_>) -> Option<Obstacle> {
        owner_outside(description, self.owner, scope)
    }

    /// After the pause: adds the kind's payload.
    #[must_use]
    pub fn complete(self, kind: &dyn FdKind, payload: Vec<u8>) -> Self {
        Self { kind: kind.name().to_owned(), version: kind.version(), payload, ..self }
    }

    /// `inside` and `complete` in one call, for a subject that stays stopped.
    pub fn capture(description: &Description, kind: &dyn FdKind, payload: Vec<u8>) -> Result<Self> {
        Ok(Self::inside(description)?.complete(kind, payload))
    }

    /// Encodes the record of the image.
    #[must_use]
    pub fn into_record(self, owner: Owner) -> Record {
        let (owner_type, number) = self.owner.map_or((0, 0), FileOwner::numbers);
        let message = EnvelopeMessage {
            payload: self.payload,
            holder_pid: self.holder.0.get(),
            holder_fd: self.holder.1.get(),
            flags: self.flags,
            position: self.position,
            owner_type,
            owner: number,
            signal: self.signal.map_or(0, Signal::get),
            locks: self.locks,
        };
        Record::new(self.kind, self.version, owner, message.encode_to_vec())
    }

    /// Decodes the record of the image.
    pub fn from_record(record: &Record) -> Result<Self> {
        let message: EnvelopeMessage = crate::error::decode("fd/*", &record.payload)?;
        Ok(Self {
            kind: record.kind.clone(),
            version: record.version,
            payload: message.payload,
            holder: (Pid(message.holder_pid), Fd(message.holder_fd)),
            flags: message.flags,
            position: message.position,
            owner: FileOwner::from_numbers(message.owner_type, message.owner),
            signal: (message.signal > 0).then_some(Signal(message.signal)),
            locks: message.locks,
        })
    }

    /// The input from which the kind restores the description.
    #[must_use]
    pub fn fd_record(&self, id: DescriptionId, opener: Opener) -> FdRecord {
        FdRecord {
            id,
            holder: self.holder,
            version: self.version,
            payload: self.payload.clone(),
            flags: self.flags,
            position: self.position.unwrap_or(0),
            opener,
        }
    }

    /// Restore, when the kind has created the description: sets flags, position and signal number. O_ASYNC, the owner
    /// and locks are set by [`Envelope::connect`]. With `stays`, the position is not changed.
    pub fn apply(&self, file: BorrowedFd<'_>, stays: bool) -> Result<()> {
        if is_path_only(self.flags) {
            return Ok(());
        }
        let now =
            rustix::fs::fcntl_getfl(file).map_err(|errno| self.failed("get the status flags", errno))?;
        let wanted = (now - CHANGEABLE) | (OFlags::from_bits_retain(self.flags) & CHANGEABLE);
        if wanted != now {
            rustix::fs::fcntl_setfl(file, wanted)
                .map_err(|errno| self.failed("set the status flags", errno))?;
        }
        if !stays
            && let Some(position) = self.position
            && rustix::fs::tell(file) != Ok(position)
        {
            rustix::fs::seek(file, SeekFrom::Start(position))
                .map_err(|errno| self.failed("set the position", errno))?;
        }
        if self.signal.is_some() {
            file_owner::set_signal(file, self.signal)?;
        }
        Ok(())
    }

    /// Whether [`Envelope::connect`] has anything to set.
    #[must_use]
    pub fn needs_process(&self) -> bool {
        self.owner.is_some() || self.flags & O_ASYNC != 0 || !self.locks.is_empty()
    }

    /// The process that took a lock. [`Envelope::connect`] runs in it if it still holds the description.
    #[must_use]
    pub fn taker(&self) -> Option<Pid> {
        self.locks.iter().find_map(Lock::taker)
    }

    /// Restore, once per description: sets signal owner and O_ASYNC, and takes the locks. Runs in one process that
    /// holds the description, when all processes exist and have the subject's credentials. The kernel records the
    /// credentials with the owner. A lease goes to the owner.
    pub fn connect(&self, stub: &mut Stub, memory: &ProcessMemory, fd: Fd) -> Result<()> {
        let number = fd.get() as u64;
        if let Some(owner) = self.owner {
            let set =
                |argument: model::Address| [number, file_owner::SET_OWNER_COMMAND, argument.get(), 0, 0, 0];
            stub.call_with(memory, FCNTL, &owner.to_bytes(), set)?;
        }
        if self.flags & O_ASYNC != 0 {
            let flags = u64::from(self.flags);
            stub.call(FCNTL, [number, file_owner::SET_FLAGS_COMMAND, flags, 0, 0, 0])?;
        }
        self.locks.iter().try_for_each(|lock| lock.take(stub, memory, fd))
    }

    /// Takes the locks of a description that no process holds because it is in flight in a socket, through a
    /// descriptor of this process. The owner cannot be set.
    pub fn connect_in_flight(&self, file: BorrowedFd<'_>) -> Result<()> {
        self.locks.iter().try_for_each(|lock| lock.take_here(file))
    }

    fn failed(&self, operation: &'static str, errno: rustix::io::Errno) -> Error {
        Error::descriptor(operation, self.holder.0, self.holder.1, errno)
    }
}

/// Before the pause: the obstacles of a description that do not depend on its kind.
#[must_use]
pub fn obstacles(description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
    let mut found = Vec::new();
    // An O_PATH descriptor has no owner; that of the description is checked in the pause.
    if let Ok(owner) = file_owner::owner(description.as_fd()) {
        found.extend(owner_outside(description, owner, scope));
    }
    let in_flight = !scope.is_held(description.id);
    let text = &description.info.text;
    let unlinked = locks::has_lease(text) && locks::is_unlinked(description);
    let holding = Holding { in_flight, unlinked };
    found.extend(locks::read(description, text, holding).err().map(|obstacle| *obstacle));
    found
}

/// The obstacle of a description whose signals go to a process outside the subject.
fn owner_outside(
    description: &Known,
    owner: Option<FileOwner>,
    scope: &CaptureScope<'_>,
) -> Option<Obstacle> {
    let owner = owner.filter(|owner| !is_inside(*owner, scope))?;
    let (_, number) = owner.numbers();
    Some(description.obstacle(
        "signal owner",
        &format!("its signals go to {number}, which is not part of the subject"),
        "let the program set one of its own processes as owner with F_SETOWN, or none",
    ))
}

fn is_inside(owner: FileOwner, scope: &CaptureScope<'_>) -> bool {
    match owner {
        FileOwner::Process(pid) => scope.pids.contains(&pid),
        FileOwner::Thread(tid) => {
            scope.pids.iter().any(|pid| procfs::threads(*pid).is_ok_and(|threads| threads.contains(&tid)))
        }
        FileOwner::Group(group) => {
            scope.pids.iter().any(|pid| procfs::stat(*pid).is_ok_and(|stat| stat.pgrp == group))
        }
    }
}

fn is_path_only(flags: u32) -> bool {
    OFlags::from_bits_retain(flags).contains(OFlags::PATH)
}

/// The position; `None` where the kernel has none.
fn position(description: &Description) -> Result<Option<u64>> {
    use rustix::io::Errno as E;
    match rustix::fs::tell(&description.duplicate) {
        Ok(position) => Ok(Some(position)),
        Err(E::SPIPE | E::INVAL | E::BADF | E::NXIO | E::IO) => Ok(None),
        Err(errno) => Err(failed(description, "get the position", errno).into()),
    }
}

fn failed(description: &Description, operation: &'static str, errno: impl Into<Errno>) -> Error {
    Error::descriptor(operation, description.pid, description.fd, errno)
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;

    use super::*;
    use crate::fd::regular::Regular;
    use crate::support::testing::{Subject, describe, flags, ourselves, position};

    #[test]
    fn flags_position_and_signal_are_restored() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let original = OpenOptions::new().read(true).write(true).open(file.path()).unwrap();
        rustix::fs::seek(&original, SeekFrom::Start(77)).unwrap();
        rustix::fs::fcntl_setfl(&original, OFlags::APPEND | OFlags::NONBLOCK | OFlags::NOATIME).unwrap();
        file_owner::set_owner(original.as_fd(), FileOwner::Process(ourselves())).unwrap();
        file_owner::set_signal(original.as_fd(), Some(Signal(40))).unwrap();
        let subject = Subject::new(&[&original]);
        let envelopes = subject.capture(&Regular, || {}).unwrap();
        assert_eq!(envelopes[0].owner, Some(FileOwner::Process(ourselves())));
        assert!(envelopes[0].needs_process());
        let built = subject.build(&Regular, &envelopes, &[]).unwrap();
        assert_eq!(flags(&built[0]), flags(&original));
        assert_eq!(position(&built[0]), 77);
        assert_eq!(file_owner::signal(built[0].as_fd()).unwrap(), Some(Signal(40)));
        assert_eq!(position(&original), 77);
    }

    #[test]
    fn a_file_without_a_position_is_not_changed() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let envelope = Envelope::inside(&describe(0, &reader)).unwrap();
        assert_eq!(envelope.position, None);
        envelope.apply(reader.as_fd(), false).unwrap();
        let named = rustix::fs::open("/", OFlags::PATH | OFlags::CLOEXEC, rustix::fs::Mode::empty()).unwrap();
        let envelope = Envelope::inside(&describe(0, &named)).unwrap();
        assert!(is_path_only(envelope.flags) && envelope.position.is_none() && !envelope.needs_process());
        envelope.apply(named.as_fd(), false).unwrap();
    }

    #[test]
    fn an_owner_outside_the_subject_is_an_obstacle() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let mut subject = Subject::new(&[&reader]);
        assert_eq!(obstacles(&subject.descriptions[0], &subject.scope()), Vec::new());
        file_owner::set_owner(reader.as_fd(), FileOwner::Process(ourselves())).unwrap();
        assert_eq!(obstacles(&subject.descriptions[0], &subject.scope()), Vec::new());
        subject.pids = vec![Pid(1)];
        let found = obstacles(&subject.descriptions[0], &subject.scope());
        assert_eq!(found.len(), 1);
        assert!(found[0].what.contains("signal owner"), "{found:?}");
    }
}
