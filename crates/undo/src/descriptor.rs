//! Operations on descriptors that all parts of this crate need.
//!
//! Owns: nothing.
//! Does not: know to which files descriptors lead.

use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::fs::AtFlags;
use rustix::io::Errno;

use crate::error::Result;

/// Returns a path that leads to the inode of a descriptor. The descriptor may be open with O_PATH.
pub(crate) fn link_of(file: impl AsFd) -> String {
    format!("/proc/thread-self/fd/{}", file.as_fd().as_raw_fd())
}

/// Reads from an offset. Returns fewer bytes than requested only at the end of the file.
pub(crate) fn read_at(file: impl AsFd, buffer: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match rustix::io::pread(&file, &mut buffer[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(read) => filled += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}

/// Removes a name that is not a directory, if the name exists. `path` is only for messages.
pub(crate) fn remove(directory: impl AsFd, name: impl rustix::path::Arg, path: &Path) -> Result<()> {
    match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(sys::Error::path("remove", path, errno).into()),
    }
}
