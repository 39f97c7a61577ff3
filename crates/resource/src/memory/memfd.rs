//! The memory kind of memory files that were created with memfd_create(2).
//!
//! Owns: recognizing mappings named `/memfd:…`, and creating the memory file again.
//! Does not: apply seals. The descriptor kind applies the seals last, because seals can forbid filling the file.

use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;

use super::kind::{Content, MappingOf, MemoryKind};
use super::record::ObjectRecord;
use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::Opener;
use crate::support::generation;
use sys::Error;

const NAME: &str = "memory/memfd";

#[derive(Clone, PartialEq, prost::Message)]
struct MemfdObject {
    #[prost(string, tag = "1")]
    name: String,
}

/// The memory kind of memory files.
pub(super) struct Memfd;

impl MemoryKind for Memfd {
    fn name(&self) -> &'static str {
        NAME
    }

    fn claims(&self, of: MappingOf<'_>) -> bool {
        of.mapping.name.starts_with("/memfd:") && !of.mapping.flags.has("ht")
    }

    fn content(&self, of: MappingOf<'_>) -> Content {
        if of.mapping.protection.shared { Content::Object } else { Content::PrivateAndObject }
    }

    fn obstacles(&self, of: MappingOf<'_>) -> Vec<Obstacle> {
        of.unopenable("memory file", "object").into_iter().collect()
    }

    fn describe(&self, of: MappingOf<'_>) -> Result<(Vec<u8>, u64)> {
        let link = of.link();
        let stat = rustix::fs::stat(&link).map_err(|errno| Error::path("stat", &link, errno))?;
        let name = of.mapping.name.trim_start_matches("/memfd:").trim_end_matches(" (deleted)").to_owned();
        Ok((prost::Message::encode_to_vec(&MemfdObject { name }), stat.st_size as u64))
    }

    fn check(&self, record: &ObjectRecord) -> Result<()> {
        crate::error::decode::<MemfdObject>(NAME, &record.payload).map(drop)
    }

    fn label(&self, record: &ObjectRecord) -> Option<String> {
        crate::support::label::first_field(&record.payload)
    }

    fn open(&self, record: &ObjectRecord, _opener: &Opener) -> Result<OwnedFd> {
        let object: MemfdObject = crate::error::decode(NAME, &record.payload)?;
        let file =
            rustix::fs::memfd_create(object.name.as_str(), MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(|errno| Error::path("create the memory file", &object.name, errno))?;
        rustix::fs::ftruncate(&file, record.length)
            .map_err(|errno| Error::path("set the length of the memory file", &object.name, errno))?;
        Ok(file)
    }

    fn filled(&self, record: &ObjectRecord, object: &OwnedFd) -> Result<()> {
        let named: MemfdObject = crate::error::decode(NAME, &record.payload)?;
        generation::advance(named.name.as_bytes(), object)
    }
}
