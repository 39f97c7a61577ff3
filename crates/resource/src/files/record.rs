//! The record of a file that the subject may write.
//!
//! Owns: the state of the file in the image, and the effect of a later change of the file.
//! Does not: compare files with records; `compare` does.

use std::path::{Path, PathBuf};

use crate::support::finding::Handle;
use crate::support::identity::Identity;
use crate::support::path;

/// The state of one file at a checkpoint, merged from all descriptors and mappings of the subject.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FileRecord {
    /// The absolute path, as bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) path: Vec<u8>,
    /// `st_dev`.
    #[prost(uint64, tag = "2")]
    pub(super) device: u64,
    /// `st_ino`.
    #[prost(uint64, tag = "3")]
    pub(super) inode: u64,
    /// The length in bytes.
    #[prost(uint64, tag = "4")]
    pub(super) size: u64,
    /// `st_mtime`, seconds.
    #[prost(int64, tag = "5")]
    pub(super) modified_s: i64,
    /// `st_mtime`, nanoseconds.
    #[prost(uint64, tag = "6")]
    pub(super) modified_ns: u64,
    /// `st_ctime`, seconds.
    #[prost(int64, tag = "7")]
    pub(super) changed_s: i64,
    /// `st_ctime`, nanoseconds.
    #[prost(uint64, tag = "8")]
    pub(super) changed_ns: u64,
    /// `true` if a descriptor may write at any offset of the file.
    #[prost(bool, tag = "9")]
    pub(super) in_place: bool,
    /// `true` if a mapping may write to the file.
    #[prost(bool, tag = "10")]
    pub(super) mapped: bool,
    /// `true` if the guardian has inherited the file and passes the file on to the subject. The guardian is the
    /// process that starts, checkpoints and restarts the subject. Other processes write to the file too.
    #[prost(bool, tag = "11")]
    pub(super) inherited: bool,
    /// The checksum of the first and the last page, for a file that is only appended to.
    #[prost(uint32, optional, tag = "12")]
    pub(super) ends: Option<u32>,
    /// The checksum of the whole content, for a mapped file up to [`super::sample::WHOLE_BYTES_MAX`].
    #[prost(uint32, optional, tag = "13")]
    pub(super) whole: Option<u32>,
    /// `true` if the times are too close to the checkpoint to show a change right after the checkpoint.
    #[prost(bool, tag = "14")]
    pub(super) times_are_coarse: bool,
    /// `true` if the checkpoint killed the subject, so that no later store through a mapping was possible.
    #[prost(bool, tag = "15")]
    pub(super) ended: bool,
    /// The whole content of a file that is written only through mappings, up to [`super::sample::KEPT_BYTES_MAX`].
    #[prost(bytes = "vec", optional, tag = "16")]
    pub(super) content: Option<Vec<u8>>,
    /// `true` if a descriptor writes at its own position, and not always at the end of the file (O_APPEND).
    #[prost(bool, tag = "17")]
    pub(super) positioned: bool,
    /// `true` if the checkpoint has made the content durable. The times then also prove after a restart of the machine
    /// that the content is unchanged.
    #[prost(bool, tag = "18")]
    pub(super) durable: bool,
    /// Identity and handle of the file, if the checkpoint killed the subject. The program then did not rename the file
    /// itself, so a restore accepts the file under another name. `None` also in images of earlier versions.
    #[prost(message, optional, tag = "19")]
    pub(super) identity: Option<Identity>,
    #[prost(message, optional, tag = "20")]
    pub(super) handle: Option<Handle>,
}

/// Returns path, device and inode number of each file that only the program writes.
pub fn of_program(records: &[FileRecord]) -> impl Iterator<Item = (PathBuf, (u64, u64))> {
    records.iter().filter(|record| !record.inherited).map(|record| (record.path(), record.file()))
}

/// The effect of a later change of a file on a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// The file is truncated to its recorded length if the file only grew and no name was removed from its directory.
    CutBack,
    /// The content of the checkpoint, which is in the image, is written to the file.
    GoesBack,
    /// A change of the file prevents the restart.
    Prevents,
    /// The file prevents every restart, because stores through a large mapping leave no trace.
    AlwaysPrevents,
    /// The file is not changed. The guardian has inherited the file, and other processes write to the file too.
    Stays,
}

impl FileRecord {
    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        path::from_bytes(&self.path)
    }

    /// Returns the device and the inode of the file.
    #[must_use]
    pub fn file(&self) -> (u64, u64) {
        (self.device, self.inode)
    }

    /// Returns the length at the checkpoint in bytes.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the effect of a change on a restart.
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

    pub(super) fn is_file(&self, device: u64, inode: u64) -> bool {
        (self.device, self.inode) == (device, inode)
    }

    pub(super) fn with_path(path: &Path) -> Self {
        Self { path: path::to_bytes(path), ..Self::default() }
    }
}
