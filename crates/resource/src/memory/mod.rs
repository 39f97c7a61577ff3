//! The registry of memory kinds. A memory kind saves and restores one type of mapping.
//!
//! Owns: the order of the kinds, and the obstacle of a mapping that no kind recognizes.
//! Invariants: a mapping that no kind recognizes prevents the checkpoint. An object that several mappings or processes
//! share is saved once.
//! Does not: copy pages; the copiers of the engine copy the pages that [`Content`] specifies.

mod aio_ring;
mod deleted_file;
mod flags;
mod hugetlb;
mod kind;
mod memfd;
mod private_anonymous;
mod record;
mod shared_anonymous;
mod source_file;
mod sysv_shm;
mod tmpfs_file;

use model::Pid;
use tracee::procfs::Mapping;

pub use self::flags::{Advice, advice, advice_before_pages, map_flags, protection_bits, seal};
pub use self::kind::{Content, MappingOf, MemoryKind};
pub use self::record::{AreaRecord, ObjectKey, ObjectRecord};
use crate::obstacle::Obstacle;

/// All memory kinds. The first kind that recognizes a mapping saves the mapping. Among the kinds of files, the most
/// frequent kinds come first, because each of these kinds inspects the file.
pub const REGISTRY: &[&dyn MemoryKind] = &[
    &private_anonymous::PrivateAnonymous,
    &shared_anonymous::SharedAnonymous,
    &hugetlb::Hugetlb,
    &memfd::Memfd,
    &sysv_shm::SysvShm,
    &aio_ring::AioRing,
    &source_file::PRIVATE_FILE,
    &tmpfs_file::TmpfsFile,
    &source_file::SHARED_FILE,
    &deleted_file::DeletedFile,
];

/// Returns the kind that recognizes a mapping.
#[must_use]
pub fn kind_of(of: MappingOf<'_>) -> Option<&'static dyn MemoryKind> {
    REGISTRY.iter().copied().find(|kind| kind.claims(of))
}

/// Returns the kind with the given name in records.
#[must_use]
pub fn kind_named(name: &str) -> Option<&'static dyn MemoryKind> {
    REGISTRY.iter().copied().find(|kind| kind.name() == name)
}

/// Returns the properties of a process's mappings that would prevent a checkpoint.
#[must_use]
pub fn obstacles(pid: Pid, mappings: &[Mapping]) -> Vec<Obstacle> {
    let mut found = flags::obstacles(pid, mappings);
    // A library has about five mappings next to each other, and each inspection of its file is a system call.
    let mut private_file: Option<&Mapping> = None;
    for mapping in mappings.iter().filter(|mapping| !mapping.is_kernel()) {
        if private_file.is_some_and(|before| is_of_same_file(before, mapping)) {
            continue;
        }
        let of = MappingOf { pid, mapping };
        let kind = kind_of(of);
        private_file = kind.filter(|kind| kind.name() == source_file::PRIVATE_FILE.name()).map(|_| mapping);
        match kind {
            Some(kind) => found.extend(kind.obstacles(of)),
            None => found.push(unclaimed(of)),
        }
    }
    found
}

/// Reports whether the kind of private file mappings recognizes both mappings or neither.
fn is_of_same_file(one: &Mapping, other: &Mapping) -> bool {
    one.backing == other.backing
        && one.protection.shared == other.protection.shared
        && one.flags.has("ht") == other.flags.has("ht")
}

/// The fix that is proposed for most programs with io_uring.
pub(crate) const WITHOUT_IO_URING: &str = "start the program after `sysctl kernel.io_uring_disabled=2`: most programs \
                                           use epoll then (Node.js: UV_USE_IO_URING=0)";

fn unclaimed(of: MappingOf<'_>) -> Obstacle {
    let name = of.mapping.name.as_str();
    let (what, why, fix) = if of.mapping.flags.has("ht") {
        ("huge page mapping", flags::NAMED_HUGETLB, flags::WITHOUT_HUGETLB)
    } else if name.starts_with("/secretmem") {
        (
            "secret memory",
            "memory of memfd_secret(2) cannot be read",
            "configure the program to keep its secrets in memory locked with mlock",
        )
    } else if name.starts_with(record::RING_OF_SOCKET) {
        (
            "ring of a packet socket",
            "the kernel and the program count the frames of the ring, and the kernel's count cannot be set",
            "configure the program to receive packets without a mapped ring",
        )
    } else if name.contains("[io_uring]") {
        ("io_uring ring", "io_uring is not supported", WITHOUT_IO_URING)
    } else if name.contains("bpf-map") {
        (
            "mapped BPF map",
            "a BPF map is restored only if the program does not map it",
            "let the program unmap it",
        )
    } else if name.starts_with("/dev/") {
        ("device mapping", "the memory of a device cannot be saved", flags::WITHOUT_DEVICE)
    } else {
        (
            "unknown mapping",
            "no memory kind of this version supports it",
            "report the program and this mapping's line of /proc/PID/maps",
        )
    };
    of.obstacle(what, why, fix)
}
