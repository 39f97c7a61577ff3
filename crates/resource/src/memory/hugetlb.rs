//! The memory kind of anonymous memory with pages of hugetlbfs (MAP_ANONYMOUS | MAP_HUGETLB).
//!
//! The kernel gives each such mapping a file of hugetlbfs without a name. Forked children map the same file.
//!
//! Owns: the size of the pages, and creating the file again.
//! Invariants: a restore reserves the pages as mmap(2) of the program did, and is refused if they are missing.
//! Does not: save files of hugetlbfs with a name, memfd files with such pages, or segments of System V shared memory.

use std::os::fd::OwnedFd;

use model::ByteCount;
use rustix::fs::{Mode, OFlags};
use sys::{Error, shared_memory};

use super::kind::{Content, MappingOf, MemoryKind};
use super::record::ObjectRecord;
use crate::error::{ResourceError, Result};
use crate::opener::Opener;

const NAME: &str = "memory/hugetlb";
/// The smallest and the largest page size of a processor that Linux supports.
const PAGE_BYTES_MIN: u64 = 1 << 16;
const PAGE_BYTES_MAX: u64 = 1 << 34;

/// The memory kind of anonymous memory with pages of hugetlbfs.
pub(super) struct Hugetlb;

/// Reports whether the file of a mapping has the name that the kernel gives to anonymous hugetlb memory.
pub(super) fn is_anonymous(name: &str) -> bool {
    name.starts_with("/anon_hugepage")
}

impl MemoryKind for Hugetlb {
    fn name(&self) -> &'static str {
        NAME
    }

    fn claims(&self, of: MappingOf<'_>) -> bool {
        is_anonymous(&of.mapping.name)
    }

    fn content(&self, of: MappingOf<'_>) -> Content {
        if of.mapping.protection.shared { Content::Object } else { Content::Private }
    }

    fn describe(&self, of: MappingOf<'_>) -> Result<(Vec<u8>, u64)> {
        let link = of.link();
        let failed = |errno| Error::path("inspect", &link, errno);
        let file =
            rustix::fs::open(&link, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
        let page_bytes = rustix::fs::fstatfs(&file).map_err(failed)?.f_bsize as u64;
        let length = rustix::fs::fstat(&file).map_err(failed)?.st_size as u64;
        Ok((page_bytes.to_le_bytes().to_vec(), length))
    }

    fn check(&self, record: &ObjectRecord) -> Result<()> {
        page_bytes(record).map(drop)
    }

    fn open(&self, record: &ObjectRecord, _opener: &Opener) -> Result<OwnedFd> {
        let page_bytes = page_bytes(record)?;
        shared_memory::huge(ByteCount(record.length), page_bytes).map_err(|error| ResourceError::File {
            path: format!("hugetlb memory with pages of {} KiB", page_bytes.get() / 1024),
            why: format!("it cannot be created: {error}"),
            fix: "set the number of pages below /sys/kernel/mm/hugepages, then restore again".to_owned(),
        })
    }
}

fn page_bytes(record: &ObjectRecord) -> Result<ByteCount> {
    let size = record.payload.as_slice().try_into().map_or(0, u64::from_le_bytes);
    let is_size = size.is_power_of_two() && (PAGE_BYTES_MIN..=PAGE_BYTES_MAX).contains(&size);
    if is_size && record.length.is_multiple_of(size) {
        return Ok(ByteCount(size));
    }
    Err(ResourceError::malformed(NAME, "its page size or its length is impossible"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_page_sizes_are_refused() {
        let record = |size: u64, length: u64| ObjectRecord {
            payload: size.to_le_bytes().to_vec(),
            length,
            ..ObjectRecord::default()
        };
        assert_eq!(page_bytes(&record(2 << 20, 4 << 20)).unwrap(), ByteCount(2 << 20));
        for (size, length) in
            [(0, 0), (4096, 4096), (3 << 20, 3 << 20), (2 << 20, 3 << 20), (1 << 40, 1 << 40)]
        {
            assert!(page_bytes(&record(size, length)).is_err(), "{size} {length}");
        }
        assert!(page_bytes(&ObjectRecord::default()).is_err());
    }
}
