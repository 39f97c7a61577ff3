//! Areas of memory: the interface of a memory kind, and the registry.
//!
//! Owns: what a kind is asked about an area; the record of an area; the record of an object behind areas.
//! Invariants: an area that no kind claims refuses the checkpoint; an object that several areas or processes
//! map is saved once.
//! Does not: copy pages; the engine's copiers do, as [`Content`] tells them.

use std::collections::HashMap;
use std::os::fd::OwnedFd;

use model::{Address, AddressRange, Inode, Pid};
use sys::segment::SegmentId;
use tracee::procfs::{Area, Backing};

use crate::error::Result;
use crate::obstacle::Obstacle;
use crate::opener::Opener;

mod deleted_file;
mod flags;
mod memfd;
mod private_anonymous;
mod private_file;
mod shared_anonymous;
mod shared_file;
mod source_file;
mod sysv_shm;
mod tmpfs_file;

pub use flags::{Advice, advice, advice_before_pages, map_flags, protection_bits};

/// How the name of shared anonymous memory begins that a program has given one (PR_SET_VMA_ANON_NAME).
const NAMED_SHARED: &str = "[anon_shmem:";

/// Every memory kind, asked in this order whether it claims an area; the most frequent ones of files first, as each
/// looks at its file.
pub const REGISTRY: &[&dyn MemoryKind] = &[
    &private_anonymous::PrivateAnonymous,
    &shared_anonymous::SharedAnonymous,
    &memfd::Memfd,
    &sysv_shm::SysvShm,
    &private_file::PrivateFile,
    &tmpfs_file::TmpfsFile,
    &shared_file::SharedFile,
    &deleted_file::DeletedFile,
];

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

/// Stands for a device that holds System V segments alone.
const SEGMENTS: (u32, u32) = (u32::MAX, 0);

/// Names the object behind an area: device and inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectKey {
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// The inode.
    pub inode: Inode,
}

impl ObjectKey {
    /// The object behind an area.
    #[must_use]
    pub fn of(area: &Area) -> Option<Self> {
        match &area.backing {
            // The inode of a segment is its id. Other files of that device may have the same.
            Backing::File { inode, .. } if area.name.starts_with("/SYSV") => {
                Some(Self { device: SEGMENTS, inode: *inode })
            }
            Backing::File { device, inode, .. } => Some(Self { device: *device, inode: *inode }),
            Backing::Anonymous | Backing::Kernel(_) => None,
        }
    }

    /// The inode by which a descriptor or a link to the same file is recognised; 0 for a segment, which has none.
    #[must_use]
    pub fn file_inode(&self) -> u64 {
        if self.device == SEGMENTS { 0 } else { self.inode.get() }
    }
}

/// One area as the image keeps it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AreaRecord {
    /// First address.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// First address behind.
    #[prost(uint64, tag = "2")]
    pub end: u64,
    /// PROT_* bits.
    #[prost(uint32, tag = "3")]
    pub protection: u32,
    /// Whether writes are seen by others that map the same object.
    #[prost(bool, tag = "4")]
    pub shared: bool,
    /// Offset of the first byte in the object.
    #[prost(uint64, tag = "5")]
    pub offset: u64,
    /// The object behind it, 0 for none.
    #[prost(uint64, tag = "6")]
    pub object: u64,
    /// Flags of proc_pid_smaps(5) that matter for mapping it again.
    #[prost(string, repeated, tag = "7")]
    pub flags: Vec<String>,
    /// The name given by PR_SET_VMA_ANON_NAME, empty for none.
    #[prost(string, tag = "8")]
    pub name: String,
}

impl AreaRecord {
    /// The record of an area with the object behind it.
    #[must_use]
    pub fn new(area: &Area, object: u64) -> Self {
        let given = ["[anon:", NAMED_SHARED].iter().find_map(|prefix| area.name.strip_prefix(prefix));
        let given = given.and_then(|name| name.strip_suffix(']'));
        Self {
            start: area.range.start.get(),
            end: area.range.end.get(),
            protection: protection_bits(area.protection),
            shared: area.protection.shared,
            offset: area.offset,
            object,
            flags: flags::kept(&area.flags),
            name: given.unwrap_or_default().to_owned(),
        }
    }

    /// Where it lies.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        AddressRange::new(Address(self.start), Address(self.end))
    }

    /// Whether a kept flag is set.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }
}

/// One object behind areas as the image keeps it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ObjectRecord {
    /// Its number in the image, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The memory kind that saved it.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// The version of the payload.
    #[prost(uint32, tag = "3")]
    pub version: u32,
    /// What the kind saved.
    #[prost(bytes = "vec", tag = "4")]
    pub payload: Vec<u8>,
    /// Its length in bytes.
    #[prost(uint64, tag = "5")]
    pub length: u64,
    /// Its inode at the checkpoint, by which descriptors of the same object are recognised.
    #[prost(uint64, tag = "6")]
    pub inode: u64,
    /// Whether some area may write to it through a shared mapping.
    #[prost(bool, tag = "7")]
    pub writable: bool,
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

/// The kind that claims an area.
#[must_use]
pub fn kind_of(of: AreaOf<'_>) -> Option<&'static dyn MemoryKind> {
    REGISTRY.iter().copied().find(|kind| kind.claims(of))
}

/// The kind of a record.
#[must_use]
pub fn kind_named(name: &str) -> Option<&'static dyn MemoryKind> {
    REGISTRY.iter().copied().find(|kind| kind.name() == name)
}

/// Everything about the areas of a process that would stop a checkpoint.
#[must_use]
pub fn obstacles(pid: Pid, areas: &[Area]) -> Vec<Obstacle> {
    let mut found = flags::obstacles(pid, areas);
    for area in areas.iter().filter(|area| !area.is_kernel()) {
        let of = AreaOf { pid, area };
        match kind_of(of) {
            Some(kind) => found.extend(kind.obstacles(of)),
            None => found.push(unclaimed(of)),
        }
    }
    found
}

/// What most programs that use io_uring understand.
pub(crate) const WITHOUT_IO_URING: &str = "start the program after `sysctl kernel.io_uring_disabled=2`: most programs use epoll then (Node.js: UV_USE_IO_URING=0)";

fn unclaimed(of: AreaOf<'_>) -> Obstacle {
    let name = of.area.name.as_str();
    let (what, why, fix) = if name.starts_with("/anon_hugepage") || of.area.flags.has("ht") {
        ("huge page mapping", "hugetlb pages are not saved yet", flags::WITHOUT_HUGETLB)
    } else if name.starts_with("/secretmem") {
        (
            "secret memory",
            "memory of memfd_secret(2) cannot be read",
            "configure the program to keep its secrets in memory locked with mlock",
        )
    } else if name.starts_with("/[aio]") {
        (
            "aio ring",
            "kernel aio contexts are not saved",
            "configure the program without native aio (MariaDB: innodb_use_native_aio = 0; nginx: aio threads)",
        )
    } else if name.contains("[io_uring]") {
        ("io_uring ring", "io_uring is not saved yet", WITHOUT_IO_URING)
    } else if name.starts_with("/dev/") {
        ("device mapping", "the memory of a device cannot be saved", flags::WITHOUT_DEVICE)
    } else {
        (
            "unknown mapping",
            "no memory kind of this version claims it",
            "report the program and this mapping's line of /proc/PID/maps",
        )
    };
    of.obstacle(what, why, fix)
}

/// Whether it says that an area, or its process, went away since it was listed. Whoever listed it looks again.
fn is_gone(errno: rustix::io::Errno) -> bool {
    errno == rustix::io::Errno::NOENT || errno == rustix::io::Errno::SRCH
}

/// Descriptors of opened objects by object number.
pub type OpenObjects = HashMap<u64, OwnedFd>;
