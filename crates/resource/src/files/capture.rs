//! Records the state of files that the subject can change.
//!
//! A restore compares each file with its record, to find out whether the file still matches the restored memory. A
//! record contains identity, length and times of a file, and for some files a checksum or the content. The records
//! are created inside the pause of a checkpoint, while all threads of the subject are stopped.
//!
//! Owns: the selection of the descriptors and mappings whose files are recorded, and of the recorded content.
//! Invariants: a file has one record, even if several descriptors and mappings refer to the file. No operation
//! blocks, or breaks a lease of the subject.
//! Does not: compare files with their records; `compare` does.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::Inode;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use tracee::procfs::{Backing, Mapping};

use super::directory::{Directories, DirectoryRecord};
use super::record::{Effect, FileRecord};
use super::sample;
use super::times::Clock;
use crate::error::Result;
use crate::fd::description::Description;
use crate::fd::envelope::Envelope;
use crate::memory::ObjectKey;
use crate::support::content::DATA_BYTES_MAX;
use crate::support::file_system::is_pseudo;
use crate::support::finding::Handle;
use crate::support::identity::Identity;
use crate::support::opening::{self, is_path_only, may_read, may_write};
use crate::support::path::{Link, Name};
use crate::support::tmpfs;

/// A file that the subject maps with MAP_SHARED, if the mapping is writable or can become writable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MappedForWriting {
    /// Device and inode of the file, as in `/proc/PID/maps`.
    pub key: ObjectKey,
    /// The path of the file. The path has the suffix ` (deleted)` if the name of the file was removed.
    pub path: PathBuf,
    /// `true` if a mapping of the file is writable now. `false` if mprotect(2) is needed before a write.
    pub is_writable: bool,
}

/// Collects the file records of one checkpoint.
#[derive(Debug)]
pub struct FileStates {
    found: HashMap<(u64, Inode), FileRecord>,
    /// Mapped files: device number and inode, as in `/proc/PID/maps`.
    mapped: HashSet<((u32, u32), Inode)>,
    /// The mapped files, except files that are known to be memory files (files on a tmpfs).
    mapped_for_writing: Vec<MappedForWriting>,
    directories: HashMap<PathBuf, DirectoryRecord>,
    link: Link,
    clock: Clock,
    ends_subject: bool,
}

impl FileStates {
    /// Starts the records of one checkpoint. `ends_subject` is `true` if the subject is killed after the commit.
    #[must_use]
    pub fn begin(ends_subject: bool) -> Self {
        Self {
            found: HashMap::new(),
            mapped: HashSet::new(),
            mapped_for_writing: Vec::new(),
            directories: HashMap::new(),
            link: Link::new(),
            clock: Clock::now(),
            ends_subject,
        }
    }

    /// Adds a record for the file of a description. Does nothing if the file is not regular, has no name, or cannot
    /// be written through the description.
    ///
    /// `leased` is `true` if the subject has a lease on the file. The file is then not opened, because an open would
    /// break the lease.
    ///
    /// # Errors
    ///
    /// Returns an error if the description cannot be inspected.
    pub fn add(
        &mut self,
        description: &Description,
        envelope: &Envelope,
        inherited: bool,
        leased: bool,
    ) -> Result<()> {
        if FileType::from_raw_mode(description.stat.st_mode) != FileType::RegularFile
            || is_path_only(envelope.flags)
            || !may_write(envelope.flags)
        {
            return Ok(());
        }
        let file = description.duplicate.as_fd();
        let stat = rustix::fs::fstat(file)
            .map_err(|errno| sys::Error::descriptor("inspect", description.pid, description.fd, errno))?;
        if stat.st_nlink == 0 || is_pseudo(file) || (!inherited && has_saved_content(file, &stat)) {
            return Ok(());
        }
        self.link.read(description)?;
        // If this name of the file was removed, the descriptor kind `fd/deleted` saves the file, even if the file has
        // other names.
        let Name::Live(path) = Name::new(self.link.bytes(), &stat) else { return Ok(()) };
        let appends = appends_only(envelope.flags, envelope.position, stat.st_size as u64);
        let ends = if appends && !leased { self.ends(description, envelope.flags, &stat) } else { None };
        let record = self.record(&path, &stat, file);
        record.in_place |= !appends;
        record.positioned |= envelope.flags & OFlags::APPEND.bits() == 0;
        record.inherited |= inherited;
        record.ends = ends.or(record.ends);
        self.make_durable(file, &stat);
        Ok(())
    }

    /// Adds a record for the file of a mapping. Does nothing if the mapping is private, or can never become writable.
    /// A file to which no path leads gets no record, and is only listed in [`Self::mapped_for_writing`].
    pub fn add_mapping(&mut self, mapping: &Mapping) {
        let Backing::File { device, inode, path } = &mapping.backing else { return };
        if !mapping.protection.shared || !(mapping.protection.write || mapping.flags.has("mw")) {
            return;
        }
        // Each file is opened once, even if the file has several mappings.
        if !self.mapped.insert((*device, *inode)) {
            let key = ObjectKey::of(mapping).filter(|_| mapping.protection.write);
            let known = self.mapped_for_writing.iter_mut().find(|known| Some(known.key) == key);
            known.into_iter().for_each(|known| known.is_writable = true);
            return;
        }
        let seen = open_mapped(path, *inode);
        // If the file cannot be opened by its path, it is unknown whether the file is a memory file.
        let may_be_regular = match &seen {
            Some((file, stat)) => !is_on_tmpfs(file, stat),
            None => !is_no_data(path, *inode),
        };
        if may_be_regular && let Some(key) = ObjectKey::of(mapping) {
            let is_writable = mapping.protection.write;
            self.mapped_for_writing.push(MappedForWriting { key, path: path.clone(), is_writable });
        }
        let Some((file, stat)) = seen else { return };
        let key = (stat.st_dev, *inode);
        if is_on_tmpfs(&file, &stat) {
            // The memory kinds (code that saves mappings) save the content of a mapped tmpfs file, whatever its size.
            self.found.remove(&key);
            return;
        }
        if self.found.get(&key).is_some_and(|record| record.mapped) {
            return;
        }
        let content = sample::content(file.as_fd(), stat.st_size as u64);
        let is_only_mapped = !self.found.contains_key(&key);
        let record = self.record(path, &stat, file.as_fd());
        record.mapped = true;
        record.whole = content.as_deref().map(sample::sum);
        if is_only_mapped {
            record.content = content.filter(|content| content.len() as u64 <= sample::KEPT_BYTES_MAX);
        }
        self.make_durable(file.as_fd(), &stat);
    }

    /// Makes the content of a recorded file durable if the checkpoint ends the subject. Otherwise, a wait for the disk
    /// would extend the pause.
    fn make_durable(&mut self, file: BorrowedFd<'_>, stat: &Stat) {
        if self.ends_subject
            && let Some(record) = self.found.get_mut(&(stat.st_dev, Inode(stat.st_ino)))
        {
            record.durable = record.durable || rustix::fs::fsync(file).is_ok();
        }
    }

    /// Adds a record for each directory of a file that a restore can truncate. Must be called after all files were
    /// added. `listed` contains the listings that were made before the pause.
    pub fn add_directories(&mut self, listed: &Directories) {
        for record in self.found.values().filter(|record| record.effect() == Effect::CutBack) {
            let file = record.path();
            let path = file.parent().unwrap_or(&file);
            if !self.directories.contains_key(path) {
                self.directories.insert(path.to_owned(), listed.record(path, self.clock));
            }
        }
    }

    /// Returns the files that shared mappings can change, except files that are known to be memory files.
    #[must_use]
    pub fn mapped_for_writing(&self) -> &[MappedForWriting] {
        &self.mapped_for_writing
    }

    /// Returns the records of files and the records of directories, each list sorted by path.
    #[must_use]
    pub fn finish(self) -> (Vec<FileRecord>, Vec<DirectoryRecord>) {
        let mut files: Vec<FileRecord> = self.found.into_values().collect();
        files.sort_unstable_by(|one, other| one.path.cmp(&other.path));
        let mut directories: Vec<(PathBuf, DirectoryRecord)> = self.directories.into_iter().collect();
        directories.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        (files, directories.into_iter().map(|(_, record)| record).collect())
    }

    /// Returns the record of a file. If the file has no record yet, creates the record.
    fn record(&mut self, path: &Path, stat: &Stat, file: BorrowedFd<'_>) -> &mut FileRecord {
        let times_are_coarse = self.clock.is_coarse_for(stat);
        let ended = self.ends_subject;
        self.found.entry((stat.st_dev, Inode(stat.st_ino))).or_insert_with(|| FileRecord {
            device: stat.st_dev,
            inode: stat.st_ino,
            size: stat.st_size as u64,
            modified_s: stat.st_mtime,
            modified_ns: stat.st_mtime_nsec,
            changed_s: stat.st_ctime,
            changed_ns: stat.st_ctime_nsec,
            times_are_coarse,
            ended,
            identity: ended.then(|| Identity::with(file, stat)),
            handle: if ended { Handle::of(file) } else { None },
            ..FileRecord::with_path(path)
        })
    }

    fn ends(&self, description: &Description, flags: u32, stat: &Stat) -> Option<u32> {
        let size = stat.st_size as u64;
        if may_read(flags) {
            return sample::ends(description.duplicate.as_fd(), size);
        }
        let again = opening::reopen(description, READ).ok()?;
        sample::ends(again.as_fd(), size)
    }
}

const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK).union(OFlags::NOCTTY);

/// Reports whether a description can change a regular file whose content is not part of the image. The result can be
/// `true` for a file whose name was removed. At an earlier checkpoint, the file may have had its name, so a restore
/// of that checkpoint needs the content.
///
/// `inherited` is `true` if the guardian has inherited the description. The guardian is the process that starts,
/// checkpoints and restarts the subject.
#[must_use]
pub fn is_changeable(description: &Description, flags: u32, inherited: bool) -> bool {
    let file = description.duplicate.as_fd();
    FileType::from_raw_mode(description.stat.st_mode) == FileType::RegularFile
        && may_write(flags)
        && !is_pseudo(file)
        && (inherited || !rustix::fs::fstat(file).is_ok_and(|stat| has_saved_content(file, &stat)))
}

/// Reports whether a file is on a tmpfs. The content of a tmpfs file is memory.
#[must_use]
pub fn is_memory_file(file: impl AsFd) -> bool {
    rustix::fs::fstat(&file).is_ok_and(|stat| is_on_tmpfs(file, &stat))
}

/// Reports whether a description writes only behind the present end of the file.
///
/// A readable description at the end of the file may belong to a database. The position is there because the database
/// has read the length with lseek(2). The database writes at other offsets with pwrite(2). So a readable description
/// counts as appending only with O_APPEND, because pwrite(2) then appends as well.
fn appends_only(flags: u32, position: Option<u64>, size: u64) -> bool {
    let is_append = OFlags::from_bits_retain(flags).contains(OFlags::APPEND);
    is_append || size == 0 || (!may_read(flags) && position == Some(size))
}

/// Opens the file of a mapping by its path. Returns `None` if the path leads to another file, or if the file is not
/// regular or is on a pseudo file system.
fn open_mapped(path: &Path, inode: Inode) -> Option<(OwnedFd, Stat)> {
    let named =
        rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&named).ok()?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    if stat.st_ino != inode.get() || !is_regular || is_pseudo(&named) {
        return None;
    }
    Some((opening::reopen(&named, READ).ok()?, stat))
}

/// Reports whether the path leads to the mapped file, and the file is a device or is on a pseudo file system.
fn is_no_data(path: &Path, inode: Inode) -> bool {
    let named = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC | OFlags::NOFOLLOW, Mode::empty());
    let Ok(named) = named else { return false };
    let Ok(stat) = rustix::fs::fstat(&named) else { return false };
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    stat.st_ino == inode.get() && (!is_regular || is_pseudo(&named))
}

/// Reports whether the image contains the content of an open file. The image contains the content of tmpfs files up
/// to [`DATA_BYTES_MAX`].
fn has_saved_content(file: impl AsFd, stat: &Stat) -> bool {
    const BLOCK_BYTES: u64 = 512;
    stat.st_blocks as u64 * BLOCK_BYTES <= DATA_BYTES_MAX && is_on_tmpfs(file, stat)
}

fn is_on_tmpfs(file: impl AsFd, stat: &Stat) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|system| tmpfs::is_on_tmpfs(stat, system.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appending_is_recognized_by_flags_and_position() {
        let flags = |flags: OFlags| flags.bits();
        assert!(appends_only(flags(OFlags::WRONLY | OFlags::APPEND), Some(3), 9));
        assert!(appends_only(flags(OFlags::RDWR | OFlags::APPEND), Some(0), 9));
        assert!(appends_only(flags(OFlags::WRONLY), Some(9), 9));
        assert!(!appends_only(flags(OFlags::WRONLY), Some(3), 9));
        assert!(!appends_only(flags(OFlags::RDWR), Some(9), 9));
        assert!(appends_only(flags(OFlags::RDWR), Some(0), 0));
    }
}
