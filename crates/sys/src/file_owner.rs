//! The owner of an open file description (the receiver of its I/O signals), and the signal that the owner
//! receives.
//!
//! Owns: F_GETOWN_EX, F_SETOWN_EX, F_GETSIG, F_SETSIG of fcntl(2).
//! Invariants: an owner that no longer exists is returned as `None`, because the kernel reports no owner
//! then.
//! Does not: enable the signals; the status flag O_ASYNC does.
//!
//! Man page: F_GETOWN_EX(2const), F_SETSIG(2const)
//! Since: Linux 2.6.32
//! Probe: none needed
//! Fallback: none needed

use std::mem::{offset_of, size_of};
use std::os::fd::{AsRawFd, BorrowedFd};

use model::{Pid, Signal, Tid};

use crate::error::{Errno, Error, Result, done};

/// F_SETOWN_EX: the fcntl(2) command that sets the owner. This constant is for calls in another process.
pub const SET_OWNER_COMMAND: u64 = 15;
/// F_SETSIG: the fcntl(2) command that sets the signal.
pub const SET_SIGNAL_COMMAND: u64 = 10;
/// F_SETFL: the fcntl(2) command that sets the status flags.
pub const SET_FLAGS_COMMAND: u64 = libc::F_SETFL as u64;

const GET_OWNER_COMMAND: libc::c_int = 16;
const GET_SIGNAL_COMMAND: libc::c_int = 11;

#[repr(C)]
#[derive(Default)]
struct OwnerArgument {
    kind: i32,
    id: i32,
}

const _: () = assert!(size_of::<OwnerArgument>() == 8);
const _: () = assert!(offset_of!(OwnerArgument, id) == 4);

/// The receiver of the signals of an open file description.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FileOwner {
    /// One thread.
    Thread(Tid),
    /// One process.
    Process(Pid),
    /// All processes of a process group.
    Group(Pid),
}

impl FileOwner {
    /// Returns the owner as the kernel encodes it: the type (F_OWNER_TID, F_OWNER_PID or F_OWNER_PGRP), and
    /// the id.
    #[must_use]
    pub fn to_raw(self) -> (i32, i32) {
        match self {
            Self::Thread(tid) => (0, tid.get()),
            Self::Process(pid) => (1, pid.get()),
            Self::Group(pid) => (2, pid.get()),
        }
    }

    /// Decodes an owner from its type and id. Returns `None` if the id is not positive (no owner), or if the
    /// type is unknown.
    #[must_use]
    pub fn from_raw(kind: i32, id: i32) -> Option<Self> {
        match (kind, id) {
            (_, ..=0) => None,
            (0, id) => Some(Self::Thread(Tid(id))),
            (1, id) => Some(Self::Process(Pid(id))),
            (2, id) => Some(Self::Group(Pid(id))),
            _ => None,
        }
    }

    /// Returns the argument of [`SET_OWNER_COMMAND`] as bytes, for writing into another process.
    #[must_use]
    pub fn to_bytes(self) -> [u8; 8] {
        let (kind, id) = self.to_raw();
        let mut bytes = [0; 8];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..].copy_from_slice(&id.to_ne_bytes());
        bytes
    }
}

/// Returns the owner of an open file description.
pub fn owner(file: BorrowedFd<'_>) -> Result<Option<FileOwner>> {
    let mut argument = OwnerArgument::default();
    // SAFETY: the kernel writes one `struct f_owner_ex`, and `argument` has its layout.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), GET_OWNER_COMMAND, &raw mut argument) };
    done("get the owner of an open file", result)?;
    Ok(FileOwner::from_raw(argument.kind, argument.id))
}

/// Returns the signal that the owner receives when I/O is possible; `None` for the default, SIGIO.
pub fn signal(file: BorrowedFd<'_>) -> Result<Option<Signal>> {
    // SAFETY: the command takes no argument.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), GET_SIGNAL_COMMAND) };
    match result {
        ..0 => Err(Error::new("get the signal of an open file", Errno::last())),
        0 => Ok(None),
        number => Ok(Some(Signal(number))),
    }
}

/// Sets the signal that the owner receives when I/O is possible; `None` for the default, SIGIO.
pub fn set_signal(file: BorrowedFd<'_>, signal: Option<Signal>) -> Result<()> {
    let number = signal.map_or(0, Signal::get);
    // SAFETY: the command takes a plain number.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), SET_SIGNAL_COMMAND as libc::c_int, number) };
    done("set the signal of an open file", result).map(drop)
}

/// Sets the owner of an open file description.
///
/// # Errors
///
/// ESRCH if the owner does not exist.
pub fn set_owner(file: BorrowedFd<'_>, owner: FileOwner) -> Result<()> {
    let (kind, id) = owner.to_raw();
    let argument = OwnerArgument { kind, id };
    // SAFETY: the kernel reads one `struct f_owner_ex`, and `argument` has its layout.
    let result =
        unsafe { libc::fcntl(file.as_raw_fd(), SET_OWNER_COMMAND as libc::c_int, &raw const argument) };
    done("set the owner of an open file", result).map(drop)
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn owner_and_signal_are_read_back() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        assert_eq!(owner(reader.as_fd()).unwrap(), None);
        assert_eq!(signal(reader.as_fd()).unwrap(), None);
        let ourselves = Pid(std::process::id() as i32);
        for wanted in [
            FileOwner::Process(ourselves),
            FileOwner::Thread(ourselves.leader()),
            FileOwner::Process(ourselves),
        ] {
            set_owner(reader.as_fd(), wanted).unwrap();
            assert_eq!(owner(reader.as_fd()).unwrap(), Some(wanted));
            let (kind, id) = wanted.to_raw();
            assert_eq!(FileOwner::from_raw(kind, id), Some(wanted));
        }
        set_signal(reader.as_fd(), Some(Signal(34))).unwrap();
        assert_eq!(signal(reader.as_fd()).unwrap(), Some(Signal(34)));
        set_signal(reader.as_fd(), None).unwrap();
        assert_eq!(signal(reader.as_fd()).unwrap(), None);
    }

    #[test]
    fn an_owner_that_does_not_exist_is_refused() {
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let nobody = FileOwner::Process(Pid(i32::MAX));
        assert_eq!(set_owner(reader.as_fd(), nobody).unwrap_err().errno, Errno::ESRCH);
    }
}
