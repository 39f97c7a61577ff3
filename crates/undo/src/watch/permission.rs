//! The rights that calls need.
//!
//! A call that the kernel refuses changes nothing, and must not be recorded. Otherwise, a rollback could revert changes
//! that other programs have made to the same file. The checks follow the kernel: `inode_permission()`, `may_delete()`,
//! `setattr_prepare()`, `xattr_permission()`, `may_linkat()` and `may_create_in_sticky()`.
//!
//! Owns: the rules for each kind of change.
//! Invariants: if the rules cannot decide, a change is permitted, and is recorded. The rollback checks the rights once
//! more.
//! Does not: detect other causes of a failure, for example a file that a process executes.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;
use sys::file_rights::{self, Access};

use super::calls::Attribute;
use super::paths::{Entry, Place};
use crate::rights::{Aspects, Owner, Rights};

/// What a call is about to do with a file or name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Need {
    /// Use the path only.
    Find,
    /// Create a name.
    Create,
    /// Remove or replace a name. The file with this name may be missing.
    Remove,
    /// Open a file for writing, or set its length.
    Write(Write),
    /// Change an attribute.
    Change(Attribute),
    /// Set the times of a file, to the present time or to explicit times.
    SetTimes { is_explicit: bool },
    /// Change the extended attribute with this name.
    ChangeExtended(Vec<u8>),
    /// Add a name to the file.
    Link,
}

/// How a call opens a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Write {
    /// Whether the call also reads the file.
    pub(super) reads: bool,
    /// Whether the call changes the file or can change the file later.
    pub(super) writes: bool,
    /// Whether the call creates the file if the file is missing (O_CREAT).
    pub(super) creates: bool,
}

/// Reports whether a thread with these rights may do something. Runs with these rights.
pub(super) fn is_permitted(rights: &Rights, place: &Place, need: &Need) -> Result<bool, Errno> {
    match (place, need) {
        (_, Need::Find) => Ok(true),
        (Place::Entry(entry), Need::Create) => permits_names(rights, entry),
        (Place::Entry(entry), Need::Remove) => may_remove(rights, entry),
        (Place::Entry(entry), Need::Write(write)) => may_open(rights, entry, *write),
        (
            Place::Entry(entry),
            Need::Change(_) | Need::SetTimes { .. } | Need::ChangeExtended(_) | Need::Link,
        ) => match entry.open() {
            Ok(file) => may_change(rights, file.as_fd(), need),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        },
        (Place::File(file), Need::Write(write)) => may_write(rights, file.as_fd(), *write),
        (Place::File(file), need) => may_change(rights, file.as_fd(), need),
    }
}

/// Reports whether a thread may move a directory to another directory. The move changes the name `..` in the directory.
pub(super) fn may_move(rights: &Rights, from: &Entry, to: &Entry) -> Result<bool, Errno> {
    let (one, other) = (rustix::fs::fstat(&from.directory)?, rustix::fs::fstat(&to.directory)?);
    let is_directory =
        from.stat()?.is_some_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
    if !is_directory || (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino) {
        return Ok(true);
    }
    let file = from.open()?;
    permits(rights, file.as_fd(), Access::WRITE)
}

fn permits_names(rights: &Rights, entry: &Entry) -> Result<bool, Errno> {
    permits(rights, entry.directory.as_fd(), Access::CHANGE_NAMES)
}

fn may_remove(rights: &Rights, entry: &Entry) -> Result<bool, Errno> {
    let directory = rustix::fs::fstat(&entry.directory)?;
    let Some(file) = entry.stat()? else { return permits_names(rights, entry) };
    let is_kept_out = rights.is_kept_out(directory.st_mode, Owner::from(&directory), Owner::from(&file));
    Ok(!is_kept_out && permits(rights, entry.directory.as_fd(), Access::CHANGE_NAMES)?)
}

fn may_open(rights: &Rights, entry: &Entry, write: Write) -> Result<bool, Errno> {
    let file = match entry.open() {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(!write.creates || permits_names(rights, entry)?),
        Err(errno) => return Err(errno),
    };
    if write.creates && is_protected(rights, entry, &rustix::fs::fstat(&file)?)? {
        return Ok(false);
    }
    may_write(rights, file.as_fd(), write)
}

fn may_write(rights: &Rights, file: BorrowedFd<'_>, write: Write) -> Result<bool, Errno> {
    let access = if write.reads { Access::READ_WRITE } else { Access::WRITE };
    if write.writes { permits(rights, file, access) } else { Ok(true) }
}

/// Reports whether `fs.protected_regular` prevents open(2) with O_CREAT of an existing file of another user in a sticky
/// directory. No capability helps.
fn is_protected(rights: &Rights, entry: &Entry, file: &Stat) -> Result<bool, Errno> {
    const STICKY: u32 = 0o1000;
    const OTHERS_WRITE: u32 = 0o002;
    const GROUP_WRITES: u32 = 0o020;
    let directory = rustix::fs::fstat(&entry.directory)?;
    let is_own = file.st_uid == directory.st_uid || file.st_uid == rights.files.user;
    let is_regular = FileType::from_raw_mode(file.st_mode) == FileType::RegularFile;
    if directory.st_mode & STICKY == 0 || is_own || !is_regular {
        return Ok(false);
    }
    let level = setting("/proc/sys/fs/protected_regular");
    Ok((level >= 1 && directory.st_mode & OTHERS_WRITE != 0)
        || (level >= 2 && directory.st_mode & GROUP_WRITES != 0))
}

/// Reads a setting of the kernel. A setting that does not exist protects nothing.
fn setting(path: &str) -> u32 {
    std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

fn may_change(rights: &Rights, file: BorrowedFd<'_>, need: &Need) -> Result<bool, Errno> {
    let stat = rustix::fs::fstat(file)?;
    let owner = Owner::from(&stat);
    match need {
        Need::Change(Attribute::Mode | Attribute::Flags) => Ok(rights.owns(owner)),
        Need::Change(Attribute::Owner { user: None, group: None }) => Ok(rights.owns(owner)),
        Need::Change(Attribute::Owner { user, group }) => Ok(rights.may_give(owner, *user, *group)),
        Need::SetTimes { is_explicit: true } => Ok(rights.owns(owner)),
        // A thread that may write the file may set the times to the present time.
        Need::SetTimes { is_explicit: false } => {
            Ok(rights.owns(owner) || permits(rights, file, Access::WRITE)?)
        }
        Need::ChangeExtended(name) => may_change_extended(rights, file, &stat, name),
        Need::Link => may_link(rights, file, &stat),
        Need::Change(Attribute::Times { .. } | Attribute::Extended(_))
        | Need::Find
        | Need::Create
        | Need::Remove
        | Need::Write(_) => Ok(true),
    }
}

fn may_change_extended(
    rights: &Rights,
    file: BorrowedFd<'_>,
    stat: &Stat,
    name: &[u8],
) -> Result<bool, Errno> {
    const STICKY: u32 = 0o1000;
    let owner = Owner::from(stat);
    if name.starts_with(b"system.") {
        return Ok(rights.owns(owner));
    }
    if Aspects::of_extended(name) == Aspects::PRIVILEGED {
        return Ok(rights.may_set_privileged(name, owner));
    }
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory if stat.st_mode & STICKY == 0 || rights.owns(owner) => {}
        _ => return Ok(false),
    }
    permits(rights, file, Access::WRITE)
}

/// Applies `fs.protected_hardlinks`.
fn may_link(rights: &Rights, file: BorrowedFd<'_>, stat: &Stat) -> Result<bool, Errno> {
    const SET_USER_ID: u32 = 0o4000;
    const SET_GROUP_ID: u32 = 0o2010;
    if rights.owns(Owner::from(stat)) || setting("/proc/sys/fs/protected_hardlinks") == 0 {
        return Ok(true);
    }
    let is_safe = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
        && stat.st_mode & SET_USER_ID == 0
        && stat.st_mode & SET_GROUP_ID != SET_GROUP_ID;
    Ok(is_safe && permits(rights, file, Access::READ_WRITE)?)
}

/// Asks the kernel for access to a file.
fn permits(rights: &Rights, file: BorrowedFd<'_>, access: Access) -> Result<bool, Errno> {
    let overrides = |stat: Stat| rights.has(file_rights::DAC_OVERRIDE, Owner::from(&stat));
    if rights.namespace.is_some() && overrides(rustix::fs::fstat(file)?) {
        return Ok(true);
    }
    file_rights::permits(file, access).map_err(|error| Errno::from_raw_os_error(error.errno.0))
}
