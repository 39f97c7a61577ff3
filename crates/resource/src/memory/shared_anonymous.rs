//! The memory kind of shared anonymous memory, which a process shares with forked children.
//!
//! Owns: recognizing mappings of `/dev/zero (deleted)`, and creating the shared object again.
//! Does not: copy the pages of the object. The engine copies the pages once for all mappings.

use std::os::fd::OwnedFd;

use super::kind::{Content, MappingOf, MemoryKind};
use super::record::ObjectRecord;
use crate::error::{ResourceError, Result};
use crate::opener::Opener;
use sys::Error;

const NAME: &str = "memory/shared_anonymous";

/// The memory kind of shared anonymous memory.
pub(super) struct SharedAnonymous;

impl MemoryKind for SharedAnonymous {
    fn name(&self) -> &'static str {
        NAME
    }

    fn claims(&self, of: MappingOf<'_>) -> bool {
        let has_name = of.mapping.name.starts_with(super::record::NAMED_SHARED);
        (of.mapping.name == "/dev/zero (deleted)" || has_name) && of.mapping.protection.shared
    }

    fn content(&self, _of: MappingOf<'_>) -> Content {
        Content::Object
    }

    fn describe(&self, of: MappingOf<'_>) -> Result<(Vec<u8>, u64)> {
        let link = of.link();
        let stat = rustix::fs::stat(&link).map_err(|errno| Error::path("stat", &link, errno))?;
        Ok((Vec::new(), stat.st_size as u64))
    }

    fn check(&self, _record: &ObjectRecord) -> Result<()> {
        Ok(())
    }

    fn open(&self, record: &ObjectRecord, _opener: &Opener) -> Result<OwnedFd> {
        sys::shared_memory::anonymous(model::ByteCount(record.length)).map_err(ResourceError::from)
    }
}
