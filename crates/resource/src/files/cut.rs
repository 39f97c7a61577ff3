//! Cutting a file that only grew back to its recorded length.
//!
//! Owns: the order of the steps.
//! Invariants: the bytes behind the recorded length are durable elsewhere before they are cut off; a crash in between
//! leaves the file longer and the copy behind, and the next comparison finds the same.
//! Does not: choose where the bytes go.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, Stat, Timespec, Timestamps, UTIME_OMIT};
use sys::Error;

use super::FileRecord;
use crate::error::Result;
use crate::support::opening;

/// Keeps the bytes of a file from an offset to its end, durably: path, file, offset, length in bytes.
pub type MoveAside<'a> = dyn FnMut(&Path, &File, u64, u64) -> sys::Result<()> + 'a;

/// A file to be cut back.
#[derive(Debug)]
pub struct Cut {
    path: PathBuf,
    /// O_PATH, compared already.
    file: OwnedFd,
    /// Its length at the checkpoint and now.
    from: u64,
    length: u64,
    modified: Timespec,
}

impl Cut {
    pub(super) fn new(record: &FileRecord, file: OwnedFd, now: &Stat) -> Self {
        let modified = Timespec { tv_sec: record.modified_s, tv_nsec: record.modified_ns as i64 };
        Self { path: record.path(), file, from: record.size, length: now.st_size as u64, modified }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes that go.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.length - self.from
    }

    /// Moves what is behind the recorded length aside, and cuts the file back. Its modification time goes back, too,
    /// by which a later restart recognises it.
    ///
    /// # Errors
    ///
    /// When the file has grown meanwhile, or cannot be read, copied or changed.
    pub fn apply(&self, aside: &mut MoveAside<'_>) -> Result<()> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(opening::reopen(&self.file, flags)?);
        let failed = |operation: &'static str| {
            move |errno: rustix::io::Errno| Error::path(operation, &self.path, errno)
        };
        let now = rustix::fs::fstat(&file).map_err(failed("inspect"))?;
        if now.st_size as u64 != self.length {
            return Err(Error::path("cut back", &self.path, sys::Errno::EAGAIN).into());
        }
        aside(&self.path, &file, self.from, self.bytes())?;
        rustix::fs::ftruncate(&file, self.from).map_err(failed("cut back"))?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: self.modified,
        };
        rustix::fs::futimens(&file, &times).map_err(failed("set the times of"))?;
        rustix::fs::fdatasync(&file).map_err(failed("sync"))?;
        Ok(())
    }
}
