//! The records that the engine itself writes: processes, threads, areas, descriptor tables.
//!
//! Owns: their names, versions and messages.
//! Invariants: fields are only ever added; a meaning never changes within a version.
//! Does not: hold what a kind saves; kinds have records of their own.

use image::{Owner, Record, RecordSet, SpaceId};
use prost::Message;
use resource::files::{DirectoryRecord, FileRecord};
use resource::memory::{AreaRecord, ObjectRecord};

use crate::error::{EngineError, Result};

/// Version of all records of this file.
const VERSION: u32 = 1;

/// Objects' page spaces are numbered from here, processes' from zero.
const OBJECT_SPACES: u32 = 0x8000_0000;

/// The whole tree: processes in creation order, and what must match at the restore.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TreeMessage {
    /// Pids, parents first, the root at the beginning.
    #[prost(int32, repeated, tag = "1")]
    pub pids: Vec<i32>,
    /// Checksum of the vDSO's code: addresses in it may stand on stacks.
    #[prost(uint32, tag = "2")]
    pub vdso_checksum: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ProcessMessage {
    #[prost(int32, tag = "1")]
    pub pid: i32,
    #[prost(int32, tag = "2")]
    pub parent: i32,
    #[prost(int32, tag = "3")]
    pub group: i32,
    #[prost(int32, tag = "4")]
    pub session: i32,
    /// It has ended with `exit_code` (as wait(2) tells it) and waits to be reaped.
    #[prost(bool, tag = "5")]
    pub zombie: bool,
    #[prost(int32, tag = "6")]
    pub exit_code: i32,
    /// The signal that had stopped it, 0 for none.
    #[prost(int32, tag = "7")]
    pub stop_signal: i32,
    /// Its threads, leader first.
    #[prost(int32, repeated, tag = "8")]
    pub threads: Vec<i32>,
    /// The object that is its executable.
    #[prost(uint64, tag = "9")]
    pub executable: u64,
    #[prost(message, optional, tag = "10")]
    pub layout: Option<LayoutMessage>,
    /// The space its pages are in.
    #[prost(uint32, tag = "11")]
    pub space: u32,
    /// The signal that tells its parent of its end, 0 for none; SIGCHLD where it is missing.
    #[prost(int32, optional, tag = "12")]
    pub exit_signal: Option<i32>,
    /// The foreground process group of its controlling terminal. Missing without a terminal and in older images.
    #[prost(sint32, optional, tag = "13")]
    pub foreground: Option<i32>,
}

/// Addresses that the kernel keeps of a process, for PR_SET_MM_MAP.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LayoutMessage {
    /// The eleven addresses in the order of `struct prctl_mm_map`.
    #[prost(uint64, repeated, tag = "1")]
    pub addresses: Vec<u64>,
    #[prost(bytes = "vec", tag = "2")]
    pub auxiliary_vector: Vec<u8>,
    /// Where the kernel's own areas (vvar, vDSO) begin, 0 when unmapped, and what they are.
    #[prost(uint64, tag = "3")]
    pub vdso_start: u64,
    #[prost(uint64, tag = "4")]
    pub vdso_length: u64,
    /// Where the vDSO's code lies.
    #[prost(uint64, tag = "5")]
    pub vdso_code: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ThreadMessage {
    /// The 27 words of `Registers`.
    #[prost(fixed64, repeated, tag = "1")]
    pub registers: Vec<u64>,
    #[prost(bytes = "vec", tag = "2")]
    pub extended_state: Vec<u8>,
    #[prost(fixed64, tag = "3")]
    pub signal_mask: u64,
}

/// The areas of one process.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AreasMessage {
    #[prost(message, repeated, tag = "1")]
    pub areas: Vec<AreaRecord>,
    /// Guard regions (MADV_GUARD_INSTALL) as pairs of start and end.
    #[prost(uint64, repeated, tag = "2")]
    pub guards: Vec<u64>,
}

/// The objects behind areas of all processes.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ObjectsMessage {
    #[prost(message, repeated, tag = "1")]
    pub objects: Vec<ObjectRecord>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorsMessage {
    #[prost(message, repeated, tag = "1")]
    pub rows: Vec<DescriptorRow>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct DescriptorRow {
    #[prost(int32, tag = "1")]
    pub fd: i32,
    #[prost(bool, tag = "2")]
    pub close_on_exec: bool,
    #[prost(uint32, tag = "3")]
    pub description: u32,
}

/// The regular files that the subject may write, as they were.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FilesMessage {
    #[prost(message, repeated, tag = "1")]
    pub files: Vec<FileRecord>,
}

/// The directories of those files that can be cut back, as they were. An image has it if there is such a file.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DirectoriesMessage {
    #[prost(message, repeated, tag = "1")]
    pub directories: Vec<DirectoryRecord>,
}

/// A message that has a record of its own.
pub(crate) trait EngineRecord: Message + Default {
    const KIND: &'static str;

    /// Adds the record of an owner.
    fn put(&self, records: &mut RecordSet, owner: Owner) {
        records.push(Record::new(Self::KIND, VERSION, owner, self.encode_to_vec()));
    }

    /// Takes and decodes the record of an owner.
    fn take(records: &mut RecordSet, owner: Owner) -> Result<Self> {
        Self::take_if_there(records, owner)?
            .ok_or_else(|| EngineError::Incomplete(format!("record {} of {owner:?} is missing", Self::KIND)))
    }

    /// The same for a record that images of earlier versions do not have.
    fn take_if_there(records: &mut RecordSet, owner: Owner) -> Result<Option<Self>> {
        let Some(record) = records.take(Self::KIND, owner) else { return Ok(None) };
        if record.version > VERSION {
            return Err(EngineError::UnknownRecord { kind: record.kind, version: record.version });
        }
        Ok(Some(resource::decode(Self::KIND, &record.payload)?))
    }
}

/// Gives each message its record's kind.
macro_rules! engine_records {
    ($($message:ty = $kind:literal,)*) => {
        $(impl EngineRecord for $message {
            const KIND: &'static str = $kind;
        })*
    };
}

engine_records! {
    TreeMessage = "tree",
    ProcessMessage = "process",
    ThreadMessage = "thread",
    AreasMessage = "areas",
    ObjectsMessage = "objects",
    DescriptorsMessage = "descriptors",
    FilesMessage = "files",
    DirectoriesMessage = "directories",
}

/// Whether a number of a page space is one of a process.
pub(crate) const fn is_process_space(space: u32) -> bool {
    space < OBJECT_SPACES
}

/// The page space of an object.
pub(crate) fn object_space(object: u64) -> SpaceId {
    SpaceId(OBJECT_SPACES | u32::try_from(object).expect("objects are numbered from 1 within one image"))
}
