//! Records of mappings and of mapped objects.
//!
//! Owns: the state of a mapping in the image, and the identity of an object.
//! Does not: depend on memory kinds. Each kind defines its own payload.

use model::{Address, AddressRange, Inode};
use tracee::procfs::{Backing, Mapping};

/// The prefix of the name that the kernel gives to a mapping of a socket.
pub(super) const RING_OF_SOCKET: &str = "socket:[";
/// The prefix of the name that a program has given to shared anonymous memory (PR_SET_VMA_ANON_NAME).
pub(super) const NAMED_SHARED: &str = "[anon_shmem:";

/// The device number that stands for System V segments only.
const SEGMENTS: (u32, u32) = (u32::MAX, 0);

/// The identity of a mapped object: device and inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectKey {
    /// The major and the minor number of the device.
    pub device: (u32, u32),
    /// The inode.
    pub inode: Inode,
}

impl ObjectKey {
    /// Returns the identity of the object of a mapping; `None` for a mapping without an object.
    #[must_use]
    pub fn of(mapping: &Mapping) -> Option<Self> {
        match &mapping.backing {
            // The inode number of a segment is the segment id. A file on the same device may have the same inode
            // number.
            Backing::File { inode, .. } if mapping.name.starts_with("/SYSV") => {
                Some(Self { device: SEGMENTS, inode: *inode })
            }
            Backing::File { device, inode, .. } => Some(Self { device: *device, inode: *inode }),
            Backing::Anonymous | Backing::Kernel(_) => None,
        }
    }

    /// Returns the inode by which a descriptor or a link to the same file is recognized. Returns 0 for a segment,
    /// because a segment has no such inode.
    #[must_use]
    pub fn file_inode(&self) -> u64 {
        if self.device == SEGMENTS { 0 } else { self.inode.get() }
    }
}

const PROT_WRITE: u32 = 2;
const PROT_EXEC: u32 = 4;

/// Reports whether memory with this protection can be executed and not written.
pub(super) fn is_fixed_code(protection: u32) -> bool {
    protection & (PROT_EXEC | PROT_WRITE) == PROT_EXEC
}

/// The record of one mapping in the image.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AreaRecord {
    /// The first address.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// The first address behind the mapping.
    #[prost(uint64, tag = "2")]
    pub end: u64,
    /// The PROT_* bits.
    #[prost(uint32, tag = "3")]
    pub protection: u32,
    /// `true` if writes are visible in other mappings of the object.
    #[prost(bool, tag = "4")]
    pub shared: bool,
    /// The offset of the mapping in the object, in bytes.
    #[prost(uint64, tag = "5")]
    pub offset: u64,
    /// The id of the mapped object; 0 for no object.
    #[prost(uint64, tag = "6")]
    pub object: u64,
    /// The flags of proc_pid_smaps(5) that a restore needs to map the memory again.
    #[prost(string, repeated, tag = "7")]
    pub flags: Vec<String>,
    /// The name given by PR_SET_VMA_ANON_NAME; empty for no name.
    #[prost(string, tag = "8")]
    pub name: String,
    /// `true` for code of a file that is not writable now, and that the program could write before. Other code of a file
    /// is changed only by tools: debuggers and kernel probes (uprobes).
    #[prost(bool, tag = "9")]
    pub code_was_writable: bool,
}

impl AreaRecord {
    /// Returns the address range of the mapping.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        AddressRange::new(Address(self.start), Address(self.end))
    }

    /// Reports whether this is code of a private file mapping that the program itself could never change.
    #[must_use]
    pub fn is_code_of_file(&self) -> bool {
        self.object != 0 && !self.shared && is_fixed_code(self.protection) && !self.code_was_writable
    }

    /// Reports whether the record contains a flag.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }
}

/// The record of one mapped object in the image.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ObjectRecord {
    /// The id of the object in the image, counted from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The name of the memory kind that saved the object.
    #[prost(string, tag = "2")]
    pub kind: String,
    /// The version of the payload.
    #[prost(uint32, tag = "3")]
    pub version: u32,
    /// The state that the kind saved.
    #[prost(bytes = "vec", tag = "4")]
    pub payload: Vec<u8>,
    /// The length of the object in bytes.
    #[prost(uint64, tag = "5")]
    pub length: u64,
    /// The inode at the checkpoint, by which descriptors of the same object are recognized.
    #[prost(uint64, tag = "6")]
    pub inode: u64,
    /// `true` if a shared mapping may write to the object.
    #[prost(bool, tag = "7")]
    pub writable: bool,
}
