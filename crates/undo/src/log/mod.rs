//! The log: epochs of records, each epoch the way back to one checkpoint.
//!
//! Owns: the records, their files, retention and bound.
//! Invariants: a record is in the page cache before the call that wrote it returns; a torn record ends an epoch and
//! marks it as broken.
//! Does not: decide what to record.

use std::ffi::OsStr;
use std::path::Path;

use model::{ByteCount, Sequence};

use crate::error::Result;
use crate::key::{Attributes, FileKey, Time};

/// A directory that records of the present epoch refer to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DirectoryId(pub u32);

/// An inode that records of the present epoch refer to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct InodeId(pub u32);

/// Appends records. Whoever calls it records each name, inode and range at its first change in an epoch only.
#[derive(Debug)]
pub struct UndoLog {}

impl UndoLog {
    /// Begins a log in `directory` (mode 0700, created if missing); what an earlier run has left there is removed. The
    /// first epoch leads back to `start`.
    pub fn create(_directory: &Path, _start: Sequence, _bytes_max: ByteCount) -> Result<Self> {
        Ok(Self {})
    }

    /// The state of files now is that of a checkpoint. Begins a new epoch, unless the present one is empty: then the
    /// state is also that of the earlier one. Ids of directories and inodes are void afterwards. `true` when a new
    /// epoch began. Called inside the pause: makes no file (the next one is prepared by `prepare`).
    pub fn boundary(&mut self, _sequence: Sequence) -> Result<bool> {
        Ok(true)
    }

    /// Creates the file of the next epoch ahead. Called outside the pause.
    pub fn prepare(&mut self) -> Result<()> {
        Ok(())
    }

    /// A directory with names that are about to change: its attributes, and its path for people.
    pub fn directory(
        &mut self,
        _key: &FileKey,
        _attributes: &Attributes,
        _path: &Path,
    ) -> Result<DirectoryId> {
        Ok(DirectoryId(0))
    }

    /// An inode about to be changed, or to lose a name: attributes (size included) as they were when the epoch began.
    pub fn inode(&mut self, _key: &FileKey, _attributes: &Attributes, _path: &Path) -> Result<InodeId> {
        Ok(InodeId(0))
    }

    /// What a name led to when the epoch began.
    pub fn name(&mut self, _directory: DirectoryId, _name: &OsStr, _before: Option<InodeId>) -> Result<()> {
        Ok(())
    }

    /// The state of files is also that of this checkpoint.
    pub fn same(&mut self, _sequence: Sequence) -> Result<()> {
        Ok(())
    }

    /// Extended attributes of an inode when the epoch began.
    pub fn extended(&mut self, _inode: InodeId, _found: &[(Vec<u8>, Vec<u8>)]) -> Result<()> {
        Ok(())
    }

    /// The file whose content says that the guardian died before the subject.
    pub fn open_mark(&self) -> Result<std::fs::File> {
        Err(sys::Error::new("stub", sys::Errno::ENOSYS).into())
    }

    /// Goes on with a log after going back.
    pub fn reopen(_directory: &Path, _to: Sequence, _bytes_max: ByteCount) -> Result<Self> {
        Ok(Self {})
    }

    /// Old content of a range. Ranges beyond the recorded size are not given.
    pub fn range(&mut self, _inode: InodeId, _offset: u64, _bytes: &[u8]) -> Result<()> {
        Ok(())
    }

    /// A range that was a hole, or zeros.
    pub fn hole(&mut self, _inode: InodeId, _offset: u64, _length: ByteCount) -> Result<()> {
        Ok(())
    }

    /// The whole old content is in another file (a reflink or a copy) in a keep directory.
    pub fn whole_in(&mut self, _inode: InodeId, _file: &Path) -> Result<()> {
        Ok(())
    }

    /// The inode has a further name, a hard link in a keep directory, so that it outlives the names it is about to
    /// lose.
    pub fn linked(&mut self, _inode: InodeId, _link: &Path) -> Result<()> {
        Ok(())
    }

    /// A file that can be changed without a trace from now on: the restore has to compare it.
    pub fn uncovered(&mut self, _device: u64, _inode: u64, _path: &Path) -> Result<()> {
        Ok(())
    }

    /// The way back through this epoch is lost.
    pub fn broken(&mut self, _why: &str) -> Result<()> {
        Ok(())
    }

    /// The subject has ended: what changes after this time is a change by somebody else.
    pub fn ended(&mut self, _time: Time) -> Result<()> {
        Ok(())
    }

    /// Forgets epochs that only lead to checkpoints before `oldest`.
    pub fn forget_before(&mut self, _oldest: Sequence) -> Result<()> {
        Ok(())
    }

    /// Bytes of all epochs, with those of files in keep directories.
    pub fn bytes(&self) -> ByteCount {
        ByteCount(0)
    }
}

/// Keep directories.
#[derive(Debug)]
pub struct KeepPlaces {}

impl KeepPlaces {
    /// For a log.
    pub fn new(_directory: &Path) -> Result<Self> {
        Ok(Self {})
    }

    /// A link to a file.
    pub fn link(&mut self, _file: std::os::fd::BorrowedFd<'_>) -> Result<std::path::PathBuf> {
        Ok(std::path::PathBuf::new())
    }

    /// Whether files can be cloned there.
    pub fn clones(&self, _device: u64) -> bool {
        false
    }

    /// A clone of a file.
    pub fn clone_of(
        &mut self,
        _file: std::os::fd::BorrowedFd<'_>,
        _device: u64,
    ) -> Result<Option<std::path::PathBuf>> {
        Ok(None)
    }
}
