//! Reopens the file of an open file description with other flags.
//!
//! Owns: the status flags that are passed to open(2), and reopening through `/proc/self/fd`.
//! Invariants: an open never creates, truncates or blocks, and never sets a controlling terminal.
//! Does not: set flags that fcntl(2) can change later; `fd::envelope` does.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use sys::{Error, Result};

/// Flags of a saved description that only open(2) can set.
const OPEN_ONLY: OFlags = OFlags::RWMODE
    .union(OFlags::SYNC)
    .union(OFlags::DSYNC)
    .union(OFlags::PATH)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::DIRECTORY)
    .union(OFlags::LARGEFILE);
/// Flags that open(2) and fcntl(2) can set. The file system checks these flags at once if they are passed to open(2).
const EITHER: OFlags = OFlags::APPEND.union(OFlags::DIRECT).union(OFlags::NOATIME);
/// O_TMPFILE, which includes O_DIRECTORY. A file that was created with O_TMPFILE is not a directory.
const TEMPORARY: OFlags = OFlags::TMPFILE;

/// Returns the flags for reopening a description with the flags `saved`.
pub(crate) fn flags_for(saved: u32) -> OFlags {
    let saved = OFlags::from_bits_retain(saved);
    if saved.contains(OFlags::PATH) {
        return (saved & (OFlags::PATH | OFlags::NOFOLLOW | OFlags::DIRECTORY)) | OFlags::CLOEXEC;
    }
    let kept = if saved.contains(TEMPORARY) { saved - TEMPORARY } else { saved };
    (kept & (OPEN_ONLY | EITHER)) | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK
}

/// Returns only the access mode bits of `flags`.
pub(crate) fn access_mode(flags: u32) -> OFlags {
    OFlags::from_bits_retain(flags) & OFlags::RWMODE
}

/// Reports whether a description is open for reading.
pub(crate) fn may_read(flags: u32) -> bool {
    !is_path_only(flags) && matches!(access_mode(flags), OFlags::RDONLY | OFlags::RDWR)
}

/// Reports whether a description is open for writing.
pub(crate) fn may_write(flags: u32) -> bool {
    !is_path_only(flags) && matches!(access_mode(flags), OFlags::WRONLY | OFlags::RDWR)
}

/// Reports whether a description was opened with O_PATH.
pub(crate) fn is_path_only(flags: u32) -> bool {
    OFlags::from_bits_retain(flags).contains(OFlags::PATH)
}

/// Opens a new readable description of the same file, whatever the access mode of the subject's description. The
/// subject is the protected program.
pub(crate) fn reader(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    reopen(file, flags | OFlags::NOATIME).or_else(|_| reopen(file, flags))
}

/// Opens a path with the given flags.
pub(crate) fn open(path: &Path, flags: OFlags) -> Result<OwnedFd> {
    rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| Error::path("open", path, errno))
}

/// Opens the file of a descriptor of this process as a new description.
pub(crate) fn reopen(file: impl AsFd, flags: OFlags) -> Result<OwnedFd> {
    let path = own_link(file);
    // The path is a symbolic link, which O_NOFOLLOW would refuse.
    let flags = flags - OFlags::NOFOLLOW;
    rustix::fs::open(&path, flags, Mode::empty()).map_err(|errno| Error::path("reopen", &path, errno))
}

/// Returns an O_PATH descriptor of the nearest directory above a path that exists. Follows no symbolic link.
pub(crate) fn directory_above(path: &Path) -> std::result::Result<OwnedFd, rustix::io::Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut last = rustix::io::Errno::NOENT;
    for above in path.ancestors().skip(1) {
        match openat2(CWD, above, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            Ok(found) => return Ok(found),
            Err(errno) => last = errno,
        }
    }
    Err(last)
}

/// Returns the path in `/proc` of a descriptor of this process.
pub(crate) fn own_link(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn creation_flags_are_never_passed_to_open() {
        let dangerous = OFlags::CREATE | OFlags::TRUNC | OFlags::EXCL;
        let saved = OFlags::RDWR | dangerous | OFlags::APPEND | OFlags::SYNC;
        let flags = flags_for(saved.bits());
        assert!(!flags.intersects(dangerous));
        assert!(flags.contains(OFlags::RDWR | OFlags::APPEND | OFlags::SYNC | OFlags::NOCTTY));
        let temporary = flags_for((OFlags::TMPFILE | OFlags::RDWR).bits());
        assert!(!temporary.intersects(OFlags::DIRECTORY));
        let named = flags_for((OFlags::PATH | OFlags::NOFOLLOW).bits());
        assert_eq!(named, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC);
    }
}
