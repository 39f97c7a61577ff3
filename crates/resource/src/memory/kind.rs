//! The interface of a memory kind.
//!
//! Owns: the trait that memory kinds implement, and its arguments.
//! Does not: name any kind.

use std::os::fd::OwnedFd;

use model::Pid;
use sys::segment::SegmentId;
use tracee::procfs::Area;

use super::record::ObjectRecord;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::Opener;

/// Which pages of a mapping the image must contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// None: mapping the object again restores all content.
    None,
    /// The pages that belong to this address space alone (copy-on-write).
    Private,
    /// These, and all pages of the mapped object.
    PrivateAndObject,
    /// All pages of the mapped object.
    Object,
}

/// A mapping of a process.
#[derive(Clone, Copy, Debug)]
pub struct AreaOf<'a> {
    /// The process.
    pub pid: Pid,
    /// The mapping.
    pub area: &'a Area,
}

impl AreaOf<'_> {
    /// The path of the mapped object in `/proc`; needs CAP_CHECKPOINT_RESTORE.
    #[must_use]
    pub fn link(&self) -> String {
        let range = self.area.range;
        format!("/proc/{}/map_files/{:x}-{:x}", self.pid, range.start.get(), range.end.get())
    }

    /// An obstacle about this mapping.
    #[must_use]
    pub fn obstacle(&self, what: &str, why: &str, fix: &str) -> Obstacle {
        Obstacle {
            pid: self.pid,
            what: format!("memory {} ({what})", self.area.range),
            place: self.area.name.clone(),
            why: why.to_owned(),
            fix: fix.to_owned(),
        }
    }
}

/// A kind of memory mapping.
pub trait MemoryKind: Sync {
    /// The name of its records: `memory/` and the name of the file that implements it.
    fn name(&self) -> &'static str;

    /// The version of the payload it writes; it reads this and all earlier ones.
    fn version(&self) -> u32 {
        1
    }

    /// One line for the tables in docs and `doctor`: what is restored.
    fn summary(&self) -> &'static str;

    /// Whether a mapping is of this kind.
    fn claims(&self, of: AreaOf<'_>) -> bool;

    /// Which pages the image must contain.
    fn content(&self, of: AreaOf<'_>) -> Content;

    /// Before the pause: the properties of this mapping that would prevent a checkpoint. A mapping that no longer
    /// exists has none. The caller inspects its object too, and handles a missing one.
    fn obstacles(&self, of: AreaOf<'_>) -> Vec<Obstacle> {
        let _ = of;
        Vec::new()
    }

    /// Before the pause: the payload with which the object can be opened again, and its length in bytes. Called only
    /// for mappings with an object.
    fn describe(&self, of: AreaOf<'_>) -> Result<(Vec<u8>, u64)> {
        let _ = of;
        Ok((Vec::new(), 0))
    }

    /// Restore, before anything is opened or created: decodes the payload of a record and refuses invalid ones.
    /// Changes nothing.
    fn check(&self, record: &ObjectRecord) -> Result<()>;

    /// What the object is, for people: a path or a name. `None` where the kind itself says it all. The record is one that
    /// `check` has accepted.
    fn label(&self, record: &ObjectRecord) -> Option<String> {
        let _ = record;
        None
    }

    /// Restore: opens or creates the object in this process, before any process of the subject exists. `opener` acts
    /// for the processes that map it.
    fn open(&self, record: &ObjectRecord, opener: &Opener) -> Result<OwnedFd>;

    /// Whether `open` creates an object of its own. Only such an object may be found by its inode number, which
    /// repeats between file systems.
    fn makes_objects(&self) -> bool {
        true
    }

    /// Restore: removes the content of an opened object before that of the image is written, after all objects were
    /// opened. Only objects that outlive their processes have content.
    fn clear(&self, record: &ObjectRecord, object: &OwnedFd) -> Result<()> {
        let _ = (record, object);
        Ok(())
    }

    /// Inside the pause: updates a record with changes since `describe`.
    fn inside(&self, record: &mut ObjectRecord) -> Result<()> {
        let _ = record;
        Ok(())
    }

    /// Restore: the segment to attach with shmat(2), for objects that cannot be mapped by a descriptor.
    fn segment(&self, record: &ObjectRecord) -> Result<Option<SegmentId>> {
        let _ = record;
        Ok(None)
    }

    /// Restore: called when every process has its mappings.
    fn attached(&self, record: &ObjectRecord) -> Result<()> {
        let _ = record;
        Ok(())
    }

    /// Restore: called when it has failed. Removes objects that `open` created and that would outlive this process.
    fn abandon(&self, record: &ObjectRecord) {
        let _ = record;
    }
}

/// Whether the errno means that a mapping or its process ended since it was listed. The caller then lists them again.
pub(super) fn is_gone(errno: rustix::io::Errno) -> bool {
    errno == rustix::io::Errno::NOENT || errno == rustix::io::Errno::SRCH
}
