//! What a watch knows, behind one lock.
//!
//! Owns: the log of the present epoch, marks of files, and what becomes of a failure to keep.
//! Invariants: whatever cannot be kept breaks the epoch, with the reason, and never stops the subject; a file that was
//! opened for writing stays marked until no description of it is left at a boundary.
//! Does not: decide what a call changes; `names` and `content` do.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use model::Sequence;
use rustix::fs::{FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::crossings::Crossings;
use super::epoch::{Armed, Content, Epoch, Id, Old};
use super::marks::ContentSource;
use super::paths::path_of;
use super::rates::Rates;
use crate::error::{Result, UndoError};
use crate::key::{Attributes, FileKey};
use crate::log::UndoLog;
use crate::log::keep::KeepPlaces;

/// Whether changes of a file are reported.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    Active,
    Silent,
}

/// A file that was opened for writing under the watch.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) mark: Mark,
    /// For reading old content. Opened before the mark was set, so that reading mostly reports nothing.
    pub(super) reader: Option<OwnedFd>,
    pub(super) key: FileKey,
}

/// Where content is kept and what it may cost.
#[derive(Debug)]
pub(super) struct State {
    pub(super) log: UndoLog,
    pub(super) keep: KeepPlaces,
    pub(super) marks: Box<dyn ContentSource>,
    pub(super) epoch: Epoch,
    pub(super) watched: HashMap<Id, Watched>,
    /// Directories on whose mounts opens can report later, by device.
    pub(super) enabled: HashMap<u64, OwnedFd>,
    /// A descriptor of each file system, for handles.
    pub(super) mounts: HashMap<u64, OwnedFd>,
    /// Whether a file system reports changes of content.
    pub(super) reports: HashMap<u64, bool>,
    /// Whether a file system clones files, once it was tried.
    pub(super) clones: HashMap<u64, bool>,
    /// Whether a file system makes up its content, as proc(5) does: nothing in it goes back.
    pub(super) made_up: HashMap<u64, bool>,
    /// Files that were open at each boundary.
    pub(super) boundaries: BTreeMap<Sequence, Vec<Armed>>,
    pub(super) rates: Rates,
    pub(super) cost_max: f64,
    pub(super) uncovered: Vec<PathBuf>,
    /// Why an epoch was broken last.
    pub(super) last_break: Option<String>,
    /// What its threads may be doing.
    pub(super) crossings: Crossings,
    /// The subject is being restored: what is done to files is no change.
    pub(super) is_restoring: bool,
    pub(super) buffer: Vec<u8>,
}

/// Files that are held open for reading. A process that has no descriptor left cannot open the file of an event, and the
/// kernel then fails the write of the subject; others are opened when they are read.
const READERS_MAX: usize = 256;
/// Bytes that are read at once.
pub(super) const CHUNK: usize = 1 << 20;

const READ: OFlags = OFlags::RDONLY
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::NOATIME);

impl State {
    pub(super) fn new(log: UndoLog, keep: KeepPlaces, marks: Box<dyn ContentSource>, cost_max: f64) -> Self {
        Self {
            log,
            keep,
            marks,
            epoch: Epoch::begin(),
            watched: HashMap::new(),
            enabled: HashMap::new(),
            mounts: HashMap::new(),
            reports: HashMap::new(),
            clones: HashMap::new(),
            made_up: HashMap::new(),
            boundaries: BTreeMap::new(),
            rates: Rates::default(),
            cost_max,
            uncovered: Vec::new(),
            last_break: None,
            crossings: Crossings::default(),
            is_restoring: false,
            buffer: vec![0; CHUNK],
        }
    }

    /// Notes that the way back through this epoch is lost.
    pub(super) fn break_epoch(&mut self, why: &str) {
        if self.epoch.broken.is_none() {
            self.epoch.broken = Some(why.to_owned());
            self.last_break = Some(why.to_owned());
            self.epoch.is_touched = true;
            // A log that takes no records loses this one, too: then the memory of this program knows.
            let _ = self.log.broken(why);
        }
    }

    /// Turns a failure to keep into a broken epoch.
    pub(super) fn or_break(&mut self, outcome: Result<()>, what: &str) {
        if let Err(error) = outcome {
            let why = match &error {
                UndoError::Full { .. } | UndoError::NoHandles { .. } => error.to_string(),
                _ => format!("{what} could not be kept: {error}"),
            };
            self.break_epoch(&why);
        }
    }

    /// Records an inode that existed when the epoch began.
    pub(super) fn old(&mut self, file: BorrowedFd<'_>, stat: &Stat) -> Result<&mut Old> {
        let id = (stat.st_dev, stat.st_ino);
        if !self.is_old(file, stat)? {
            let key = key_of(file, stat)?;
            let attributes = Attributes::read(file, stat)?;
            self.record(&key, &attributes, path_of(file))?;
            self.epoch.is_touched = true;
        }
        Ok(self.epoch.inodes.get_mut(&id).expect("it was inserted if it was not there"))
    }

    /// Whether an inode existed when the epoch began, and is recorded.
    pub(super) fn is_old(&mut self, file: BorrowedFd<'_>, stat: &Stat) -> Result<bool> {
        let id = (stat.st_dev, stat.st_ino);
        match self.epoch.inodes.get(&id) {
            None => Ok(false),
            Some(Old { gone: None, .. }) => Ok(true),
            Some(Old { gone: Some(key), .. }) if *key == key_of(file, stat)? => Ok(true),
            Some(_) => {
                // The number is that of a file which was made in this epoch.
                self.epoch.inodes.remove(&id);
                self.epoch.made.insert(id);
                Ok(false)
            }
        }
    }

    /// Writes the record of an old inode.
    pub(super) fn record(&mut self, key: &FileKey, attributes: &Attributes, path: PathBuf) -> Result<()> {
        let has_content = attributes.kind() == FileType::RegularFile && attributes.size > 0;
        let number = self.log.inode(key, attributes, &path)?;
        let content = if has_content { Content::Untouched } else { Content::Whole };
        let old = Old { id: number, size: attributes.size, content, is_kept: false, gone: None };
        self.epoch.inodes.insert((key.device, key.inode), old);
        Ok(())
    }

    /// Whether a file system reports changes of content, by trying it once.
    pub(super) fn reports(&mut self, file: BorrowedFd<'_>, device: u64) -> bool {
        if let Some(known) = self.reports.get(&device) {
            return *known;
        }
        let found = self.marks.watch(file).and_then(|()| self.marks.forget(file)).is_ok();
        self.reports.insert(device, found);
        found
    }

    /// Sets the mark of a file, so that a description that is opened now can report.
    pub(super) fn mark(&mut self, file: BorrowedFd<'_>, stat: &Stat, mark: Mark) -> Result<()> {
        let id = (stat.st_dev, stat.st_ino);
        let key = key_of(file, stat)?;
        match self.watched.get_mut(&id) {
            Some(watched) if watched.key == key && watched.mark == mark => return Ok(()),
            // The number may be that of a file which is gone, and its mark with it.
            Some(watched) if watched.key == key => watched.mark = mark,
            _ => {
                // Before the mark: this description reports nothing, unless its mount was enabled.
                let reader = if self.watched.len() < READERS_MAX { reopen(file).ok() } else { None };
                self.watched.insert(id, Watched { mark, reader, key });
            }
        }
        match mark {
            Mark::Active => self.marks.watch(file)?,
            Mark::Silent => self.marks.silence(file)?,
        }
        Ok(())
    }

    /// Lets what is opened or made on the mount of a directory report later.
    pub(super) fn enable(&mut self, directory: BorrowedFd<'_>, device: u64) -> Result<()> {
        if !self.enabled.contains_key(&device) && self.reports.get(&device) != Some(&false) {
            if let Err(error) = self.marks.enable(directory) {
                // A file system without such events says so at its first mark.
                self.reports.insert(device, false);
                if error.errno != sys::Errno::EINVAL && error.errno != Errno::OPNOTSUPP.into() {
                    return Err(error.into());
                }
                return Ok(());
            }
            let kept = rustix::io::fcntl_dupfd_cloexec(directory, 3)
                .map_err(|errno| sys::Error::new("duplicate a directory", errno))?;
            self.enabled.insert(device, kept);
        }
        Ok(())
    }

    /// Ends `enable`. Only while no open of the subject is under way.
    pub(super) fn disable(&mut self) {
        for (_, directory) in self.enabled.drain() {
            // What stays enabled costs a little time, and nothing else.
            let _ = self.marks.disable(directory.as_fd());
        }
    }
}

/// The key of an open file.
pub(super) fn key_of(file: BorrowedFd<'_>, stat: &Stat) -> Result<FileKey> {
    FileKey::of(file, stat).map_err(|error| match error {
        UndoError::Kernel(error) if error.errno == Errno::OPNOTSUPP.into() => {
            UndoError::NoHandles { mount: mount_of(&path_of(file), stat.st_dev) }
        }
        UndoError::Kernel(error) => sys::Error::path("get the handle of", path_of(file), error.errno).into(),
        other => other,
    })
}

/// The highest directory above a path on the same file system.
fn mount_of(path: &Path, device: u64) -> PathBuf {
    let is_there = |folder: &&Path| rustix::fs::stat(*folder).is_ok_and(|stat| stat.st_dev == device);
    path.ancestors().skip(1).take_while(is_there).last().unwrap_or(path).to_owned()
}

/// Opens a file for reading that is open with O_PATH.
pub(super) fn reopen(file: BorrowedFd<'_>) -> Result<OwnedFd> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let opened = rustix::fs::open(&link, READ, Mode::empty());
    Ok(opened.map_err(|errno| sys::Error::path("open for reading", path_of(file), errno))?)
}
