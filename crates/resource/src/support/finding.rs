//! Finds a recorded file whose path leads to another file, or to no file: a rotated log, a renamed library.
//!
//! Owns: the handle in a record, and the order of the searches: files that the caller keeps open, the handle, the
//! directory of the path.
//! Invariants: a found file has the recorded identity. No symbolic link is followed.
//! Does not: search other directories, or decide whether a file may have another name.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use prost::Message;
use rustix::fs::{Dir, Mode, OFlags, openat};
use sys::file_handle::{self, FileHandle};

use super::identity::Identity;
use super::opening::{directory_above, reopen};

/// The maximum number of entries of a directory that a search reads. A larger directory takes more than 0.1 s.
const ENTRIES_MAX: usize = 1 << 16;

/// The handle that the file system gives to a file, as it is in an image.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Handle {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(bytes = "vec", tag = "2")]
    bytes: Vec<u8>,
}

impl Handle {
    /// Returns the handle of an open file. Returns `None` if the file system has no handles.
    pub(crate) fn of(file: impl AsFd) -> Option<Self> {
        let FileHandle { kind, bytes } = file_handle::of(file.as_fd()).ok()?;
        Some(Self { kind, bytes })
    }
}

/// Finds a file by its identity: among the `held` files, by its handle, and in the directory of `path`. Returns an
/// O_PATH descriptor. A file without a name is found only if a process has it open. A directory is searched only if the
/// identity has a birth time.
pub(crate) fn by_identity(
    path: &Path,
    wanted: Identity,
    handle: Option<&Handle>,
    held: &[Arc<OwnedFd>],
) -> Option<OwnedFd> {
    let is_it = |file: &OwnedFd| Identity::of(file).is_ok_and(|found| wanted.is_that_of(&found));
    if let Some(file) = held.iter().find(|file| is_it(file)) {
        return file.try_clone().ok();
    }
    let by_handle = handle.and_then(|handle| open_handle(path, handle)).filter(is_it);
    by_handle.or_else(|| in_directory(path, wanted).filter(|file| wanted.has_birth() && is_it(file)))
}

/// Opens a file by its handle. The nearest directory above the path selects the file system. The call needs
/// CAP_DAC_READ_SEARCH.
fn open_handle(path: &Path, handle: &Handle) -> Option<OwnedFd> {
    let home = directory_above(path).ok()?;
    let mount = reopen(&home, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC).ok()?;
    let handle = FileHandle { kind: handle.kind, bytes: handle.bytes.clone() };
    file_handle::open(mount.as_fd(), &handle).ok()
}

/// Finds a file in the directory of a path. If the directory does not exist, searches the nearest directory above it.
fn in_directory(path: &Path, wanted: Identity) -> Option<OwnedFd> {
    let home = directory_above(path).ok()?;
    let opened = reopen(&home, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC).ok()?;
    let has_inode = |entry: &rustix::fs::DirEntry| entry.ino() == wanted.inode;
    let entries = Dir::read_from(&opened).ok()?.take(ENTRIES_MAX).flatten();
    entries.filter(has_inode).find_map(|entry| open_named(opened.as_fd(), entry.file_name()))
}

fn open_named(directory: BorrowedFd<'_>, name: &std::ffi::CStr) -> Option<OwnedFd> {
    openat(directory, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    fn find(path: &Path, file: &File, handle: Option<&Handle>, held: &[Arc<OwnedFd>]) -> Option<Identity> {
        let wanted = Identity::of(file).unwrap();
        by_identity(path, wanted, handle, held).map(|found| Identity::of(found).unwrap())
    }

    #[test]
    fn a_renamed_file_is_found_in_its_directory_and_by_its_handle() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let file = File::create_new(&path).unwrap();
        let (own, handle) = (Identity::of(&file).unwrap(), Handle::of(&file));
        fs::rename(&path, folder.path().join("log.1")).unwrap();
        fs::write(&path, "another").unwrap();
        assert_eq!(find(&path, &file, None, &[]), Some(own));
        fs::create_dir(folder.path().join("old")).unwrap();
        fs::rename(folder.path().join("log.1"), folder.path().join("old/log.1")).unwrap();
        assert_eq!(find(&path, &file, None, &[]), None);
        match find(&path, &file, handle.as_ref(), &[]) {
            Some(found) => assert_eq!(found, own),
            None => println!("unsupported: file handles"),
        }
    }

    #[test]
    fn a_held_file_is_found_without_a_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("library");
        let file = File::create_new(&path).unwrap();
        let held = [Arc::new(OwnedFd::from(file.try_clone().unwrap()))];
        fs::remove_file(&path).unwrap();
        assert_eq!(find(&path, &file, None, &[]), None);
        assert_eq!(find(&path, &file, None, &held), Some(Identity::of(&file).unwrap()));
    }
}
