//! The state of an open file, with or without a name. Any file can lose its name before the pause, so both cases
//! share this code.
//!
//! Owns: payload and capture of an open file, and opening the file again.
//! Invariants: a file is opened as it is, and is never created, truncated or changed. A missing file or a file of
//! another type refuses the restore. Only the modules `nameless` (files without a name) and `tmpfs_content` (saved
//! content) create or write files.
//! Does not: compare the content with the checkpoint. [`crate::files`] compares files that the subject may write,
//! before any descriptor is opened.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::{Inode, Pid};
use prost::Message;
use rustix::fs::{FileType, SeekFrom, Stat};
use sys::{Errno, Error};

use super::description::{Description, Known};
use super::kind::{FdCapture, FdCreate, FdRecord};
use super::nameless::{Nameless, NamelessCapture, NamelessFiles};
use super::scope::CaptureScope;
use super::tmpfs_content::{SavedFile, TmpfsCapture, WrittenFiles};
use crate::error::{ResourceError, Result};
use crate::opener::{Found, Refusal};
use crate::support::file_system::is_pseudo_type;
use crate::support::finding::Handle;
use crate::support::identity::{FORMAT_MASK, Identity};
use crate::support::inherited::Inherited;
use crate::support::opening::{self, may_write};
use crate::support::path::{self, Link, Name};

/// The payload: one open file as it is in the image.
#[derive(Clone, PartialEq, Message)]
pub(super) struct FilePayload {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) path: Vec<u8>,
    /// S_IFMT bits.
    #[prost(uint32, tag = "2")]
    format: u32,
    #[prost(uint64, tag = "3")]
    size: u64,
    #[prost(int64, tag = "4")]
    modified_s: i64,
    #[prost(uint64, tag = "5")]
    modified_ns: u64,
    #[prost(uint64, tag = "6")]
    pub(super) device: u64,
    #[prost(uint64, tag = "7")]
    pub(super) inode: u64,
    /// Set when the file is on a pseudo file system.
    #[prost(bool, tag = "8")]
    made_up: bool,
    /// Set when the restoring process may have inherited the file.
    #[prost(bool, tag = "9")]
    inherited: bool,
    /// The state of a file without a name; `None` for a file with a name.
    #[prost(message, optional, tag = "10")]
    pub(super) nameless: Option<Nameless>,
    /// Identity of the file. Images of earlier versions contain only device and inode.
    #[prost(message, optional, tag = "20")]
    identity: Option<Identity>,
    /// The content of a named tmpfs file, if the image contains it. Set in one record per file.
    #[prost(message, optional, tag = "21")]
    saved: Option<SavedFile>,
    /// The handle of the file. `None` if the file system has no handles, and in images of earlier versions.
    #[prost(message, optional, tag = "22")]
    handle: Option<Handle>,
}

impl FilePayload {
    fn identity(&self) -> Identity {
        let format = FileType::from_raw_mode(self.format);
        self.identity.unwrap_or_else(|| Identity::from_numbers(self.device, self.inode, format))
    }
}

/// Capture of one open file.
#[derive(Debug)]
pub(super) struct FileCapture {
    pid: Pid,
    link: Link,
    stat: Stat,
    made_up: bool,
    inherited: bool,
    nameless: NamelessCapture,
    identity: Identity,
    handle: Option<Handle>,
    tmpfs: Option<TmpfsCapture>,
}

impl FileCapture {
    pub(super) fn new(description: &Description, scope: &CaptureScope<'_>) -> Result<Self> {
        let system = rustix::fs::fstatfs(&description.duplicate)
            .map_err(|errno| Error::path("stat the file system of", description.target(), errno))?;
        Ok(Self {
            pid: description.pid,
            link: Link::new(),
            stat: description.stat,
            made_up: is_pseudo_type(system.f_type),
            inherited: scope.is_inherited(&description.stat),
            nameless: NamelessCapture::new(description, scope)?,
            identity: Identity::with(description, &description.stat),
            handle: Handle::of(description),
            tmpfs: TmpfsCapture::new(description, system.f_type, scope)?,
        })
    }
}

impl FdCapture for FileCapture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        let file = description.duplicate.as_fd();
        self.stat = rustix::fs::fstat(file).map_err(|errno| {
            Error::descriptor("stat the file", description.pid, description.fd, Errno::from(errno))
        })?;
        self.link.read(description)?;
        let is_regular = FileType::from_raw_mode(self.stat.st_mode) == FileType::RegularFile;
        if is_regular && matches!(Name::new(self.link.bytes(), &self.stat), Name::Gone(_)) {
            self.nameless.inside(file, &self.stat)?;
        } else if let Some(tmpfs) = &mut self.tmpfs {
            tmpfs.inside()?;
        }
        Ok(())
    }

    fn relate(&mut self, description: &Description, scope: &CaptureScope<'_>) -> Result<()> {
        let is_regular = FileType::from_raw_mode(self.stat.st_mode) == FileType::RegularFile;
        if is_regular && matches!(Name::new(self.link.bytes(), &self.stat), Name::Gone(_)) {
            self.nameless.relate(description, &self.stat, scope)?;
        } else if let Some(tmpfs) = &mut self.tmpfs {
            tmpfs.relate(description, scope)?;
        }
        Ok(())
    }

    fn after(&mut self, description: &Known) -> Result<Vec<u8>> {
        let name = Name::new(self.link.bytes(), &self.stat);
        let is_regular = FileType::from_raw_mode(self.stat.st_mode) == FileType::RegularFile;
        if !is_regular && matches!(name, Name::Gone(_)) {
            return Err(ResourceError::Unsupported {
                pid: self.pid,
                what: description.named("deleted file"),
                why: "it was open with O_PATH only, and its name was removed during the checkpoint"
                    .to_owned(),
                fix: "let the program close it".to_owned(),
            });
        }
        let nameless = match &name {
            Name::Gone(_) => Some(self.nameless.after(self.pid, description, &self.stat)?),
            Name::Live(_) | Name::None => None,
        };
        let saved = match (&name, &self.tmpfs) {
            (Name::Live(path), Some(tmpfs)) => tmpfs.after(path, &self.stat)?,
            _ => None,
        };
        let payload = FilePayload {
            path: path::to_bytes(name.path()),
            format: self.stat.st_mode & FORMAT_MASK,
            size: self.stat.st_size as u64,
            modified_s: self.stat.st_mtime,
            modified_ns: self.stat.st_mtime_nsec,
            device: self.stat.st_dev,
            inode: self.stat.st_ino,
            made_up: self.made_up,
            inherited: self.inherited,
            nameless,
            identity: Some(self.identity),
            saved,
            handle: self.handle.clone(),
        };
        Ok(payload.encode_to_vec())
    }
}

/// Opens the files of all records of a kind that writes [`FilePayload`].
pub(super) fn create(kind: &'static str, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
    let mut inherited = Inherited::default();
    let mut nameless = NamelessFiles::default();
    let mut written = WrittenFiles::default();
    let mut payloads = Vec::new();
    for record in records {
        let payload: FilePayload = crate::error::decode(kind, &record.payload)?;
        if let Some(saved) = &payload.saved {
            written.write((payload.device, payload.inode), saved)?;
        }
        payloads.push((record, payload));
    }
    for (record, payload) in payloads {
        if let Some(state) = payload.nameless {
            let key = (payload.device, payload.inode);
            nameless.add(record, key, path::from_bytes(&payload.path), state);
            continue;
        }
        let handed_on = if payload.inherited {
            inherited.take(context, payload.device, Inode(payload.inode), record.flags)?
        } else {
            None
        };
        let file = match handed_on {
            Some(file) => file,
            None => open(record, &payload)?,
        };
        // A covered file was reverted to the checkpoint by the undo log, so its position is restored too.
        let was_reverted = context.covered.has(payload.device, payload.inode);
        if payload.inherited && may_write(record.flags) && !was_reverted {
            seek_behind_others(&file, record)?;
            context.handed_on.insert(record.id);
        }
        context.created.insert(record.id, file);
    }
    nameless.create(kind, context)
}

/// Moves the position of a file to its end, behind the output of other processes that write to the file. A
/// description that is shared with these processes already has such a position. A reopened description starts at
/// zero.
fn seek_behind_others(file: &OwnedFd, record: &FdRecord) -> Result<()> {
    if rustix::fs::tell(file).is_ok_and(|position| position < record.position) {
        rustix::fs::seek(file, SeekFrom::End(0))
            .map_err(|errno| Error::new("seek to the end of a stream", errno))?;
    }
    Ok(())
}

/// Checks that the files with a name can be found. Opens nothing.
pub(super) fn check_files(kind: &'static str, records: &[FdRecord]) -> Result<()> {
    for record in records {
        let payload: FilePayload = crate::error::decode(kind, &record.payload)?;
        if payload.nameless.is_none() && payload.saved.is_none() && !payload.inherited {
            find(record, &payload, &path::from_bytes(&payload.path))?;
        }
    }
    Ok(())
}

fn open(record: &FdRecord, payload: &FilePayload) -> Result<OwnedFd> {
    let path = path::from_bytes(&payload.path);
    let found = find(record, payload, &path)?;
    found.open(opening::flags_for(record.flags)).map_err(|refusal| cannot(&path, &refusal))
}

/// Finds a file by its identity, else by its path.
fn find<'a>(record: &'a FdRecord, payload: &FilePayload, path: &'a Path) -> Result<Found<'a>> {
    let (identity, handle) = (Some(payload.identity()), payload.handle.as_ref());
    let found = record.opener.find_anywhere(path, identity, handle, may_write(record.flags));
    let found = found.map_err(|refusal| cannot(path, &refusal))?;
    let stat = found.stat().map_err(|refusal| cannot(path, &refusal))?;
    if stat.st_mode & FORMAT_MASK != payload.format {
        let why = "it is no longer a file of the same type".to_owned();
        return Err(refused(path, why, "put the file back as it was at the checkpoint"));
    }
    Ok(found)
}

fn cannot(path: &Path, refusal: &Refusal) -> ResourceError {
    refusal.of(
        path,
        "the program has this file open",
        "restore the file from a backup, or restore on the machine that has it",
    )
}

fn refused(path: &Path, why: String, fix: &str) -> ResourceError {
    let path: PathBuf = path.to_owned();
    ResourceError::File { path: path.display().to_string(), why, fix: fix.to_owned() }
}
