//! Saves and restores regular files without a name.
//!
//! Owns: the content or the file handle of a file without a name in the image, and creating the file without a name.
//! Invariants: all open file descriptions of one file are restored as descriptions of one file. A restored file can
//! be linked to a name only if this was possible before (O_TMPFILE). The memory kinds (code that saves mappings) save
//! the content of a mapped file, so the content is saved once.
//! Does not: decide which descriptions refer to files without a name; the descriptor kind `deleted` does.
//!
//! If a removed file still has other names (hard links), the file is found by its file handle, and its content is not
//! saved.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::{DescriptionId, Pid};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Errno as E;
use sys::file_handle::{self, FileHandle};
use sys::{Errno, Error};

use super::description::{Description, Known};
use super::kind::{FdCreate, FdRecord};
use super::scope::CaptureScope;
use crate::error::{ResourceError, Result};
use crate::opener::{Opener, nearest_directory};
use crate::support::content::{Content, ContentCopy, Copied, DATA_BYTES_MAX};
use crate::support::identity::Identity;
use crate::support::nameless::free_name;
use crate::support::opening::{self, flags_for, reader, reopen};
use crate::support::ownership::owner;
use crate::support::path;

pub(super) const CLOSE_IT: &str = "let the program close it before the checkpoint";

/// The state of a file without a name, as it is in the image.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Nameless {
    /// The content. `None` if the memory kinds save the content, and in all records of the file except one.
    #[prost(message, optional, tag = "1")]
    pub(super) content: Option<Content>,
    #[prost(uint32, tag = "2")]
    mode: u32,
    #[prost(uint32, tag = "3")]
    user: u32,
    #[prost(uint32, tag = "4")]
    group: u32,
    #[prost(int64, tag = "5")]
    accessed_s: i64,
    #[prost(int64, tag = "6")]
    accessed_ns: i64,
    #[prost(int64, tag = "7")]
    modified_s: i64,
    #[prost(int64, tag = "8")]
    modified_ns: i64,
    /// The file handle. Empty if the file has no name at all.
    #[prost(int32, tag = "9")]
    handle_kind: i32,
    #[prost(bytes = "vec", tag = "10")]
    handle: Vec<u8>,
}

/// Capture of one file, used if the file has no name in the pause.
#[derive(Debug)]
pub(super) struct NamelessCapture {
    /// Set for the first description of a file, which saves the content for all descriptions of the file.
    is_carrier: bool,
    is_mapped: bool,
    reader: Option<OwnedFd>,
    copy: ContentCopy,
    copied: Option<Copied>,
    handle: Option<FileHandle>,
}

impl NamelessCapture {
    pub(super) fn new(description: &Description, scope: &CaptureScope<'_>) -> Result<Self> {
        let first = scope.of_file(description.file()).next();
        let is_nameless = description.stat.st_nlink == 0;
        let mut capture = Self {
            is_carrier: first.is_none_or(|first| first.id == description.id),
            is_mapped: is_nameless && scope.maps(description),
            reader: None,
            copy: ContentCopy::default(),
            copied: None,
            handle: None,
        };
        if is_nameless && capture.is_carrier && !capture.is_mapped {
            let reader = reader(description.as_fd())?;
            capture.copy.reserve(reader.as_fd())?;
            capture.reader = Some(reader);
        }
        Ok(capture)
    }

    /// Copies the content of a file without any name, or the handle of a file with other names. Called inside the
    /// pause.
    pub(super) fn inside(&mut self, file: BorrowedFd<'_>, stat: &Stat) -> Result<()> {
        if stat.st_nlink > 0 {
            self.handle = Some(file_handle::of(file)?);
            return Ok(());
        }
        if self.is_mapped || !self.is_carrier {
            return Ok(());
        }
        self.copy_from(file)
    }

    /// Copies the content of a file that is no longer mapped. Called inside the pause, when the mappings are known.
    pub(super) fn relate(
        &mut self,
        description: &Description,
        stat: &Stat,
        scope: &CaptureScope<'_>,
    ) -> Result<()> {
        if stat.st_nlink > 0 || !self.is_carrier || self.copied.is_some() || scope.maps(description) {
            return Ok(());
        }
        self.copy_from(description.as_fd())
    }

    fn copy_from(&mut self, file: BorrowedFd<'_>) -> Result<()> {
        if self.reader.is_none() {
            self.reader = Some(reader(file)?);
        }
        let reader = self.reader.as_ref().expect("opened above");
        self.copied = Some(self.copy.copy(reader.as_fd())?);
        Ok(())
    }

    /// Returns the protobuf message for the payload. Called after the pause.
    pub(super) fn after(&self, pid: Pid, description: &Known, stat: &Stat) -> Result<Nameless> {
        if self.copied == Some(Copied::TooMuch) {
            let why = format!(
                "it contains more than {} MiB, the limit of an image for such a file",
                DATA_BYTES_MAX >> 20
            );
            return Err(unsupported(pid, description, why));
        }
        let (handle_kind, handle) =
            self.handle.as_ref().map_or((0, Vec::new()), |handle| (handle.kind, handle.bytes.clone()));
        Ok(Nameless {
            content: self.copied.map(|_| self.copy.message()),
            mode: stat.st_mode & 0o7777,
            user: stat.st_uid,
            group: stat.st_gid,
            accessed_s: stat.st_atime,
            accessed_ns: stat.st_atime_nsec as i64,
            modified_s: stat.st_mtime,
            modified_ns: stat.st_mtime_nsec as i64,
            handle_kind,
            handle,
        })
    }
}

fn unsupported(pid: Pid, description: &Known, why: String) -> ResourceError {
    ResourceError::Unsupported {
        pid,
        what: description.named("deleted file"),
        why,
        fix: format!("take the checkpoint again, or {CLOSE_IT}"),
    }
}

/// The files without a name in a restore, each with all its descriptions.
#[derive(Debug, Default)]
pub(super) struct NamelessFiles {
    files: BTreeMap<(u64, u64), NamelessFile>,
}

#[derive(Debug, Default)]
struct NamelessFile {
    records: Vec<(DescriptionId, u32, Opener)>,
    path: PathBuf,
    holder: Option<Pid>,
    /// The state from the record with the content; without content, from the first record.
    state: Nameless,
}

impl NamelessFiles {
    /// Adds a description of the file with this device, inode and former path.
    pub(super) fn add(&mut self, record: &FdRecord, key: (u64, u64), path: PathBuf, state: Nameless) {
        let file = self.files.entry(key).or_default();
        file.records.push((record.id, record.flags, record.opener.clone()));
        if file.holder.is_none() || state.content.is_some() {
            file.path = path;
            file.holder = Some(record.holder.0);
            file.state = state;
        }
    }

    pub(super) fn create(self, kind: &'static str, context: &mut FdCreate<'_>) -> Result<()> {
        for ((device, inode), file) in self.files {
            file.create(kind, Identity::from_numbers(device, inode, FileType::RegularFile), context)?;
        }
        Ok(())
    }
}

impl NamelessFile {
    fn create(&self, kind: &'static str, was: Identity, context: &mut FdCreate<'_>) -> Result<()> {
        let home = nearest_directory(&self.path)
            .map_err(|refusal| failed_to_make(&self.path, refusal.to_string()))?;
        if !self.state.handle.is_empty() {
            let handle = FileHandle { kind: self.state.handle_kind, bytes: self.state.handle.clone() };
            let found = open_handle(&home, &handle).map_err(|error| self.is_gone(&error))?;
            return self.open_found(&found, was, context);
        }
        let object = context.objects.get(&was.inode);
        if let Some(object) = object.filter(|object| self.state.content.is_none() || lies_in(object, &home)) {
            return self.open_others(object.as_fd(), context);
        }
        let Some(content) = &self.state.content else {
            let why = format!("the content of {} is missing", self.path.display());
            return Err(ResourceError::malformed(kind, why));
        };
        // The kernel permits linking a file without a name only if the file was created with O_TMPFILE and without
        // O_EXCL. So the file is created with the flags of the recorded O_TMPFILE description, and becomes this
        // description.
        let maker = self.records.iter().find(|record| is_temporary(record.1));
        let made = make_nameless(&home, maker.map(|record| record.1))?;
        let writer = reopen(&made, OFlags::RDWR | OFlags::CLOEXEC)?;
        content.write_to(writer.as_fd())?;
        if let Some((id, ..)) = maker {
            context.created.insert(*id, made);
        }
        self.open_others(writer.as_fd(), context)?;
        self.set_attributes(writer.as_fd())
    }

    /// Opens all descriptions of a file that still exists under another name.
    fn open_found(&self, file: &OwnedFd, was: Identity, context: &mut FdCreate<'_>) -> Result<()> {
        for (id, flags, opener) in &self.records {
            let file = file.try_clone().map_err(|error| Error::new("duplicate a descriptor", error))?;
            let opened = opener.adopt(file, Some(was)).and_then(|found| found.open(flags_for(*flags)));
            let opened = opened.map_err(|refusal| {
                let usual = "restore on the machine of the checkpoint, where the file's other names exist";
                refusal.of(&self.path, "the program has this file open without its name", usual)
            })?;
            context.created.insert(*id, opened);
        }
        Ok(())
    }

    /// Opens all descriptions that do not exist yet.
    fn open_others(&self, file: BorrowedFd<'_>, context: &mut FdCreate<'_>) -> Result<()> {
        for (id, flags, _) in &self.records {
            if !context.created.contains_key(id) {
                context.created.insert(*id, reopen(file, flags_for(*flags))?);
            }
        }
        Ok(())
    }

    fn set_attributes(&self, file: BorrowedFd<'_>) -> Result<()> {
        let state = &self.state;
        let failed = |operation: &'static str, errno: E| Error::path(operation, &self.path, errno);
        let (user, group) = owner(state.user, state.group)?;
        rustix::fs::fchown(file, Some(user), Some(group))
            .map_err(|errno| failed("set the owner of the deleted file", errno))?;
        rustix::fs::fchmod(file, Mode::from_raw_mode(state.mode))
            .map_err(|errno| failed("set the mode of the deleted file", errno))?;
        let times = Timestamps {
            last_access: Timespec { tv_sec: state.accessed_s, tv_nsec: state.accessed_ns },
            last_modification: Timespec { tv_sec: state.modified_s, tv_nsec: state.modified_ns },
        };
        rustix::fs::futimens(file, &times)
            .map_err(|errno| failed("set the times of the deleted file", errno))?;
        Ok(())
    }

    fn is_gone(&self, error: &Error) -> ResourceError {
        ResourceError::File {
            path: self.path.display().to_string(),
            why: format!(
                "its name was removed before the checkpoint, and its other names cannot be found: {error}"
            ),
            fix: "restore on the machine of the checkpoint, where the file's other names exist".to_owned(),
        }
    }
}

fn is_temporary(flags: u32) -> bool {
    OFlags::from_bits_retain(flags).contains(OFlags::TMPFILE)
}

/// Reports whether an object of the memory kinds is in the directory of this file. The inode number is not enough,
/// since two file systems can use the same inode number.
fn lies_in(object: &OwnedFd, home: &OwnedFd) -> bool {
    let (object, home) = (place_of(object), place_of(home));
    object.is_some() && object.and_then(|object| object.parent().map(Path::to_owned)) == home
}

fn place_of(file: &OwnedFd) -> Option<PathBuf> {
    let link = rustix::fs::readlink(opening::own_link(file), Vec::new());
    link.ok().map(|link| path::from_bytes(link.to_bytes()))
}

pub(super) fn open_handle(home: &OwnedFd, handle: &FileHandle) -> sys::Result<OwnedFd> {
    let mount = reopen(home, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC)?;
    file_handle::open(mount.as_fd(), handle)
}

/// Creates a file without a name. With flags, creates the file as an O_TMPFILE description with these flags.
fn make_nameless(home: &OwnedFd, maker: Option<u32>) -> Result<OwnedFd> {
    let mode = Mode::RUSR | Mode::WUSR;
    let flags = match maker {
        Some(flags) => flags_for(flags) | OFlags::TMPFILE,
        None => OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC,
    };
    match rustix::fs::openat(home, ".", flags, mode) {
        Ok(file) => Ok(file),
        Err(E::OPNOTSUPP | E::ISDIR | E::INVAL) => make_and_unlink(home, mode),
        Err(errno) => Err(cannot_make(home, errno)),
    }
}

fn make_and_unlink(home: &OwnedFd, mode: Mode) -> Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    let mut made = None;
    let name = free_name(Path::new(""), |name| {
        made = Some(rustix::fs::openat(home, name, flags, mode)?);
        Ok(())
    })
    .map_err(|errno| cannot_make(home, errno))?;
    rustix::fs::unlinkat(home, &name, AtFlags::empty())
        .map_err(|errno| Error::path("remove", &name, errno))?;
    Ok(made.expect("a name is free only when the file was made"))
}

fn cannot_make(home: &OwnedFd, errno: E) -> ResourceError {
    failed_to_make(&place_of(home).unwrap_or_default(), Errno::from(errno).to_string())
}

fn failed_to_make(home: &Path, why: String) -> ResourceError {
    ResourceError::File {
        path: home.display().to_string(),
        why: format!("a deleted file cannot be created in this directory: {why}"),
        fix: "make the directory writable for the user that restores".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn without_tmpfile_support_a_nameless_file_is_created_and_unlinked() {
        let folder = tempfile::tempdir().unwrap();
        let home = nearest_directory(&folder.path().join("any")).unwrap();
        let file = make_and_unlink(&home, Mode::RUSR | Mode::WUSR).unwrap();
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_nlink, 0);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        fs::remove_dir(folder.path()).unwrap();
        assert!(make_and_unlink(&home, Mode::RUSR).is_err());
    }
}
