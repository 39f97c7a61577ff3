//! The executable file mappings of a process.
//!
//! Owns: the selection of the compared mappings, the identity of their files, and access to files without a name.
//! Invariants: two mappings with the same [`FileId`] show the same content of the same file.
//! Does not: read pages.

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, Pid, ProcessKey};
use sys::{Error, Result};
use tracee::procfs::{self, Backing};

/// O_PATH on x86-64.
const PATH: i32 = 0o10_000_000;
/// O_DIRECT on x86-64.
pub(super) const DIRECT: i32 = 0o40000;

/// The identity of a version of a file. A change of the times or the size makes a new `FileId`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct FileId {
    device: u64,
    inode: u64,
    size: u64,
    /// Time of the last change of the content (`modified`, mtime) and of the inode (`changed`, ctime). Each time is in
    /// seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

/// An executable file mapping.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mapping {
    pub(super) process: ProcessKey,
    pub(super) range: AddressRange,
    /// The file offset of the first byte of the mapping.
    pub(super) offset: u64,
    pub(super) file: FileId,
    /// The name of the file in `/proc/PID/maps`.
    pub(super) name: PathBuf,
}

#[derive(Debug, Default)]
pub(super) struct Listing {
    pub(super) mappings: Vec<Mapping>,
    /// Size of the executable file mappings whose files cannot be identified.
    pub(super) unreadable: ByteCount,
}

impl Mapping {
    pub(super) fn page_in_file(&self, at: Address) -> u64 {
        (self.offset + (at - self.range.start).get()) / PAGE_BYTES
    }

    /// Opens the file, even if the file no longer has a name. The name can now lead to a FIFO or a device, so the file is
    /// first compared without an open.
    pub(super) fn open(&self, source: ReadSource) -> Result<File> {
        let flags = if source == ReadSource::Direct { DIRECT } else { 0 };
        let open = |path: &Path| {
            let failed = |error: std::io::Error| Error::path("open", path, error);
            let handle = OpenOptions::new().read(true).custom_flags(PATH).open(path).map_err(failed)?;
            let metadata =
                handle.metadata().map_err(|error| Error::path("read the times of", path, error))?;
            if FileId::of(&metadata) != self.file {
                return Err(Error::path("compare with", path, sys::Errno::ENOENT));
            }
            let link = format!("/proc/self/fd/{}", handle.as_raw_fd());
            OpenOptions::new().read(true).custom_flags(flags).open(link).map_err(failed)
        };
        let path = by_range(self.process.pid, self.range);
        open(&path).or_else(|_| open(&by_name(self.process.pid, &self.name)))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ReadSource {
    /// The page cache.
    Cached,
    /// The device, with direct reads.
    Direct,
}

impl FileId {
    fn of(metadata: &fs::Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.len(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

pub(super) fn list(pid: Pid) -> Result<Listing> {
    let process = procfs::key(pid)?;
    let mut listing = Listing::default();
    for listed in procfs::mappings(pid)?.into_iter().filter(is_compared) {
        match identify(pid, &listed) {
            Some((file, name)) => {
                let (range, offset) = (listed.range, listed.offset);
                listing.mappings.push(Mapping { process, range, offset, file, name });
            }
            None => listing.unreadable += listed.range.len(),
        }
    }
    Ok(listing)
}

/// Reports whether a mapping is a private, readable, executable and not writable mapping of a file. The vDSO
/// and the memory of a just-in-time compiler are not mappings of files.
fn is_compared(mapping: &procfs::Mapping) -> bool {
    let protection = mapping.protection;
    protection.read
        && protection.execute
        && !protection.write
        && !protection.shared
        && matches!(mapping.backing, Backing::File { .. })
}

fn identify(pid: Pid, mapping: &procfs::Mapping) -> Option<(FileId, PathBuf)> {
    let Backing::File { inode, path, .. } = &mapping.backing else { return None };
    let by_range = fs::metadata(by_range(pid, mapping.range));
    // The name may now belong to another file. On some file systems, the device numbers in `/proc` and of stat(2)
    // differ, so only inodes are compared.
    let by_name = || fs::metadata(by_name(pid, path)).ok().filter(|found| found.ino() == inode.get());
    let metadata = by_range.ok().or_else(by_name)?;
    metadata.is_file().then(|| (FileId::of(&metadata), path.clone()))
}

/// Returns the path of the link to a mapped file. The link works even if the file has lost its name. To follow the
/// link, a process needs CAP_SYS_ADMIN or CAP_CHECKPOINT_RESTORE.
fn by_range(pid: Pid, range: AddressRange) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", range.start.get(), range.end.get()))
}

/// Returns a path to the file by its name in the mount namespace of the process.
fn by_name(pid: Pid, name: &Path) -> PathBuf {
    let mut path = PathBuf::from(format!("/proc/{pid}/root"));
    path.push(name.strip_prefix("/").unwrap_or(name));
    path
}
