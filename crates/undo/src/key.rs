//! Names of inodes that survive renames, and their attributes.
//!
//! Owns: the identity of an inode, its attributes as the log records them.
//! Invariants: a key names one inode for ever: the handle holds the generation of the inode number.
//! Does not: open files.

use std::os::fd::AsFd;

use rustix::fs::{FileType, Stat};
use sys::file_handle::{self, FileHandle};

use crate::error::Result;

/// An inode: the device of its file system, its number, and its handle (name_to_handle_at(2)).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FileKey {
    /// `st_dev`.
    pub device: u64,
    /// `st_ino`.
    pub inode: u64,
    /// Survives renames; tells a new file with a used inode number from the old one.
    pub handle: FileHandle,
}

/// A file time: seconds and nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Time {
    /// Seconds.
    pub s: i64,
    /// Nanoseconds, below 1,000,000,000.
    pub ns: u32,
}

/// Attributes of an inode at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Attributes {
    /// `st_mode`: type and permissions.
    pub mode: u32,
    /// `st_uid`.
    pub owner: u32,
    /// `st_gid`.
    pub group: u32,
    /// `st_rdev` of a device.
    pub rdev: u64,
    /// Length in bytes.
    pub size: u64,
    /// `st_atime`.
    pub accessed: Time,
    /// `st_mtime`.
    pub modified: Time,
    /// Target of a symbolic link; empty for other types.
    pub link: Vec<u8>,
    /// Extended attributes that can be set again, by name: `user.*`, `trusted.*`, `security.capability`,
    /// `system.posix_acl_*`.
    pub extended: Vec<(Vec<u8>, Vec<u8>)>,
}

impl FileKey {
    /// The key of an open file, which may be open with O_PATH.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP where the file system has no handles.
    pub fn of(file: impl AsFd, stat: &Stat) -> Result<Self> {
        let handle = file_handle::of(file.as_fd())?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino, handle })
    }
}

impl Attributes {
    /// What stat(2) tells; `link` and `extended` are empty.
    #[must_use]
    pub fn of(stat: &Stat) -> Self {
        Self {
            mode: stat.st_mode,
            owner: stat.st_uid,
            group: stat.st_gid,
            rdev: stat.st_rdev,
            size: stat.st_size as u64,
            accessed: Time { s: stat.st_atime, ns: stat.st_atime_nsec as u32 },
            modified: Time { s: stat.st_mtime, ns: stat.st_mtime_nsec as u32 },
            link: Vec::new(),
            extended: Vec::new(),
        }
    }

    /// The type of the file.
    #[must_use]
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}
