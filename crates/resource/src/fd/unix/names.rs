//! Names of the file to which a Unix socket is bound.
//!
//! Owns: finding the names at a checkpoint, also after a rename, or after the first of several names was removed.
//! Invariants: a socket file without a name, or with only known names, is saved. A socket file with an unknown name
//! is refused.
//! Does not: search directories other than the directory of the last known name and the directory of the address.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat, lstat, openat, stat, statat};
use sys::Error;
use sys::socket::{self, SocketAddress};

use super::super::description::Description;
use super::state::{BoundFile, Place, is_path, text};
use crate::error::Result;
use crate::obstacle::Obstacle;

const DELETED: &[u8] = b" (deleted)";
const PERMISSIONS: u32 = 0o7777;
const WHAT: &str = "Unix socket";
const FIX: &str = "remove the other names of the socket's file, or keep all of them in one directory";

/// The file of a socket, with its names.
#[derive(Debug)]
struct Found {
    stat: Stat,
    /// The first name of the file; if the file has no name, its last name.
    path: PathBuf,
    /// All names that were found.
    names: Vec<PathBuf>,
}

impl Found {
    fn missing(&self) -> u64 {
        self.stat.st_nlink.saturating_sub(self.names.len() as u64)
    }

    fn why(&self) -> String {
        let (all, path) = (self.stat.st_nlink, self.path.display());
        format!("its file has {all} names, of which {} cannot be found near {path}", self.missing())
    }
}

/// Returns the obstacle of a socket whose file has an unknown name.
pub(super) fn obstacle(description: &Description) -> Option<Obstacle> {
    let name = socket::local(description.as_fd()).ok()?;
    let found = find(description, &name).ok()??;
    (found.missing() > 0).then(|| description.obstacle(WHAT, &found.why(), FIX))
}

/// Returns the state of the file to which a socket is bound, as it is saved. Fails if the file has an unknown name.
pub(super) fn read_file(description: &Description, name: &SocketAddress) -> Result<Option<BoundFile>> {
    let Some(found) = find(description, name)? else { return Ok(None) };
    if found.missing() > 0 {
        return Err(description.obstacle(WHAT, &found.why(), FIX).into());
    }
    let mut places = found.names.iter().map(|name| place(name));
    let first = places.next();
    Ok(Some(BoundFile {
        path: found.path.as_os_str().as_bytes().to_vec(),
        mode: found.stat.st_mode & PERMISSIONS,
        user: found.stat.st_uid,
        group: found.stat.st_gid,
        gone: first.is_none(),
        place: first,
        others: places.collect(),
    }))
}

fn place(name: &Path) -> Place {
    let directory = name.parent().and_then(|parent| stat(parent).ok());
    Place::new(name, directory.map_or((0, 0), |directory| (directory.st_dev, directory.st_ino)))
}

fn find(description: &Description, name: &SocketAddress) -> Result<Option<Found>> {
    if !is_path(name) {
        return Ok(None);
    }
    let Some(file) = socket::bound_file(description.as_fd())? else { return Ok(None) };
    let stat = rustix::fs::fstat(&file).map_err(|errno| Error::new("inspect the file of a socket", errno))?;
    let link = tracee::procfs::link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let bytes = link.as_os_str().as_bytes();
    let is_here = lstat(link.as_path()).is_ok_and(|found| is_same(&found, &stat));
    if is_here && stat.st_nlink == 1 {
        let path = link.as_path().to_owned();
        return Ok(Some(Found { stat, names: vec![path.clone()], path }));
    }
    let bytes = if is_here { bytes } else { bytes.strip_suffix(DELETED).unwrap_or(bytes) };
    let last = PathBuf::from(OsStr::from_bytes(bytes));
    let mut names = if is_here { vec![last.clone()] } else { Vec::new() };
    if stat.st_nlink > 0 {
        let near = last.ancestors().skip(1).find(|directory| directory.is_dir()).map(Path::to_owned);
        let address = address_directory(description, name);
        for directory in near.iter().chain(&address) {
            search(directory, &stat, &mut names);
        }
    }
    let path = names.first().cloned().unwrap_or(last);
    Ok(Some(Found { stat, path, names }))
}

/// Returns the directory of a socket's address. A relative address is resolved from the working directory of the
/// process.
fn address_directory(description: &Description, name: &SocketAddress) -> Option<PathBuf> {
    let own = tracee::procfs::link(format!("/proc/{}/cwd", description.pid)).ok()?;
    own.as_path().join(OsStr::from_bytes(text(name))).parent()?.canonicalize().ok()
}

/// Adds the names that a file has in a directory.
fn search(directory: &Path, wanted: &Stat, names: &mut Vec<PathBuf>) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = openat(rustix::fs::CWD, directory, flags, Mode::empty()) else { return };
    let Ok(entries) = Dir::read_from(&opened) else { return };
    for entry in entries.flatten() {
        let path = directory.join(OsStr::from_bytes(entry.file_name().to_bytes()));
        if !names.contains(&path) && leads_to(opened.as_fd(), entry.file_name(), wanted) {
            names.push(path);
        }
    }
}

fn leads_to(directory: BorrowedFd<'_>, name: &std::ffi::CStr, wanted: &Stat) -> bool {
    statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|found| is_same(&found, wanted))
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}
