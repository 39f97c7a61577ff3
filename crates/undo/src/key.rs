//! Names of inodes that survive renames, and their attributes.
//!
//! Owns: the identity of an inode, its attributes as the log records them, and reading these.
//! Invariants: a key names one inode for ever: the handle holds the generation of the inode number.
//! Does not: open files.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use sys::Error;
use sys::file_handle::{self, FileHandle};

use crate::error::Result;

/// Longest extended attribute (XATTR_SIZE_MAX), and longest list of their names.
const EXTENDED_BYTES_MAX: usize = 64 << 10;

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

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { s: since.as_secs().cast_signed(), ns: since.subsec_nanos() }
    }
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
    /// All attributes of an open file, which may be open with O_PATH. Going back removes extended attributes that were
    /// not recorded, so that a record needs these.
    ///
    /// # Errors
    ///
    /// What the kernel says.
    pub fn read(file: impl AsFd, stat: &Stat) -> Result<Self> {
        let mut attributes = Self::of(stat);
        if attributes.kind() == FileType::Symlink {
            let link = rustix::fs::readlinkat(&file, "", Vec::new())
                .map_err(|errno| Error::new("read a symbolic link", errno))?;
            attributes.link = link.into_bytes();
        }
        attributes.extended = extended(file)?;
        Ok(attributes)
    }

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

/// Extended attributes that can be set again, by rising name.
pub(crate) fn extended(file: impl AsFd) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    // A descriptor that is open with O_PATH has no fgetxattr(2).
    let link = format!("/proc/thread-self/fd/{}", file.as_fd().as_raw_fd());
    // Most files have none, and most of this is called before a change that waits for it.
    if matches!(rustix::fs::listxattr(&link, &mut [0_u8; 256][..]), Ok(0)) {
        return Ok(Vec::new());
    }
    let mut names = vec![0; EXTENDED_BYTES_MAX];
    let length = match rustix::fs::listxattr(&link, &mut names[..]) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(Error::new("list extended attributes", errno).into()),
    };
    let mut extended = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| can_be_set(name)) {
        let mut value = vec![0; EXTENDED_BYTES_MAX];
        let length = rustix::fs::getxattr(&link, OsStr::from_bytes(name), &mut value[..])
            .map_err(|errno| Error::new("read an extended attribute", errno))?;
        value.truncate(length);
        extended.push((name.to_vec(), value));
    }
    extended.sort_unstable();
    Ok(extended)
}

/// Whether an extended attribute can be set again.
fn can_be_set(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || name.starts_with(b"trusted.")
        || name.starts_with(b"system.posix_acl_")
        || name == b"security.capability"
}
