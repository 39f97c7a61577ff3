//! The state kind of POSIX record locks (fcntl(2) `F_SETLK`), which belong to a process.
//!
//! Owns: the locked ranges of each file, and locking the ranges again.
//! Invariants: a lock is set through the same descriptor as before. The restore is refused if another process holds a
//! conflicting lock.
//! Does not: restore locks of open file descriptions (OFD locks, flock(2)), or leases.

use model::{Fd, Pid};
use prost::Message;
use sys::Errno;
use sys::file_lock::{RangeLock, SET_RECORD_LOCK_COMMAND};
use tracee::arch::numbers::FCNTL;
use tracee::{RemoteError, procfs};

use super::kind::{Level, RawState, Stage, StateCapture, StateFacts, StateKind, StateRestore};
use crate::error::{ResourceError, Result};
use crate::support::lock_line::{LockLine, POSIX};

const NAME: &str = "state/record_locks";

/// The prefix of a line with fd and path in raw state. The lines that follow belong to this descriptor.
const DESCRIPTOR: &str = "descriptor ";

/// The state kind of POSIX record locks.
pub(super) struct RecordLocks;

#[derive(Clone, PartialEq, Message)]
struct LocksMessage {
    #[prost(message, repeated, tag = "1")]
    locks: Vec<LockMessage>,
}

#[derive(Clone, PartialEq, Message)]
struct LockMessage {
    #[prost(int32, tag = "1")]
    fd: i32,
    /// The path of the file, for error messages.
    #[prost(string, tag = "2")]
    path: String,
    #[prost(bool, tag = "3")]
    writes: bool,
    #[prost(int64, tag = "4")]
    start: i64,
    /// The length of the range in bytes. 0 means up to the end of the file, also when the file grows.
    #[prost(int64, tag = "5")]
    length: i64,
}

impl StateKind for RecordLocks {
    fn facts(&self) -> StateFacts {
        StateFacts { name: NAME, level: Level::Process, stage: Stage::Setup }
    }

    fn inside(&self, capture: &mut StateCapture<'_>, raw: &mut RawState) -> Result<()> {
        let pid = capture.pid;
        // /proc/locks is not read, because opening /proc/locks waits until each processor has passed through the
        // scheduler: 10 ms or more.
        if let Some(descriptors) = capture.descriptors() {
            for one in descriptors {
                take(pid, one.fd, &one.text, raw)?;
            }
            return Ok(());
        }
        for fd in procfs::descriptors(pid)? {
            take(pid, fd, &procfs::read(format!("/proc/{pid}/fdinfo/{fd}"))?, raw)?;
        }
        Ok(())
    }

    fn after(&self, raw: &[u8]) -> Result<Option<Vec<u8>>> {
        if raw.is_empty() {
            return Ok(None);
        }
        let text = String::from_utf8_lossy(raw);
        let mut locks = Vec::new();
        let mut holder = (Fd(-1), "");
        for line in text.lines() {
            if let Some((number, path)) = line.strip_prefix(DESCRIPTOR).and_then(|rest| rest.split_once(' '))
            {
                holder = (Fd(number.parse().map_err(|_| malformed(line))?), path);
            } else if let Some(lock) = line.strip_prefix("lock:")
                && lock.contains(POSIX)
            {
                locks.push(LockMessage::parse(holder, lock).ok_or_else(|| malformed(line))?);
            }
        }
        Ok((!locks.is_empty()).then(|| LocksMessage { locks }.encode_to_vec()))
    }

    fn check(&self, _version: u32, payload: &[u8]) -> Result<()> {
        crate::error::decode::<LocksMessage>(NAME, payload).map(drop)
    }

    fn restore(&self, _version: u32, payload: &[u8], restore: &mut StateRestore<'_>) -> Result<()> {
        let message: LocksMessage = crate::error::decode(NAME, payload)?;
        for lock in message.locks {
            let set = |at: model::Address| [lock.fd as u64, SET_RECORD_LOCK_COMMAND, at.get(), 0, 0, 0];
            match restore.stub.call_with(restore.memory, FCNTL, &lock.to_bytes(), set) {
                Ok(_) => {}
                Err(RemoteError::Refused { errno: Errno::EAGAIN | Errno::EACCES, .. }) => {
                    return Err(lock.taken());
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl LockMessage {
    fn parse(holder: (Fd, &str), line: &str) -> Option<Self> {
        let line = LockLine::parse(line)?;
        Some(Self {
            fd: holder.0.get(),
            path: holder.1.to_owned(),
            writes: line.writes()?,
            start: line.start,
            length: line.length,
        })
    }

    fn to_bytes(&self) -> [u8; 32] {
        RangeLock { writes: self.writes, start: self.start, length: self.length }.to_bytes()
    }

    fn taken(&self) -> ResourceError {
        ResourceError::File {
            path: self.path.clone(),
            why: "the program had locked it, and now another program holds a conflicting lock".to_owned(),
            fix: "end that program (`lslocks` lists it), then restore again".to_owned(),
        }
    }
}

fn malformed(line: &str) -> ResourceError {
    ResourceError::malformed(NAME, format!("invalid lock line `{line}`"))
}

/// Copies the fdinfo text of a descriptor if the text contains locks.
fn take(pid: Pid, fd: Fd, text: &[u8], raw: &mut RawState) -> Result<()> {
    if text.windows(POSIX.len()).any(|window| window == POSIX.as_bytes()) {
        let info = procfs::descriptor_info(pid, fd)?;
        let head = format!("{DESCRIPTOR}{fd} {}\n", info.target.display());
        raw.extend_from_slice(head.as_bytes());
        raw.extend_from_slice(text);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_are_parsed_with_their_descriptor_and_range() {
        let raw = "descriptor 3 /a b\npos:\t0\nlock:\t1: POSIX  ADVISORY  WRITE 8 fe:00:12 10 29\n\
                   descriptor 5 /c\nlock:\t2: POSIX  ADVISORY  READ 8 fe:00:13 7 EOF\n\
                   lock:\t3: FLOCK  ADVISORY  WRITE 8 fe:00:13 0 EOF\n";
        let payload = RecordLocks.after(raw.as_bytes()).unwrap().unwrap();
        let message = LocksMessage::decode(payload.as_slice()).unwrap();
        let seen: Vec<_> = message
            .locks
            .iter()
            .map(|lock| (lock.fd, lock.path.as_str(), lock.writes, lock.start, lock.length))
            .collect();
        assert_eq!(seen, [(3, "/a b", true, 10, 20), (5, "/c", false, 7, 0)]);
        assert_eq!(message.locks[0].to_bytes().len(), 32);
        assert_eq!(RecordLocks.after(&[]).unwrap(), None);
        RecordLocks.after(b"lock:\t1: POSIX  ADVISORY  ODD 8 fe:00:12 0 EOF\n").unwrap_err();
    }
}
