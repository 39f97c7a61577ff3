//! Content of named tmpfs files that the subject has open for writing, but does not map for writing.
//!
//! Owns: copying the content inside the pause, and writing the content back before the open file descriptions of the
//! file are restored.
//! Invariants: one description of a file saves the content. The memory kinds (code that saves mappings) save the
//! content of a mapped file.
//! Does not: save content above the limit of an image. A file with more content is treated as a file on a disk. If a
//! process outside the subject can write to the file at the restore, the file is not written. The restore is then
//! refused if the content differs from the checkpoint.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Stat, Timespec, Timestamps, UTIME_OMIT};
use sys::Error;

use super::description::Description;
use super::scope::CaptureScope;
use crate::error::Result;
use crate::support::content::{Content, ContentCopy, Copied};
use crate::support::opening::may_write;
use crate::support::opening::reader;
use crate::support::tmpfs::{self, Found, TmpfsFile};

/// A named tmpfs file with its content, as it is in the image.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct SavedFile {
    #[prost(message, optional, tag = "1")]
    file: Option<TmpfsFile>,
    #[prost(message, optional, tag = "2")]
    content: Option<Content>,
    #[prost(int64, tag = "3")]
    modified_s: i64,
    #[prost(int64, tag = "4")]
    modified_ns: i64,
}

/// Capture of the content of one tmpfs file with a name.
#[derive(Debug)]
pub(super) struct TmpfsCapture {
    is_mapped: bool,
    reader: OwnedFd,
    copy: ContentCopy,
    copied: Option<Copied>,
}

impl TmpfsCapture {
    /// Prepares the copy before the pause, if this description saves the content of a tmpfs file. This is the first
    /// writable description of the file. Returns `None` for other descriptions.
    pub(super) fn new(
        description: &Description,
        system: i64,
        scope: &CaptureScope<'_>,
    ) -> Result<Option<Self>> {
        let key = |stat: &Stat| (stat.st_dev, stat.st_ino);
        let is_same = |other: &Stat| key(other) == key(&description.stat);
        let mut writers = scope.descriptions.iter().filter(|other| may_write(other.info.flags));
        let is_carrier =
            writers.find(|other| is_same(&other.stat)).is_some_and(|first| first.id == description.id);
        let is_wanted = tmpfs::is_on_tmpfs(&description.stat, system) && description.stat.st_nlink > 0;
        if !is_wanted || !is_carrier || scope.is_inherited(&description.stat) {
            return Ok(None);
        }
        let mut copy = ContentCopy::default();
        let reader = reader(description.as_fd())?;
        let is_mapped = scope.saves_shared(description);
        if !is_mapped {
            copy.reserve(reader.as_fd())?;
        }
        Ok(Some(Self { is_mapped, reader, copy, copied: None }))
    }

    /// Copies the content, unless the file is mapped. Called inside the pause.
    pub(super) fn inside(&mut self) -> Result<()> {
        self.copied = if self.is_mapped { None } else { Some(self.copy.copy(self.reader.as_fd())?) };
        Ok(())
    }

    /// Copies the content of a file that was unmapped after the preparation. Called inside the pause, when the
    /// mappings are known.
    pub(super) fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        if self.copied.is_none() && !scope.saves_shared(description) {
            self.copied = Some(self.copy.copy(self.reader.as_fd())?);
        }
        Ok(())
    }

    /// Returns the protobuf message, if the content was copied. Called after the pause.
    pub(super) fn after(&self, path: &Path, stat: &Stat) -> Result<Option<SavedFile>> {
        if self.copied != Some(Copied::Whole) {
            return Ok(None);
        }
        Ok(Some(SavedFile {
            file: Some(TmpfsFile::describe(path, &self.reader, stat)?),
            content: Some(self.copy.message()),
            modified_s: stat.st_mtime,
            modified_ns: stat.st_mtime_nsec as i64,
        }))
    }
}

/// Files whose content a restore has written: device and inode at the checkpoint.
#[derive(Debug, Default)]
pub(super) struct WrittenFiles(BTreeSet<(u64, u64)>);

impl WrittenFiles {
    /// Writes the content of a file; creates the file if it is missing. `key` is device and inode at the checkpoint.
    pub(super) fn write(&mut self, key: (u64, u64), saved: &SavedFile) -> Result<()> {
        let (Some(file), Some(content)) = (&saved.file, &saved.content) else { return Ok(()) };
        let opened = match file.find_or_make()? {
            Found::Ready(opened) => opened,
            Found::Shared(user, reader) => {
                let mut now = ContentCopy::default();
                if now.copy(reader.as_fd())? == Copied::Whole && now.message() == *content {
                    return Ok(());
                }
                let why = format!("it was changed after the checkpoint, and {user} can write to it as well");
                return Err(file.refused(why, "end that process, then restore again"));
            }
        };
        tmpfs::clear(&opened, 0)?;
        content.write_to(opened.as_fd())?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: saved.modified_s, tv_nsec: saved.modified_ns },
        };
        rustix::fs::futimens(&opened, &times)
            .map_err(|errno| Error::path("set the times of", file.path(), errno))?;
        self.0.insert(key);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::path::PathBuf;

    use crate::fd::regular::Regular;
    use crate::fd::{CaptureScope, FdKind};
    use crate::support::testing::Subject;

    fn scratch(name: &str) -> Option<(PathBuf, File)> {
        let path = PathBuf::from(format!("/dev/shm/undying-test-{}-{name}", std::process::id()));
        let Ok(file) = File::options().read(true).write(true).create_new(true).open(&path) else {
            println!("unsupported: tmpfs on /dev/shm");
            return None;
        };
        file.write_all_at(b"of the checkpoint", 0).unwrap();
        Some((path, file))
    }

    #[test]
    fn content_is_restored_into_the_same_file_and_into_a_created_one() {
        let Some((path, file)) = scratch("content") else { return };
        let reader = File::open(&path).unwrap();
        let subject = Subject::new(&[&reader, &file]);
        let envelopes = subject.capture(&Regular, || {}).unwrap();
        file.write_all_at(b"of a later time, and longer", 0).unwrap();
        drop((reader, file));
        drop(subject);
        let other = File::open("/dev/null").unwrap();
        let restorer = Subject::new(&[&other]);
        for gone in [false, true] {
            if gone {
                std::fs::remove_file(&path).unwrap();
            }
            drop(restorer.build(&Regular, &envelopes, &[]).unwrap());
            assert_eq!(std::fs::read_to_string(&path).unwrap(), "of the checkpoint");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_whose_content_the_memory_kinds_restore_may_be_empty() {
        let Some((path, file)) = scratch("mapped") else { return };
        let subject = Subject::new(&[&file]);
        let (description, inode) = (&subject.descriptions[0], subject.descriptions[0].stat.st_ino);
        let line = format!("7f0000000000-7f0000001000 rw-s 00000000 00:01 {inode} {}\n", path.display());
        let mappings = tracee::procfs::mappings_in(line.as_bytes()).unwrap();
        let scope = CaptureScope { mappings: vec![(description.pid, mappings.into())], ..subject.scope() };
        let mut capture = Regular.prepare(description, &scope).unwrap();
        capture.inside(description).unwrap();
        capture.relate(description, &scope).unwrap();
        let payload = capture.after(description).unwrap();
        let mut envelopes = subject.capture(&Regular, || {}).unwrap();
        assert!(payload.len() < envelopes[0].payload.len(), "the content is saved twice");
        envelopes[0].payload = payload;
        std::fs::remove_file(&path).unwrap();
        let made = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
        let mut restorer = Subject::new(&[&made]);
        restorer.objects.insert(inode, made.try_clone().unwrap().into());
        restorer.build(&Regular, &envelopes, &[]).unwrap();
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn a_file_that_another_process_can_write_is_refused_if_it_was_changed() {
        let Some((path, file)) = scratch("another") else { return };
        let subject = Subject::new(&[&file]);
        let envelopes = subject.capture(&Regular, || {}).unwrap();
        // The test's own descriptor stands for a descriptor of another process.
        drop(subject.build(&Regular, &envelopes, &[]).unwrap());
        file.write_all_at(b"of a later time, and longer", 0).unwrap();
        let error = subject.build(&Regular, &envelopes, &[]).unwrap_err().to_string();
        assert!(error.contains("can write to it as well") && error.contains("help:"), "{error}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "of a later time, and longer");
        std::fs::remove_file(&path).unwrap();
    }
}
