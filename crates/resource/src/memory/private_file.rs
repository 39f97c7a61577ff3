//! The memory kind of private file mappings: programs, libraries, mapped data.
//!
//! Owns: recognizing private mappings whose file still exists at its path.
//! Does not: save unchanged pages. The restored mapping reads unchanged pages from the file.

use std::os::fd::OwnedFd;

use super::kind::{Content, MappingOf, MemoryKind};
use super::record::ObjectRecord;
use super::source_file::{self, Sameness};
use crate::error::Result;
use crate::opener::Opener;
use tracee::procfs::Backing;

const NAME: &str = "memory/private_file";

/// The memory kind of private file mappings.
pub(super) struct PrivateFile;

impl MemoryKind for PrivateFile {
    fn name(&self) -> &'static str {
        NAME
    }

    fn claims(&self, of: MappingOf<'_>) -> bool {
        matches!(of.mapping.backing, Backing::File { .. })
            && !of.mapping.protection.shared
            && !of.mapping.flags.has("ht")
            && source_file::is_reachable(of)
    }

    fn content(&self, _of: MappingOf<'_>) -> Content {
        Content::Private
    }

    fn describe(&self, of: MappingOf<'_>) -> Result<(Vec<u8>, u64)> {
        source_file::describe(of)
    }

    fn check(&self, record: &ObjectRecord) -> Result<()> {
        source_file::check(NAME, &record.payload)
    }

    fn label(&self, record: &ObjectRecord) -> Option<String> {
        crate::support::label::first_field(&record.payload)
    }

    fn open(&self, record: &ObjectRecord, opener: &Opener) -> Result<OwnedFd> {
        source_file::open(NAME, record, Sameness::Content, opener)
    }

    fn check_file(&self, record: &ObjectRecord, opener: &Opener) -> Result<()> {
        source_file::check_file(NAME, record, Sameness::Content, opener)
    }

    fn hold(&self, record: &ObjectRecord) -> Option<OwnedFd> {
        source_file::hold(NAME, record)
    }

    fn makes_objects(&self) -> bool {
        false
    }
}
