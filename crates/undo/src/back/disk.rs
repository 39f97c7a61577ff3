//! Operations of a rollback on real files, through system calls.
//!
//! Owns: opening inodes by their handles, and the operations on inodes.
//! Invariants: an inode is opened by its handle, and never by a path. A name is one path component, relative to a
//! descriptor, and is not followed. Only a regular file is reopened for writing.
//! Does not: decide which operations a rollback needs.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirEntryExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, Dir, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, StatxAttributes, StatxFlags,
    Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use sys::file_rights::{self, Access, OwnRights};
use sys::{Error, file_handle};

use super::aside;
use super::files::{Entry, FileSystem, Passed, Status, Work};
use super::update::update;
use crate::descriptor::{data_behind, link_of};
use crate::error::{Result, UndoError};
use crate::key::{self, Attributes, Extended, FileKey, TMPFS, Time};
use crate::log::keep::{self, KeepPlace, KeepPlaces};
use crate::rights::Rights;

/// The error of a file system for the handle of a removed inode.
const STALE: sys::Errno = sys::Errno(Errno::STALE.raw_os_error());
/// Bytes that are copied at once.
const BLOCK_BYTES: usize = 1 << 20;
type Node = Rc<OwnedFd>;

/// The real files of this machine.
#[derive(Debug)]
pub(crate) struct DiskFiles {
    log: PathBuf,
    places: KeepPlaces,
    /// A directory on a mount of each device.
    mounts: RefCell<HashMap<u64, Rc<OwnedFd>>>,
    works: RefCell<HashMap<u64, Work<Node>>>,
    /// The file that was written last.
    writer: RefCell<Option<(Node, Rc<File>)>>,
}

impl DiskFiles {
    pub(crate) fn new(log: &Path) -> Result<Self> {
        let log = std::path::absolute(log).map_err(|error| Error::path("find", log, error))?;
        let places = KeepPlaces::new(&log)?;
        let mut mounts = HashMap::new();
        for place in keep::places(&log)? {
            let stat = rustix::fs::fstat(&place.directory)
                .map_err(|errno| Error::path("inspect", &place.path, errno))?;
            mounts.entry(stat.st_dev).or_insert(Rc::new(place.directory));
        }
        let (mounts, works, writer) = (RefCell::new(mounts), RefCell::default(), RefCell::default());
        Ok(Self { log, places, mounts, works, writer })
    }

    /// Returns a directory on a mount of a device: a keep directory, or a directory above `path`.
    fn mount(&self, device: u64, path: &Path) -> Result<Rc<OwnedFd>> {
        if let Some(mount) = self.mounts.borrow().get(&device) {
            return Ok(Rc::clone(mount));
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for above in path.ancestors() {
            let Ok(directory) = rustix::fs::open(above, flags, Mode::empty()) else { continue };
            if rustix::fs::fstat(&directory).is_ok_and(|stat| stat.st_dev == device) {
                let directory = Rc::new(directory);
                self.mounts.borrow_mut().insert(device, Rc::clone(&directory));
                return Ok(directory);
            }
        }
        Err(UndoError::NotMounted { path: path.to_path_buf(), device })
    }

    fn writer(&self, node: &Node) -> Result<Rc<File>> {
        if let Some((last, file)) = &*self.writer.borrow()
            && Rc::ptr_eq(last, node)
        {
            return Ok(Rc::clone(file));
        }
        let stat = stat(node)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::new("write to a file that is not a regular one", Errno::INVAL).into());
        }
        let file = File::options()
            .write(true)
            .open(link_of(node))
            .map_err(|error| Error::new("open a file for writing", error))?;
        let file = Rc::new(file);
        *self.writer.borrow_mut() = Some((Rc::clone(node), Rc::clone(&file)));
        Ok(file)
    }

    fn work_in(place: &KeepPlace, number: u64) -> Result<Work<Node>> {
        let directory = place.directory.as_fd();
        let open = |name: &str| keep::open_private(directory, &place.path, name).map(Rc::new);
        let asides = open(aside::NAME)?;
        let path = place.path.join(aside::NAME);
        let aside = Rc::new(keep::open_private(asides.as_fd(), &path, &number.to_string())?);
        let path = path.join(number.to_string());
        Ok(Work { new: open("new")?, transit: open("transit")?, aside, path })
    }
}

impl FileSystem for DiskFiles {
    type Node = Node;

    fn find(&self, key: &FileKey, path: &Path) -> Result<Option<Node>> {
        let mount = self.mount(key.device, path)?;
        let node = match file_handle::open(mount.as_fd(), &key.handle) {
            Ok(node) => node,
            Err(error) if error.errno == STALE || error.errno == sys::Errno::ENOENT => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let stat = stat(&node)?;
        let is_there = stat.st_nlink > 0 && stat.st_ino == key.inode;
        Ok(is_there.then(|| Rc::new(node)))
    }

    fn status(&self, node: &Node) -> Result<Status> {
        let stat = stat(node)?;
        let changed = Time { s: stat.st_ctime, ns: stat.st_ctime_nsec as u32 };
        let key = FileKey::of(node, &stat)?;
        Ok(Status { key, attributes: Attributes::of(&stat), links: stat.st_nlink, changed })
    }

    fn extended(&self, node: &Node) -> Result<Vec<Extended>> {
        key::extended(node)
    }

    fn permits(&self, node: &Node, rights: &Rights, access: Access) -> Result<bool> {
        let own = OwnRights::new()?;
        Ok(own.act(&rights.to_act(), || file_rights::permits(node.as_fd(), access))??)
    }

    fn is_fixed(&self, node: &Node) -> Result<bool> {
        let statx = rustix::fs::statx(node, c"", AtFlags::EMPTY_PATH, StatxFlags::empty())
            .map_err(|errno| Error::new("inspect a file", errno))?;
        Ok(statx.stx_attributes.intersects(StatxAttributes::IMMUTABLE | StatxAttributes::APPEND))
    }

    fn is_leased(&self, node: &Node) -> Result<bool> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        match rustix::fs::open(link_of(node), flags, Mode::empty()) {
            Err(Errno::WOULDBLOCK) => Ok(true),
            // Any other error is reported by the step that writes to the file.
            _ => Ok(false),
        }
    }

    fn lookup(&self, directory: &Node, name: &[u8]) -> Result<Option<Node>> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match rustix::fs::openat(directory, name, flags, Mode::empty()) {
            Ok(node) => Ok(Some(Rc::new(node))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(failed("open", name, errno)),
        }
    }

    fn place_of(&self, directory: &Node) -> Result<Option<(Node, Vec<u8>)>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let above = match rustix::fs::openat(directory, "..", flags, Mode::empty()) {
            Ok(above) => Rc::new(above),
            // The directory is not below the root of the mount through which the directory was opened.
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed("open", b"..", errno)),
        };
        let (here, there) = (stat(directory)?, stat(&above)?);
        if here.st_dev != there.st_dev || here.st_ino == there.st_ino {
            return Ok(None);
        }
        let is_here = |name: &[u8]| {
            let found = rustix::fs::statat(&above, name, AtFlags::SYMLINK_NOFOLLOW);
            found.is_ok_and(|found| (found.st_dev, found.st_ino) == (here.st_dev, here.st_ino))
        };
        let guess = std::fs::read_link(link_of(directory)).ok();
        let guess = guess.as_deref().and_then(Path::file_name).map(|name| name.as_bytes().to_vec());
        if let Some(name) = guess.filter(|name| is_here(name)) {
            return Ok(Some((above, name)));
        }
        let names = self.names(&above)?;
        Ok(names.into_iter().find(|entry| is_here(&entry.name)).map(|entry| (above, entry.name)))
    }

    fn names(&self, directory: &Node) -> Result<Vec<Entry>> {
        let unlisted = |errno| Error::new("list a directory", errno);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let readable = rustix::fs::openat(directory, ".", flags, Mode::empty()).map_err(unlisted)?;
        let mut names = Vec::new();
        for entry in Dir::new(readable).map_err(unlisted)? {
            let entry = entry.map_err(unlisted)?;
            let name = entry.file_name().to_bytes().to_vec();
            let may_be_directory = matches!(entry.file_type(), FileType::Directory | FileType::Unknown);
            if name != b"." && name != b".." {
                names.push(Entry { name, inode: entry.ino(), may_be_directory });
            }
        }
        Ok(names)
    }

    fn way(&self, path: &Path, file: Option<(u64, u64)>) -> Result<Option<Vec<Passed>>> {
        let passed = |stat: &rustix::fs::Stat| Passed {
            file: (stat.st_dev, stat.st_ino),
            changed: Time { s: stat.st_ctime, ns: stat.st_ctime_nsec as u32 },
        };
        if rustix::fs::lstat(path).is_ok_and(|stat| Some(passed(&stat).file) == file) {
            return Ok(None);
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = rustix::fs::open("/", flags, Mode::empty());
        let mut node = root.map_err(|errno| Error::path("open", "/", errno))?;
        let mut way = vec![passed(&stat(&node)?)];
        for name in path.iter().skip(1) {
            node = match rustix::fs::openat(&node, name, flags, Mode::empty()) {
                Ok(next) => next,
                Err(Errno::NOENT | Errno::NOTDIR) => break,
                Err(errno) => return Err(failed("open", name.as_bytes(), errno)),
            };
            way.push(passed(&stat(&node)?));
        }
        let system = rustix::fs::fstatfs(&node).map_err(|errno| Error::path("inspect", path, errno))?;
        Ok((system.f_type as u64 != TMPFS).then_some(way))
    }

    fn has_name_beside(&self, path: &Path, inode: u64) -> Result<bool> {
        let entries = path.parent().and_then(|parent| parent.read_dir().ok());
        Ok(entries.is_some_and(|entries| entries.flatten().any(|entry| entry.ino() == inode)))
    }

    fn rename(&self, from: &Node, name: &[u8], to: &Node, to_name: &[u8]) -> Result<()> {
        rustix::fs::renameat_with(from, name, to, to_name, RenameFlags::NOREPLACE)
            .map_err(|errno| failed("rename", name, errno))
    }

    fn link(&self, node: &Node, directory: &Node, name: &[u8]) -> Result<()> {
        rustix::fs::linkat(node, "", directory, name, AtFlags::EMPTY_PATH)
            .map_err(|errno| failed("link", name, errno))
    }

    fn unlink(&self, directory: &Node, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(directory, name, AtFlags::empty()).map_err(|errno| failed("unlink", name, errno))
    }

    fn remove_directory(&self, directory: &Node, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR)
            .map_err(|errno| failed("remove", name, errno))
    }

    fn make(&self, directory: &Node, name: &[u8], attributes: &Attributes) -> Result<Node> {
        let (private, kind) = (Mode::from_raw_mode(0o600), attributes.kind());
        let made = match kind {
            FileType::Directory => rustix::fs::mkdirat(directory, name, Mode::from_raw_mode(0o700)),
            FileType::Symlink => rustix::fs::symlinkat(attributes.link.as_slice(), directory, name),
            kind => rustix::fs::mknodat(directory, name, kind, private, attributes.rdev),
        };
        made.map_err(|errno| failed("create", name, errno))?;
        let node = self.lookup(directory, name)?;
        node.ok_or_else(|| failed("open", name, Errno::NOENT))
    }

    fn write(&self, node: &Node, offset: u64, bytes: &[u8]) -> Result<()> {
        self.writer(node)?.write_all_at(bytes, offset).map_err(|error| Error::new("write", error).into())
    }

    fn punch(&self, node: &Node, offset: u64, length: u64) -> Result<()> {
        let file = self.writer(node)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        match rustix::fs::fallocate(&file, flags, offset, length) {
            Ok(()) => return Ok(()),
            Err(Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(Error::new("make a hole", errno).into()),
        }
        let size = stat(node)?.st_size as u64;
        let zeros = vec![0; BLOCK_BYTES];
        let (mut at, end) = (offset, (offset + length).min(size));
        while at < end {
            let part = &zeros[..BLOCK_BYTES.min((end - at) as usize)];
            self.write(node, at, part)?;
            at += part.len() as u64;
        }
        Ok(())
    }

    fn resize(&self, node: &Node, size: u64) -> Result<()> {
        rustix::fs::ftruncate(self.writer(node)?, size)
            .map_err(|errno| Error::new("set the length", errno).into())
    }

    fn copy(&self, node: &Node, from: &Path) -> Result<()> {
        let (source, file) = (keep::open_copy(&self.log, from)?, self.writer(node)?);
        let size = stat(&source)?.st_size as u64;
        if rustix::fs::ioctl_ficlone(&file, &source).is_ok() {
            return self.resize(node, size);
        }
        self.resize(node, 0)?;
        self.resize(node, size)?;
        copy_data(&source, &file, size, from)
    }

    fn update(&self, node: &Node, from: &Path) -> Result<()> {
        let (source, file) = (keep::open_copy(&self.log, from)?, self.writer(node)?);
        let present = File::open(link_of(node)).map_err(|error| Error::path("open", from, error))?;
        self.resize(node, stat(&source)?.st_size as u64)?;
        update(&source, &present, &file).map_err(|error| Error::path("copy", from, error).into())
    }

    fn set(&self, node: &Node, attributes: &Attributes) -> Result<()> {
        let unset = |what: &'static str| move |errno| Error::new(format!("set the {what}"), errno);
        let (owner, group) = (Uid::from_raw(attributes.owner), Gid::from_raw(attributes.group));
        let now = stat(node)?;
        if (now.st_uid, now.st_gid) != (attributes.owner, attributes.group) {
            rustix::fs::chownat(node, "", Some(owner), Some(group), AtFlags::EMPTY_PATH)
                .map_err(unset("owner"))?;
        }
        let link = link_of(node);
        let present = self.extended(node)?;
        let is_wanted = |one: &&Extended| attributes.extended.iter().any(|wanted| wanted.name == one.name);
        for Extended { name, .. } in present.iter().filter(|one| !is_wanted(one)) {
            rustix::fs::removexattr(&link, OsStr::from_bytes(name)).map_err(unset("extended attributes"))?;
        }
        for Extended { name, value } in attributes.extended.iter().filter(|one| !present.contains(one)) {
            rustix::fs::setxattr(&link, OsStr::from_bytes(name), value, XattrFlags::empty())
                .map_err(unset("extended attributes"))?;
        }
        // Set the mode after the owner and after an ACL. A change of the owner clears setuid bits, and an ACL changes
        // the group bits.
        if attributes.kind() != FileType::Symlink && stat(node)?.st_mode != attributes.mode {
            rustix::fs::chmod(&link, Mode::from_raw_mode(attributes.mode & 0o7777)).map_err(unset("mode"))?;
        }
        let time = |time: Time| Timespec { tv_sec: time.s, tv_nsec: time.ns.into() };
        let times = Timestamps {
            last_access: time(attributes.accessed),
            last_modification: time(attributes.modified),
        };
        rustix::fs::utimensat(node, "", &times, AtFlags::EMPTY_PATH).map_err(unset("times"))?;
        Ok(())
    }

    fn work(&self, near: &Node, number: u64) -> Result<Work<Node>> {
        let device = stat(near)?.st_dev;
        if let Some(work) = self.works.borrow().get(&device) {
            return Ok(work.clone());
        }
        let work = Self::work_in(&*self.places.for_directory(near.as_fd())?, number)?;
        self.works.borrow_mut().insert(device, work.clone());
        Ok(work)
    }

    fn works(&self, number: u64) -> Result<Vec<Work<Node>>> {
        keep::places(&self.log)?.iter().map(|place| Self::work_in(place, number)).collect()
    }

    fn kept(&self) -> Result<Vec<Node>> {
        Ok(keep::places(&self.log)?.into_iter().map(|place| Rc::new(place.kept)).collect())
    }

    fn has_copy(&self, path: &Path) -> bool {
        keep::open_copy(&self.log, path).is_ok()
    }

    fn next_number(&self) -> Result<u64> {
        aside::next_number(&self.log)
    }

    fn tidy(&self, number: u64) -> Result<()> {
        aside::remove_empty(&self.log, number)
    }

    fn describe(&self, work: &Work<Node>, frame: &[u8]) -> Result<()> {
        let flags = OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&work.aside, aside::DESCRIPTION, flags, Mode::from_raw_mode(0o600))
            .map_err(|errno| Error::path("open", work.path.join(aside::DESCRIPTION), errno))?;
        File::from(file)
            .write_all(frame)
            .map_err(|error| Error::path("write", work.path.join(aside::DESCRIPTION), error).into())
    }

    fn sync(&self) -> Result<()> {
        for mount in self.mounts.borrow().values() {
            rustix::fs::syncfs(mount).map_err(|errno| Error::new("sync a file system", errno))?;
        }
        Ok(())
    }
}

fn failed(operation: &'static str, name: &[u8], errno: Errno) -> UndoError {
    Error::path(operation, Path::new(OsStr::from_bytes(name)), errno).into()
}

fn stat(node: impl AsFd) -> Result<rustix::fs::Stat> {
    rustix::fs::fstat(node).map_err(|errno| Error::new("inspect a file", errno).into())
}

/// Copies the ranges of a file of `size` bytes that contain data. `path` is only for messages.
fn copy_data(source: &File, file: &File, size: u64, path: &Path) -> Result<()> {
    let failed = |error| Error::path("copy", path, error);
    let (mut at, mut block) = (0, vec![0; BLOCK_BYTES]);
    while at < size {
        let (start, end) = data_behind(source, at, size)?;
        at = start;
        while at < end {
            let wanted = BLOCK_BYTES.min((end - at) as usize);
            let read = source.read_at(&mut block[..wanted], at).map_err(failed)?;
            if read == 0 {
                return Ok(());
            }
            file.write_all_at(&block[..read], at).map_err(failed)?;
            at += read as u64;
        }
    }
    Ok(())
}
