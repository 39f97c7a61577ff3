//! Saves and restores the general properties of an open file description: status flags, position, signal owner and
//! number, locks.
//!
//! The kind saves the properties of its type as the *payload*. General properties exist for every type of description.
//! The *signal owner* (F_SETOWN) is the process, thread or process group to which the kernel sends the signals of a
//! description. An [`Envelope`] contains the general properties and the payload, and is one record of the image.
//!
//! Owns: reading the general properties inside the pause of a checkpoint, and setting them in a restore.
//! Invariants: a position is saved only if the kernel permits setting it. O_ASYNC is set last: in a process that has
//! the descriptor, and after the signal owner exists.
//! Does not: depend on descriptor kinds. Does not set flags that only open(2) can set; the kind sets these flags.

use std::os::fd::{AsFd, BorrowedFd};

use image::{Owner, Record, RecordSet};
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
use super::pieces::{self, Part, PartMessage, Pieces};
use super::scope::CaptureScope;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::Opener;

/// Status flags that this process sets with fcntl(2). These are all flags that fcntl(2) can change, except O_ASYNC.
const CHANGEABLE: OFlags =
    OFlags::APPEND.union(OFlags::NONBLOCK).union(OFlags::DIRECT).union(OFlags::NOATIME);
const O_ASYNC: u32 = 0o20_000;

/// The record of a description: its general properties, and the payload of its kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Envelope {
    /// The name of the kind.
    pub kind: String,
    /// The version of the payload format.
    pub version: u32,
    /// The payload: the bytes that the kind saved.
    pub payload: Vec<u8>,
    /// A process that had the description open at the checkpoint, and its fd. Used in error messages.
    pub holder: (Pid, Fd),
    /// Status flags and access mode.
    pub flags: u32,
    /// Position in bytes; `None` for an object without a position.
    pub position: Option<u64>,
    /// The signal owner.
    pub owner: Option<FileOwner>,
    /// The signal number (F_SETSIG); `None` for the default signal.
    pub signal: Option<Signal>,
    /// The locks. The caller reads the locks with [`locks::read`] inside the pause, and sets this field.
    pub locks: Vec<Lock>,
}

/// `message Description` of docs/format.md. Kind and version are in the header of the record.
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
    /// The F_OWNER_* type of the owner; meaningful only if `owner` is not 0.
    #[prost(int32, tag = "6")]
    owner_type: i32,
    #[prost(int32, tag = "7")]
    owner: i32,
    #[prost(int32, tag = "8")]
    signal: i32,
    #[prost(message, repeated, tag = "9")]
    locks: Vec<Lock>,
    /// The parts of the payload that follow `payload`; empty if no part is a piece.
    #[prost(message, repeated, tag = "10")]
    parts: Vec<PartMessage>,
}

impl Envelope {
    /// Reads all general properties except locks. Called inside the pause. Makes four system calls, and allocates no
    /// memory.
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

    /// Returns the obstacle of a signal owner outside the subject. Called inside the pause. Before the pause,
    /// [`obstacles`] cannot read the owner of every description.
    #[must_use]
    pub fn obstacle(&self, description: &Known, scope: &CaptureScope<'_>) -> Option<Obstacle> {
        owner_outside(description, self.owner, scope)
    }

    /// Adds name, version and payload of the kind. Called after the pause.
    #[must_use]
    pub fn complete(self, kind: &dyn FdKind, payload: Vec<u8>) -> Self {
        Self { kind: kind.name().to_owned(), version: kind.version(), payload, ..self }
    }

    /// Calls `inside`, and then `complete`. Used for a subject that stays stopped until both have ended.
    pub fn capture(description: &Description, kind: &dyn FdKind, payload: Vec<u8>) -> Result<Self> {
        Ok(Self::inside(description)?.complete(kind, payload))
    }

    /// Encodes the envelope as records of the image. `parts` are the parts of the payload that follow the payload of the
    /// envelope.
    pub fn put(mut self, id: DescriptionId, parts: Vec<Part>, records: &mut RecordSet) {
        let parts = pieces::put(parts, &mut self.payload, id, records);
        let (owner_type, owner_id) = self.owner.map_or((0, 0), FileOwner::to_raw);
        let message = EnvelopeMessage {
            payload: self.payload,
            holder_pid: self.holder.0.get(),
            holder_fd: self.holder.1.get(),
            flags: self.flags,
            position: self.position,
            owner_type,
            owner: owner_id,
            signal: self.signal.map_or(0, Signal::get),
            locks: self.locks,
            parts,
        };
        let owner = Owner::Description(id);
        records.push(Record::new(self.kind, self.version, owner, message.encode_to_vec()));
    }

    /// Decodes the record of a description. `pieces` are all pieces of the image.
    pub fn from_record(record: &Record, id: DescriptionId, pieces: &mut Pieces) -> Result<Self> {
        let mut message: EnvelopeMessage = crate::error::decode("fd/*", &record.payload)?;
        pieces.assemble(id, &mut message.payload, &message.parts)?;
        Ok(Self {
            kind: record.kind.clone(),
            version: record.version,
            payload: message.payload,
            holder: (Pid(message.holder_pid), Fd(message.holder_fd)),
            flags: message.flags,
            position: message.position,
            owner: FileOwner::from_raw(message.owner_type, message.owner),
            signal: (message.signal > 0).then_some(Signal(message.signal)),
            locks: message.locks,
        })
    }

    /// Returns the values from which the kind restores the description.
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

    /// Sets status flags, position and signal number of a restored description. Called after the kind has created the
    /// description. With `stays`, the position is not changed. [`Envelope::connect`] sets the other properties.
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

    /// Reports whether [`Envelope::connect`] must be called.
    #[must_use]
    pub fn needs_process(&self) -> bool {
        self.owner.is_some() || self.flags & O_ASYNC != 0 || !self.locks.is_empty()
    }

    /// Returns a process that acquired one of the locks. If this process has the description open, the caller runs
    /// [`Envelope::connect`] in this process.
    #[must_use]
    pub fn taker(&self) -> Option<Pid> {
        self.locks.iter().find_map(Lock::taker)
    }

    /// Sets signal owner and O_ASYNC of a restored description, and acquires its locks. Called once per description.
    /// `stub` is a process that has the description open as `fd`, and makes the system calls. At the time of the
    /// call, all processes exist and have the credentials of the subject. The credentials matter, because the kernel
    /// stores the credentials of the caller together with the signal owner. The owner is set before a lease is
    /// acquired, so that the owner receives the signals of the lease.
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

    /// Acquires the locks of a description that is in flight in a socket. No process of the subject has such a
    /// description open, so a descriptor of this process is used. The signal owner is not restored.
    pub fn connect_in_flight(&self, file: BorrowedFd<'_>) -> Result<()> {
        self.locks.iter().try_for_each(|lock| lock.take_here(file))
    }

    fn failed(&self, operation: &'static str, errno: rustix::io::Errno) -> Error {
        Error::descriptor(operation, self.holder.0, self.holder.1, errno)
    }
}

/// Returns the obstacles (reasons against a checkpoint) in the general properties of a description. Called before the
/// pause.
#[must_use]
pub fn obstacles(description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
    let mut found = Vec::new();
    // Before the pause, the duplicate may be an O_PATH descriptor, for which F_GETOWN_EX fails. In this case,
    // `Envelope::obstacle` checks the owner inside the pause.
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

/// Returns an obstacle if the signal owner is outside the subject.
fn owner_outside(
    description: &Known,
    owner: Option<FileOwner>,
    scope: &CaptureScope<'_>,
) -> Option<Obstacle> {
    let owner = owner.filter(|owner| !is_inside(*owner, scope))?;
    let (_, number) = owner.to_raw();
    Some(description.obstacle(
        "signal owner",
        &format!(
            "its signals go to process, thread or process group {number}, which is not part of the subject"
        ),
        "let the program set one of its own processes as owner with F_SETOWN, or remove the owner",
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

/// Returns the position of a description; `None` for an object without a position.
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
