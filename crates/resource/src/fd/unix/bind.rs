//! Binds a Unix socket to its address, and gives the socket's file its present names.
//!
//! Owns: the bind(2) inside a private directory, moving the file to its names, and the refusal if another file has a
//! name.
//! Invariants: the address is the saved address, byte for byte, whatever the present name of the file. The file gets
//! its names when all sockets are connected. An existing socket file is replaced only if no socket is bound to it,
//! and is put back if the restore fails. If another user could have replaced a directory since the checkpoint, the
//! restore is refused.
//! Does not: find the names; `names` does.

use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Stat, chmod, fstat, linkat, mkdirat};
use rustix::io::Errno as E;
use sys::socket::{self, SocketAddress};
use sys::{Errno, Error, working_directory};

use super::super::held_listener;
use super::super::socket_family::{AF_UNIX, SOCK_DGRAM};
use super::state::{BoundFile, Place, is_path, show, text};
use crate::error::{ResourceError, Result};
use crate::shared::Shared;
use crate::support::making::{self, Ownership, Placed, PrivateDirectory};
use crate::support::opening::own_link;
use crate::support::path;

pub(super) const EADDRINUSE: i32 = 98;
const ECONNREFUSED: i32 = 111;
/// Mode bits that permit writes by group and others. In a sticky directory, these users cannot rename files of
/// another owner.
const OTHERS_WRITE: u32 = 0o022;
const STICKY: u32 = 0o1000;
const LINK: &str = ".link";

/// How a bound socket is reached while the other sockets are built.
#[derive(Debug, Default)]
pub(super) struct Bound {
    /// The file of a socket that the restore has bound; `None` for an address that is not a path.
    file: Option<PrivateFile>,
    /// The file of a kept listener. The file has its names already.
    kept: Option<OwnedFd>,
}

/// The file of a socket. It is in a private directory until all sockets are connected.
#[derive(Debug)]
struct PrivateFile {
    private: PrivateDirectory,
    /// Path of the file inside the directory.
    inside: PathBuf,
    file: OwnedFd,
    saved: Option<BoundFile>,
}

impl Bound {
    /// Returns how a kept listener is reached. Its address can be relative to a working directory of the program.
    pub(super) fn of_kept(listener: BorrowedFd<'_>) -> Result<Self> {
        Ok(Self { file: None, kept: socket::bound_file(listener)? })
    }

    /// Returns an address that leads to the socket in every process with the descriptors of this process.
    pub(super) fn address(&self, name: &SocketAddress) -> SocketAddress {
        let file = self.file.as_ref().map(|private| &private.file).or(self.kept.as_ref());
        file.map_or_else(|| name.clone(), |file| address_of(file.as_fd()))
    }
}

fn address_of(file: BorrowedFd<'_>) -> SocketAddress {
    let mut bytes = (AF_UNIX as u16).to_ne_bytes().to_vec();
    bytes.extend(own_link(file).as_bytes());
    bytes.push(0);
    SocketAddress(bytes)
}

/// Binds a socket. Until [`finish`], the file of the socket is reached only through the returned value.
pub(super) fn bind(socket: BorrowedFd<'_>, name: &SocketAddress, file: Option<&BoundFile>) -> Result<Bound> {
    if !is_path(name) {
        socket::bind(socket, name).map_err(|error| in_use(name, error))?;
        return Ok(Bound::default());
    }
    let saved = file.filter(|file| !file.gone).cloned();
    let private = match saved.as_ref().and_then(BoundFile::first) {
        Some(place) => private_beside(&place, saved.as_ref())?,
        // The name of the file was removed, or the file belongs to another program.
        None => {
            let last = file.map(|file| path::from_bytes(&file.path));
            PrivateDirectory::near(&last.unwrap_or_else(|| std::env::temp_dir().join("socket")))?
        }
    };
    let inside = make_parents(&private, Path::new(OsStr::from_bytes(text(name))))?;
    working_directory::within_root(private.directory(), || socket::bind(socket, name))
        .map_err(|error| needs_root(name, error))??;
    let file = private.open(&inside)?;
    // Any user of the subject must be able to connect again. The private directory keeps other users out.
    chmod(own_link(&file), Mode::from_raw_mode(0o666))
        .map_err(|errno| Error::path("set the mode of", &inside, errno))?;
    Ok(Bound { file: Some(PrivateFile { private, inside, file, saved }), kept: None })
}

/// Binds a temporary listener of past connections. If another file has the listener's name, the listener is bound
/// without a name. Otherwise, does the same as [`bind`].
pub(super) fn bind_passing(
    socket: BorrowedFd<'_>,
    name: &SocketAddress,
    file: Option<&BoundFile>,
) -> Result<Bound> {
    let is_free = |file: &&BoundFile| rustix::fs::lstat(path::from_bytes(&file.path).as_path()).is_err();
    bind(socket, name, file.filter(is_free))
}

/// Sets owner, mode and names of the files, after all connections were made. Removes files without a name. A file of
/// one of the `held` sockets, which were kept open for the program, is no file of another program.
pub(super) fn finish(
    bound: impl Iterator<Item = Bound>,
    held: &[OwnedFd],
    shared: &mut Shared,
) -> Result<()> {
    for PrivateFile { private, inside, file, saved } in bound.filter_map(|one| one.file) {
        let Some((saved, first)) = saved.and_then(|saved| saved.first().map(|first| (saved, first))) else {
            continue;
        };
        let owner = Ownership { mode: saved.mode, user: saved.user, group: saved.group };
        owner
            .give(file.as_fd())
            .map_err(|errno| Error::path("set owner and mode of", first.path(), errno))?;
        for other in &saved.others {
            let private = private_beside(other, Some(&saved))?;
            linkat(CWD, own_link(&file), private.directory(), LINK, AtFlags::SYMLINK_FOLLOW)
                .map_err(|errno| Error::path("link", other.path(), errno))?;
            shared.placed.push(put(private, Path::new(LINK), other, held)?);
        }
        shared.placed.push(put(private, &inside, &first, held)?);
    }
    Ok(())
}

fn put(private: PrivateDirectory, from: &Path, place: &Place, held: &[OwnedFd]) -> Result<Placed> {
    let path = place.path();
    let name = path.file_name().unwrap_or_default();
    Placed::new(private, from, name, |old| may_replace(old, &path, held))
}

/// Creates the directories of a socket's address below a private directory, which serves as root directory for
/// bind(2). Returns the path of the address inside the private directory.
fn make_parents(private: &PrivateDirectory, address: &Path) -> Result<PathBuf> {
    let mut inside = PathBuf::new();
    for component in address.components() {
        match component {
            Component::Normal(name) => {
                if !inside.as_os_str().is_empty() {
                    match mkdirat(private.directory(), &inside, Mode::RWXU) {
                        Ok(()) | Err(E::EXIST) => {}
                        Err(errno) => return Err(Error::path("create", &inside, errno).into()),
                    }
                }
                inside.push(name);
            }
            Component::ParentDir => drop(inside.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    Ok(inside)
}

/// Creates a private directory beside a name.
fn private_beside(place: &Place, file: Option<&BoundFile>) -> Result<PrivateDirectory> {
    let path = place.path();
    let parent = path.parent().unwrap_or(Path::new("/"));
    let directory = making::open_directory(parent).map_err(|errno| no_directory(&path, errno))?;
    let stat = fstat(&directory).map_err(|errno| Error::path("inspect", parent, errno))?;
    let user = file.map_or(0, |file| file.user);
    if (stat.st_dev, stat.st_ino) != (place.device, place.inode) && !may_differ(parent, &stat, user) {
        return Err(refuse(
            &path,
            "the path of this socket's directory leads to another directory, and other users can replace it",
            "let only root write to the directories above it, or make the owner of the socket its owner",
        ));
    }
    Ok(PrivateDirectory::new(directory, parent)?)
}

/// Reports whether a directory may differ from the directory at the checkpoint. A different directory is permitted if
/// the socket's owner owns it, or if only the restoring user and root can have replaced it.
fn may_differ(path: &Path, directory: &Stat, user: u32) -> bool {
    let own = rustix::process::geteuid();
    let is_trusted = |stat: &Stat| {
        (stat.st_uid == 0 || stat.st_uid == own.as_raw())
            && (stat.st_mode & OTHERS_WRITE == 0 || stat.st_mode & STICKY != 0)
    };
    let above = |path: &Path| making::open_directory(path).and_then(fstat);
    !own.is_root()
        || (directory.st_uid == user && user != 0)
        || path.ancestors().all(|one| above(one).is_ok_and(|stat| is_trusted(&stat)))
}

/// Permits replacing a file only if it is a socket file without a bound socket, or the file of a held socket. A held
/// socket that was not taken has another type or another state than the socket of the checkpoint.
fn may_replace(old: &OwnedFd, path: &Path, held: &[OwnedFd]) -> Result<()> {
    let named = [path.to_owned()];
    if held.iter().any(|socket| held_listener::has_its_file(socket, &named)) {
        return Ok(());
    }
    if !making::is_a(old.as_fd(), FileType::Socket) {
        return Err(refuse(
            path,
            "another file now has the name of the program's socket",
            "move the file away, then restore again",
        ));
    }
    if is_bound(old)? {
        return Err(refuse(
            path,
            "a socket of another program has this name",
            "end that program (`ss -xlp` lists it), then restore again",
        ));
    }
    Ok(())
}

/// Reports whether a socket is bound to a file. Probes with connect(2) on a datagram socket, which has no effect on
/// the bound socket. For a bound socket of another type, connect(2) returns EPROTOTYPE.
fn is_bound(file: &OwnedFd) -> Result<bool> {
    let probe = socket::create(AF_UNIX, SOCK_DGRAM, 0)?;
    let outcome = socket::connect(probe.as_fd(), &address_of(file.as_fd()));
    Ok(outcome.err().is_none_or(|error| error.errno != Errno(ECONNREFUSED)))
}

fn refuse(path: &Path, why: &str, fix: &str) -> ResourceError {
    ResourceError::File { path: path.display().to_string(), why: why.to_owned(), fix: fix.to_owned() }
}

fn no_directory(path: &Path, errno: E) -> ResourceError {
    match errno {
        E::NOENT => {
            refuse(path, "the directory of this socket does not exist", "create it, then restore again")
        }
        E::LOOP | E::NOTDIR => refuse(
            path,
            "a directory in this socket's path is now a symbolic link or a file",
            "put the directory back, then restore again",
        ),
        errno => Error::path("open the directory of", path, errno).into(),
    }
}

fn needs_root(name: &SocketAddress, error: Error) -> ResourceError {
    match error.errno {
        Errno::EPERM => refuse(
            Path::new(&show(name)),
            "binding a socket to this path needs a change of the root directory: EPERM",
            "restore as root (CAP_SYS_CHROOT)",
        ),
        _ => error.into(),
    }
}

fn in_use(name: &SocketAddress, error: Error) -> ResourceError {
    match error.errno {
        Errno(EADDRINUSE) => refuse(
            Path::new(&show(name)),
            "a socket of another program has this name",
            "end that program (`ss -xlp` lists it), then restore again",
        ),
        _ => error.into(),
    }
}
