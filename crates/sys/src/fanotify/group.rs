//! Groups and marks of a program, as a restore creates them.
//!
//! Owns: fanotify_init(2) and fanotify_mark(2) with the flags and masks of the caller.
//! Does not: read events.
//!
//! Man page: fanotify_init(2), fanotify_mark(2)
//! Since: Linux 2.6.37
//! Probe: none; without CONFIG_FANOTIFY, a program has no group to restore
//! Fallback: none

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::error::{Error, Result, owned};

/// FAN_MARK_MOUNT.
pub const MOUNT: u32 = libc::FAN_MARK_MOUNT;
/// FAN_MARK_FILESYSTEM.
pub const FILE_SYSTEM: u32 = libc::FAN_MARK_FILESYSTEM;
/// Flags of an existing mark that also belong to the call for its mask: FAN_MARK_EVICTABLE.
pub const KEPT: u32 = 0x200;
const IGNORE: u32 = 0x400;

/// Returns the flags of the call that sets the ignore mask of a mark with these flags.
#[must_use]
pub fn ignoring(flags: u32) -> u32 {
    let kind = if flags & IGNORE != 0 { IGNORE } else { libc::FAN_MARK_IGNORED_MASK };
    kind | flags & (KEPT | libc::FAN_MARK_IGNORED_SURV_MODIFY)
}

/// Creates a group with exactly these flags. /proc shows the flags, also FAN_CLOEXEC. The descriptor of this program is
/// closed on exec in each case.
///
/// # Errors
///
/// EPERM if the calling thread lacks the rights for these flags.
pub fn create(flags: u32, event_flags: u32) -> Result<OwnedFd> {
    // SAFETY: plain numbers. The new descriptor has no other owner.
    let group = unsafe { owned(libc::fanotify_init(flags, event_flags)) };
    let group = group.map_err(|errno| Error::new("create a fanotify group", errno))?;
    rustix::io::fcntl_setfd(&group, rustix::io::FdFlags::CLOEXEC)
        .map_err(|errno| Error::new("set a fanotify group to be closed on exec", errno))?;
    Ok(group)
}

/// Adds a mark on a file, or on its mount or file system.
pub fn mark(group: BorrowedFd<'_>, flags: u32, mask: u64, file: BorrowedFd<'_>) -> Result<()> {
    super::mark(group, libc::FAN_MARK_ADD | flags, mask, file, "mark a file for fanotify:")
}
