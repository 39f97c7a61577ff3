//! The record of a file that the subject may write.
//!
//! Owns: its state in the image, and the effect of a later change.
//! Does not: compare.

use std::path::{Path, PathBuf};

use crate::support::path;

/// State of one file at a checkpoint, merged from all descriptors and mappings of the subject.
#[derive(Clone, PartialEq, prost::Message)]
pub struct FileRecord {
    /// Absolute path, as bytes.
    #[prost(bytes = "vec", tag = "1")]
    pub(super) path: Vec<u8>,
    /// `st_dev`.
    #[prost(uint64, tag = "2")]
    pub(super) device: u64,
    /// `st_ino`.
    #[prost(uint64, tag = "3")]
    pub(super) inode: u64,
    /// Length in bytes.
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
    /// A descriptor may write anywhere in it.
    #[prost(bool, tag = "9")]
    pub(super) in_place: bool,
    /// A mapping may write to it.
    #[prost(bool, tag = "10")]
    pub(super) mapped: bool,
    /// The guardian has inherited it and passes it on: other processes write to it too.
    #[prost(bool, tag = "11")]
    pub(super) inherited: bool,
    /// Checksum of the first and the last page, for a file that is only appended to.
    #[prost(uint32, optional, tag = "12")]
    pub(super) ends: Option<u32>,
    /// Checksum of the whole content, for a mapped file up to [`super::sample::WHOLE_BYTES_MAX`].
    #[prost(uint32, optional, tag = "13")]
    pub(super) whole: Option<u32>,
    /// The times are too close to the checkpoint to show a change right after it.
    #[prost(bool, tag = "14")]
    pub(super) times_are_coarse: bool,
    /// The checkpoint killed the subject, so no store through a mapping followed.
    #[prost(bool, tag = "15")]
    pub(super) ended: bool,
    /// The whole content of a file that is written through mappings alone, up to [`super::sample::KEPT_BYTES_MAX`].
    #[prost(bytes = "vec", optional, tag = "16")]
    pub(super) content: Option<Vec<u8>>,
    /// A descriptor writes at its own position, and not always at the end (O_APPEND).
    #[prost(bool, tag = "17")]
    pub(super) positioned: bool,
}

/// Effect of a later change of a file on a restart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// If it only grew and no name was removed from its directory, it is truncated to its recorded length.
    CutBack,
    /// The content of the checkpoint, which is in the image, is written to it.
    GoesBack,
    /// A change prevents the restart.
    Prevents,
    /// It prevents every restart, since stores through a large mapping leave no trace.
    AlwaysPrevents,
    /// It is not changed: the guardian has inherited it, and other processes write to it too.
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

    /// The effect of a change on a restart.
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
