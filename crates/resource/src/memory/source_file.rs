//! The memory kinds of mappings of files that still exist at their paths: private mappings, and shared mappings.
//!
//! Owns: the table of these kinds, the payload that identifies a file, and opening the file again.
//! Invariants: the file is found by its identity before it is found by its path. A file counts as changed only after its
//! content was compared, if the record has a fingerprint. A restore refuses a missing file, a file that has shrunk, and
//! a changed file whose content must be unchanged. The error names the file.
//! Does not: save unchanged pages of a private mapping, which the restored mapping reads from the file. Does not save the
//! content of a shared mapping, because stores through the mapping are stores to the file.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, Stat, major, minor};
use sys::Error;

use super::kind::{Content, MappingOf, MemoryKind};
use super::record::ObjectRecord;
use crate::error::{ResourceError, Result};
use crate::opener::{Found, Opener, Refusal};
use crate::support::finding::Handle;
use crate::support::fingerprint::Fingerprint;
use crate::support::identity::Identity;
use crate::support::opening;
use tracee::procfs::Backing;

/// The path of a file, with the attributes that identify the file.
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
    /// The identity of the file; `None` in images of earlier versions.
    #[prost(message, optional, tag = "20")]
    identity: Option<Identity>,
    /// The handle of the file. `None` if the file system has no handles, and in images of earlier versions.
    #[prost(message, optional, tag = "21")]
    handle: Option<Handle>,
    /// The fingerprint of the content. `None` for a file that the program can change through the mapping, for a large
    /// file without a build ID, and in images of earlier versions.
    #[prost(message, optional, tag = "22")]
    fingerprint: Option<Fingerprint>,
}

/// The required similarity of the file and its record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sameness {
    /// The content must be unchanged, because unchanged pages of the mapping come from the file.
    Content,
    /// The mapping is shared. The restore uses the present content of the file. The file must be at least as long as
    /// at the checkpoint.
    Identity,
}

/// A memory kind of file mappings.
pub(super) struct SourceFileKind {
    name: &'static str,
    is_shared: bool,
    content: Content,
    sameness: Sameness,
}

/// Private file mappings: programs, libraries, mapped data.
pub(super) const PRIVATE_FILE: SourceFileKind = SourceFileKind {
    name: "memory/private_file",
    is_shared: false,
    content: Content::Private,
    sameness: Sameness::Content,
};

/// Shared file mappings.
pub(super) const SHARED_FILE: SourceFileKind = SourceFileKind {
    name: "memory/shared_file",
    is_shared: true,
    content: Content::None,
    sameness: Sameness::Identity,
};

impl MemoryKind for SourceFileKind {
    fn name(&self) -> &'static str {
        self.name
    }

    fn claims(&self, of: MappingOf<'_>) -> bool {
        matches!(of.mapping.backing, Backing::File { .. })
            && of.mapping.protection.shared == self.is_shared
            && !of.mapping.flags.has("ht")
            && (!self.is_shared || is_regular(of))
            && is_reachable(of)
    }

    fn content(&self, _of: MappingOf<'_>) -> Content {
        self.content
    }

    fn describe(&self, of: MappingOf<'_>) -> Result<(Vec<u8>, u64)> {
        let path = path(of);
        let stat = rustix::fs::stat(&path).map_err(|errno| Error::path("stat", &path, errno))?;
        let file = mapped_file(of, &path);
        let source = SourceFile {
            path: path.display().to_string(),
            size: stat.st_size as u64,
            modified_s: stat.st_mtime,
            modified_ns: stat.st_mtime_nsec,
            mode: stat.st_mode,
            identity: file.as_ref().and_then(|file| Identity::of(file).ok()),
            handle: file.as_ref().and_then(Handle::of),
            fingerprint: file.as_ref().and_then(|file| fingerprint(of, file, &stat)),
        };
        Ok((prost::Message::encode_to_vec(&source), source.size))
    }

    fn check(&self, record: &ObjectRecord) -> Result<()> {
        crate::error::decode::<SourceFile>(self.name, &record.payload).map(drop)
    }

    fn label(&self, record: &ObjectRecord) -> Option<String> {
        crate::support::label::first_field(&record.payload)
    }

    fn open(&self, record: &ObjectRecord, opener: &Opener) -> Result<OwnedFd> {
        let source: SourceFile = crate::error::decode(self.name, &record.payload)?;
        let access = if record.writable { OFlags::RDWR } else { OFlags::RDONLY };
        let found = find(&source, record.writable, self.sameness, opener)?;
        // Another file at the path may be a named pipe or a device. O_NONBLOCK keeps the open from blocking.
        let flags = access | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        found.open(flags).map_err(|refusal| cannot(&source, &refusal))
    }

    fn check_file(&self, record: &ObjectRecord, opener: &Opener) -> Result<()> {
        let source: SourceFile = crate::error::decode(self.name, &record.payload)?;
        find(&source, record.writable, self.sameness, opener).map(drop)
    }

    fn hold(&self, record: &ObjectRecord) -> Option<OwnedFd> {
        let source: SourceFile = crate::error::decode(self.name, &record.payload).ok()?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::open(&source.path, flags, Mode::empty()).ok()?;
        Identity::of(&file)
            .is_ok_and(|found| source.identity.is_some_and(|own| own.is_that_of(&found)))
            .then_some(file)
    }

    fn makes_objects(&self) -> bool {
        false
    }
}

/// Reports whether the path leads to a regular file. The path of a device does not count, because a device has memory
/// of its own.
fn is_regular(of: MappingOf<'_>) -> bool {
    let found = rustix::fs::stat(path(of));
    found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

/// Returns the path of a mapping's file.
pub(super) fn path(of: MappingOf<'_>) -> PathBuf {
    match &of.mapping.backing {
        Backing::File { path, .. } => path.clone(),
        Backing::Anonymous | Backing::Kernel(_) => PathBuf::new(),
    }
}

/// Reports whether the path still leads to the mapped file. A symbolic link at the path does not count.
pub(super) fn is_reachable(of: MappingOf<'_>) -> bool {
    let (Backing::File { inode, device, .. }, path) = (&of.mapping.backing, path(of)) else { return false };
    let Ok(stat) = rustix::fs::lstat(&path) else { return false };
    if stat.st_ino != inode.get() {
        return false;
    }
    if (major(stat.st_dev), minor(stat.st_dev)) == *device {
        return true;
    }
    // Some file systems (btrfs, overlayfs) show another device in `/proc/PID/maps` than in stat(2).
    match rustix::fs::stat(of.link()) {
        Ok(mapped) => (mapped.st_dev, mapped.st_ino) == (stat.st_dev, stat.st_ino),
        // Without CAP_CHECKPOINT_RESTORE, only the inode is compared.
        Err(_) => true,
    }
}

/// Opens the mapped file with O_PATH, even if the path leads to another file. Without the right to inspect the mapped
/// file, opens the file at the path.
fn mapped_file(of: MappingOf<'_>, path: &Path) -> Option<OwnedFd> {
    let name =
        |place: &Path, flags| rustix::fs::open(place, OFlags::PATH | OFlags::CLOEXEC | flags, Mode::empty());
    name(Path::new(&of.link()), OFlags::empty()).or_else(|_| name(path, OFlags::NOFOLLOW)).ok()
}

/// Returns the fingerprint of a mapped file that the mapping cannot change.
fn fingerprint(of: MappingOf<'_>, file: &OwnedFd, stat: &Stat) -> Option<Fingerprint> {
    let is_changeable = of.mapping.protection.shared && of.mapping.flags.has("mw");
    if is_changeable || FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return None;
    }
    read_fingerprint(file, stat)
}

/// Reads the fingerprint of a regular file. The file may be an O_PATH descriptor.
fn read_fingerprint(file: impl AsFd, stat: &Stat) -> Option<Fingerprint> {
    let reader = opening::reopen(file, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK).ok()?;
    Fingerprint::of(reader.as_fd(), stat.st_size as u64)
}

/// Finds the file by its identity, else by its path, and compares the file with the record.
fn find<'a>(
    source: &'a SourceFile,
    writable: bool,
    sameness: Sameness,
    opener: &'a Opener,
) -> Result<Found<'a>> {
    let cannot = |refusal: Refusal| cannot(source, &refusal);
    let path = Path::new(&source.path);
    let found =
        opener.find_anywhere(path, source.identity, source.handle.as_ref(), writable).map_err(cannot)?;
    // Another file than the mapped one is right only if it has the same content. A file that the program can write is
    // compared by `files`, as the operator has chosen.
    let is_another = source.identity.is_some_and(|identity| !found.is(&identity));
    let sameness =
        if is_another && !writable && source.fingerprint.is_some() { Sameness::Content } else { sameness };
    let stat = found.stat().map_err(cannot)?;
    compare(source, &stat, sameness, || read_fingerprint(&found, &stat))?;
    Ok(found)
}

fn cannot(source: &SourceFile, refusal: &Refusal) -> ResourceError {
    let usual = "install the file, or restore on the machine that has it";
    refusal.of(Path::new(&source.path), "the program maps this file", usual)
}

fn compare(
    source: &SourceFile,
    stat: &Stat,
    sameness: Sameness,
    now: impl FnOnce() -> Option<Fingerprint>,
) -> Result<()> {
    let size = stat.st_size as u64;
    let modified = (stat.st_mtime, stat.st_mtime_nsec);
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if sameness == Sameness::Identity && size < source.size {
        let why = format!("the file shrank from {} to {size} bytes after the checkpoint", source.size);
        return Err(refused(&source.path, why, "put the file back as it was at the checkpoint"));
    }
    if sameness == Sameness::Identity || !is_file {
        return Ok(());
    }
    let has_same_times = size == source.size && modified == (source.modified_s, source.modified_ns);
    let has_same_content =
        || size == source.size && source.fingerprint.is_some() && now() == source.fingerprint;
    if has_same_times || has_same_content() {
        return Ok(());
    }
    let why = "the file was changed after the checkpoint, and the program's unchanged pages come from it";
    let version = source.fingerprint.as_ref().map(|fingerprint| format!(" ({fingerprint})"));
    let fix = format!("install the same version of the file{}", version.unwrap_or_default());
    Err(refused(&source.path, why.to_owned(), &fix))
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
            ..SourceFile::default()
        };
        ObjectRecord { payload: prost::Message::encode_to_vec(&source), ..ObjectRecord::default() }
    }

    #[test]
    fn a_changed_file_is_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("library");
        std::fs::write(&path, "one").unwrap();
        let record = record(&path);
        PRIVATE_FILE.open(&record, &Opener::default()).unwrap();
        std::fs::write(&path, "three").unwrap();
        let error = PRIVATE_FILE.open(&record, &Opener::default()).unwrap_err().to_string();
        assert!(error.contains("library") && error.contains("help:"), "{error}");
        SHARED_FILE.open(&record, &Opener::default()).unwrap();
        std::fs::remove_file(&path).unwrap();
        let error = SHARED_FILE.open(&record, &Opener::default()).unwrap_err().to_string();
        assert!(error.contains("No such file"), "{error}");
    }
}
