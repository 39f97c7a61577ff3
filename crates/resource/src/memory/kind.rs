//! The interface of a memory kind, which saves and restores one type of mapping.
//!
//! Owns: the trait that memory kinds implement, and the arguments of its methods.
//! Does not: name any memory kind.

use std::os::fd::OwnedFd;

use model::Pid;
use sys::segment::SegmentId;
use tracee::procfs::Mapping;

use super::record::ObjectRecord;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::Opener;

/// The pages of a mapping that the image must contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// No page. Mapping the object again restores all content.
    None,
    /// The pages that belong only to this address space (copy-on-write).
    Private,
    /// The pages of `Private`, and all pages of the mapped object.
    PrivateAndObject,
    /// All pages of the mapped object.
    Object,
}

/// A mapping of a process.
#[derive(Clone, Copy, Debug)]
pub struct MappingOf<'a> {
    /// The process.
    pub pid: Pid,
    /// The mapping.
    pub mapping: &'a Mapping,
}

impl MappingOf<'_> {
    /// Returns the path of the mapped object in `/proc`. Access to the path needs CAP_CHECKPOINT_RESTORE.
    #[must_use]
    pub fn link(&self) -> String {
        let range = self.mapping.range;
        format!("/proc/{}/map_files/{:x}-{:x}", self.pid, range.start.get(), range.end.get())
    }

    /// Creates an obstacle about this mapping.
    #[must_use]
    pub fn obstacle(&self, what: &str, why: &str, fix: &str) -> Obstacle {
        Obstacle {
            pid: self.pid,
            what: format!("memory {} ({what})", self.mapping.range),
            place: self.mapping.name.clone(),
            why: why.to_owned(),
            fix: fix.to_owned(),
        }
    }
}

/// A kind of memory mapping.
pub trait MemoryKind: Sync {
    /// Returns the name of this kind in records: `memory/` and the name of the file that implements the kind.
    fn name(&self) -> &'static str;

    /// Returns the version of the payload that this kind writes. The kind reads this version and all earlier versions.
    fn version(&self) -> u32 {
        1
    }

    /// Returns one line about the restored state, for tables in the documentation and in `doctor`.
    fn summary(&self) -> &'static str;

    /// Reports whether a mapping is of this kind.
    fn claims(&self, of: MappingOf<'_>) -> bool;

    /// Returns the pages that the image must contain.
    fn content(&self, of: MappingOf<'_>) -> Content;

    /// Returns the properties of this mapping that would prevent a checkpoint. Called before the pause, in which all
    /// threads of the subject (the protected program) are stopped. A mapping that no longer exists has no obstacle.
    /// The caller also inspects the mapped object, and handles a missing object.
    fn obstacles(&self, of: MappingOf<'_>) -> Vec<Obstacle> {
        let _ = of;
        Vec::new()
    }

    /// Returns the payload with which the object can be opened again, and the length of the object in bytes. Called
    /// before the pause, only for mappings with an object.
    fn describe(&self, of: MappingOf<'_>) -> Result<(Vec<u8>, u64)> {
        let _ = of;
        Ok((Vec::new(), 0))
    }

    /// Decodes the payload of a record, and refuses an invalid payload. Called at a restore, before anything is opened
    /// or created. Changes nothing.
    fn check(&self, record: &ObjectRecord) -> Result<()>;

    /// Returns a path or a name by which a user recognizes the object. Returns `None` if the kind alone describes the
    /// object. The caller passes only records that `check` has accepted.
    fn label(&self, record: &ObjectRecord) -> Option<String> {
        let _ = record;
        None
    }

    /// Opens or creates the object in this process. Called at a restore, before any process of the subject exists.
    /// `opener` acts for the processes that map the object.
    fn open(&self, record: &ObjectRecord, opener: &Opener) -> Result<OwnedFd>;

    /// Reports whether `open` creates a new object. Only a new object may be found by its inode number, because two
    /// file systems can use the same inode number.
    fn makes_objects(&self) -> bool {
        true
    }

    /// Removes the content of an opened object. Called at a restore, after all objects were opened and before the
    /// content of the image is written. Only objects that outlive their processes have content.
    fn clear(&self, record: &ObjectRecord, object: &OwnedFd) -> Result<()> {
        let _ = (record, object);
        Ok(())
    }

    /// Updates a record with changes since `describe`. Called inside the pause.
    fn inside(&self, record: &mut ObjectRecord) -> Result<()> {
        let _ = record;
        Ok(())
    }

    /// Returns the segment to attach with shmat(2), for an object that cannot be mapped by a descriptor. Called at a
    /// restore.
    fn segment(&self, record: &ObjectRecord) -> Result<Option<SegmentId>> {
        let _ = record;
        Ok(None)
    }

    /// Completes the object. Called at a restore, after every process has its mappings.
    fn attached(&self, record: &ObjectRecord) -> Result<()> {
        let _ = record;
        Ok(())
    }

    /// Removes objects that `open` created and that would outlive this process. Called after a failed restore.
    fn abandon(&self, record: &ObjectRecord) {
        let _ = record;
    }
}

/// Reports whether the errno means that a mapping or its process has ended since the mappings were listed. The caller
/// then lists the mappings again.
pub(super) fn is_gone(errno: rustix::io::Errno) -> bool {
    errno == rustix::io::Errno::NOENT || errno == rustix::io::Errno::SRCH
}
