//! The memory kind of private anonymous memory: heap, stacks, mappings of malloc(3).
//!
//! Owns: recognizing private mappings without an object.
//! Does not: open objects, because these mappings have no object.

use std::os::fd::OwnedFd;

use super::flags::DROPPABLE;
use super::kind::{Content, MappingOf, MemoryKind};
use super::record::ObjectRecord;
use crate::error::{ResourceError, Result};
use crate::opener::Opener;
use tracee::procfs::Backing;

/// The memory kind of private anonymous memory.
pub(super) struct PrivateAnonymous;

impl MemoryKind for PrivateAnonymous {
    fn name(&self) -> &'static str {
        "memory/private_anonymous"
    }

    fn claims(&self, of: MappingOf<'_>) -> bool {
        of.mapping.backing == Backing::Anonymous && !of.mapping.protection.shared
    }

    /// Excludes the pages of droppable memory. A restore then has the same effect as a drop by the kernel, and the
    /// program must expect a drop at any time. Droppable memory contains the state of random number generators. A
    /// state that is restored twice would yield the same random numbers twice.
    fn content(&self, of: MappingOf<'_>) -> Content {
        if of.mapping.flags.has(DROPPABLE) { Content::None } else { Content::Private }
    }

    fn check(&self, _record: &ObjectRecord) -> Result<()> {
        Err(has_an_object())
    }

    fn open(&self, _record: &ObjectRecord, _opener: &Opener) -> Result<OwnedFd> {
        Err(has_an_object())
    }
}

fn has_an_object() -> ResourceError {
    ResourceError::malformed("memory/private_anonymous", "it has an object")
}
