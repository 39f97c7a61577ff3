//! Keep directories: directories with hard links and copies of files that a subject removes or replaces.
//!
//! When the subject removes or changes a file, the undo log preserves the inode by a hard link, or the content by a
//! copy. A hard link cannot cross file systems. Therefore, an undo log has one keep directory in the directory of the
//! log. For such files on other mounts, the log has one more keep directory on each mount.
//!
//! A rollback also uses keep directories. The rollback moves files that the subject has created *aside*, into other
//! subdirectories of a keep directory.
//!
//! Owns: the locations of keep directories, the links and copies in keep directories, and the list of keep directories.
//! Invariants: a keep directory belongs to the user of this process and has mode 0700. A keep directory contains a
//! marker file with the name of the log. Files are removed only inside keep directories. No symbolic link is followed.
//! Does not: know which record names a link.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use sys::{Error, file_handle};

use super::frame;
use super::record::{self, AnyRecord, Place};
use crate::descriptor::{self, link_of};
use crate::error::{Result, UndoError};

/// Permission bits of the directories of a log.
pub(crate) const DIRECTORY_MODE: u32 = 0o700;

/// The name of a directory in the root directory of a mount. The directory contains one keep directory for each log
/// that is on another file system.
pub(crate) const ROOT_NAME: &str = ".undying";
/// The name of the keep directory in the directory of the log.
pub(crate) const OWN_NAME: &str = "keep";
/// The name of the subdirectory of a keep directory with the links and copies that records name.
pub(crate) const KEPT_NAME: &str = "kept";
/// The name of the marker file in a keep directory. The file contains the name of the log.
const MARKER_NAME: &str = "undying-keep";
/// The name of the file that contains the name of the log.
const LOG_NAME: &str = "log-name";
/// The name of the file that lists the keep directories of a log.
const PLACES_NAME: &str = "places";
/// Maximum length of the list of keep directories, in bytes: sufficient for more file systems than a machine has.
const PLACES_BYTES_MAX: u64 = 1 << 20;
/// Maximum number of directory levels between a directory and the root of its mount: more levels than a path has.
const LEVELS_MAX: usize = 4096;

/// The keep directories of one log.
#[derive(Debug)]
pub struct KeepPlaces {
    log: PathBuf,
    log_directory: OwnedFd,
    name: String,
    device: u64,
    /// Keep directories by mount id.
    places: Mutex<HashMap<u64, Arc<KeepPlace>>>,
    own: Arc<KeepPlace>,
    prefix: String,
    next: AtomicU64,
}

/// One keep directory.
#[derive(Debug)]
pub(crate) struct KeepPlace {
    pub(crate) directory: OwnedFd,
    pub(crate) kept: OwnedFd,
    pub(crate) path: PathBuf,
}

impl KeepPlaces {
    /// Prepares the keep directories of the log in the directory `log`, which must exist. Opens or creates only the
    /// keep directory in `log`.
    ///
    /// # Errors
    ///
    /// The keep directory in the directory of the log cannot be created.
    pub fn new(log: &Path) -> Result<Self> {
        let log_directory: OwnedFd = store::trust::open_directory(log).map_err(UndoError::Store)?.into();
        let log = std::path::absolute(log).map_err(|error| Error::path("find", log, error))?;
        let name = log_name(log_directory.as_fd(), &log)?;
        let (device, mount) = device_and_mount(log_directory.as_fd())?;
        let own = Arc::new(KeepPlace::make(log_directory.as_fd(), &log, OWN_NAME, &name)?);
        let places = Mutex::new(HashMap::from([(mount, Arc::clone(&own))]));
        let prefix = random_name()?;
        Ok(Self { log, log_directory, name, device, places, own, prefix, next: AtomicU64::new(0) })
    }

    /// Creates a hard link of an inode in a keep directory, and returns the path of the link. The descriptor `inode`
    /// may be open with O_PATH. `directory` is any directory on the same mount as `inode`.
    ///
    /// # Errors
    ///
    /// EXDEV: the mount consists of a single file. EROFS: the mount is read-only. EMLINK: the inode has too many links.
    /// After these errors, the caller can copy the content into [`KeepPlaces::file`].
    pub fn link(&self, inode: BorrowedFd<'_>, directory: BorrowedFd<'_>) -> Result<PathBuf> {
        let again;
        let (inode, place) = if self.is_on_own_device(inode)? {
            // The subject can use another mount of this file system than the log, and linkat(2) fails across mounts.
            // Opening by handle yields a descriptor on the mount of the log.
            again = file_handle::open(self.log_directory.as_fd(), &file_handle::of(inode)?)?;
            (again.as_fd(), Arc::clone(&self.own))
        } else {
            (inode, self.near(directory)?)
        };
        self.with_new_name(&place, "link into", |kept, name| {
            rustix::fs::linkat(inode, "", kept, name, AtFlags::EMPTY_PATH)
        })
        .map(|(path, ())| path)
    }

    /// Creates an empty file for a copy, in the keep directory in the directory of the log.
    ///
    /// # Errors
    ///
    /// Errors of the system calls.
    pub fn file(&self) -> Result<(File, PathBuf)> {
        self.file_at(&self.own)
    }

    /// Creates an empty file for a reflink, in a keep directory on the file system of `directory`.
    ///
    /// # Errors
    ///
    /// The errors of [`KeepPlaces::link`].
    pub fn file_near(&self, directory: BorrowedFd<'_>) -> Result<(File, PathBuf)> {
        if self.is_on_own_device(directory)? {
            return self.file();
        }
        self.file_at(&*self.near(directory)?)
    }

    /// Removes a link or a copy from a keep directory. No record may name the link or copy.
    ///
    /// # Errors
    ///
    /// The path does not lie in a keep directory of this log.
    pub fn remove(&self, path: &Path) -> Result<()> {
        remove(&self.log, path)
    }

    /// Returns the keep directory that a rollback uses for files in `directory`. A rollback opens files by handle. If a
    /// file is on the device of the log, the descriptor is on the mount of the log. Therefore, the result depends on
    /// the device, and not on the mount of `directory`.
    pub(crate) fn for_directory(&self, directory: BorrowedFd<'_>) -> Result<Arc<KeepPlace>> {
        if self.is_on_own_device(directory)? { Ok(Arc::clone(&self.own)) } else { self.near(directory) }
    }

    /// Returns the keep directory on the mount of `directory`. Creates a missing keep directory.
    fn near(&self, directory: BorrowedFd<'_>) -> Result<Arc<KeepPlace>> {
        let (_, mount) = device_and_mount(directory)?;
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = places.get(&mount) {
            return Ok(Arc::clone(place));
        }
        let (root, path) = mount_root(directory, mount)?;
        let above = open_private(root.as_fd(), &path, ROOT_NAME)?;
        let above_path = path.join(ROOT_NAME);
        add_place(self.log_directory.as_fd(), &self.log, &above_path.join(&self.name))?;
        let place = Arc::new(KeepPlace::make(above.as_fd(), &above_path, &self.name, &self.name)?);
        places.insert(mount, Arc::clone(&place));
        Ok(place)
    }

    fn is_on_own_device(&self, file: BorrowedFd<'_>) -> Result<bool> {
        let stat = rustix::fs::fstat(file).map_err(|errno| Error::new("inspect a file to keep", errno))?;
        Ok(stat.st_dev == self.device)
    }

    fn file_at(&self, place: &KeepPlace) -> Result<(File, PathBuf)> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.with_new_name(place, "create a file in", |kept, name| {
            rustix::fs::openat(kept, name, flags, Mode::from_raw_mode(0o600))
        })
        .map(|(path, file)| (file.into(), path))
    }

    fn with_new_name<Output>(
        &self,
        place: &KeepPlace,
        operation: &'static str,
        make: impl Fn(BorrowedFd<'_>, &str) -> rustix::io::Result<Output>,
    ) -> Result<(PathBuf, Output)> {
        let name = format!("{}-{}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed));
        let directory = place.path.join(KEPT_NAME);
        match make(place.kept.as_fd(), &name) {
            Ok(output) => Ok((directory.join(name), output)),
            Err(errno) => Err(Error::path(operation, &directory, errno).into()),
        }
    }
}

impl KeepPlace {
    /// Opens the keep directory `name` in the directory `above`. Creates a missing keep directory.
    fn make(above: BorrowedFd<'_>, above_path: &Path, name: &str, log: &str) -> Result<Self> {
        let path = above_path.join(name);
        let directory = open_private(above, above_path, name)?;
        match read_small(directory.as_fd(), MARKER_NAME, &path) {
            Ok(marker) if marker == log.as_bytes() => {}
            Ok(_) => return Err(UndoError::ForeignKeep { path }),
            Err(error) if error.errno == Errno::NOENT.into() => {
                write_new(directory.as_fd(), MARKER_NAME, &path, log.as_bytes())?;
            }
            Err(error) => return Err(error.into()),
        }
        let kept = open_private(directory.as_fd(), &path, KEPT_NAME)?;
        Ok(Self { directory, kept, path })
    }

    /// Opens a keep directory. Returns `None` if the directory is missing or does not belong to this log.
    pub(crate) fn open(path: &Path, log: &str) -> Result<Option<Self>> {
        let Some(directory) = open_if_private(rustix::fs::CWD, path)? else { return Ok(None) };
        match read_small(directory.as_fd(), MARKER_NAME, path) {
            Ok(marker) if marker == log.as_bytes() => {}
            _ => return Ok(None),
        }
        let kept = open_private(directory.as_fd(), path, KEPT_NAME)?;
        Ok(Some(Self { directory, kept, path: path.to_path_buf() }))
    }
}

/// Opens all existing keep directories of a log. The keep directory in the directory of the log is first.
pub(crate) fn places(log: &Path) -> Result<Vec<KeepPlace>> {
    let directory: OwnedFd = store::trust::open_directory(log).map_err(UndoError::Store)?.into();
    let name = log_name(directory.as_fd(), log)?;
    let mut paths = vec![log.join(OWN_NAME)];
    for path in listed_places(directory.as_fd(), log)? {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    let mut places = Vec::new();
    for path in paths {
        places.extend(KeepPlace::open(&path, &name)?);
    }
    Ok(places)
}

/// Opens a copy in a keep directory for reading.
pub(crate) fn open_copy(log: &Path, path: &Path) -> Result<File> {
    let (place, name) = place_of(log, path)?;
    let place = place.ok_or_else(|| UndoError::ForeignKeep { path: path.to_path_buf() })?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    rustix::fs::openat(&place.kept, name, flags, Mode::empty())
        .map(File::from)
        .map_err(|errno| Error::path("open", path, errno).into())
}

/// Returns the keep directory of the link or copy at `path`, and the last component of `path`. Instead of the keep
/// directory, returns `None` if the directory was removed or does not belong to this log.
fn place_of<'a>(log: &Path, path: &'a Path) -> Result<(Option<KeepPlace>, &'a OsStr)> {
    let foreign = || UndoError::ForeignKeep { path: path.to_path_buf() };
    let (Some(kept), Some(name)) = (path.parent(), path.file_name()) else { return Err(foreign()) };
    let place = kept.parent().filter(|_| kept.file_name() == Some(OsStr::new(KEPT_NAME)));
    let place = place.ok_or_else(foreign)?;
    let directory: OwnedFd = store::trust::open_directory(log).map_err(UndoError::Store)?.into();
    let log = log_name(directory.as_fd(), log)?;
    Ok((KeepPlace::open(place, &log)?, name))
}

/// Removes a link or a copy from a keep directory. Succeeds if the link or copy does not exist.
pub(crate) fn remove(log: &Path, path: &Path) -> Result<()> {
    let (Some(place), name) = place_of(log, path)? else { return Ok(()) };
    descriptor::remove(&place.kept, name, path)
}

/// Removes all links and copies that are not in `named` from all keep directories of a log. Files that a rollback has
/// moved aside stay.
pub(crate) fn sweep(log: &Path, named: &HashSet<PathBuf>) -> Result<()> {
    for place in places(log)? {
        let path = place.path.join(KEPT_NAME);
        let names = names_in(place.kept.as_fd(), &path)?;
        for name in names.iter().filter(|name| !named.contains(&path.join(name))) {
            descriptor::remove(&place.kept, name, &path.join(name))?;
        }
    }
    Ok(())
}

/// Returns the names in a directory. Ignores names that are not UTF-8, because `undying` does not create these names.
pub(crate) fn names_in(directory: BorrowedFd<'_>, path: &Path) -> Result<Vec<String>> {
    let failed = |errno| Error::path("list", path, errno);
    let mut names = Vec::new();
    for entry in Dir::read_from(directory).map_err(failed)? {
        match entry.map_err(failed)?.file_name().to_str() {
            Ok("." | "..") | Err(_) => {}
            Ok(name) => names.push(name.to_owned()),
        }
    }
    Ok(names)
}

/// Returns the name of the log in `directory`. If the log has no name, chooses and stores a random name. The name
/// identifies the keep directories of the log.
fn log_name(directory: BorrowedFd<'_>, path: &Path) -> Result<String> {
    match read_small(directory, LOG_NAME, path) {
        Ok(name) if is_log_name(&name) => return Ok(String::from_utf8_lossy(&name).into_owned()),
        Err(error) if error.errno != Errno::NOENT.into() => return Err(error.into()),
        // The log has no valid name. No keep directory with an invalid name exists, because the name is stored before
        // any use.
        Ok(_) | Err(_) => {}
    }
    let (name, staged) = (random_name()?, format!("{LOG_NAME}.new"));
    descriptor::remove(directory, &staged, &path.join(&staged))?;
    write_new(directory, &staged, path, name.as_bytes())?;
    rustix::fs::renameat(directory, &staged, directory, LOG_NAME)
        .map_err(|errno| Error::path("rename", path.join(&staged), errno))?;
    Ok(name)
}

fn is_log_name(name: &[u8]) -> bool {
    name.len() == 16 && name.iter().all(u8::is_ascii_hexdigit)
}

fn random_name() -> Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::new("choose a random name", errno))?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// Adds a keep directory to the list of the log. The caller creates the keep directory afterwards.
fn add_place(log: BorrowedFd<'_>, path: &Path, place: &Path) -> Result<()> {
    if listed_places(log, path)?.iter().any(|listed| listed == place) {
        return Ok(());
    }
    let list = path.join(PLACES_NAME);
    let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(log, PLACES_NAME, flags, Mode::from_raw_mode(0o600))
        .map_err(|errno| Error::path("open", &list, errno))?;
    let frame = frame::encode(&Place { path: record::bytes_of(place) }, &[]);
    File::from(file).write_all(&frame).map_err(|error| Error::path("write", &list, error).into())
}

fn listed_places(log: BorrowedFd<'_>, path: &Path) -> Result<Vec<PathBuf>> {
    let bytes = match read_small(log, PLACES_NAME, path) {
        Err(error) if error.errno == Errno::NOENT.into() => return Ok(Vec::new()),
        result => result?,
    };
    let mut places = Vec::new();
    let mut rest = &bytes[..];
    while let Some((frame, behind)) = frame::split(rest) {
        // Ignore a truncated or damaged record. The lengths in the frame locate the next record.
        if let Some(Ok(AnyRecord::Place(place))) = frame::verified(frame).map(record::decode) {
            places.push(record::path_of(&place.path).to_path_buf());
        }
        rest = behind;
    }
    Ok(places)
}

fn read_small(directory: BorrowedFd<'_>, name: &str, path: &Path) -> sys::Result<Vec<u8>> {
    read_file(directory, name, path, PLACES_BYTES_MAX)
}

/// Reads at most `limit` bytes from the start of a file.
pub(crate) fn read_file(
    directory: BorrowedFd<'_>,
    name: &str,
    path: &Path,
    limit: u64,
) -> sys::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let failed = |errno| Error::path("read", path.join(name), errno);
    let file = rustix::fs::openat(directory, name, flags, Mode::empty()).map_err(failed)?;
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(File::from(file), limit), &mut bytes)
        .map_err(|error| Error::path("read", path.join(name), error))?;
    Ok(bytes)
}

fn write_new(directory: BorrowedFd<'_>, name: &str, path: &Path, bytes: &[u8]) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let path = path.join(name);
    let file = rustix::fs::openat(directory, name, flags, Mode::from_raw_mode(0o600))
        .map_err(|errno| Error::path("create", &path, errno))?;
    File::from(file).write_all(bytes).map_err(|error| Error::path("write", &path, error).into())
}

/// Opens a directory that has mode 0700 and belongs to the user of this process. Creates a missing directory.
pub(crate) fn open_private(above: BorrowedFd<'_>, above_path: &Path, name: &str) -> Result<OwnedFd> {
    let path = above_path.join(name);
    match rustix::fs::mkdirat(above, name, Mode::from_raw_mode(DIRECTORY_MODE)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(errno) => return Err(Error::path("create", &path, errno).into()),
    }
    open_if_private(above, Path::new(name))?.ok_or(UndoError::ForeignKeep { path })
}

/// Opens a directory. Returns `None` if the directory is missing, belongs to another user or has another mode than
/// 0700.
fn open_if_private(above: impl AsFd, path: &Path) -> Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = match rustix::fs::openat(above, path, flags, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
        Err(errno) => return Err(Error::path("open", path, errno).into()),
    };
    let stat = rustix::fs::fstat(&directory).map_err(|errno| Error::path("inspect", path, errno))?;
    let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
    Ok((is_own && stat.st_mode & 0o7777 == DIRECTORY_MODE).then_some(directory))
}

/// Returns `st_dev` and the mount id of a file.
fn device_and_mount(file: BorrowedFd<'_>) -> Result<(u64, u64)> {
    let wanted = StatxFlags::BASIC_STATS | StatxFlags::MNT_ID;
    let stat = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, wanted)
        .map_err(|errno| Error::new("find the mount of a directory", errno))?;
    Ok((rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor), stat.stx_mnt_id))
}

/// Opens the root directory of the mount `mount`, starting from a directory on this mount. Returns the root directory
/// and the path of the root directory.
fn mount_root(directory: BorrowedFd<'_>, mount: u64) -> Result<(OwnedFd, PathBuf)> {
    let failed = |errno| Error::new("find the mount point of a directory", errno);
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut root = rustix::fs::openat(directory, ".", flags, Mode::empty()).map_err(failed)?;
    for _ in 0..LEVELS_MAX {
        let above = rustix::fs::openat(&root, "..", flags, Mode::empty()).map_err(failed)?;
        let here = rustix::fs::fstat(&root).map_err(failed)?;
        let there = rustix::fs::fstat(&above).map_err(failed)?;
        let is_top = (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino);
        if is_top || device_and_mount(above.as_fd())?.1 != mount {
            let path = rustix::fs::readlink(link_of(&root), Vec::new()).map_err(failed)?;
            return Ok((root, PathBuf::from(std::ffi::OsString::from_vec(path.into_bytes()))));
        }
        root = above;
    }
    Err(failed(Errno::LOOP).into())
}
