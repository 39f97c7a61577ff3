//! Duplicates of the subject's descriptors, and how long they may be open.
//!
//! Owns: opening a duplicate of a description that was listed before, and telling that it is still the same.
//! Invariants: as long as a duplicate is open, a last close inside the subject is none: a port stays taken, a lock
//! stays, a program that was written cannot be started. So beside a running subject there is one at a time, and none
//! at all of files that have a name: an O_PATH descriptor stands for these, which holds the file and not the
//! description. Inside the pause nobody can close anything.
//! Does not: find descriptors; the engine lists them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{FileType, Mode, OFlags};
use sys::{Errno, Error, Result, pidfd};

use super::description::{Description, Known};
use crate::support::identity::FORMAT_MASK;

/// What a descriptor opened anew under the same number may have for the same file, while all else is read in the pause:
/// not the same reading and writing.
const ACCESS: OFlags = OFlags::ACCMODE.union(OFlags::PATH);

impl Description {
    /// For use while the subject runs, to be dropped at once: a duplicate, or what stands for it. `None` when the
    /// descriptor is of something else by now, or gone.
    pub fn beside(known: &Arc<Known>, handle: BorrowedFd<'_>) -> Result<Option<Self>> {
        let opened = if known.is_file() { open_file(known) } else { duplicate(known, handle) };
        still(known, opened)
    }

    /// For use while the subject stands: a duplicate. `None` when the descriptor is of something else by now, or gone.
    pub fn inside(known: &Arc<Known>, handle: BorrowedFd<'_>) -> Result<Option<Self>> {
        let found = still(known, duplicate(known, handle))?;
        let access = |flags: OFlags| flags & ACCESS;
        Ok(found.filter(|found| {
            let flags = rustix::fs::fcntl_getfl(found);
            flags.is_ok_and(|flags| access(flags) == access(OFlags::from_bits_retain(known.info.flags)))
        }))
    }
}

impl Known {
    /// Whether all that is asked of it while the subject runs can be asked of the file.
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
        .map_err(|errno| Error::descriptor("look at the file behind", known.pid, known.fd, errno))
}

fn still(known: &Arc<Known>, opened: Result<OwnedFd>) -> Result<Option<Description>> {
    let opened = match opened {
        Err(error) if matches!(error.errno, Errno::EBADF | Errno::ENOENT | Errno::ESRCH) => return Ok(None),
        opened => opened?,
    };
    let stat = rustix::fs::fstat(opened.as_fd())
        .map_err(|errno| Error::descriptor("look at the file", known.pid, known.fd, errno))?;
    let is_same = (stat.st_dev, stat.st_ino, stat.st_mode & FORMAT_MASK)
        == (known.stat.st_dev, known.stat.st_ino, known.stat.st_mode & FORMAT_MASK);
    Ok(is_same.then(|| Description::new(Arc::clone(known), opened)))
}
