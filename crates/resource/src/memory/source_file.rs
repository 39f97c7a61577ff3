//! The file of a mapping: its identity, and whether it is unchanged.
//!
//! Owns: the payload that identifies a file, and opening it again.
//! Invariants: a missing file, or one with another size or time than the mapped one, is refused by name.
//! Does not: save the file's content.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, major, minor};
use sys::Error;

use super::kind::AreaOf;
use super::record::ObjectRecord;
use crate::error::{ResourceError, Result};
use crate::opener::{Opener, Refusal};
use crate::support::identity::Identity;
use tracee::procfs::Backing;

/// A file by path, with the attributes that identify it.
#[derive(Clone, PartialEq, prost::Message)]
struct SourceFile {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(uint64, tag = "2")]
    size: u64,
    #[prost(int64, tag = "3")]
    modified_s: i64,
    #[prost(uint64, tag = "4")]
    modified_ns: u64,
    #[prost(uint32, tag = "5")]
    mode: u32,
    /// Identity of the file; images of earlier versions lack it.
    #[prost(message, optional, tag = "20")]
    identity: Option<Identity>,
}

/// Whether the content must be unchanged.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sameness {
    /// Unchanged pages come from the file, so its content must be the same.
    Content,
    /// The mapping is shared: the file's present content is used, and it must be long enough.
    Identity,
}

/// The path of a mapping's file.
pub(super) fn path(of: AreaOf<'_>) -> PathBuf {
    match &of.area.backing {
        Backing::File { path, .. } => path.clone(),
        Backing::Anonymous | Backing::Kernel(_) => PathBuf::new(),
    }
}

/// Whether the path still leads to the mapped file, and not to a symbolic link in its place.
pub(super) fn is_reachable(of: AreaOf<'_>) -> bool {
    let (Backing::File { inode, device, .. }, path) = (&of.area.backing, path(of)) else { return false };
    let Ok(stat) = rustix::fs::lstat(&path) else { return false };
    if stat.st_ino != inode.get() {
        return false;
    }
    if (major(stat.st_dev), minor(stat.st_dev)) == *device {
        return true;
    }
    // Some file systems (btrfs, overlayfs) have another device in maps than in stat(2).
    match rustix::fs::stat(of.link()) {
        Ok(mapped) => (mapped.st_dev, mapped.st_ino) == (stat.st_dev, stat.st_ino),
        // Without CAP_CHECKPOINT_RESTORE, only the inode is compared.
        Err(_) => true,
    }
}

/// Identity of the mapped file, whatever its path leads to. Without the right to inspect the mapped file, that of the
/// file at its path.
fn identity(of: AreaOf<'_>, path: &Path) -> Option<Identity> {
    let name =
        |place: &Path, flags| rustix::fs::open(place, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty());
    let mapped = name(Path::new(&of.link()), OFlags::empty()).or_else(|_| name(path, OFlags::NOFOLLOW));
    Identity::of(mapped.ok()?).ok()
}

/// The payload for a mapping's file, and its length.
pub(super) fn describe(of: AreaOf<'_>) -> Result<(Vec<u8>, u64)> {
    let path = path(of);
    let stat = rustix::fs::stat(&path).map_err(|errno| Error::path("stat", &path, errno))?;
    let source = SourceFile {
        path: path.display().to_string(),
        size: stat.st_size as u64,
        modified_s: stat.st_mtime,
        modified_ns: stat.st_mtime_nsec,
        mode: stat.st_mode,
        identity: identity(of, &path),
    };
    Ok((prost::Message::encode_to_vec(&source), source.size))
}

/// Opens the file of a record after comparing it.
pub(super) fn open(
    kind: &'static str,
    record: &ObjectRecord,
    sameness: Sameness,
    opener: &Opener,
) -> Result<OwnedFd> {
    let source: SourceFile = crate::error::decode(kind, &record.payload)?;
    let path = Path::new(&source.path);
    let access = if record.writable { OFlags::RDWR } else { OFlags::RDONLY };
    let cannot = |refusal: Refusal| {
        let usual = "install the file, or restore on the machine that has it";
        refusal.of(path, "the program maps this file", usual)
    };
    let found = opener.find(path, source.identity).map_err(cannot)?;
    compare(&source, &found.stat().map_err(cannot)?, sameness)?;
    // Another file may be a named pipe or a device, whose open would block.
    found.open(access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY).map_err(cannot)
}

/// Decodes the payload of a record.
pub(super) fn check(kind: &'static str, payload: &[u8]) -> Result<()> {
    crate::error::decode::<SourceFile>(kind, payload).map(drop)
}

fn compare(source: &SourceFile, stat: &Stat, sameness: Sameness) -> Result<()> {
    let size = stat.st_size as u64;
    let modified = (stat.st_mtime, stat.st_mtime_nsec);
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if sameness == Sameness::Identity && size < source.size {
        let why = format!("the file shrank from {} to {size} bytes after the checkpoint", source.size);
        return Err(refused(&source.path, why, "put the file back as it was at the checkpoint"));
    }
    let same = size == source.size && modified == (source.modified_s, source.modified_ns);
    if sameness == Sameness::Content && is_file && !same {
        let why = "the file was changed after the checkpoint, and the program's unchanged pages come from it";
        return Err(refused(&source.path, why.to_owned(), "install the same version of the file"));
    }
    Ok(())
}

fn refused(path: impl AsRef<Path>, why: String, fix: &str) -> ResourceError {
    ResourceError::File { path: path.as_ref().display().to_string(), why, fix: fix.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(path: &Path) -> ObjectRecord {
        let stat = rustix::fs::stat(path).unwrap();
        let source = SourceFile {
            path: path.display().to_string(),
            size: stat.st_size as u64,
            modified_s: stat.st_mtime,
            modified_ns: stat.st_mtime_nsec,
            mode: stat.st_mode,
            identity: None,
        };
        ObjectRecord { payload: prost::Message::encode_to_vec(&source), ..ObjectRecord::default() }
    }

    #[test]
    fn a_changed_file_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("library");
        std::fs::write(&path, "one").unwrap();
        let record = record(&path);
        open("memory/private_file", &record, Sameness::Content, &Opener::default()).unwrap();
        std::fs::write(&path, "three").unwrap();
        let error = open("memory/private_file", &record, Sameness::Content, &Opener::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("library") && error.contains("help:"), "{error}");
        open("memory/shared_file", &record, Sameness::Identity, &Opener::default()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = open("memory/shared_file", &record, Sameness::Identity, &Opener::default())
            .unwrap_err()
            .to_string();
        assert!(error.contains("No such file"), "{error}");
    }
}
