//! Records of mappings and of their objects.
//!
//! Owns: the state of a mapping in the image, and the identity of an object.
//! Does not: depend on kinds; each kind has its own payload.

use model::{Address, AddressRange, Inode};
use tracee::procfs::{Area, Backing};

/// Prefix of the name that a program has given to shared anonymous memory (PR_SET_VMA_ANON_NAME).
pub(super) const NAMED_SHARED: &str = "[anon_shmem:";

/// A device number that is used for System V segments only.
const SEGMENTS: (u32, u32) = (u32::MAX, 0);

/// Identity of a mapped object: device and inode.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectKey {
    /// Major and minor number of the device.
    pub device: (u32, u32),
    /// The inode.
    pub inode: Inode,
}

impl ObjectKey {
    /// The object of a mapping.
    #[must_use]
    pub fn of(area: &Area) -> Option<Self> {
        match &area.backing {
            // The inode of a segment is its id, which a file of the same device may have too.
            Backing::File { inode, .. } if area.name.starts_with("/SYSV") => {
                Some(Self { device: SEGMENTS, inode: *inode })
            }
            Backing::File { device, inode, .. } => Some(Self { device: *device, inode: *inode }),
            Backing::Anonymous | Backing::Kernel(_) => None,
        }
    }

    /// The inode by which a descriptor or a link to the same file is recognized; 0 for a segment, which has none.
    #[must_use]
    pub fn file_inode(&self) -> u64 {
        if self.device == SEGMENTS { 0 } else { self.inode.get() }
    }
}

/// One mapping as it is in the image.
#[derive(Clone, PartialEq, prost::Message)]
pub struct AreaRecord {
    /// First address.
    #[prost(uint64, tag = "1")]
    pub start: u64,
    /// First address behind the mapping.
    #[prost(uint64, tag = "2")]
    pub end: u64,
    /// PROT_* bits.
    #[prost(uint32, tag = "3")]
    pub protection: u32,
    /// Whether writes are visible in other mappings of the object.
    #[prost(bool, tag = "4")]
    pub shared: bool,
    /// Offset of the first byte in the object.
    #[prost(uint64, tag = "5")]
    pub offset: u64,
    /// The id of its object, 0 for none.
    #[prost(uint64, tag = "6")]
    pub object: u64,
    /// Flags of proc_pid_smaps(5) that are needed to map it again.
    #[prost(string, repeated, tag = "7")]
    pub flags: Vec<String>,
    /// The name given by PR_SET_VMA_ANON_NAME, empty for none.
    #[prost(string, tag = "8")]
    pub name: String,
}

impl AreaRecord {
    /// Its address range.
    #[must_use]
    pub fn range(&self) -> AddressRange {
        AddressRange::new(Address(self.start), Address(self.end))
    }

    /// Whether a flag is set in the record.
    #[must_use]
    pub fn has(&self, flag: &str) -> bool {
        self.flags.iter().any(|known| known == flag)
    }
}

/// One mapped object as it is in the image.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ObjectRecord {
    /// Its id in the image, from 1.
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
    /// Whether a mapping may write to it (shared).
    #[prost(bool, tag = "7")]
    pub writable: bool,
}
