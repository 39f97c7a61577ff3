//! The backend that stores images in directories of a local file system.
//!
//! Owns: the real file operations, with modes 0700 and 0600; the advisory lock on a directory.
//! Invariants: the backend creates only new files and directories. A symbolic link at the path of an image's directory
//! or file is never followed. A file that another user could have written is not read.
//! Does not: order operations; its callers do.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use model::ByteCount;
use rustix::fs::{AtFlags, Mode, OFlags};
use sys::direct_io::{self, DirectWriter, Method, Rings};
use sys::file_lock::ExclusiveLock;
use sys::page_buffer::PageBuffer;
use sys::part_reader::PartReader;
use sys::{Errno, Error, Result};

use crate::layout::parent;
use crate::medium::{Entry, Kind, Lock, Medium, NewFile, PageFile, PageSource, Writes};
use crate::trust;

/// Directories of a local file system.
#[derive(Clone, Copy, Debug)]
pub struct Directory {
    method: Method,
}

impl Directory {
    /// Returns a backend that writes pages with this method. If the file system does not support the method, the
    /// backend uses a simpler method. The default is the fastest method.
    #[must_use]
    pub const fn with_method(method: Method) -> Self {
        Self { method }
    }
}

impl Default for Directory {
    fn default() -> Self {
        Self { method: Method::best() }
    }
}

impl Medium for Directory {
    fn create_directory(&self, path: &Path) -> Result<()> {
        DirBuilder::new().mode(0o700).create(path).map_err(failed("create", path))
    }

    fn create_file(&self, path: &Path) -> Result<Box<dyn NewFile>> {
        let file = create_in_own(path)?;
        Ok(Box::new(SmallFile { file, path: path.to_path_buf() }))
    }

    fn create_pages(&self, path: &Path, writes: Writes) -> Result<Box<dyn PageFile>> {
        let (method, in_flight) = match writes {
            // A single write with O_DIRECT would need a wait of its own, before the common sync of all files.
            Writes::One => (Method::Buffered, NonZeroUsize::MIN),
            Writes::Many(in_flight) => (self.method, in_flight),
        };
        Ok(Box::new(DirectWriter::of(create_in_own(path)?, path, method, &Rings::new(in_flight))))
    }

    fn create_log(&self, path: &Path, length: ByteCount, rings: &Rings) -> Result<Box<dyn PageFile>> {
        let mut file = DirectWriter::of(create_in_own(path)?, path, self.method, rings);
        file.reserve(length)?;
        Ok(Box::new(file))
    }

    fn open_pages(&self, path: &Path) -> crate::error::Result<Box<dyn PageSource>> {
        let file = trust::open_file(path)?;
        Ok(Box::new(DirectReader { file, path: path.to_path_buf() }))
    }

    fn read_file(&self, path: &Path, limit: ByteCount) -> crate::error::Result<Vec<u8>> {
        let file = trust::open_file(path)?;
        let mut bytes = Vec::new();
        file.take(limit.get()).read_to_end(&mut bytes).map_err(failed("read", path))?;
        Ok(bytes)
    }

    fn check_directory(&self, path: &Path) -> crate::error::Result<()> {
        match trust::check_directory(path) {
            Err(error) if trust::is_absence(&error) => Ok(()),
            result => result,
        }
    }

    fn resolve(&self, path: &Path) -> Result<PathBuf> {
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_symlink() => {
                std::fs::canonicalize(path).map_err(failed("resolve", path))
            }
            _ => Ok(path.to_path_buf()),
        }
    }

    fn list(&self, path: &Path) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(path).map_err(failed("list", path))? {
            let entry = entry.map_err(failed("list", path))?;
            let is_directory = entry.file_type().map_err(failed("list", path))?.is_dir();
            if let Ok(name) = entry.file_name().into_string() {
                entries.push(Entry { name, is_directory });
            }
        }
        Ok(entries)
    }

    fn kind(&self, path: &Path) -> Result<Option<Kind>> {
        match std::fs::symlink_metadata(path) {
            Ok(metadata) if metadata.is_dir() => {
                Ok(Some(Kind::Directory { mode: metadata.permissions().mode() & 0o7777 }))
            }
            Ok(_) => Ok(Some(Kind::File)),
            Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
            Err(error) => Err(failed("inspect", path)(error)),
        }
    }

    fn sync_file(&self, path: &Path) -> Result<()> {
        let file = open(path, OFlags::NOFOLLOW | OFlags::NONBLOCK).map_err(failed("open", path))?;
        file.sync_data().map_err(failed("sync", path))
    }

    fn sync_directory(&self, path: &Path) -> Result<()> {
        // A symbolic link is followed, because the operator chooses the directory in which images are stored.
        let directory = open(path, OFlags::DIRECTORY).map_err(failed("open", path))?;
        directory.sync_all().map_err(failed("sync", path))
    }

    fn rename(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::rename(from, to).map_err(failed("rename to", to))
    }

    fn link(&self, from: &Path, to: &Path) -> Result<()> {
        std::fs::hard_link(from, to).map_err(failed("link to", to))
    }

    fn remove_file(&self, path: &Path) -> Result<()> {
        // The file is removed relative to the opened directory. If other users can write to the path, the directory's
        // name may meanwhile be a symbolic link to another user's files.
        let name = path.file_name().ok_or_else(|| Error::path("remove", path, Errno::EINVAL))?;
        let directory = open_directory(parent(path)).map_err(failed("open", parent(path)))?;
        let removed = rustix::fs::unlinkat(&directory, name, AtFlags::empty());
        removed.map_err(|errno| Error::path("remove", path, errno))
    }

    fn remove_directory(&self, path: &Path) -> Result<()> {
        std::fs::remove_dir(path).map_err(failed("remove", path))
    }

    fn lock(&self, path: &Path) -> Result<Option<Box<dyn Lock>>> {
        let directory = match open_directory(path) {
            Ok(directory) => directory,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed("open", path)(error)),
        };
        let lock = ExclusiveLock::try_new(directory).map_err(|errno| Error::path("lock", path, errno))?;
        let Some(lock) = lock else { return Ok(None) };
        // The previous owner of the lock may have removed or renamed the directory between open and lock.
        let held = lock.file().metadata().map_err(failed("inspect", path))?;
        let same =
            std::fs::metadata(path).is_ok_and(|there| (there.dev(), there.ino()) == (held.dev(), held.ino()));
        Ok(same.then(|| Box::new(DirectoryLock { _lock: lock }) as Box<dyn Lock>))
    }
}

#[derive(Debug)]
struct SmallFile {
    file: File,
    path: PathBuf,
}

impl NewFile for SmallFile {
    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.write_all(bytes).map_err(failed("write", &self.path))
    }

    fn start_sync(&mut self) -> Result<()> {
        direct_io::start_writeback(&self.file);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.file.sync_all().map_err(failed("sync", &self.path))
    }
}

impl PageFile for DirectWriter {
    fn submit(&mut self, buffer: PageBuffer, part: Range<ByteCount>, offset: ByteCount) -> Result<()> {
        self.submit_part(buffer, part, offset)
    }

    fn rewrite(&mut self, bytes: &[u8], offset: ByteCount) -> Result<()> {
        Self::rewrite(self, bytes, offset)
    }

    fn take_done(&mut self) -> Result<Option<PageBuffer>> {
        Self::take_done(self)
    }

    fn wait_done(&mut self) -> Result<Option<PageBuffer>> {
        Self::wait_done(self)
    }

    fn start_sync(&mut self) -> Result<()> {
        Self::start_sync(self);
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        Self::sync(self)
    }

    fn finish(self: Box<Self>, length: ByteCount) -> Result<()> {
        Self::finish(*self, length)
    }
}

#[derive(Debug)]
struct DirectReader {
    file: File,
    path: PathBuf,
}

impl PageSource for DirectReader {
    fn length(&self) -> Result<ByteCount> {
        let metadata = self.file.metadata().map_err(failed("inspect", &self.path))?;
        Ok(ByteCount(metadata.len()))
    }

    fn read(&self, buffer: &mut [u8], offset: ByteCount) -> Result<()> {
        self.file.read_exact_at(buffer, offset.get()).map_err(failed("read", &self.path))
    }

    fn read_parts<'a>(&self, parts: &[Range<ByteCount>], reader: &'a mut PartReader) -> Result<&'a [u8]> {
        reader.read(&self.file, parts).map_err(|error| Error::path("read", &self.path, error.errno))
    }
}

/// A directory that is open and locked until the value is dropped.
#[derive(Debug)]
struct DirectoryLock {
    _lock: ExclusiveLock,
}

impl Lock for DirectoryLock {}

/// Creates a file with permissions for its owner only, in a directory that no other user can write to. The directory is
/// checked on the same descriptor through which the file is created. A check by path is unsafe: another user who owns a
/// parent directory can replace the path.
fn create_in_own(path: &Path) -> Result<File> {
    let create = |errno: Errno| Error::path("create", path, errno);
    let name = path.file_name().ok_or_else(|| create(Errno::EINVAL))?;
    let directory = trust::open_directory(parent(path)).map_err(|error| match error {
        crate::error::Error::Io(error) | crate::error::Error::Full(error) => error,
        _ => create(Errno::EPERM),
    })?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let file = rustix::fs::openat(&directory, name, flags, Mode::from_raw_mode(0o600));
    file.map(File::from).map_err(|errno| create(errno.into()))
}

/// Opens a directory. Fails if the last component of the path is a symbolic link.
fn open_directory(path: &Path) -> std::io::Result<File> {
    open(path, OFlags::DIRECTORY | OFlags::NOFOLLOW)
}

fn open(path: &Path, flags: OFlags) -> std::io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path)
}

fn failed<'a>(operation: &'static str, path: &'a Path) -> impl FnOnce(std::io::Error) -> Error + 'a {
    move |error| {
        let short = error.kind() == ErrorKind::UnexpectedEof;
        Error::path(operation, path, if short { Errno::SHORT } else { Errno::from(error) })
    }
}
