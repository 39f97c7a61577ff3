//! Names of files, as a thread of the subject sees them.
//!
//! Owns: reading path arguments, and finding the directory and the last component that a path leads to.
//! Invariants: no file is opened for reading or writing. This module itself follows a symbolic link at the end of a
//! path. The result is therefore the name that the kernel would create or change.
//! Does not: know what a call does with a name.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use model::{Address, Fd, Pid, Tid};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;
use sys::process_memory;
use sys::working_directory::within_root;

use super::calls::PathAt;

/// Maximum length of a path in bytes (PATH_MAX).
const PATH_BYTES_MAX: usize = 4096;
/// Maximum number of symbolic links that the kernel follows in one path.
const LINKS_MAX: usize = 40;
const PAGE: u64 = 4096;
pub(super) const PATH_ONLY: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// A name in a directory.
#[derive(Debug)]
pub(super) struct Entry {
    /// The directory, open with O_PATH.
    pub(super) directory: OwnedFd,
    /// One path component.
    pub(super) name: OsString,
}

/// The file or name that a path leads to.
#[derive(Debug)]
pub(super) enum Place {
    /// A name. A file with this name may or may not exist.
    Entry(Entry),
    /// A file without a usable name: a directory like `..` or `/`, or a descriptor in /proc.
    File(OwnedFd),
}

impl Entry {
    /// Returns the status of the file with this name, or `None` if the name does not exist. Does not follow a symbolic
    /// link.
    pub(super) fn stat(&self) -> Result<Option<Stat>, Errno> {
        match rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Opens the file with this name with O_PATH. Does not follow a symbolic link.
    pub(super) fn open(&self) -> Result<OwnedFd, Errno> {
        rustix::fs::openat(&self.directory, &self.name, PATH_ONLY | OFlags::NOFOLLOW, Mode::empty())
    }
}

/// Reads the path that an argument of a call points to.
pub(super) fn read(thread: Tid, at: Address) -> Result<PathBuf, Errno> {
    let mut bytes = Vec::new();
    let mut at = at;
    while bytes.len() < PATH_BYTES_MAX {
        let start = bytes.len();
        let room = (PAGE - at.get() % PAGE) as usize;
        bytes.resize(start + room.min(PATH_BYTES_MAX - start), 0);
        memory(thread, at, &mut bytes[start..])?;
        if let Some(end) = bytes[start..].iter().position(|byte| *byte == 0) {
            bytes.truncate(start + end);
            return Ok(PathBuf::from(OsString::from_vec(bytes)));
        }
        at = Address(at.get() + (bytes.len() - start) as u64);
    }
    Err(Errno::NAMETOOLONG)
}

/// Reports whether a call failed because this program lacks descriptors or memory.
pub(super) fn is_shortage(errno: Errno) -> bool {
    sys::Errno::from(errno).is_shortage()
}

/// Reads memory of a thread. The error is EFAULT if the kernel cannot read the memory either.
pub(super) fn memory(thread: Tid, at: Address, buffer: &mut [u8]) -> Result<(), Errno> {
    process_memory::read(Pid(thread.get()), at, buffer).map_err(|error| {
        if error.errno.is_shortage() { Errno::from_raw_os_error(error.errno.0) } else { Errno::FAULT }
    })
}

/// Works like [`descriptor`] for a descriptor that is open for writing. For other descriptors, the error is EBADF.
pub(super) fn writable(thread: Tid, fd: Fd) -> Result<OwnedFd, Errno> {
    /// The permission bits of the link in /proc show the access mode of the descriptor.
    const OWNER_WRITES: u32 = 0o200;
    let mode = rustix::fs::lstat(format!("/proc/{thread}/fd/{fd}"))?.st_mode;
    if mode & OWNER_WRITES != 0 { descriptor(thread, fd) } else { Err(Errno::BADF) }
}

/// Opens the file of a descriptor of a thread, with O_PATH.
pub(super) fn descriptor(thread: Tid, fd: Fd) -> Result<OwnedFd, Errno> {
    rustix::fs::open(format!("/proc/{thread}/fd/{fd}"), PATH_ONLY, Mode::empty())
}

/// A path of a call that was read and not followed yet.
#[derive(Debug)]
pub(super) struct Sought {
    thread: Tid,
    start: OwnedFd,
    /// An empty path means the file `start`.
    path: PathBuf,
    follows: bool,
}

/// Reads the path of a call, and opens the directory from which a relative path starts.
pub(super) fn seek(thread: Tid, at: &PathAt) -> Result<Sought, Errno> {
    let path = read(thread, at.path)?;
    let start = if path.as_os_str().is_empty() {
        descriptor(thread, at.directory.filter(|_| at.may_be_empty).ok_or(Errno::NOENT)?)?
    } else {
        start(thread, at)?
    };
    Ok(Sought { thread, start, path: own(thread, path), follows: at.follows })
}

/// Prepares to follow a path from the working directory, without following a symbolic link at the end.
pub(super) fn seek_path(thread: Tid, path: PathBuf) -> Result<Sought, Errno> {
    let start = rustix::fs::open(format!("/proc/{thread}/cwd"), PATH_ONLY, Mode::empty())?;
    Ok(Sought { thread, start, path: own(thread, path), follows: false })
}

impl Sought {
    /// Finds the file or name that the path leads to.
    pub(super) fn find(self) -> Result<Place, Errno> {
        if self.path.as_os_str().is_empty() {
            return Ok(Place::File(self.start));
        }
        let Self { thread, start, path, follows } = self;
        match other_root(thread)? {
            None => resolve(thread, start, path, follows),
            Some(root) => within_root(root.as_fd(), || resolve(thread, start, path, follows))
                .map_err(|error| Errno::from_raw_os_error(error.errno.0))?,
        }
    }

    /// Reports whether the path leads through the directory of the thread in /proc. A thread may always follow the links
    /// in this directory. Another thread with the same rights may not, if the process is not dumpable.
    pub(super) fn is_in_proc(&self) -> Result<bool, Errno> {
        Ok(self.path.starts_with("/proc") || (self.path.is_relative() && is_magic(&self.start)?))
    }
}

/// Returns the root directory of a thread, if it is another directory than the root directory of this program. Absolute
/// paths of the thread, and absolute symbolic links, start there.
fn other_root(thread: Tid) -> Result<Option<OwnedFd>, Errno> {
    let root = rustix::fs::open(format!("/proc/{thread}/root"), PATH_ONLY, Mode::empty())?;
    let (theirs, ours) = (rustix::fs::fstat(&root)?, rustix::fs::stat("/")?);
    let numbers = |stat: &Stat| (stat.st_dev, stat.st_ino);
    Ok((numbers(&theirs) != numbers(&ours)).then_some(root))
}

/// Opens the directory from which a relative path starts.
fn start(thread: Tid, at: &PathAt) -> Result<OwnedFd, Errno> {
    match at.directory {
        Some(fd) => descriptor(thread, fd),
        None => rustix::fs::open(format!("/proc/{thread}/cwd"), PATH_ONLY, Mode::empty()),
    }
}

fn resolve(thread: Tid, start: OwnedFd, path: PathBuf, follows: bool) -> Result<Place, Errno> {
    let (mut directory, mut path) = (start, path);
    for _ in 0..LINKS_MAX {
        path = own(thread, path);
        let needs_directory = path.as_os_str().as_bytes().ends_with(b"/");
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return open(&directory, &path).map(Place::File);
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let parent = open(&directory, parent)?;
        let entry = Entry { directory: parent, name: name.to_owned() };
        let is_link =
            entry.stat()?.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink);
        if !is_link || !(follows || needs_directory) {
            return Ok(Place::Entry(entry));
        }
        let target = rustix::fs::readlinkat(&entry.directory, &entry.name, Vec::new())?;
        let target = PathBuf::from(OsString::from_vec(target.into_bytes()));
        if is_magic(&entry.directory)? {
            // The link leads to an open file. The text of the link need not be a path to this file.
            let file = rustix::fs::openat(&entry.directory, &entry.name, PATH_ONLY, Mode::empty())?;
            return Ok(Place::File(file));
        }
        (directory, path) = (entry.directory, target);
    }
    Err(Errno::LOOP)
}

/// Replaces `/proc/self`, and the links to this directory in /dev, by paths of the calling thread. Without the
/// replacement, these paths would lead to this program.
fn own(thread: Tid, path: PathBuf) -> PathBuf {
    let standard = [("/dev/stdin", "fd/0"), ("/dev/stdout", "fd/1"), ("/dev/stderr", "fd/2")];
    if let Some((_, fd)) = standard.iter().find(|(link, _)| path == Path::new(link)) {
        return PathBuf::from(format!("/proc/{thread}/{fd}"));
    }
    for prefix in ["/proc/self", "/proc/thread-self"] {
        if let Ok(rest) = path.strip_prefix(prefix) {
            return Path::new(&format!("/proc/{thread}")).join(rest);
        }
    }
    match path.strip_prefix("/dev/fd") {
        Ok(rest) => Path::new(&format!("/proc/{thread}/fd")).join(rest),
        Err(_) => path,
    }
}

const PROC: u64 = 0x9fa0;
/// Magic numbers of file systems whose content the kernel generates (linux/magic.h).
const MADE_UP: [u64; 16] = [
    PROC,
    0x6265_6572, // sysfs
    0x6367_7270, // cgroup2
    0x0027_e0eb, // cgroup
    0x1cd1,      // devpts
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xcafe_4a11, // bpf
    0x6265_6570, // configfs
    0xde5e_81e4, // efivarfs
    0x1980_0202, // mqueue
    0x6e73_6673, // nsfs
    0x5049_5045, // pipes
    0x534f_434b, // sockets
    0x0904_1934, // anonymous inodes
];

/// Reports whether a directory is in /proc, where links lead to open files. Some file systems do not answer fstatfs(2).
fn is_magic(directory: &OwnedFd) -> Result<bool, Errno> {
    match rustix::fs::fstatfs(directory) {
        Err(errno) if is_shortage(errno) => Err(errno),
        found => Ok(found.is_ok_and(|system| system.f_type as u64 == PROC)),
    }
}

/// Reports whether a file is on a file system whose content the kernel generates.
pub(super) fn is_made_up(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    Ok(MADE_UP.contains(&(rustix::fs::fstatfs(file)?.f_type as u64)))
}

fn open(directory: &OwnedFd, path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::openat(directory, path, PATH_ONLY, Mode::empty())
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::descriptor::path_of;

    fn own_thread() -> Tid {
        Tid(rustix::thread::gettid().as_raw_nonzero().get())
    }

    fn found(path: &Path, follows: bool) -> Place {
        let start = rustix::fs::open("/", PATH_ONLY, Mode::empty()).unwrap();
        resolve(own_thread(), start, path.to_owned(), follows).unwrap()
    }

    #[test]
    fn a_link_at_the_end_leads_to_the_name_that_would_be_made() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("d")).unwrap();
        std::os::unix::fs::symlink("d/new", folder.path().join("link")).unwrap();
        let Place::Entry(entry) = found(&folder.path().join("link"), true) else { panic!("no entry") };
        assert_eq!(entry.name, "new");
        assert_eq!(path_of(entry.directory.as_fd()), folder.path().canonicalize().unwrap().join("d"));
        assert!(entry.stat().unwrap().is_none());
        let Place::Entry(entry) = found(&folder.path().join("link"), false) else { panic!("no entry") };
        assert_eq!(entry.name, "link");
    }

    #[test]
    fn links_to_open_files_lead_to_the_files() {
        use std::os::fd::AsRawFd;
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(folder.path().join("f")).unwrap();
        for path in [format!("/proc/self/fd/{}", file.as_raw_fd()), format!("/dev/fd/{}", file.as_raw_fd())] {
            let Place::File(found) = found(Path::new(&path), true) else { panic!("no file") };
            let (one, other) = (rustix::fs::fstat(&found).unwrap(), rustix::fs::fstat(&file).unwrap());
            assert_eq!(one.st_ino, other.st_ino);
        }
    }

    #[test]
    fn a_path_of_a_thread_with_another_root_directory_starts_there() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("etc")).unwrap();
        std::os::unix::fs::symlink("/etc/new", folder.path().join("link")).unwrap();
        let root = std::fs::File::open(folder.path()).unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let inside = move || {
                    sender.send(own_thread()).unwrap();
                    ended.recv().unwrap_err();
                };
                within_root(root.as_fd(), inside).unwrap();
            });
            let thread = receiver.recv().unwrap();
            for path in ["/etc/new", "/link"] {
                let start = rustix::fs::open("/", PATH_ONLY, Mode::empty()).unwrap();
                let sought = Sought { thread, start, path: path.into(), follows: true };
                let Ok(Place::Entry(entry)) = sought.find() else { panic!("no entry") };
                assert_eq!(entry.name, "new", "{path}");
                let wanted = folder.path().canonicalize().unwrap().join("etc");
                assert_eq!(path_of(entry.directory.as_fd()), wanted, "{path}");
            }
            drop(end);
        });
    }

    #[test]
    fn a_path_is_read_across_pages() {
        let path = c"/a/rather/long/path";
        let address = Address(path.as_ptr() as u64);
        assert_eq!(read(own_thread(), address).unwrap(), Path::new("/a/rather/long/path"));
        assert_eq!(read(own_thread(), Address(8)).unwrap_err(), Errno::FAULT);
    }

    #[test]
    fn a_directory_without_a_last_component_is_a_file() {
        assert!(matches!(found(Path::new("/"), true), Place::File(_)));
        assert!(matches!(found(Path::new("/tmp/.."), true), Place::File(_)));
    }
}
