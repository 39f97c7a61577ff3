//! Names of Unix sockets.
//!
//! Owns: giving a socket exactly the name it had, also where a file of that name is still there.
//! Invariants: a socket file is replaced only when no socket is bound to it any more; whatever else has the name
//! stays, and is named in the refusal. A step that fails puts the old file back.
//! Does not: leave directories behind that it made for a name that is gone.

use std::ffi::OsStr;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::fs::{FileType, Gid, Mode, Stat, Uid, chmod, chown, lstat, mkdir, rename, rmdir, unlink};
use sys::sock_diag::SockDiag;
use sys::socket::{self, SocketAddress};
use sys::{Errno, Error};

use super::super::Description;
use super::state::{BoundFile, is_path, show};
use crate::error::{ResourceError, Result};

const DELETED: &[u8] = b" (deleted)";
const PERMISSIONS: u32 = 0o7777;
const EADDRINUSE: i32 = 98;
/// Device numbers of the kernel: 12 bits major, 20 bits minor.
const MINOR_BITS: u32 = 20;

/// What is saved of the file that a socket is bound to.
pub(super) fn read_file(description: &Description, name: &SocketAddress) -> Result<Option<BoundFile>> {
    let socket = std::os::fd::AsFd::as_fd(description);
    if !is_path(name) {
        return Ok(None);
    }
    let Some(file) = socket::bound_file(socket)? else { return Ok(None) };
    let stat = rustix::fs::fstat(&file).map_err(|errno| Error::new("look at the file of a socket", errno))?;
    let link = tracee::procfs::link(format!("/proc/self/fd/{}", file.as_raw_fd()))?;
    let mut path = link.as_os_str().as_bytes();
    let leads_here = lstat(link.as_path()).is_ok_and(|found| is_same(&found, &stat));
    if !leads_here {
        path = path.strip_suffix(DELETED).unwrap_or(path);
    }
    Ok(Some(BoundFile {
        path: path.to_vec(),
        directory: directory(description, path, name),
        mode: stat.st_mode & PERMISSIONS,
        user: stat.st_uid,
        group: stat.st_gid,
        gone: !leads_here,
    }))
}

fn is_same(one: &Stat, other: &Stat) -> bool {
    (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)
}

/// The name without the zero that ends it.
fn text(name: &SocketAddress) -> &[u8] {
    let body = name.body();
    let end = body.iter().position(|byte| *byte == 0).unwrap_or(body.len());
    &body[..end]
}

/// From where the name leads to the path: what is in front of it, or the process's own working directory.
fn directory(description: &Description, path: &[u8], name: &SocketAddress) -> Vec<u8> {
    let name = text(name);
    if name.first() == Some(&b'/') {
        return b"/".to_vec();
    }
    let name = name.strip_prefix(b"./").unwrap_or(name);
    if let Some(front) = path.strip_suffix(name).filter(|front| front.last() == Some(&b'/')) {
        return front.to_vec();
    }
    let own = tracee::procfs::link(format!("/proc/{}/cwd", description.pid));
    own.map_or_else(|_| b"/".to_vec(), |own| own.as_os_str().as_bytes().to_vec())
}

/// Where a socket with a name can be reached while sockets are built.
#[derive(Debug, Default)]
pub(super) struct Bound {
    /// Its file; empty for a name that is no path.
    pub(super) path: PathBuf,
    /// The file goes when everything is connected.
    is_gone: bool,
    /// Directories made for the name, outermost first.
    directories: Vec<PathBuf>,
}

/// Everything is connected: names that were removed are removed, then the directories made for them, in which the
/// files of several sockets may lie.
pub(super) fn finish(bound: impl Iterator<Item = Bound>) -> Result<()> {
    let mut directories = Vec::new();
    for one in bound {
        if one.is_gone {
            remove(&one.path)?;
        }
        directories.extend(one.directories);
    }
    directories.sort_by_key(|directory| std::cmp::Reverse(directory.components().count()));
    for directory in directories {
        rmdir(&directory).map_err(|errno| Error::path("remove", &directory, errno))?;
    }
    Ok(())
}

/// Gives a socket its name, and its file the owner and mode it had. The file of a name that was removed gets
/// another name until the end, so that sockets that had one name after another do not get into each other's way.
pub(super) fn bind(socket: BorrowedFd<'_>, name: &SocketAddress, file: Option<&BoundFile>) -> Result<Bound> {
    let Some(file) = file.filter(|_| is_path(name)) else {
        socket::bind(socket, name).map_err(|error| in_use(name, error))?;
        return Ok(Bound::default());
    };
    let path = Path::new(OsStr::from_bytes(&file.path));
    let parked = park(path, file.gone)?;
    let directories = if file.gone { make_directories(path)? } else { Vec::new() };
    let directory = Path::new(OsStr::from_bytes(&file.directory));
    let bound = sys::working_directory::within(directory, || socket::bind(socket, name));
    if let Err(error) = bound.and_then(|outcome| outcome).and_then(|()| dress(path, file)) {
        if let Some(parked) = parked {
            move_file(&parked, path)?;
        }
        return Err(in_use(name, error));
    }
    let mut place = path.to_owned();
    if file.gone {
        place = unique(path);
        move_file(path, &place)?;
    }
    match parked {
        Some(parked) if file.gone => move_file(&parked, path)?,
        Some(parked) => remove(&parked)?,
        None => {}
    }
    Ok(Bound { path: place, is_gone: file.gone, directories })
}

fn move_file(from: &Path, to: &Path) -> sys::Result<()> {
    rename(from, to).map_err(|errno| Error::path("rename", from, errno))
}

/// A name beside another that nobody else uses.
fn unique(path: &Path) -> PathBuf {
    /// Several sockets may have had one name.
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".undying-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)));
    PathBuf::from(name)
}

/// Makes the directories that a name needs for a moment; they are gone like the file itself.
fn make_directories(path: &Path) -> Result<Vec<PathBuf>> {
    let missing = path.ancestors().skip(1).take_while(|directory| lstat(*directory).is_err());
    let mut directories: Vec<PathBuf> = missing.map(Path::to_owned).collect();
    directories.reverse();
    for directory in &directories {
        mkdir(directory, Mode::RWXU).map_err(|errno| Error::path("make", directory, errno))?;
    }
    Ok(directories)
}

fn dress(path: &Path, file: &BoundFile) -> sys::Result<()> {
    let (user, group) = (Uid::from_raw(file.user), Gid::from_raw(file.group));
    chown(path, Some(user), Some(group)).map_err(|errno| Error::path("set the owner of", path, errno))?;
    chmod(path, Mode::from_raw_mode(file.mode)).map_err(|errno| Error::path("set the mode of", path, errno))
}

/// Moves away what has the name now. A socket of somebody who still uses it stays, and so does any other file,
/// unless it is needed out of the way for a moment only.
fn park(path: &Path, for_a_moment: bool) -> Result<Option<PathBuf>> {
    let Ok(stat) = lstat(path) else { return Ok(None) };
    if !for_a_moment {
        let refuse = |why: &str, fix: &str| ResourceError::File {
            path: path.display().to_string(),
            why: why.to_owned(),
            fix: fix.to_owned(),
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return Err(refuse(
                "a socket had this name and now it is another file",
                "move the file away, then restore again",
            ));
        }
        if is_bound(&stat)? {
            return Err(refuse(
                "another program's socket has this name",
                "end that program (`ss -xlp` names it), then restore again",
            ));
        }
    }
    let parked = unique(path);
    move_file(path, &parked)?;
    Ok(Some(parked))
}

/// Whether any socket is bound to a file.
fn is_bound(stat: &Stat) -> Result<bool> {
    let device = rustix::fs::major(stat.st_dev) << MINOR_BITS | rustix::fs::minor(stat.st_dev);
    let file = (stat.st_ino as u32, device);
    let sockets = SockDiag::open()?.unix_sockets(u32::MAX)?;
    Ok(sockets.iter().any(|socket| socket.file == Some(file)))
}

fn remove(path: &Path) -> sys::Result<()> {
    unlink(path).map_err(|errno| Error::path("remove", path, errno))
}

fn in_use(name: &SocketAddress, error: Error) -> ResourceError {
    let why = match error.errno {
        Errno(EADDRINUSE) => "another program's socket has this name",
        Errno::ENOENT => "the directory of this socket is gone",
        _ => return error.into(),
    };
    ResourceError::File {
        path: show(name),
        why: why.to_owned(),
        fix: "end that program (`ss -xlp` names it) or create the directory, then restore again".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_go_after_all_files_in_them() {
        let folder = tempfile::tempdir().unwrap();
        let outer = folder.path().join("outer");
        let paths = [outer.join("inner/first"), outer.join("second"), outer.join("inner/third")];
        let bound: Vec<Bound> = paths
            .iter()
            .map(|path| {
                let directories = make_directories(path).unwrap();
                std::fs::write(path, "").unwrap();
                Bound { path: path.clone(), is_gone: true, directories }
            })
            .collect();
        finish(bound.into_iter()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
