//! Where to make again what no name leads to any more.
//!
//! Owns: the choice of a place and of a name that nobody has; removed directories.
//! Invariants: whatever is made has its name only until it is open; a name that somebody has is left alone.
//! Does not: know kinds.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use prost::Message;
use rustix::fs::{OFlags, Stat};
use rustix::io::Errno as E;
use sys::Errno;

use super::{opening, path};
use crate::error::{ResourceError, Result};

/// Names tried for what is made with a name and loses it at once; a taken one is passed over.
const NAMES_TRIED_MAX: u32 = 1000;
/// Nobody else needs to enter a directory that is removed again at once.
const OURS_ALONE: u32 = 0o700;

/// The nearest directory above a path that exists.
pub(crate) fn home_of(path: &Path) -> PathBuf {
    let is_there = |directory: &&Path| directory.is_dir();
    path.ancestors().skip(1).find(is_there).unwrap_or(Path::new("/")).to_owned()
}

/// Makes something in a directory under a name that nobody has.
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

/// A removed directory as the image keeps it. It holds nothing, and nothing can be put into it.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Removed {
    /// Its last name.
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// Device and inode tell which uses are of one directory.
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

/// Removed directories of one restore, each made once.
#[derive(Debug, Default)]
pub(crate) struct RemovedDirectories {
    made: HashMap<(u64, u64), OwnedFd>,
}

impl RemovedDirectories {
    /// A descriptor that names the directory (O_PATH).
    pub(crate) fn get(&mut self, removed: &Removed) -> Result<&OwnedFd> {
        match self.made.entry((removed.device, removed.inode)) {
            Entry::Occupied(entry) => Ok(entry.into_mut()),
            Entry::Vacant(entry) => Ok(entry.insert(make_and_remove(removed)?)),
        }
    }
}

/// Makes the directory under the name it had, or beside it should that be taken, and those above it that are gone.
fn make_and_remove(removed: &Removed) -> Result<OwnedFd> {
    let wanted = path::from_bytes(&removed.path);
    let home = home_of(&wanted);
    let gone: Vec<&Path> = wanted.ancestors().skip(1).take_while(|above| *above != home).collect();
    let mut above = Vec::new();
    for directory in gone.into_iter().rev() {
        match mkdir(directory) {
            Ok(()) => above.push(directory.to_owned()),
            // Somebody else was faster.
            Err(E::EXIST) => {}
            Err(errno) => return Err(cannot_make(&wanted, errno)),
        }
    }
    let made = match mkdir(&wanted) {
        Ok(()) => Ok(wanted.clone()),
        Err(E::EXIST) => free_name(wanted.parent().unwrap_or(&home), mkdir),
        Err(errno) => Err(errno),
    };
    let opened = made.and_then(|place| {
        let opened = open_with_access(&place, removed);
        rustix::fs::rmdir(&place)?;
        opened
    });
    for directory in above.iter().rev() {
        // One that somebody has put something into meanwhile stays.
        let _ = rustix::fs::rmdir(directory);
    }
    opened.map_err(|errno| cannot_make(&wanted, errno))
}

fn open_with_access(place: &Path, removed: &Removed) -> std::result::Result<OwnedFd, E> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let opened = rustix::fs::open(place, flags, rustix::fs::Mode::empty())?;
    let link = opening::own_link(&opened);
    std::os::unix::fs::chown(&link, Some(removed.user), Some(removed.group)).map_err(to_errno)?;
    fs::set_permissions(&link, fs::Permissions::from_mode(removed.mode)).map_err(to_errno)?;
    Ok(opened)
}

fn mkdir(path: &Path) -> std::result::Result<(), E> {
    fs::DirBuilder::new().mode(OURS_ALONE).create(path).map_err(to_errno)
}

fn to_errno(error: std::io::Error) -> E {
    E::from_io_error(&error).unwrap_or(E::IO)
}

fn cannot_make(path: &Path, errno: E) -> ResourceError {
    ResourceError::File {
        path: path.display().to_string(),
        why: format!("this removed directory cannot be made again for a moment: {}", Errno::from(errno)),
        fix: "make the directory above it writable for whoever restores".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn removed(path: &Path, inode: u64) -> Removed {
        Removed { path: path::to_bytes(path), device: 1, inode, mode: 0o710, user: 0, group: 0 }
    }

    fn link(file: &OwnedFd) -> PathBuf {
        fs::read_link(opening::own_link(file)).unwrap()
    }

    #[test]
    fn a_removed_directory_is_made_once_and_leaves_nothing() {
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
    fn a_name_that_is_taken_is_left_alone() {
        if !rustix::process::geteuid().is_root() {
            return println!("unsupported: root");
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        fs::write(&path, "somebody's").unwrap();
        let mut directories = RemovedDirectories::default();
        let made = rustix::fs::fstat(directories.get(&removed(&path, 7)).unwrap()).unwrap();
        assert_ne!(made.st_ino, fs::metadata(&path).unwrap().ino());
        assert_eq!(fs::read_to_string(&path).unwrap(), "somebody's");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        let error = directories.get(&removed(&path.join("below"), 8)).unwrap_err().to_string();
        assert!(error.contains("below") && error.contains("help:"), "{error}");
    }
}
