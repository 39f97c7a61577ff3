//! The interface of a memory kind: the code that saves and restores one type of memory mapping.
//!
//! Many mappings map an *object*: a file, shared memory or a segment of System V shared memory. An image saves pages of
//! mappings and of objects, and one record for each object. The record contains a payload, from which the memory kind
//! can open or create the object again.
//!
//! Owns: the trait that memory kinds implement, and the arguments of its methods.
//! Does not: name any memory kind.

use std::os::fd::OwnedFd;

use model::{AddressRange, Pid};
use rustix::io::Errno;
use sys::segment::SegmentId;
use tracee::procfs::Mapping;
use tracee::{ProcessMemory, Stub};

use super::record::ObjectRecord;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::Opener;

/// The pages of a mapping that the image must contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Content {
    /// The image needs no page, because the mapping has all its content as soon as a restore maps the object.
    None,
    /// The pages that exist only in this address space, for example because of copy-on-write.
    Private,
    /// The pages that exist only in this address space, and all pages of the mapped object.
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
    /// Returns a path in `/proc` that leads to the mapped object. The use of this path needs CAP_CHECKPOINT_RESTORE.
    #[must_use]
    pub fn link(&self) -> String {
        let range = self.mapping.range;
        format!("/proc/{}/map_files/{:x}-{:x}", self.pid, range.start.get(), range.end.get())
    }

    /// Returns the obstacle of a mapping whose object cannot be opened. A mapping that no longer exists has no content
    /// to save, and no obstacle.
    pub(super) fn unopenable(&self, what: &str, object: &str) -> Option<Obstacle> {
        match rustix::fs::stat(self.link()) {
            // With these errors, the mapping or its process no longer exists. The caller lists the mappings again.
            Ok(_) | Err(Errno::NOENT | Errno::SRCH) => None,
            Err(errno) => Some(self.obstacle(
                what,
                &format!("the {object} behind it cannot be opened: {errno}"),
                "run undying as root or with CAP_CHECKPOINT_RESTORE",
            )),
        }
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

/// A memory kind: saves and restores one type of memory mapping.
pub trait MemoryKind: Sync {
    /// Returns the name of this kind in records: `memory/` and the name of the file that implements the kind.
    fn name(&self) -> &'static str;

    /// Returns the version of the payload format that this kind writes. The kind reads this version and all earlier
    /// versions.
    fn version(&self) -> u32 {
        1
    }

    /// Reports whether a mapping is of this kind.
    fn claims(&self, of: MappingOf<'_>) -> bool;

    /// Returns the pages that the image must contain.
    fn content(&self, of: MappingOf<'_>) -> Content;

    /// Returns the properties of this mapping that prevent a checkpoint. Called before the pause. The subject runs,
    /// and may remove the mapping during the call. A removed mapping has no obstacle. A missing object is not
    /// reported as an obstacle, because `describe` fails for a missing object.
    fn obstacles(&self, of: MappingOf<'_>) -> Vec<Obstacle> {
        let _ = of;
        Vec::new()
    }

    /// Returns the payload from which the object can be opened or created, and the length of the object in bytes.
    /// Called before the pause, only for a mapping with an object.
    fn describe(&self, of: MappingOf<'_>) -> Result<(Vec<u8>, u64)> {
        let _ = of;
        Ok((Vec::new(), 0))
    }

    /// Decodes the payload of a record, and refuses an invalid payload. Has no other effect. Called at a restore,
    /// before any object is opened or created.
    fn check(&self, record: &ObjectRecord) -> Result<()>;

    /// Returns a path or a name by which a user recognizes the object. Returns `None` if the kind alone describes the
    /// object. The caller passes only records that `check` has accepted.
    fn label(&self, record: &ObjectRecord) -> Option<String> {
        let _ = record;
        None
    }

    /// Opens or creates the object in this process. Called at a restore, before any process of the subject exists.
    /// `opener` opens files with the rights of the processes that mapped the object.
    fn open(&self, record: &ObjectRecord, opener: &Opener) -> Result<OwnedFd>;

    /// Checks that `open` would find the object, without opening or creating an object. Called before a checkpoint ends
    /// the subject.
    fn check_file(&self, record: &ObjectRecord, opener: &Opener) -> Result<()> {
        let _ = (record, opener);
        Ok(())
    }

    /// Opens the file of an object with O_PATH. While the descriptor is open, a restore finds the file, even if its name
    /// is removed. Returns `None` if a restore needs no file, or if the path leads to another file.
    fn hold(&self, record: &ObjectRecord) -> Option<OwnedFd> {
        let _ = record;
        None
    }

    /// Reports whether `open` creates a new object, and never opens an existing object. Only an object that this
    /// restore has created can be identified by its inode number. Existing objects may be on several file systems,
    /// which can use the same inode number.
    fn makes_objects(&self) -> bool {
        true
    }

    /// Removes the content of an object. Called at a restore, after all objects were opened and before the content of
    /// the image is written. A new object is empty. An object that already existed can have content.
    fn clear(&self, record: &ObjectRecord, object: &OwnedFd) -> Result<()> {
        let _ = (record, object);
        Ok(())
    }

    /// Changes the content of an object after the content of the image was written.
    fn filled(&self, record: &ObjectRecord, object: &OwnedFd) -> Result<()> {
        let _ = (record, object);
        Ok(())
    }

    /// Waits until the kernel changes no memory of the program for requests to the object. Called inside the pause, before
    /// pages are copied. The wait is short. If the kernel can still change memory afterwards, the method fails.
    fn settle(&self, record: &ObjectRecord) -> Result<()> {
        let _ = record;
        Ok(())
    }

    /// Updates a record with changes of the object since the call of `describe`. Called inside the pause.
    fn inside(&self, record: &mut ObjectRecord) -> Result<()> {
        let _ = record;
        Ok(())
    }

    /// Returns the System V shared memory segment of the object. A restore maps such an object with shmat(2), and not
    /// with mmap(2). Returns `None` for an object that is mapped through a descriptor. Called at a restore.
    fn segment(&self, record: &ObjectRecord) -> Result<Option<SegmentId>> {
        let _ = record;
        Ok(None)
    }

    /// Reports whether only the process itself can create the object. At a restore, `open` then returns memory of the
    /// same length, and `replace` replaces its mapping.
    fn is_made_by_process(&self) -> bool {
        false
    }

    /// Replaces the mapping of an object by the object that `stub` creates. Called at a restore for each mapping of the
    /// object, if `is_made_by_process` reports `true`.
    fn replace(
        &self,
        record: &ObjectRecord,
        range: AddressRange,
        stub: &mut Stub,
        memory: &ProcessMemory,
    ) -> Result<()> {
        let _ = (record, range, stub, memory);
        Ok(())
    }

    /// Runs steps that are possible only after every process has its mappings. Called at a restore.
    fn attached(&self, record: &ObjectRecord) -> Result<()> {
        let _ = record;
        Ok(())
    }

    /// Removes an object that `open` has created, if the object would outlive this process. Called after a failed
    /// restore.
    fn abandon(&self, record: &ObjectRecord) {
        let _ = record;
    }
}
