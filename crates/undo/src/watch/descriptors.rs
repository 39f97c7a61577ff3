//! Functions for descriptors of files of the subject, which all modules of the watch use.
//!
//! Does not: store descriptors.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use super::paths::is_shortage;
use crate::descriptor::{link_of, path_of, try_path_of};
use crate::error::{Result, UndoError};
use crate::key::FileKey;

const READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::NOATIME);

pub(super) fn stat(file: BorrowedFd<'_>) -> Result<Stat> {
    let found = rustix::fs::fstat(file);
    Ok(found.map_err(|errno| sys::Error::path("inspect", path_of(file), errno))?)
}

/// Returns the path of an open file, for a record. The path is empty if the kernel cannot name the file, for example
/// because the path is too long.
pub(super) fn recorded_path(file: BorrowedFd<'_>) -> Result<PathBuf> {
    match try_path_of(file) {
        Err(errno) if is_shortage(errno) => Err(sys::Error::new("read the path of a file", errno).into()),
        found => Ok(found.unwrap_or_default()),
    }
}

/// Returns the key of an open file.
pub(super) fn key_of(file: BorrowedFd<'_>, stat: &Stat) -> Result<FileKey> {
    FileKey::of(file, stat).map_err(|error| match error {
        UndoError::Kernel(error) if error.errno == Errno::OPNOTSUPP.into() => {
            UndoError::NoHandles { mount: mount_of(&path_of(file), stat.st_dev) }
        }
        UndoError::Kernel(error) => sys::Error::path("get the handle of", path_of(file), error.errno).into(),
        other => other,
    })
}

/// Returns the highest directory above a path that is on the same file system.
fn mount_of(path: &Path, device: u64) -> PathBuf {
    let is_there = |folder: &&Path| rustix::fs::stat(*folder).is_ok_and(|stat| stat.st_dev == device);
    path.ancestors().skip(1).take_while(is_there).last().unwrap_or(path).to_owned()
}

/// Opens a file for reading, from a descriptor that is open with O_PATH.
pub(super) fn reopen(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    let opened = rustix::fs::open(link_of(file), READ, Mode::empty());
    Ok(opened.map_err(|errno| sys::Error::path("open for reading", path_of(file), errno))?)
}

pub(super) fn duplicate(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(file, 3);
    Ok(copy.map_err(|errno| sys::Error::new("duplicate a descriptor", errno))?)
}
