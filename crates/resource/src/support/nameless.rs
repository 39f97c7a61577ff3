//! Restores files and directories that have no name any more.
//!
//! Owns: the choice of a directory and of a free name, and the removed directories of a restore.
//! Invariants: a created file has a name only until the file is open. A file whose name is taken is not changed.
//! Does not: depend on kinds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use prost::Message;
use rustix::fs::{AtFlags, Mode, OFlags, Stat};
use rustix::io::Errno as E;
use sys::Errno;

use super::making::{Ownership, PrivateDirectory};
use super::path;
use crate::error::{ResourceError, Result};

/// The maximum number of names that are tried for a temporary name. Taken names are skipped.
const NAMES_TRIED_MAX: u32 = 1000;

/// Creates a file in a directory under a free name. Returns the path of the file.
pub(crate) fn free_name(
    home: &Path,
    mut make: impl FnMut(&Path) -> std::result::Result<(), E>,
) -> std::result::Result<PathBuf, E> {
    for number in 0..NAMES_TRIED_MAX {
        let path = home.join(format!(".undying-{}-{number}", std::process::id()));
        match make(&path) {
            Err(E::EXIST) => {}
            outcome => return outcome.map(|()| path),
        }
    }
    Err(E::EXIST)
}

/// A removed directory in the image. The directory is empty and cannot get entries.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Removed {
    /// The last name of the directory.
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// The device number. Device and inode identify the directory in all records that refer to the directory.
    #[prost(uint64, tag = "2")]
    device: u64,
    #[prost(uint64, tag = "3")]
    inode: u64,
    #[prost(uint32, tag = "4")]
    mode: u32,
    #[prost(uint32, tag = "5")]
    user: u32,
    #[prost(uint32, tag = "6")]
    group: u32,
}

impl Removed {
    pub(crate) fn new(name: &Path, stat: &Stat) -> Self {
        Self {
            path: path::to_bytes(name),
            device: stat.st_dev,
            inode: stat.st_ino,
            mode: stat.st_mode & 0o7777,
            user: stat.st_uid,
            group: stat.st_gid,
        }
    }
}

/// The removed directories of one restore. Each directory is created once.
#[derive(Debug, Default)]
pub(crate) struct RemovedDirectories {
    made: HashMap<(u64, u64), OwnedFd>,
}

impl RemovedDirectories {
    /// Returns an O_PATH descriptor of the directory. The first call creates the directory.
    pub(crate) fn get(&mut self, removed: &Removed) -> Result<&OwnedFd> {
        match self.made.entry((removed.device, removed.inode)) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => Ok(entry.insert(make_and_remove(removed)?)),
        }
    }
}

/// Creates the directory with its last name, and removes the directory at once.
fn make_and_remove(removed: &Removed) -> Result<OwnedFd> {
    let wanted = path::from_bytes(&removed.path);
    let private = PrivateDirectory::near(&wanted)?;
    let below = wanted.strip_prefix(private.parent_path()).unwrap_or(&wanted);
    make_below(&private, below, removed).map_err(|errno| cannot_make(&wanted, errno))
}

/// Creates the directory at `below`, a path relative to the parent of the private directory. Missing directories of
/// the path are created too, and one rename gives all these directories their names.
fn make_below(
    private: &PrivateDirectory,
    below: &Path,
    removed: &Removed,
) -> std::result::Result<OwnedFd, E> {
    let mut names: Vec<&OsStr> = below.iter().collect();
    let (Some(first), Some(last)) = (names.first().copied(), names.pop()) else { return Err(E::INVAL) };
    let mut above = vec![rustix::io::dup(private.directory())?];
    for name in &names {
        let next = make_directory(above.last().expect("begun with one"), name)?;
        above.push(next);
    }
    let made = make_directory(above.last().expect("begun with one"), last)?;
    if above.len() == 1 {
        private.unlink_as(Path::new(last), last, AtFlags::REMOVEDIR)?;
    } else {
        let has_name = private.move_out(Path::new(first), first).is_ok();
        let deepest = above.pop().expect("there are several");
        let outcome = rustix::fs::unlinkat(&deepest, last, AtFlags::REMOVEDIR);
        // The directories are removed from the deepest upwards. The top directory is beside the private directory if
        // the rename succeeded.
        for (directory, name) in above.iter().zip(&names).skip(1).rev() {
            let _ = rustix::fs::unlinkat(directory, *name, AtFlags::REMOVEDIR);
        }
        if has_name {
            let _ = rustix::fs::unlinkat(private.parent(), first, AtFlags::REMOVEDIR);
        }
        outcome?;
    }
    // The directory is removed and can get no entries, so permissive modes are safe.
    Ownership { mode: removed.mode, user: removed.user, group: removed.group }.give(made.as_fd())?;
    Ok(made)
}

fn make_directory(above: &OwnedFd, name: &OsStr) -> std::result::Result<OwnedFd, E> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::mkdirat(above, name, Mode::RWXU)?;
    rustix::fs::openat(above, name, flags, Mode::empty())
}

fn cannot_make(path: &Path, errno: E) -> ResourceError {
    ResourceError::File {
        path: path.display().to_string(),
        why: format!("the removed directory cannot be created for a moment: {}", Errno::from(errno)),
        fix: "make the directory above it writable for the user that restores".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    use super::super::opening;
    use super::*;

    fn removed(path: &Path, inode: u64) -> Removed {
        Removed { path: path::to_bytes(path), device: 1, inode, mode: 0o710, user: 0, group: 0 }
    }

    fn link(file: &OwnedFd) -> PathBuf {
        fs::read_link(opening::own_link(file)).unwrap()
    }

    #[test]
    fn a_removed_directory_is_created_once_and_leaves_no_entry() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().canonicalize().unwrap().join("above/gone");
        let mut directories = RemovedDirectories::default();
        let inode = rustix::fs::fstat(directories.get(&removed(&path, 7)).unwrap()).unwrap().st_ino;
        let again = directories.get(&removed(&path, 7)).unwrap();
        let stat = rustix::fs::fstat(again).unwrap();
        assert_eq!((stat.st_ino, stat.st_mode & 0o7777), (inode, 0o710));
        assert_eq!(link(again), PathBuf::from(format!("{} (deleted)", path.display())));
        let listed = opening::reopen(again, OFlags::RDONLY | OFlags::DIRECTORY).unwrap();
        assert!(rustix::fs::openat(&listed, "x", OFlags::CREATE | OFlags::WRONLY, 0o600.into()).is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_taken_name_is_not_touched() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        fs::write(&path, "other").unwrap();
        let mut directories = RemovedDirectories::default();
        let made = rustix::fs::fstat(directories.get(&removed(&path, 7)).unwrap()).unwrap();
        assert_ne!(made.st_ino, fs::metadata(&path).unwrap().ino());
        assert_eq!(fs::read_to_string(&path).unwrap(), "other");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let below = directories.get(&removed(&path.join("below"), 8)).unwrap();
        assert_eq!(rustix::fs::fstat(below).unwrap().st_nlink, 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
