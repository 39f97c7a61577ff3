//! Duplicates of the subject's descriptors, and how long they may exist.
//!
//! Owns: opening a duplicate of a listed description, and verifying that the duplicate refers to the same file.
//! Invariants: while a duplicate is open, the last close(2) of the subject does not release the open file
//! description. A port then stays bound, a lock stays held, and a written program cannot be executed (ETXTBSY). So
//! only one duplicate is open at a time while the subject runs. For a file with a name, an O_PATH descriptor is used,
//! which refers to the file and not to the description. Inside the pause, the subject cannot close descriptors.
//! Does not: find descriptors; the crate `engine` lists them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use sys::{Errno, Error, Result, pidfd};

use super::description::{Description, Known};
use crate::support::identity::FORMAT_MASK;

/// Access bits, compared inside the pause. A difference shows that the fd was reused for the same file with another
/// access mode. The pause reads all other properties again.
const ACCESS: OFlags = OFlags::ACCMODE.union(OFlags::PATH);

impl Description {
    /// Opens a duplicate, or an O_PATH descriptor of the file, while the subject runs. The caller drops the result at
    /// once. Returns `None` if the descriptor is closed or refers to another file.
    pub fn beside(known: &Arc<Known>, handle: BorrowedFd<'_>) -> Result<Option<Self>> {
        let opened = if known.is_file() { open_file(known) } else { duplicate(known, handle) };
        if_same(known, opened)
    }

    /// Opens a duplicate while the subject is stopped. Returns `None` if the descriptor is closed, refers to another
    /// file, or has another access mode.
    pub fn inside(known: &Arc<Known>, handle: BorrowedFd<'_>) -> Result<Option<Self>> {
        let found = if_same(known, duplicate(known, handle))?;
        let access = |flags: OFlags| flags & ACCESS;
        Ok(found.filter(|found| {
            let flags = rustix::fs::fcntl_getfl(found);
            flags.is_ok_and(|flags| access(flags) == access(OFlags::from_bits_retain(known.info.flags)))
        }))
    }
}

impl Known {
    /// Reports whether an O_PATH descriptor of the file is enough while the subject runs.
    fn is_file(&self) -> bool {
        let has_path = self.target().starts_with('/') && !self.target().starts_with("/memfd:");
        let format = FileType::from_raw_mode(self.stat.st_mode);
        has_path && matches!(format, FileType::RegularFile | FileType::Directory | FileType::BlockDevice)
    }
}

fn duplicate(known: &Known, handle: BorrowedFd<'_>) -> Result<OwnedFd> {
    pidfd::duplicate(handle, known.pid, known.fd)
}

fn open_file(known: &Known) -> Result<OwnedFd> {
    let path = format!("/proc/{}/fd/{}", known.pid, known.fd);
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Error::descriptor("open the file of", known.pid, known.fd, errno))
}

fn if_same(known: &Arc<Known>, opened: Result<OwnedFd>) -> Result<Option<Description>> {
    let opened = match opened {
        Err(error) if matches!(error.errno, Errno::EBADF | Errno::ENOENT | Errno::ESRCH) => return Ok(None),
        opened => opened?,
    };
    let stat = rustix::fs::fstat(opened.as_fd())
        .map_err(|errno| Error::descriptor("stat the file", known.pid, known.fd, errno))?;
    let is_same = (stat.st_dev, stat.st_ino, stat.st_mode & FORMAT_MASK)
        == (known.stat.st_dev, known.stat.st_ino, known.stat.st_mode & FORMAT_MASK);
    Ok(is_same.then(|| Description::new(Arc::clone(known), opened)))
}
