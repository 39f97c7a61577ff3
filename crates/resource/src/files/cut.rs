//! Reverts a file: truncates the file to its recorded length, or writes the recorded content.
//!
//! Owns: the order of the steps.
//! Invariants: bytes are stored durably elsewhere before the bytes are truncated or overwritten. After a crash between
//! the two steps, the file and the stored copy exist, and the next comparison has the same result.
//! Does not: choose where the bytes are stored.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{OFlags, Stat, Timespec, Timestamps, UTIME_OMIT};
use sys::Error;

use super::record::FileRecord;
use crate::error::Result;
use crate::support::opening;

/// Stores bytes of a file durably. The arguments are the path, the file, the offset of the first byte, and the number
/// of bytes.
pub type MoveAside<'a> = dyn FnMut(&Path, &File, u64, u64) -> sys::Result<()> + 'a;

/// A file that has to be reverted.
#[derive(Debug)]
pub struct Cut {
    path: PathBuf,
    /// The O_PATH descriptor of the compared file.
    file: OwnedFd,
    /// The length at the checkpoint, in bytes. The next field is the length at the comparison.
    from: u64,
    length: u64,
    modified: Timespec,
    /// The content to write; `None` if the file only has to be truncated.
    content: Option<Vec<u8>>,
    /// `true` if the program writes to the file only with O_APPEND.
    appends: bool,
}

impl Cut {
    pub(super) fn new(record: &FileRecord, file: OwnedFd, now: &Stat) -> Self {
        let modified = Timespec { tv_sec: record.modified_s, tv_nsec: record.modified_ns as i64 };
        let content = record.content.clone();
        let appends = !record.positioned && content.is_none();
        let (from, length) = (record.size, now.st_size as u64);
        Self { path: record.path(), file, from, length, modified, content, appends }
    }

    /// Reports whether the file may keep the added bytes. The restored program then appends behind the added bytes.
    #[must_use]
    pub fn may_stay(&self) -> bool {
        self.appends
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the length of the file has not changed since the comparison. Must be called for all files before
    /// the first file is reverted.
    ///
    /// # Errors
    ///
    /// Returns an error if the length has changed, or the file cannot be inspected.
    pub fn check(&self) -> Result<()> {
        let now = rustix::fs::fstat(&self.file).map_err(|errno| Error::path("inspect", &self.path, errno))?;
        if now.st_size as u64 == self.length {
            Ok(())
        } else {
            Err(Error::path("truncate", &self.path, sys::Errno::EAGAIN).into())
        }
    }

    /// Stores bytes of the file with `aside`, and reverts the file. Also restores the modification time, by which a
    /// later restart recognizes the file as unchanged.
    ///
    /// # Errors
    ///
    /// Returns an error if the length has changed, or the file cannot be read, copied or changed.
    pub fn apply(&self, aside: &mut MoveAside<'_>) -> Result<()> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(opening::reopen(&self.file, flags)?);
        let failed = |operation: &'static str| {
            move |errno: rustix::io::Errno| Error::path(operation, &self.path, errno)
        };
        self.check()?;
        let first = if self.content.is_some() { 0 } else { self.from };
        aside(&self.path, &file, first, self.length - first)?;
        if let Some(content) = &self.content {
            let written = file.write_all_at(content, 0);
            written.map_err(|error| Error::path("write the content of", &self.path, error))?;
        }
        rustix::fs::ftruncate(&file, self.from).map_err(failed("truncate"))?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: self.modified,
        };
        rustix::fs::futimens(&file, &times).map_err(failed("set the times of"))?;
        rustix::fs::fdatasync(&file).map_err(failed("sync"))?;
        Ok(())
    }
}
