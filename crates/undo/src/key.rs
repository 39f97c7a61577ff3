//! Identities of inodes that survive renames, and attributes of inodes.
//!
//! Owns: keys and attributes of inodes, and the functions that read a key or attributes. The tags of times and attributes
//! are those of the undo log, and never change.
//! Invariants: a key identifies one inode for ever, because the file handle contains the generation of the inode
//! number.
//! Does not: open files.

use std::ffi::OsStr;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
use rustix::fs::{AtFlags, FileType, Stat, StatxFlags};
use rustix::io::Errno;
use sys::Error;
use sys::file_handle::{self, FileHandle};

use crate::descriptor::link_of;
use crate::error::Result;

/// The number of a tmpfs in statfs(2). The image of a checkpoint contains the files of a tmpfs.
pub(crate) const TMPFS: u64 = 0x0102_1994;
/// The maximum length of an extended attribute (XATTR_SIZE_MAX) and of a list of attribute names, in bytes.
const EXTENDED_BYTES_MAX: usize = 64 << 10;

/// The identity of an inode: the device of its file system, the inode number and the file handle.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FileKey {
    /// The device of the file system (`st_dev`).
    pub device: u64,
    /// The inode number (`st_ino`).
    pub inode: u64,
    /// The file handle (name_to_handle_at(2)). The handle survives renames, and distinguishes a new file from an old
    /// file with the same inode number.
    pub handle: FileHandle,
}

/// A file time: seconds and nanoseconds since 1970.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Message)]
pub struct Time {
    /// Seconds since 1970.
    #[prost(sint64, tag = "1")]
    pub s: i64,
    /// Nanoseconds, below 1,000,000,000.
    #[prost(uint32, tag = "2")]
    pub ns: u32,
}

impl From<SystemTime> for Time {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { s: since.as_secs().cast_signed(), ns: since.subsec_nanos() }
    }
}

/// An extended attribute.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Message)]
pub struct Extended {
    /// The name, with its namespace.
    #[prost(bytes = "vec", tag = "1")]
    pub name: Vec<u8>,
    /// The value.
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// Attributes of an inode at one moment.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Attributes {
    /// File type and permissions (`st_mode`).
    #[prost(uint32, tag = "1")]
    pub mode: u32,
    /// User id of the owner (`st_uid`).
    #[prost(uint32, tag = "2")]
    pub owner: u32,
    /// Group id (`st_gid`).
    #[prost(uint32, tag = "3")]
    pub group: u32,
    /// Device number of a device file (`st_rdev`).
    #[prost(uint64, tag = "4")]
    pub rdev: u64,
    /// Length in bytes.
    #[prost(uint64, tag = "5")]
    pub size: u64,
    /// Access time (`st_atime`).
    #[prost(message, required, tag = "6")]
    pub accessed: Time,
    /// Modification time (`st_mtime`).
    #[prost(message, required, tag = "7")]
    pub modified: Time,
    /// Target of a symbolic link; empty for other file types.
    #[prost(bytes = "vec", tag = "8")]
    pub link: Vec<u8>,
    /// The extended attributes that a rollback can set: `user.*`, `trusted.*`, `security.capability`,
    /// `system.posix_acl_*`.
    #[prost(message, repeated, tag = "9")]
    pub extended: Vec<Extended>,
    /// Time at which the inode was created (`stx_btime`). `None` if the file system does not know it, and for files with
    /// several names.
    #[prost(message, optional, tag = "10")]
    pub born: Option<Time>,
}

impl FileKey {
    /// Returns the key of an open file. The file may be open with O_PATH.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP if the file system provides no file handles.
    pub fn of(file: impl AsFd, stat: &Stat) -> Result<Self> {
        let handle = file_handle::of(file.as_fd())?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino, handle })
    }
}

impl Attributes {
    /// Reads all attributes of an open file. The file may be open with O_PATH.
    ///
    /// A rollback removes extended attributes that are not in the record of a file. A record therefore needs
    /// `extended`, which only this function reads.
    ///
    /// # Errors
    ///
    /// Errors of the system calls.
    pub fn read(file: impl AsFd, stat: &Stat) -> Result<Self> {
        let mut attributes = Self::of(stat);
        if attributes.kind() == FileType::Symlink {
            let link = rustix::fs::readlinkat(&file, "", Vec::new())
                .map_err(|errno| Error::new("read a symbolic link", errno))?;
            attributes.link = link.into_bytes();
        }
        if attributes.kind() == FileType::Directory || stat.st_nlink == 1 {
            attributes.born = born(&file);
        }
        attributes.extended = extended(file)?;
        Ok(attributes)
    }

    /// Returns the attributes that stat(2) reports. The others are empty.
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
            ..Self::default()
        }
    }

    /// Returns the type of the file.
    #[must_use]
    pub fn kind(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }
}

fn born(file: impl AsFd) -> Option<Time> {
    let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME).ok()?;
    let is_known = found.stx_mask & StatxFlags::BTIME.bits() != 0;
    is_known.then_some(Time { s: found.stx_btime.tv_sec, ns: found.stx_btime.tv_nsec })
}

/// Returns the extended attributes that a rollback can set, sorted by name.
pub(crate) fn extended(file: impl AsFd) -> Result<Vec<Extended>> {
    // fgetxattr(2) fails on a descriptor with O_PATH. The path in /proc works.
    let link = link_of(file);
    // Try a small buffer first: most files have no extended attributes, and a call of the subject often waits for the
    // result.
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
        extended.push(Extended { name: name.to_vec(), value });
    }
    extended.sort_unstable();
    Ok(extended)
}

/// Reports whether a rollback can set an extended attribute.
fn can_be_set(name: &[u8]) -> bool {
    name.starts_with(b"user.")
        || name.starts_with(b"trusted.")
        || name.starts_with(b"system.posix_acl_")
        || name == b"security.capability"
}
