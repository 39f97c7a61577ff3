//! The memory kind of shared mappings of files that still have their name.
//!
//! Owns: recognizing shared mappings whose file still exists at its path.
//! Does not: save content, because stores through the mapping are stores to the file.

use std::os::fd::OwnedFd;

use rustix::fs::FileType;

use super::kind::{Content, MappingOf, MemoryKind};
use super::record::ObjectRecord;
use super::source_file::{self, Sameness};
use crate::error::Result;
use crate::opener::Opener;
use tracee::procfs::Backing;

const NAME: &str = "memory/shared_file";

/// The memory kind of shared file mappings.
pub(super) struct SharedFile;

/// Reports whether the path leads to a regular file. The path of a device does not count, because a device has memory
/// of its own.
fn is_regular(of: MappingOf<'_>) -> bool {
    let found = rustix::fs::stat(source_file::path(of));
    found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
}

impl MemoryKind for SharedFile {
    fn name(&self) -> &'static str {
        NAME
    }

    fn claims(&self, of: MappingOf<'_>) -> bool {
        matches!(of.mapping.backing, Backing::File { .. })
            && of.mapping.protection.shared
            && !of.mapping.flags.has("ht")
            && is_regular(of)
            && source_file::is_reachable(of)
    }

    fn content(&self, _of: MappingOf<'_>) -> Content {
        Content::None
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
        source_file::open(NAME, record, Sameness::Identity, opener)
    }

    fn check_file(&self, record: &ObjectRecord, opener: &Opener) -> Result<()> {
        source_file::check_file(NAME, record, Sameness::Identity, opener)
    }

    fn hold(&self, record: &ObjectRecord) -> Option<OwnedFd> {
        source_file::hold(NAME, record)
    }

    fn makes_objects(&self) -> bool {
        false
    }
}
