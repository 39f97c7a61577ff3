//! Finds or creates a named file of a tmpfs at a restore: POSIX shared memory, a named semaphore, a scratch file.
//!
//! A file of a tmpfs is memory, so the image contains its content, and a restore writes the content to the file. The
//! restore must write to the right file. The *identity* of a file (device, inode and birth time) is in its record. If
//! the file is missing, the restore creates a new file, which has another identity. The restore stores the identity
//! of the original file in an extended attribute of the new file. The next restore of the same image recognizes the
//! new file by this attribute. For root, this is a `trusted.*` attribute, which only privileged processes can set.
//!
//! Owns: recognizing files of a tmpfs, the message that identifies a file, and finding or creating the file.
//! Invariants: an existing file is written only if it has the recorded identity, or the attribute of the original
//! file. A file is not written while a process outside the restored process tree has it open for writing. No symbolic
//! link is followed.
//! Does not: save or write content.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use prost::Message;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags, Stat, StatxFlags, XattrFlags};
use rustix::io::Errno as E;
use sys::clock::Deadline;
use sys::{Errno, Error, file_lock};

use super::opening::reopen;
use super::ownership::owner;
use super::{outside, path};
use crate::error::{ResourceError, Result};

/// The magic number of tmpfs(5). devtmpfs has the same magic number.
pub(crate) const TMPFS: i64 = 0x0102_1994;

/// The time in which a killed process closes its files.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);
const CLOSE_POLL: Duration = Duration::from_millis(5);
/// The length of the attribute: an identity has three numbers of 8 bytes each.
const MARK_BYTES: usize = 24;

/// The identity of a file: device, inode, and birth time in nanoseconds. The birth time is needed, because after a
/// boot a tmpfs uses the same inode numbers for other files. The birth time is 0 if the kernel does not record birth
/// times.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Identity {
    #[prost(uint64, tag = "1")]
    device: u64,
    #[prost(uint64, tag = "2")]
    inode: u64,
    #[prost(uint64, tag = "3")]
    born_ns: u64,
}

/// A named file of a tmpfs in the image, without its content.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TmpfsFile {
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    #[prost(uint32, tag = "2")]
    mode: u32,
    #[prost(uint32, tag = "3")]
    user: u32,
    #[prost(uint32, tag = "4")]
    group: u32,
    #[prost(message, optional, tag = "5")]
    identity: Option<Identity>,
    /// The identity in the extended attribute of the file. `None` if no restore has created the file.
    #[prost(message, optional, tag = "6")]
    original: Option<Identity>,
}

/// A file that was found or created.
#[derive(Debug)]
pub(crate) enum Found {
    /// The file, open for reading and writing.
    Ready(OwnedFd),
    /// A process outside the restored process tree has the file open for writing. The values are a text that
    /// describes this process, and the file open for reading.
    Shared(String, OwnedFd),
}

/// Reports whether an open file is a regular file of a tmpfs. `system` is the type of the file system.
pub(crate) fn is_on_tmpfs(stat: &Stat, system: i64) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile && system == TMPFS
}

impl Identity {
    fn of(file: impl AsFd) -> Result<Self> {
        let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, flags)
            .map_err(|errno| Error::new("stat a file of a tmpfs", errno))?;
        let knows_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        let born = found.stx_btime.tv_sec as u64 * 1_000_000_000 + u64::from(found.stx_btime.tv_nsec);
        Ok(Self {
            device: rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor),
            inode: found.stx_ino,
            born_ns: if knows_birth { born } else { 0 },
        })
    }

    fn to_mark(self) -> [u8; MARK_BYTES] {
        let mut bytes = [0; MARK_BYTES];
        for (place, number) in bytes.chunks_exact_mut(8).zip([self.device, self.inode, self.born_ns]) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn from_mark(bytes: &[u8]) -> Option<Self> {
        let bytes: [u8; MARK_BYTES] = bytes.try_into().ok()?;
        let number =
            |at: usize| bytes[at..at + 8].iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
        Some(Self { device: number(0), inode: number(8), born_ns: number(16) })
    }
}

/// Returns the name of the extended attribute that stores an identity. An unprivileged process cannot set a
/// `trusted.*` attribute, and uses a `user.*` attribute.
fn mark_name() -> &'static str {
    if rustix::process::geteuid().is_root() { "trusted.undying.original" } else { "user.undying.original" }
}

fn mark_of(file: impl AsFd) -> Option<Identity> {
    let mut bytes = [0; MARK_BYTES];
    let length = rustix::fs::fgetxattr(file, mark_name(), &mut bytes[..]).ok()?;
    Identity::from_mark(bytes.get(..length)?)
}

impl TmpfsFile {
    /// Creates the record of an open file at `path`. The descriptor may be read-only.
    pub(crate) fn describe(path: &Path, file: impl AsFd, stat: &Stat) -> Result<Self> {
        Ok(Self {
            path: path::to_bytes(path),
            mode: stat.st_mode & 0o7777,
            user: stat.st_uid,
            group: stat.st_gid,
            identity: Some(Identity::of(file.as_fd())?),
            original: mark_of(file),
        })
    }

    /// Returns the path of the file.
    pub(crate) fn path(&self) -> PathBuf {
        path::from_bytes(&self.path)
    }

    /// Opens the recorded file. If the file is missing, creates the file. If another file now has the name, returns
    /// an error.
    pub(crate) fn find_or_make(&self) -> Result<Found> {
        let path = self.path();
        let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(
                self.refused("it has no name".to_owned(), "take another checkpoint (undying checkpoint)")
            );
        };
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = rustix::fs::openat2(CWD, above, directory, Mode::empty(), ResolveFlags::NO_SYMLINKS)
            .map_err(|errno| {
                let why = format!(
                    "the directory of this shared memory file cannot be opened: {}",
                    Errno::from(errno)
                );
                self.refused(why, "create the directory, then restore again")
            })?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(&above, name, flags, Mode::empty()) {
            Ok(file) => self.accept(&file),
            Err(E::NOENT) => Ok(Found::Ready(self.make(above.as_fd(), name)?)),
            Err(errno) => Err(Error::path("open", &path, errno).into()),
        }
    }

    fn accept(&self, named: &OwnedFd) -> Result<Found> {
        let path = self.path();
        let failed = |errno| Error::path("stat", &path, errno);
        let stat = rustix::fs::fstat(named).map_err(failed)?;
        let system = rustix::fs::fstatfs(named).map_err(failed)?.f_type;
        if !is_on_tmpfs(&stat, system) {
            let why = "it is no longer a regular file of a tmpfs".to_owned();
            return Err(self.refused(why, "move it to another path, then restore again"));
        }
        let file = reopen(named, OFlags::RDONLY | OFlags::CLOEXEC)?;
        let is_same = Some(Identity::of(&file)?) == self.identity;
        let original = self.original.or(self.identity);
        if !is_same && (original.is_none() || mark_of(&file) != original) {
            let why = "another file now has the name of the program's shared memory file".to_owned();
            return Err(self.refused(why, "move it to another path, then restore again"));
        }
        let deadline = Deadline::after(CLOSE_LIMIT);
        while file_lock::is_open_for_writing(file.as_fd())? {
            if deadline.has_passed() {
                return Ok(Found::Shared(outside::describe(outside::user_of(&stat)), file));
            }
            std::thread::sleep(CLOSE_POLL);
        }
        Ok(Found::Ready(reopen(named, OFlags::RDWR | OFlags::CLOEXEC)?))
    }

    fn make(&self, above: impl AsFd, name: &OsStr) -> Result<OwnedFd> {
        let path = self.path();
        let failed = |operation: &'static str| {
            let path = path.clone();
            move |errno: E| Error::path(operation, &path, errno)
        };
        let system = rustix::fs::fstatfs(above.as_fd()).map_err(failed("stat the file system of"))?.f_type;
        if system != TMPFS {
            let why = "its directory is no longer on a tmpfs".to_owned();
            return Err(self.refused(why, "mount a tmpfs there, then restore again"));
        }
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(above, name.as_bytes(), flags, Mode::RUSR | Mode::WUSR)
            .map_err(failed("create the shared memory file"))?;
        if let Some(original) = self.original.or(self.identity) {
            // An error is ignored. If the tmpfs has no extended attributes, the next restore of this image refuses
            // the file.
            let _ = rustix::fs::fsetxattr(&file, mark_name(), &original.to_mark(), XattrFlags::empty());
        }
        let (user, group) = owner(self.user, self.group)?;
        rustix::fs::fchown(&file, Some(user), Some(group)).map_err(failed("set the owner of"))?;
        rustix::fs::fchmod(&file, Mode::from_raw_mode(self.mode)).map_err(failed("set the mode of"))?;
        Ok(file)
    }

    /// Creates an error about this file.
    pub(crate) fn refused(&self, why: String, fix: &str) -> ResourceError {
        ResourceError::File { path: self.path().display().to_string(), why, fix: fix.to_owned() }
    }
}

/// Truncates a file to zero, and then extends the file to `length` bytes without data. A range for which the image
/// has no data stays a hole.
pub(crate) fn clear(file: impl AsFd, length: u64) -> Result<()> {
    let failed = |errno| Error::new("set the length of a shared memory file", errno);
    rustix::fs::ftruncate(file.as_fd(), 0).map_err(failed)?;
    Ok(rustix::fs::ftruncate(file, length).map_err(failed)?)
}

/// Finds the present name of an open file. `gone` is a removed name of the file, and the present name is searched in
/// the same directory. For example, sem_open(3) creates a semaphore under a temporary name, links the final name, and
/// removes the temporary name.
pub(crate) fn other_name(gone: &Path, stat: &Stat) -> Option<PathBuf> {
    let entries = fs::read_dir(gone.parent()?).ok()?;
    entries.filter_map(|entry| Some(entry.ok()?.path())).find(|path| path::leads_to(path, stat))
}
