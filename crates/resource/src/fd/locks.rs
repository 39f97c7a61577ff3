//! Locks and leases of an open file description, independent of its descriptor kind.
//!
//! Owns: parsing locks from fdinfo, refusing locks that cannot be restored, and acquiring locks in a restore.
//! Invariants: a process that holds the description acquires the lock before any process of the subject runs. The
//! kernel records this process with the lock, and sends the signals of a lease to it, unless the description has
//! another signal owner. If another process holds a conflicting lock, the restore is refused.
//! Does not: handle record locks (fcntl(2) F_SETLK), which belong to a process.

use std::os::fd::{AsFd, BorrowedFd};

use model::{Address, Fd, Pid};
use prost::Message;
use rustix::fs::FlockOperation;
use sys::file_lock::{self, RangeLock, SET_DESCRIPTION_LOCK_COMMAND, SET_LEASE_COMMAND};
use sys::{Errno, Error};
use tracee::arch::numbers::{FCNTL, FLOCK};
use tracee::{ProcessMemory, RemoteError, Stub, procfs};

use super::description::Known;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::lock_line::{LockLine, POSIX};

/// Saved state of one lock.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Lock {
    #[prost(enumeration = "Kind", tag = "1")]
    kind: i32,
    #[prost(bool, tag = "2")]
    writes: bool,
    #[prost(int64, tag = "3")]
    start: i64,
    /// Length in bytes. 0 means to the end of the file, also when the file grows.
    #[prost(int64, tag = "4")]
    length: i64,
    /// The pid of the process that acquired the lock; 0 or negative if unknown.
    #[prost(int32, tag = "5")]
    pid: i32,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, prost::Enumeration)]
#[repr(i32)]
enum Kind {
    Unknown = 0,
    Flock = 1,
    Range = 2,
    Lease = 3,
}

/// Lock types by their name in fdinfo.
const KINDS: &[(&str, Kind)] = &[("FLOCK", Kind::Flock), ("OFDLCK", Kind::Range), ("LEASE", Kind::Lease)];
const LEASE: &[u8] = b"LEASE";
const ACTIVE: &str = "ACTIVE";

/// Facts about a description that decide whether its locks can be restored.
#[derive(Clone, Copy, Debug, Default)]
pub struct Holding {
    /// No process has a descriptor of the description, since the description is in flight in a socket.
    pub in_flight: bool,
    /// The file has no name. This fact is needed only for a lease ([`has_lease`]).
    pub unlinked: bool,
}

/// Reports whether a text of fdinfo contains a lease.
#[must_use]
pub fn has_lease(text: impl AsRef<[u8]>) -> bool {
    let mut lines = text.as_ref().split(|byte| *byte == b'\n');
    lines.any(|line| line.starts_with(b"lock:") && line.windows(LEASE.len()).any(|part| part == LEASE))
}

/// Reports whether the file of a descriptor has no name.
#[must_use]
pub fn is_unlinked(file: impl AsFd) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| stat.st_nlink == 0)
}

/// Parses the locks in the fdinfo text of a description. Fails with an obstacle if a lock cannot be saved.
pub fn read(
    description: &Known,
    text: &str,
    holding: Holding,
) -> std::result::Result<Vec<Lock>, Box<Obstacle>> {
    let mut found = Vec::new();
    for line in text.lines().filter_map(|line| line.strip_prefix("lock:")) {
        let Some(line) = LockLine::parse(line) else {
            return Err(obstacle(
                description,
                "locked file",
                "the line of its lock in fdinfo does not parse",
            ));
        };
        if line.kind == POSIX {
            continue;
        }
        let kind = KINDS.iter().find(|row| row.0 == line.kind).map(|row| row.1);
        let (Some(kind), Some(writes)) = (kind, line.writes()) else {
            return Err(strange(description, &line));
        };
        if kind == Kind::Lease {
            check_lease(description, &line, holding)?;
        }
        let (start, length) = (line.start, line.length);
        found.push(Lock { kind: kind.into(), writes, start, length, pid: line.pid.get() });
    }
    Ok(found)
}

fn check_lease(
    description: &Known,
    line: &LockLine<'_>,
    holding: Holding,
) -> std::result::Result<(), Box<Obstacle>> {
    if line.state != ACTIVE {
        return Err(strange(description, line));
    }
    let why = if holding.in_flight {
        "the descriptor is in flight in a socket, so no process can take the lease again"
    } else if holding.unlinked {
        "the file is deleted, and opening it to save its content would break the lease"
    } else {
        return Ok(());
    };
    Err(obstacle(description, "file lease", why))
}

fn strange(description: &Known, line: &LockLine<'_>) -> Box<Obstacle> {
    match line.kind {
        "LEASE" => obstacle(
            description,
            "file lease",
            "the lease is being broken, and the remaining break time cannot be set",
        ),
        "DELEG" => obstacle(description, "file delegation", "the kernel's file server holds it"),
        other => {
            let why = format!("locks of type {other} {} are not supported", line.access);
            obstacle(description, "locked file", &why)
        }
    }
}

fn obstacle(description: &Known, what: &str, why: &str) -> Box<Obstacle> {
    Box::new(description.obstacle(what, why, "let the program release it before the checkpoint"))
}

impl Lock {
    /// Returns the process that acquired the lock, if known.
    pub(super) fn taker(&self) -> Option<Pid> {
        (self.pid > 0).then_some(Pid(self.pid))
    }

    fn range(&self) -> RangeLock {
        RangeLock { writes: self.writes, start: self.start, length: self.length }
    }

    /// Acquires the lock in a process under construction.
    pub(super) fn take(&self, stub: &mut Stub, memory: &ProcessMemory, fd: Fd) -> Result<()> {
        let number = fd.get() as u64;
        let taken = match self.kind() {
            Kind::Flock => stub.call(FLOCK, [number, file_lock::flock_operation(self.writes), 0, 0, 0, 0]),
            Kind::Range => {
                let set = |at: Address| [number, SET_DESCRIPTION_LOCK_COMMAND, at.get(), 0, 0, 0];
                stub.call_with(memory, FCNTL, &self.range().to_bytes(), set)
            }
            Kind::Lease => {
                let argument = file_lock::lease_argument(self.writes);
                stub.call(FCNTL, [number, SET_LEASE_COMMAND, argument, 0, 0, 0])
            }
            Kind::Unknown => return Err(unknown()),
        };
        match taken {
            Ok(_) => Ok(()),
            Err(RemoteError::Refused { errno: Errno::EAGAIN | Errno::EACCES, .. }) => {
                Err(self.taken(&format!("/proc/{}/fd/{fd}", stub.pid())))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Acquires the lock through a descriptor of this process, for a description that no process holds.
    pub(super) fn take_here(&self, file: BorrowedFd<'_>) -> Result<()> {
        let taken = match self.kind() {
            Kind::Flock => {
                let (exclusive, shared) =
                    (FlockOperation::NonBlockingLockExclusive, FlockOperation::NonBlockingLockShared);
                rustix::fs::flock(file, if self.writes { exclusive } else { shared })
                    .map_err(|errno| Error::new("lock an open file", errno))
            }
            Kind::Range => file_lock::lock_description(file, self.range()),
            Kind::Lease | Kind::Unknown => return Err(unknown()),
        };
        match taken {
            Err(error) if error.errno == Errno::EAGAIN || error.errno == Errno::EACCES => {
                Err(self.taken(&crate::support::opening::own_link(file)))
            }
            outcome => Ok(outcome?),
        }
    }

    fn taken(&self, link: &str) -> ResourceError {
        let path = procfs::link(link).map_or_else(|_| link.to_owned(), |path| path.display().to_string());
        let (why, fix) = match self.kind() {
            Kind::Lease => (
                "the program had a lease on it, and now another program has it open",
                "end that program (`fuser` lists it), then restore again",
            ),
            _ => (
                "the program had locked it, and now another program holds a conflicting lock",
                "end that program (`lslocks` lists it), then restore again",
            ),
        };
        ResourceError::File { path, why: why.to_owned(), fix: fix.to_owned() }
    }
}

fn unknown() -> ResourceError {
    ResourceError::malformed("fd/*", "a lock of an unknown kind")
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;
    use crate::fd::test_support::alone;
    use crate::support::testing::{describe, ourselves};

    fn text_of(description: &Known) -> String {
        procfs::descriptor_info(ourselves(), description.fd).unwrap().text
    }

    fn locks(file: &File) -> std::result::Result<Vec<Lock>, Box<Obstacle>> {
        let description = describe(0, file);
        read(&description, &text_of(&description), hold_of(&description))
    }

    fn hold_of(file: impl AsFd) -> Holding {
        Holding { in_flight: false, unlinked: is_unlinked(file) }
    }

    fn open(path: &std::path::Path) -> File {
        File::options().read(true).write(true).open(path).unwrap()
    }

    #[test]
    fn a_lock_taken_after_the_listing_is_read_and_can_be_restored() {
        // A child process of another test would share the locked descriptions for a moment.
        let _alone = alone();
        let named = tempfile::NamedTempFile::new().unwrap();
        let (file, other) = (open(named.path()), open(named.path()));
        let description = describe(0, &file);
        assert!(!description.info.text.contains("lock:"));
        rustix::fs::flock(&file, FlockOperation::LockShared).unwrap();
        for (start, length) in [(5, 5), (20, 0)] {
            file_lock::lock_description(file.as_fd(), RangeLock { writes: true, start, length }).unwrap();
        }
        let found = read(&description, &text_of(&description), hold_of(&description)).unwrap();
        let lock =
            |kind: Kind, writes, start, length, pid| Lock { kind: kind.into(), writes, start, length, pid };
        let us = ourselves().get();
        let expected = [
            lock(Kind::Flock, false, 0, 0, us),
            lock(Kind::Range, true, 5, 5, -1),
            lock(Kind::Range, true, 20, 0, -1),
        ];
        assert_eq!(found, expected);
        assert_eq!((found[0].taker(), found[1].taker()), (Some(ourselves()), None));
        assert_eq!(locks(&other).unwrap(), []);
        found[0].take_here(other.as_fd()).unwrap();
        let error = found[1].take_here(other.as_fd()).unwrap_err().to_string();
        assert!(error.contains("holds a conflicting lock") && error.contains("help:"), "{error}");
        assert!(error.contains(named.path().to_str().unwrap()), "{error}");
        drop((file, description));
        for lock in &found {
            lock.take_here(other.as_fd()).unwrap();
        }
        assert_eq!(locks(&other).unwrap(), expected);
    }

    #[test]
    fn record_locks_are_left_to_their_own_kind() {
        let named = tempfile::NamedTempFile::new().unwrap();
        rustix::fs::fcntl_lock(named.as_file(), FlockOperation::LockExclusive).unwrap();
        let description = describe(0, named.as_file());
        assert!(text_of(&description).contains(POSIX));
        assert_eq!(locks(named.as_file()).unwrap(), []);
    }

    #[test]
    fn a_lock_that_cannot_be_restored_is_refused_by_name() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let file = named.reopen().unwrap();
        let description = describe(0, &file);
        let say = |line: &str, in_flight| match read(
            &description,
            &format!("pos:\t0\nlock:\t{line}\n"),
            Holding { in_flight, ..hold_of(&description) },
        ) {
            Ok(found) => format!("{} taken", found.len()),
            Err(obstacle) => format!("{}: {}", obstacle.what, obstacle.why),
        };
        assert_eq!(say("1: LEASE  ACTIVE    WRITE 7 fe:00:1 0 EOF", false), "1 taken");
        assert!(say("1: LEASE  ACTIVE    WRITE 7 fe:00:1 0 EOF", true).contains("in flight"));
        assert!(say("1: LEASE  BREAKING  UNLCK 7 fe:00:1 0 EOF", false).contains("being broken"));
        assert!(say("1: LEASE  BREAKING  READ 7 fe:00:1 0 EOF", false).contains("file lease"));
        assert!(say("1: DELEG  ACTIVE    READ 7 fe:00:1 0 EOF", false).contains("file delegation"));
        assert!(say("1: NEW  ADVISORY  READ 7 fe:00:1 0 EOF", false).contains("type NEW"));
        assert!(say("something else", false).contains("does not parse"));
        drop(named);
        assert!(say("1: LEASE  ACTIVE    WRITE 7 fe:00:1 0 EOF", false).contains("deleted"));
    }
}
