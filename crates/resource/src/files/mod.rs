//! Regular files that the subject may write: their state at a checkpoint, and the comparison at a restore.
//!
//! Owns: the records of files and of their directories, how a change is judged, how a file that only grew is cut back.
//! Invariants: a restore reads nothing of a file before its device, inode and type were compared; no file is changed
//! before every file was accepted.
//! Does not: bring the content of larger files back. A file that was changed in place refuses the restore.
//!
//! A checkpoint restores memory. A program whose memory is older than its files can destroy them: a database that
//! writes old pages over new ones, a log whose lines are written twice. So the image records the state of each
//! regular file that a process has open for writing or maps shared and writable, and the restore compares.
//!
//! The content of a small file that is written through mappings alone (performance counters of a Java virtual machine)
//! is recorded, too, and goes back with the memory.
//!
//! Files whose content is part of the image (no name left, memory files) are not recorded, and neither are files of
//! file systems that make up their content, such as proc(5).

mod capture;
mod compare;
mod covered;
mod cut;
mod directory;
mod sample;
mod times;

use std::path::{Path, PathBuf};

use crate::support::path;

pub use capture::{FileStates, MappedForWriting, is_changeable, is_memory_file};
pub use compare::{ChangedFile, compare};
pub use covered::Covered;
pub use cut::{Cut, MoveAside};
pub use directory::{Directories, DirectoryRecord};

/// State of one file at a checkpoint, merged from all descriptors and mappings of the subject.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FileRecord {
    /// Absolute path, as bytes.
    #[prost(bytes = "vec", tag = "1")]
    path: Vec<u8>,
    /// `st_dev`.
    #[prost(uint64, tag = "2")]
    device: u64,
    /// `st_ino`.
    #[prost(uint64, tag = "3")]
    inode: u64,
    /// Length in bytes.
    #[prost(uint64, tag = "4")]
    size: u64,
    /// `st_mtime`, seconds.
    #[prost(int64, tag = "5")]
    modified_s: i64,
    /// `st_mtime`, nanoseconds.
    #[prost(uint64, tag = "6")]
    modified_ns: u64,
    /// `st_ctime`, seconds.
    #[prost(int64, tag = "7")]
    changed_s: i64,
    /// `st_ctime`, nanoseconds.
    #[prost(uint64, tag = "8")]
    changed_ns: u64,
    /// Some descriptor may write anywhere in it.
    #[prost(bool, tag = "9")]
    in_place: bool,
    /// Some mapping may write to it.
    #[prost(bool, tag = "10")]
    mapped: bool,
    /// The guardian was started with it and hands it on: others write to it, too.
    #[prost(bool, tag = "11")]
    inherited: bool,
    /// Checksum of the first and the last page, of a file that is only appended to.
    #[prost(uint32, optional, tag = "12")]
    ends: Option<u32>,
    /// Checksum of the whole content, of a mapped file up to [`sample::WHOLE_BYTES_MAX`].
    #[prost(uint32, optional, tag = "13")]
    whole: Option<u32>,
    /// The times are too close to the checkpoint to show a change that came right after it.
    #[prost(bool, tag = "14")]
    times_are_coarse: bool,
    /// The checkpoint ended the subject, so that no store through a mapping followed.
    #[prost(bool, tag = "15")]
    ended: bool,
    /// The whole content of a file that is written through mappings alone, up to [`sample::KEPT_BYTES_MAX`].
    #[prost(bytes = "vec", optional, tag = "16")]
    content: Option<Vec<u8>>,
}

/// What a later change of a file means for a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// It is cut back to its recorded length when it only grew, and no name has gone from its directory.
    CutBack,
    /// It is given the content of the checkpoint, which the image holds.
    GoesBack,
    /// It prevents the restart as soon as it is changed.
    Prevents,
    /// It prevents every restart: stores through a large mapping leave no trace.
    AlwaysPrevents,
    /// It stays as it is: the guardian was started with it, and others write to it, too.
    Stays,
}

impl FileRecord {
    /// Its path.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path::from_bytes(&self.path)
    }

    /// Its device and inode.
    #[must_use]
    pub fn file(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// What a change of it means for a restart.
    #[must_use]
    pub fn effect(&self) -> Effect {
        if self.inherited {
            Effect::Stays
        } else if self.content.is_some() {
            Effect::GoesBack
        } else if self.mapped && self.whole.is_none() && !self.ended {
            Effect::AlwaysPrevents
        } else if self.mapped || self.in_place || self.ends.is_none() {
            Effect::Prevents
        } else {
            Effect::CutBack
        }
    }

    fn is_file(&self, device: u64, inode: u64) -> bool {
        (self.device, self.inode) == (device, inode)
    }

    fn with_path(path: &Path) -> Self {
        Self { path: path::to_bytes(path), ..Self::default() }
    }
}

#[cfg(test)]
mod tests;
