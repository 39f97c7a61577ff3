//! The interface of a memory kind.
//!
//! Owns: what a kind is asked about an area.
//! Does not: know any kind.

use std::os::fd::OwnedFd;

use model::Pid;
use sys::segment::SegmentId;
use tracee::procfs::Area;

use super::record::ObjectRecord;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::Opener;

/// Which pages of an area the image must hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// None: mapping the object again brings everything back.
    None,
    /// The pages that belong to this address space alone.
    Private,
    /// Those, and all pages of the object behind the area.
    PrivateAndObject,
    /// All pages of the object behind the area.
    Object,
}

/// Where an area is, for a kind that looks at the object behind it.
#[derive(Clone, Copy, Debug)]
pub struct AreaOf<'a> {
    /// The process.
    pub pid: Pid,
    /// The area.
    pub area: &'a Area,
}

impl AreaOf<'_> {
    /// The link through which the kernel gives the object behind the area; needs CAP_CHECKPOINT_RESTORE.
    #[must_use]
    pub fn link(&self) -> String {
        let range = self.area.range;
        format!("/proc/{}/map_files/{:x}-{:x}", self.pid, range.start.get(), range.end.get())
    }

    /// An obstacle about this area.
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

/// A kind of memory area.
pub trait MemoryKind: Sync {
    /// The name of its records: `memory/` and the name of the file that implements it.
    fn name(&self) -> &'static str;

    /// The version of the payload it writes; it reads this and all earlier ones.
    fn version(&self) -> u32 {
        1
    }

    /// One line for the tables in docs and `doctor`: what comes back.
    fn summary(&self) -> &'static str;

    /// Whether an area is of this kind.
    fn claims(&self, of: AreaOf<'_>) -> bool;

    /// Which pages the image must hold.
    fn content(&self, of: AreaOf<'_>) -> Content;

    /// Before the pause: what of this area would stop a checkpoint. One that has gone stops none; the object behind it
    /// is asked for as well, and whether it could be found is the caller's to judge.
    fn obstacles(&self, of: AreaOf<'_>) -> Vec<Obstacle> {
        let _ = of;
        Vec::new()
    }

    /// Before the pause: what must be known of the object behind the area to open it again; the payload and
    /// the length in bytes. Only asked of areas that have an object.
    fn describe(&self, of: AreaOf<'_>) -> Result<(Vec<u8>, u64)> {
        let _ = of;
        Ok((Vec::new(), 0))
    }

    /// Restore, before anything is opened or made: decodes the payload of a record, and refuses what no restore can use.
    /// Changes nothing.
    fn check(&self, record: &ObjectRecord) -> Result<()>;

    /// What the object is, for people: a path or a name. `None` where the kind itself says it all. The record is one that
    /// `check` has accepted.
    fn label(&self, record: &ObjectRecord) -> Option<String> {
        let _ = record;
        None
    }

    /// Restore: opens or makes the object, in this process, before any process of the subject exists. `opener` acts
    /// for the processes that map it.
    fn open(&self, record: &ObjectRecord, opener: &Opener) -> Result<OwnedFd>;

    /// Whether `open` makes an object that nothing else has. Only such an object may be found again by its inode
    /// number, which repeats between file systems.
    fn makes_objects(&self) -> bool {
        true
    }

    /// Restore: removes the content that an opened object has, before that of the image is written. Every object has
    /// been opened by then. Only objects that outlive their processes have content.
    fn clear(&self, record: &ObjectRecord, object: &OwnedFd) -> Result<()> {
        let _ = (record, object);
        Ok(())
    }

    /// Inside the pause: brings a record up to date with what may have changed since it was described.
    fn inside(&self, record: &mut ObjectRecord) -> Result<()> {
        let _ = record;
        Ok(())
    }

    /// Restore: the segment to attach with shmat(2), for objects that cannot be mapped by a descriptor.
    fn segment(&self, record: &ObjectRecord) -> Result<Option<SegmentId>> {
        let _ = record;
        Ok(None)
    }

    /// Restore: every process has its areas.
    fn attached(&self, record: &ObjectRecord) -> Result<()> {
        let _ = record;
        Ok(())
    }

    /// Restore: it has failed. Removes what `open` made and what would outlive this process.
    fn abandon(&self, record: &ObjectRecord) {
        let _ = record;
    }
}

/// Whether it says that an area, or its process, went away since it was listed. Whoever listed it looks again.
pub(super) fn is_gone(errno: rustix::io::Errno) -> bool {
    errno == rustix::io::Errno::NOENT || errno == rustix::io::Errno::SRCH
}
