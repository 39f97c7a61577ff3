//! Operations on descriptors that all parts of this crate need.
//!
//! Owns: nothing.
//! Does not: know to which files descriptors lead.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, SeekFrom};
use rustix::io::Errno;

use crate::error::Result;

/// Returns a path that leads to the inode of a descriptor. The descriptor may be open with O_PATH.
pub(crate) fn link_of(file: impl AsFd) -> String {
    format!("/proc/thread-self/fd/{}", file.as_fd().as_raw_fd())
}

/// Returns the path of an open file, for a message.
pub(crate) fn path_of(file: impl AsFd) -> PathBuf {
    try_path_of(file).unwrap_or_default()
}

/// Returns the path of an open file.
pub(crate) fn try_path_of(file: impl AsFd) -> rustix::io::Result<PathBuf> {
    let path = rustix::fs::readlink(link_of(file), Vec::new())?;
    Ok(PathBuf::from(OsStr::from_bytes(path.as_bytes())))
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

/// Returns the next range with data at or after an offset, clipped to `size`. Returns an empty range at the end.
pub(crate) fn data_behind(source: impl AsFd, at: u64, size: u64) -> Result<(u64, u64)> {
    let failed = |errno| sys::Error::path("look for holes in", path_of(&source), errno);
    let data = match rustix::fs::seek(&source, SeekFrom::Data(at)) {
        Ok(data) => data.min(size),
        Err(Errno::NXIO) => return Ok((size, size)),
        // A file system without SEEK_DATA shows no holes.
        Err(Errno::INVAL) => return Ok((at, size)),
        Err(errno) => return Err(failed(errno).into()),
    };
    let hole = rustix::fs::seek(&source, SeekFrom::Hole(data)).map_err(failed)?;
    Ok((data, hole.min(size)))
}
