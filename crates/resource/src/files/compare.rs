//! Compares files with their records at a restore.
//!
//! Owns: the verdict on each file.
//! Invariants: the content of a file is read only after device, inode and type were compared. All files are compared
//! before a file is changed. If a change cannot be excluded, the file counts as changed.
//! Does not: change a file; [`Cut::apply`] does.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FileType, Mode, OFlags, Stat};
use sys::{Errno, file_lock};

use super::covered::Covered;
use super::cut::Cut;
use super::directory::{DirectoryRecord, Neighbours};
use super::record::FileRecord;
use super::sample;
use crate::support::{finding, opening};

/// The moment of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// The calendar time.
    pub time: SystemTime,
    /// Whether the machine was started again since then. Content that was not durable can then be lost, although the
    /// times of the file are unchanged.
    pub is_before_boot: bool,
}

/// A file whose content may not match the memory of the checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChangedFile {
    /// The path of the file.
    pub path: PathBuf,
    /// The difference. The text continues a sentence that begins with the path.
    pub why: String,
    /// The error of the kernel, if the file could not be opened or read. `None` if the file was compared.
    pub errno: Option<Errno>,
}

/// The result of comparing one file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Verdict {
    /// The file is unchanged.
    Same,
    /// The recorded bytes are unchanged, and more bytes follow the recorded bytes.
    Grew,
    /// The content differs from the recorded content, and the image contains the recorded content.
    GoesBack,
    /// The file has another change, or the path leads to another file. The text describes the difference.
    Changed(String),
}

/// Compares every file. Returns the files that have to be truncated, and the files whose recorded content has to be
/// written.
///
/// `directories` are the directories of files that can be truncated. An image of an earlier version has no directory
/// records: `directories` is `None`, and files are compared without directories. The checkpoint was taken at `moment`.
/// `opened_later` are files in the records of later checkpoints. Files in `covered` are not compared.
///
/// # Errors
///
/// Returns all files that have changed.
pub fn compare(
    records: &[FileRecord],
    directories: Option<&[DirectoryRecord]>,
    opened_later: &[PathBuf],
    covered: &Covered,
    moment: Moment,
) -> Result<Vec<Cut>, Vec<ChangedFile>> {
    let mut cuts = Vec::new();
    let mut changed = Vec::new();
    let mut neighbours = Neighbours::new(directories);
    let compared = |record: &&FileRecord| !record.inherited && !covered.has(record.device, record.inode);
    for record in records.iter().filter(compared) {
        let path = record.path();
        let mut seen = Seen::open(&path, record);
        let verdict = match judge(record, &mut seen, moment.is_before_boot) {
            Verdict::Grew => {
                neighbours.forbid_cut(&path).map_or(Verdict::Grew, |why| Verdict::Changed(why.to_owned()))
            }
            verdict => verdict,
        };
        match verdict {
            Verdict::Same => {}
            Verdict::Changed(why) => changed.push(ChangedFile { path, why, errno: seen.errno }),
            Verdict::Grew | Verdict::GoesBack => {
                if let Some((file, stat)) = seen.file {
                    cuts.push(Cut::new(record, file, &stat));
                }
            }
        }
    }
    let known: HashSet<PathBuf> = records.iter().map(FileRecord::path).collect();
    for path in opened_later.iter().filter(|path| !known.contains(*path)) {
        if was_changed_after(path, moment.time, covered) {
            let why = "was opened and written to after the checkpoint".to_owned();
            changed.push(ChangedFile { path: path.clone(), why, errno: None });
        }
    }
    if changed.is_empty() { Ok(cuts) } else { Err(changed) }
}

/// Returns the covered files that differ from their records, and that a rollback will not set back. `recorded` are the
/// files that the rollback sets back, by device and inode number. Other programs have changed the returned files.
///
/// An earlier rollback may have set the change time of a file, so the change time is not compared. A path that leads to
/// another file is not returned: the rollback can rename directories.
#[must_use]
pub fn changed_beside(
    records: &[FileRecord],
    covered: &Covered,
    recorded: &HashSet<(u64, u64)>,
) -> Vec<ChangedFile> {
    let is_beside = |record: &&FileRecord| {
        let is_recorded = recorded.contains(&record.file());
        !record.inherited && !record.mapped && covered.has(record.device, record.inode) && !is_recorded
    };
    let mut found = Vec::new();
    for record in records.iter().filter(is_beside) {
        let path = record.path();
        let Ok(now) = rustix::fs::lstat(&path) else { continue };
        let (size, modified) = (now.st_size as u64, (now.st_mtime, now.st_mtime_nsec));
        let is_modified = modified != (record.modified_s, record.modified_ns);
        if record.is_file(now.st_dev, now.st_ino) && (size != record.size || is_modified) {
            let Verdict::Changed(why) = changed(record, size, is_modified) else { continue };
            found.push(ChangedFile { path, why, errno: None });
        }
    }
    found
}

fn was_changed_after(path: &Path, time: SystemTime, covered: &Covered) -> bool {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = (since.as_secs() as i64, u64::from(since.subsec_nanos()));
    rustix::fs::lstat(path).is_ok_and(|stat| {
        !covered.has(stat.st_dev, stat.st_ino) && (stat.st_ctime, stat.st_ctime_nsec) > time
    })
}

/// The facts about a file that a verdict needs. Each fact is queried on demand, because some queries read the file.
pub(super) trait Evidence {
    /// Returns the fstat(2) result of the file at the path. A symbolic link at the end of the path is not followed.
    fn stat(&self) -> Result<Stat, Errno>;
    /// Returns the checksum to compare with [`FileRecord::ends`].
    fn ends(&mut self) -> Option<u32>;
    /// Returns the checksum to compare with [`FileRecord::whole`].
    fn whole(&mut self) -> Option<u32>;
    /// Reports whether a process has the file open for writing. Also returns `true` if the check fails.
    fn may_have_writer(&mut self) -> bool;
}

/// Compares one file with its record. `is_before_boot` means that the machine was started again since the checkpoint.
pub(super) fn judge(record: &FileRecord, evidence: &mut dyn Evidence, is_before_boot: bool) -> Verdict {
    let now = match evidence.stat() {
        Ok(now) => now,
        Err(errno) => return Verdict::Changed(format!("cannot be opened: {errno}")),
    };
    if FileType::from_raw_mode(now.st_mode) != FileType::RegularFile {
        return Verdict::Changed("is no longer a regular file".to_owned());
    }
    if !record.is_file(now.st_dev, now.st_ino) {
        return Verdict::Changed("is another file than at the checkpoint".to_owned());
    }
    let size = now.st_size as u64;
    let modified = (now.st_mtime, now.st_mtime_nsec) != (record.modified_s, record.modified_ns);
    let times_prove_nothing = is_before_boot && !record.durable;
    let touched = modified || (now.st_ctime, now.st_ctime_nsec) != (record.changed_s, record.changed_ns);
    if record.mapped {
        return judge_mapped(record, size, touched, times_prove_nothing, evidence);
    }
    if size == record.size && !touched && !record.times_are_coarse && !times_prove_nothing {
        return Verdict::Same;
    }
    if size == record.size && !touched && times_prove_nothing {
        let is_proven = !record.in_place && record.ends.is_some() && evidence.ends() == record.ends;
        return if is_proven { Verdict::Same } else { unproven() };
    }
    if record.in_place || record.ends.is_none() {
        return changed(record, size, modified);
    }
    if size < record.size || evidence.ends() != record.ends || (size == record.size && modified) {
        return changed(record, size, modified);
    }
    if size == record.size {
        return Verdict::Same;
    }
    if evidence.may_have_writer() {
        let why = "grew after the checkpoint, and another process has it open for writing";
        return Verdict::Changed(why.to_owned());
    }
    Verdict::Grew
}

/// Compares a mapped file with its record. A store through a mapping may leave the file times unchanged. A file
/// without a checksum of the content therefore counts as changed.
fn judge_mapped(
    record: &FileRecord,
    size: u64,
    touched: bool,
    times_prove_nothing: bool,
    evidence: &mut dyn Evidence,
) -> Verdict {
    match record.whole {
        Some(_) if size == record.size && evidence.whole() == record.whole => Verdict::Same,
        Some(_) if record.content.is_some() && evidence.may_have_writer() => {
            let why = "was changed after the checkpoint, and another process has it open for writing";
            Verdict::Changed(why.to_owned())
        }
        Some(_) if record.content.is_some() => Verdict::GoesBack,
        Some(_) => changed(record, size, true),
        None if record.ended && size == record.size && !touched && times_prove_nothing => unproven(),
        None if record.ended && size == record.size && !touched => Verdict::Same,
        None if record.ended => changed(record, size, true),
        None => Verdict::Changed(format!(
            "could be written through a mapping, and it is unknown whether its {size} bytes were changed"
        )),
    }
}

fn unproven() -> Verdict {
    let why = "may have lost data when the machine was restarted after the checkpoint: its times are unchanged, but \
               the data was not known to be on the disk";
    Verdict::Changed(why.to_owned())
}

fn changed(record: &FileRecord, size: u64, modified: bool) -> Verdict {
    Verdict::Changed(if size != record.size {
        let kind =
            if size > record.size && record.in_place { ", and it was not only appended to" } else { "" };
        format!("was changed after the checkpoint: it had {} bytes, now {size}{kind}", record.size)
    } else if modified {
        "was written to after the checkpoint".to_owned()
    } else if record.times_are_coarse {
        "may have been written to after the checkpoint: the kernel's file times are too coarse to exclude it"
            .to_owned()
    } else {
        "has other names or attributes than at the checkpoint".to_owned()
    })
}

/// A file in the file system, opened at the path of a record.
struct Seen<'a> {
    record: &'a FileRecord,
    /// The O_PATH descriptor and the stat of the file.
    file: Option<(OwnedFd, Stat)>,
    /// The error of the last open that has failed.
    errno: Option<Errno>,
    reader: Option<OwnedFd>,
}

impl<'a> Seen<'a> {
    fn open(path: &Path, record: &'a FileRecord) -> Self {
        const NAMED: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
        let with_stat = |file: OwnedFd| rustix::fs::fstat(&file).map(|stat| (file, stat));
        let named = rustix::fs::open(path, NAMED, Mode::empty()).and_then(with_stat);
        let is_it = |(_, stat): &(OwnedFd, Stat)| record.is_file(stat.st_dev, stat.st_ino);
        let found = if named.as_ref().is_ok_and(is_it) {
            named
        } else {
            let moved = renamed(path, record).and_then(|file| with_stat(file).ok());
            moved.filter(|(_, stat)| stat.st_nlink > 0).map_or(named, Ok)
        };
        let errno = found.as_ref().err().copied().map(Errno::from);
        Self { record, file: found.ok(), errno, reader: None }
    }

    /// Returns a readable descriptor, which the first call opens. Must be called only after device, inode and type
    /// were compared.
    fn reader(&mut self) -> Option<&OwnedFd> {
        if self.reader.is_none() {
            const READ: OFlags = OFlags::RDONLY.union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);
            let opened = opening::reopen(&self.file.as_ref()?.0, READ);
            self.reader = opened.map_err(|error| self.errno = Some(error.errno)).ok();
        }
        self.reader.as_ref()
    }
}

/// Finds a file that was renamed after the checkpoint had killed the program. Another program has renamed the file, for
/// example to rotate a log.
fn renamed(path: &Path, record: &FileRecord) -> Option<OwnedFd> {
    finding::by_identity(path, record.identity?, record.handle.as_ref(), &[])
}

impl Evidence for Seen<'_> {
    fn stat(&self) -> Result<Stat, Errno> {
        self.file.as_ref().map(|(_, stat)| *stat).ok_or(self.errno.unwrap_or(Errno::ENOENT))
    }

    fn ends(&mut self) -> Option<u32> {
        let size = self.record.size;
        self.reader().and_then(|reader| sample::ends(reader.as_fd(), size))
    }

    fn whole(&mut self) -> Option<u32> {
        let size = self.record.size;
        self.reader().and_then(|reader| sample::whole(reader.as_fd(), size))
    }

    fn may_have_writer(&mut self) -> bool {
        self.reader().is_none_or(|reader| file_lock::is_open_for_writing(reader.as_fd()).unwrap_or(true))
    }
}
