//! Opens files and directories of a store or an image, if no other user can have written to them.
//!
//! Owns: the checks of type, owner and permission bits; opening without side effects.
//! Invariants: a symbolic link as the last component of a path is never followed. A FIFO, socket or device is never
//! opened. The checks use the same descriptor that is used afterwards.
//! Does not: check the content; checksums do. Checksums detect damage, but not deliberate changes.
//!
//! Proof: `tests/all/trust.rs`.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use sys::Errno;

use crate::error::{Error, Result};

/// Permission bits that let the group or other users write.
const OTHERS_WRITE: u32 = 0o022;

/// The access mode of a file that may have to be created.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Opens the file for appending.
    Append,
    /// Opens the file for writing, without truncation.
    Write,
}

/// Opens a regular file for reading. The file must belong to root or to the effective user of this process. Only the
/// owner of the file may have the permission to write.
///
/// # Errors
///
/// Returns `Untrusted`, `Writable` or `WrongType`; or `Io` with ENOENT if the file does not exist.
pub fn open_file(path: &Path) -> Result<File> {
    let handle = open_handle(path)?;
    check(&handle, path, FileType::RegularFile)?;
    reopen(&handle, path, OpenOptions::new().read(true))
}

/// Opens a regular file for writing with the checks of `open_file`, or creates the file with mode 0600.
///
/// # Errors
///
/// Returns the errors of `open_file`, except ENOENT for the file itself.
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

/// Opens a directory. The directory must belong to root or to the effective user of this process. Only the owner of the
/// directory may have the permission to write.
///
/// # Errors
///
/// Returns the errors of `open_file`.
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
/// Returns the errors of `open_file`.
pub fn check_directory(path: &Path) -> Result<()> {
    check(&open_handle(path)?, path, FileType::Directory)
}

/// Returns an `O_PATH` descriptor, which names the object without opening it.
fn open_handle(path: &Path) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(CWD, path, flags, Mode::empty()).map_err(|errno| sys::Error::path("open", path, errno).into())
}

/// Opens the object that an `O_PATH` descriptor names.
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

/// Reports whether the error means that the file does not exist.
#[must_use]
pub fn is_absence(error: &Error) -> bool {
    matches!(error, Error::Io(error) if error.errno == Errno::ENOENT)
}
