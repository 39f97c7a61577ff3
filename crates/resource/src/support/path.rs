//! The name of the file of an open file description.
//!
//! Owns: reading the link of a duplicate inside the pause, and distinguishing removed names from existing names.
//! Invariants: a file named `x (deleted)` is not mistaken for a deleted file.
//! Does not: open files.

use std::ffi::{CStr, OsStr};
use std::io::Write as _;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Stat};
use sys::{Errno, Error, Result};

use super::outside;
use crate::fd::description::{Description, Known};
use crate::fd::scope::CaptureScope;
use crate::obstacle::Obstacle;

const MARK: &[u8] = b" (deleted)";
/// The maximum length of a link in bytes. The kernel prints no longer link.
const LINK_BYTES_MAX: usize = 4096;
/// The size of the buffer for the path of a link, including the terminator, in bytes.
const PATH_BYTES_MAX: usize = 32;

/// The name of a file, and whether the name still leads to the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Name {
    /// The name leads to the file.
    Live(PathBuf),
    /// The name was removed. Another file may have the name now.
    Gone(PathBuf),
    /// The link is not a path, because the kernel created the file without a name.
    None,
}

impl Name {
    /// Interprets a link of `/proc/PID/fd`, for the file with this `stat`.
    pub(crate) fn new(link: &[u8], stat: &Stat) -> Self {
        let path = |bytes: &[u8]| PathBuf::from(OsStr::from_bytes(bytes));
        if link.first() != Some(&b'/') {
            return Self::None;
        }
        match link.strip_suffix(MARK) {
            Some(name) if !leads_to(&path(link), stat) => Self::Gone(path(name)),
            _ => Self::Live(path(link)),
        }
    }

    /// Returns the name that a description had when the description was listed.
    pub(crate) fn of(description: &Known) -> Self {
        Self::new(description.info.target.as_os_str().as_bytes(), &description.stat)
    }

    /// Returns the path, whether or not the path exists.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Live(path) | Self::Gone(path) => path,
            Self::None => Path::new(""),
        }
    }
}

/// Reports whether a path leads to the file with this `stat`.
pub(crate) fn leads_to(path: &Path, stat: &Stat) -> bool {
    let is_link = FileType::from_raw_mode(stat.st_mode) == FileType::Symlink;
    let found = if is_link { rustix::fs::lstat(path) } else { rustix::fs::stat(path) };
    found.is_ok_and(|found| (found.st_dev, found.st_ino) == (stat.st_dev, stat.st_ino))
}

/// Returns an obstacle if the path of a file leads to another file, or to no file, in the mount namespace of this
/// process.
pub(crate) fn unreachable(description: &Description, path: &Path, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
    if leads_to(path, &description.stat) || scope.is_inherited(&description.stat) || was_moved(description) {
        return Vec::new();
    }
    vec![description.obstacle(
        "file",
        "its path leads to no file or another file here: the program has its own mount namespace",
        "run undying inside the program's mount namespace (nsenter --mount)",
    )]
}

/// Reports whether the file was renamed or removed after the description was listed. Returns `false` if the present
/// state of the file is unknown.
fn was_moved(description: &Description) -> bool {
    let mut link = Link::new();
    let (Ok(()), Ok(stat)) = (link.read(description), rustix::fs::fstat(&description.duplicate)) else {
        return false;
    };
    match Name::new(link.bytes(), &stat) {
        Name::Live(path) => leads_to(&path, &stat),
        Name::Gone(_) => true,
        Name::None => false,
    }
}

/// The link of a duplicate descriptor. Each read reuses the same buffer.
#[derive(Debug)]
pub(crate) struct Link {
    buffer: Vec<u8>,
    length: usize,
}

impl Link {
    /// Allocates the buffer.
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; LINK_BYTES_MAX], length: 0 }
    }

    /// Reads the link of a duplicate descriptor, without allocation.
    pub(crate) fn read(&mut self, duplicate: impl AsFd) -> Result<()> {
        let mut path = [0; PATH_BYTES_MAX];
        let number = duplicate.as_fd().as_raw_fd();
        // The buffer is large enough for every fd.
        let _ = write!(path.as_mut_slice(), "/proc/self/fd/{number}");
        let path = CStr::from_bytes_until_nul(&path).unwrap_or_default();
        let read = rustix::fs::readlinkat_raw(CWD, path, &mut self.buffer[..]);
        self.length = read.map_err(|errno| {
            Error::path("read the link", path.to_string_lossy().as_ref(), Errno::from(errno))
        })?;
        Ok(())
    }

    /// Returns the link that was read last.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

/// Converts a path to bytes, for a record.
pub(crate) fn to_bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().as_bytes().to_vec()
}

/// Converts the bytes of a record to a path.
pub(crate) fn from_bytes(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsStr::from_bytes(bytes))
}

/// Describes a process outside the subject that has the file open with flags that satisfy `fits`.
pub(crate) fn other_holder(
    description: &Description,
    scope: &CaptureScope<'_>,
    fits: impl Fn(u32) -> bool,
) -> String {
    outside::describe(outside::holder_with(scope, description.target(), fits))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    fn name_of(file: &File) -> Name {
        let mut link = Link::new();
        link.read(file).unwrap();
        Name::new(link.bytes(), &rustix::fs::fstat(file).unwrap())
    }

    #[test]
    fn only_a_removed_name_is_reported_as_gone() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let odd = folder.join("log (deleted)");
        let file = File::create(&odd).unwrap();
        assert_eq!(name_of(&file), Name::Live(odd.clone()));
        std::fs::remove_file(&odd).unwrap();
        assert_eq!(name_of(&file), Name::Gone(odd.clone()));
        let other = File::create(&odd).unwrap();
        assert_eq!(name_of(&file), Name::Gone(odd.clone()));
        assert_eq!(name_of(&other), Name::Live(odd));
        let (reader, _writer) = rustix::pipe::pipe().unwrap();
        let stat = rustix::fs::fstat(&reader).unwrap();
        assert_eq!(Name::new(b"pipe:[1]", &stat), Name::None);
    }
}
