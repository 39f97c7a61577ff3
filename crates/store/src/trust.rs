//! Opening what lies in a store or an image, if no other user can have written it.
//!
//! Owns: the checks of type, owner and permission bits; opening without side effects.
//! Invariants: the last component of a path is never followed if it is a symbolic link; a FIFO, socket or device is
//! never opened; the checks are made on the descriptor that is used afterwards.
//! Does not: check the content; checksums do. They find damage, and no intent.
//!
//! Proof: `tests/trust.rs`.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use sys::Errno;

use crate::error::{Error, Result};

/// Permission bits that let others write.
const OTHERS_WRITE: u32 = 0o022;

/// How a file is opened that may have to be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// For writing at its end.
    Append,
    /// For writing; what is in it stays.
    Write,
}

/// Opens a regular file for reading. Only root or this user may own it, and only its owner may write to it.
///
/// # Errors
///
/// `Untrusted`, `Writable` or `WrongType`; `Io` with ENOENT if it does not exist.
pub fn open_file(path: &Path) -> Result<File> {
    let handle = open_handle(path)?;
    check(&handle, path, FileType::RegularFile)?;
    reopen(&handle, path, OpenOptions::new().read(true))
}

/// Opens a regular file for writing as `open_file` does, or creates it with mode 0600.
///
/// # Errors
///
/// As `open_file`, without ENOENT for the file itself.
pub fn open_or_create(path: &Path, access: Access) -> Result<File> {
    let mut options = OpenOptions::new();
    match access {
        Access::Append => options.append(true),
        Access::Write => options.write(true),
    };
    match options.clone().create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        result => return result.map_err(|error| sys::Error::path("create", path, error).into()),
    }
    let handle = open_handle(path)?;
    check(&handle, path, FileType::RegularFile)?;
    reopen(&handle, path, &options)
}

/// Opens a directory, which must be owned by root or this user, and writable by its owner only.
///
/// # Errors
///
/// As `open_file`.
pub fn open_directory(path: &Path) -> Result<File> {
    let handle = open_handle(path)?;
    check(&handle, path, FileType::Directory)?;
    let flags = OFlags::DIRECTORY.bits().cast_signed();
    reopen(&handle, path, OpenOptions::new().read(true).custom_flags(flags))
}

/// Checks a directory as `open_directory` does.
///
/// # Errors
///
/// As `open_file`.
pub fn check_directory(path: &Path) -> Result<()> {
    check(&open_handle(path)?, path, FileType::Directory)
}

/// A descriptor that names the object and does not open it.
fn open_handle(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(|errno| sys::Error::path("open", path, errno).into())
}

/// Opens the object that a handle names.
fn reopen(handle: &OwnedFd, path: &Path, options: &OpenOptions) -> Result<File> {
    let link = format!("/proc/thread-self/fd/{}", handle.as_fd().as_raw_fd());
    options.open(link).map_err(|error| sys::Error::path("open", path, error).into())
}

fn check(handle: &OwnedFd, path: &Path, wanted: FileType) -> Result<()> {
    let found = fstat(handle).map_err(|errno| sys::Error::path("inspect", path, errno))?;
    let file_type = FileType::from_raw_mode(found.st_mode);
    let path = || path.to_path_buf();
    if file_type != wanted {
        return Err(Error::WrongType {
            path: path(),
            found: described(file_type),
            wanted: described(wanted),
        });
    }
    let own = rustix::process::geteuid().as_raw();
    if found.st_uid != 0 && found.st_uid != own {
        return Err(Error::Untrusted { path: path(), owner: found.st_uid, own });
    }
    let mode = found.st_mode & 0o7777;
    if mode & OTHERS_WRITE != 0 {
        return Err(Error::Writable { path: path(), mode });
    }
    Ok(())
}

const fn described(file_type: FileType) -> &'static str {
    match file_type {
        FileType::RegularFile => "a regular file",
        FileType::Directory => "a directory",
        FileType::Symlink => "a symbolic link",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice => "a character device",
        FileType::BlockDevice => "a block device",
        FileType::Unknown => "an object of unknown type",
    }
}

/// Whether an error says that nothing is there.
#[must_use]
pub fn is_absence(error: &Error) -> bool {
    matches!(error, Error::Io(error) if error.errno == Errno::ENOENT)
}
