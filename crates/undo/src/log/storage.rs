//! Access to the files of the undo log, through traits that a test can implement.
//!
//! Owns: the traits `Storage` and `LogFile`, and their implementation for a directory on disk.
//! Invariants: every access is relative to the descriptor of the directory. No symbolic link is followed. Written data
//! is in the page cache before the call returns, unless writes are held back.
//! Does not: interpret the content of files.

use std::collections::HashSet;
use std::fmt::Debug;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use model::ByteCount;
use rustix::fs::{FallocateFlags, Mode, OFlags, RenameFlags};
use rustix::io::Errno;
use sys::Error;
use sys::clock::Clock;

use super::keep;
use super::opened_file::OpenedFile;
use super::reserve::Reserve;
use super::write_queue::{Change, Drained, WriteQueue};
use crate::descriptor::{self, read_at};
use crate::error::{Result, UndoError};
use crate::key::Time;

/// Bytes that are preallocated for a new log file, so that writing its header cannot fail on a full disk.
const HEADER_RESERVE_BYTES: u64 = 4096;

/// A directory of log files.
pub(crate) trait Storage: Send + Sync + Debug {
    /// Returns the names in the directory, in no order.
    fn names(&self) -> Result<Vec<String>>;
    /// Creates a file that does not exist yet.
    fn create(&self, name: &str) -> Result<Box<dyn LogFile>>;
    /// Creates a file that the log does not contain yet. Writes to the file are never held back, and use no reserved disk
    /// space.
    fn create_plain(&self, name: &str) -> Result<Box<dyn LogFile>> {
        self.create(name)
    }
    /// Opens an existing file.
    fn open(&self, name: &str) -> Result<Box<dyn LogFile>>;
    /// Renames a file. An existing file with the new name is replaced.
    fn rename(&self, from: &str, to: &str) -> Result<()>;
    /// Removes a file, if the file exists.
    fn remove(&self, name: &str) -> Result<()>;
    /// Makes the names in the directory durable.
    fn sync(&self) -> Result<()>;
    /// Returns the boot id of the running kernel.
    fn boot(&self) -> Result<String>;
    /// Returns the present time.
    fn now(&self) -> Time;
    /// Removes a link or a copy in a keep directory, if the link or copy exists.
    fn drop_kept(&self, path: &Path) -> Result<()>;
    /// Returns the disk space of a link or a copy in a keep directory, in bytes.
    fn kept_bytes(&self, path: &Path) -> Result<ByteCount>;
    /// Removes all links and copies in the keep directories of this log except those in `named`.
    fn sweep_kept(&self, named: &HashSet<PathBuf>) -> Result<()>;
    /// Holds writes to log files back until `end_hold`. They follow with the next `drain`, or before the next write.
    fn hold(&self) {}
    /// Ends `hold`.
    fn end_hold(&self) {}
    /// Makes all changes that were held back.
    fn drain(&self) -> Result<()> {
        Ok(())
    }
    /// Removes a file with the next `drain`.
    fn remove_later(&self, name: &str) -> Result<()> {
        self.remove(name)
    }
    /// Like `drop_kept`, with the next `drain`.
    fn drop_kept_later(&self, path: &Path) -> Result<()> {
        self.drop_kept(path)
    }
    /// Reserves disk space for records, if space is free.
    fn reserve(&self) {}
    /// Reports whether the disk was full, so that records use the reserved space.
    fn is_short(&self) -> bool {
        false
    }
    /// Returns the path of the directory, for messages.
    fn path(&self) -> PathBuf;
}

/// A file of the log.
pub(crate) trait LogFile: Send + Debug {
    /// Writes the parts one after the other, from an offset on.
    fn write(&self, offset: u64, parts: [&[u8]; 2]) -> Result<()>;
    /// Reads from an offset, and returns the number of bytes. This number is less than the length of `buffer` only at
    /// the end of the file.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;
    /// Sets the length of the file.
    fn truncate(&self, length: u64) -> Result<()>;
    /// Returns the length of the file in bytes.
    fn length(&self) -> Result<u64>;
    /// Makes the content of the file durable.
    fn sync(&self) -> Result<()>;
}

/// A log directory on disk.
#[derive(Debug)]
pub(crate) struct DiskStorage {
    place: Arc<Place>,
    reserve: Option<Arc<Reserve>>,
    queue: Arc<WriteQueue<OpenedFile>>,
}

/// The directory of a log.
#[derive(Debug)]
struct Place {
    directory: OwnedFd,
    path: PathBuf,
}

#[derive(Debug)]
struct DiskFile {
    opened: Arc<OpenedFile>,
    place: Arc<Place>,
    queue: Arc<WriteQueue<OpenedFile>>,
}

impl DiskStorage {
    /// Opens the directory of a log. Refuses a directory to which users other than this user and root can write.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let directory = store::trust::open_directory(path).map_err(UndoError::Store)?.into();
        let path = std::path::absolute(path).map_err(|error| Error::path("find", path, error))?;
        let place = Arc::new(Place { directory, path });
        Ok(Self { place, reserve: None, queue: Arc::default() })
    }

    /// Reserves disk space for the records of a log that is written.
    pub(crate) fn with_reserve(self) -> Self {
        let reserve = Reserve::new(self.place.directory.as_fd()).map(Arc::new);
        Self { reserve, ..self }
    }

    /// Opens the directory of a log. Creates a missing directory with mode 0700.
    pub(crate) fn open_or_create(path: &Path) -> Result<Self> {
        match rustix::fs::mkdir(path, Mode::from_raw_mode(keep::DIRECTORY_MODE)) {
            Ok(()) | Err(Errno::EXIST) => Self::open(path),
            Err(errno) => Err(Error::path("create", path, errno).into()),
        }
    }

    /// Opens a file to which no write succeeds.
    #[cfg(test)]
    pub(crate) fn open_read_only(&self, name: &str) -> Result<Box<dyn LogFile>> {
        self.opened(name, "open", OFlags::RDONLY)
    }

    fn file(&self, name: &str, operation: &'static str, flags: OFlags) -> Result<Box<dyn LogFile>> {
        self.opened(name, operation, flags | OFlags::RDWR)
    }

    fn opened(&self, name: &str, operation: &'static str, flags: OFlags) -> Result<Box<dyn LogFile>> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = self.place.path.join(name);
        let file = rustix::fs::openat(&self.place.directory, name, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| Error::path(operation, &path, errno))?;
        let opened = Arc::new(OpenedFile { file: file.into(), path, reserve: self.reserve.clone() });
        Ok(Box::new(DiskFile { opened, place: Arc::clone(&self.place), queue: Arc::clone(&self.queue) }))
    }
}

impl Place {
    fn remove(&self, name: &str) -> Result<()> {
        descriptor::remove(&self.directory, name, &self.path.join(name))
    }

    /// Makes the changes that were held back.
    fn drain(&self, queue: &WriteQueue<OpenedFile>) -> Result<()> {
        let drained = queue.drain(|change| match change {
            Change::Write { to, offset, bytes } => to.write(*offset, [bytes, &[]]),
            Change::Remove(name) => self.remove(name),
            Change::DropKept(path) => keep::remove(&self.path, path),
        })?;
        match drained {
            Drained::Whole => Ok(()),
            Drained::FailedBefore => Err(UndoError::Torn { directory: self.path.clone() }),
        }
    }
}

impl Storage for DiskStorage {
    fn names(&self) -> Result<Vec<String>> {
        keep::names_in(self.place.directory.as_fd(), &self.place.path)
    }

    fn create(&self, name: &str) -> Result<Box<dyn LogFile>> {
        self.file(name, "create", OFlags::CREATE | OFlags::EXCL)
    }

    fn create_plain(&self, name: &str) -> Result<Box<dyn LogFile>> {
        let plain = Self { place: Arc::clone(&self.place), reserve: None, queue: Arc::default() };
        plain.create(name)
    }

    fn open(&self, name: &str) -> Result<Box<dyn LogFile>> {
        self.file(name, "open", OFlags::empty())
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let Place { directory, path } = &*self.place;
        rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::empty())
            .map_err(|errno| Error::path("rename", path.join(from), errno).into())
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.place.remove(name)
    }

    fn sync(&self) -> Result<()> {
        let Place { directory, path } = &*self.place;
        rustix::fs::fsync(directory).map_err(|errno| Error::path("sync", path, errno).into())
    }

    fn boot(&self) -> Result<String> {
        const PATH: &str = "/proc/sys/kernel/random/boot_id";
        let boot = std::fs::read_to_string(PATH).map_err(|error| Error::path("read", PATH, error))?;
        Ok(boot.trim().to_owned())
    }

    fn now(&self) -> Time {
        Clock::default().wall().into()
    }

    fn drop_kept(&self, path: &Path) -> Result<()> {
        keep::remove(&self.place.path, path)
    }

    fn kept_bytes(&self, path: &Path) -> Result<ByteCount> {
        let stat = rustix::fs::lstat(path).map_err(|errno| Error::path("inspect", path, errno))?;
        Ok(ByteCount(stat.st_blocks as u64 * 512))
    }

    fn sweep_kept(&self, named: &HashSet<PathBuf>) -> Result<()> {
        keep::sweep(&self.place.path, named)
    }

    fn hold(&self) {
        self.queue.hold();
    }

    fn end_hold(&self) {
        self.queue.end_hold();
    }

    fn drain(&self) -> Result<()> {
        self.place.drain(&self.queue)
    }

    fn remove_later(&self, name: &str) -> Result<()> {
        self.queue.add(Change::Remove(name.to_owned()));
        Ok(())
    }

    fn drop_kept_later(&self, path: &Path) -> Result<()> {
        self.queue.add(Change::DropKept(path.to_owned()));
        Ok(())
    }

    fn reserve(&self) {
        self.reserve.iter().for_each(|reserve| reserve.fill());
    }

    fn is_short(&self) -> bool {
        self.reserve.as_ref().is_some_and(|reserve| reserve.is_lent())
    }

    fn path(&self) -> PathBuf {
        self.place.path.clone()
    }
}

impl LogFile for DiskFile {
    fn write(&self, offset: u64, parts: [&[u8]; 2]) -> Result<()> {
        if self.queue.is_held() {
            let to = Arc::clone(&self.opened);
            self.queue.add(Change::Write { to, offset, bytes: parts.concat() });
            return Ok(());
        }
        self.place.drain(&self.queue)?;
        self.opened.write(offset, parts)
    }

    fn read(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        read_at(&self.opened.file, buffer, offset).map_err(|errno| self.opened.failed("read", errno))
    }

    fn truncate(&self, length: u64) -> Result<()> {
        let OpenedFile { file, .. } = &*self.opened;
        rustix::fs::ftruncate(file, length).map_err(|errno| self.opened.failed("cut", errno))?;
        if length == 0 {
            // Preallocation saves time and reserves space. A file system without preallocation works as well.
            let _ = rustix::fs::fallocate(file, FallocateFlags::KEEP_SIZE, 0, HEADER_RESERVE_BYTES);
        }
        Ok(())
    }

    fn length(&self) -> Result<u64> {
        let stat =
            rustix::fs::fstat(&self.opened.file).map_err(|errno| self.opened.failed("inspect", errno))?;
        Ok(stat.st_size as u64)
    }

    fn sync(&self) -> Result<()> {
        rustix::fs::fdatasync(&self.opened.file).map_err(|errno| self.opened.failed("sync", errno))
    }
}
