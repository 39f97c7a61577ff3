//! The records that the engine itself writes: processes, threads, areas (mappings), descriptor tables.
//!
//! Owns: the names, versions and messages of these records.
//! Invariants: fields are only added. The meaning of a field never changes within a version.
//! Does not: contain the data of a kind; each kind has its own records.

use image::{Owner, Record, RecordSet, SpaceId};
use prost::Message;
use resource::files::{DirectoryRecord, FileRecord};
use resource::memory::{AreaRecord, ObjectRecord};

use crate::error::{EngineError, Result};

/// The version of all records in this file.
const VERSION: u32 = 1;

/// The number of the first page space of a memory object. A page space is the set of pages of one process or one
/// memory object in an image. The page spaces of processes are numbered from zero.
const OBJECT_SPACES: u32 = 0x8000_0000;

/// The process trees of the subject: the processes, and a checksum that this kernel must match at a restore.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TreeMessage {
    /// The pids: the roots first, parents before their children.
    #[prost(int32, repeated, tag = "1")]
    pub pids: Vec<i32>,
    /// Checksum of the vDSO code. The stacks of the threads can contain addresses in the vDSO.
    #[prost(uint32, tag = "2")]
    pub vdso_checksum: u32,
    /// The boot id of the kernel. Empty in older images.
    #[prost(string, tag = "3")]
    pub boot: String,
    /// CLOCK_MONOTONIC at the checkpoint, in nanoseconds; 0 in older images.
    #[prost(uint64, tag = "4")]
    pub monotonic_ns: u64,
    /// CLOCK_BOOTTIME at the checkpoint, in nanoseconds; 0 in older images.
    #[prost(uint64, tag = "5")]
    pub boottime_ns: u64,
    /// The number of root processes; 0 in older images, which have one.
    #[prost(uint32, tag = "6")]
    pub roots: u32,
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
    /// Whether the process has ended and is not yet reaped. If true, `exit_code` is the wait(2) status of the
    /// process.
    #[prost(bool, tag = "5")]
    pub zombie: bool,
    #[prost(int32, tag = "6")]
    pub exit_code: i32,
    /// The signal that had stopped the process; 0 if the process was not stopped.
    #[prost(int32, tag = "7")]
    pub stop_signal: i32,
    /// The tids of the threads, leader first.
    #[prost(int32, repeated, tag = "8")]
    pub threads: Vec<i32>,
    /// The number of the object that is the executable.
    #[prost(uint64, tag = "9")]
    pub executable: u64,
    #[prost(message, optional, tag = "10")]
    pub layout: Option<LayoutMessage>,
    /// The page space that contains the pages of the process.
    #[prost(uint32, tag = "11")]
    pub space: u32,
    /// The signal that the parent receives when the process ends; 0 for no signal. A missing field means SIGCHLD.
    #[prost(int32, optional, tag = "12")]
    pub exit_signal: Option<i32>,
    /// The foreground process group of the controlling terminal. The field is missing without a terminal, and in
    /// older images.
    #[prost(sint32, optional, tag = "13")]
    pub foreground: Option<i32>,
    /// The tables that the process shares with its parent, as flags of clone(2): CLONE_FILES, CLONE_FS.
    #[prost(uint64, tag = "14")]
    pub shares: u64,
}

/// The memory layout that the kernel records for a process, in the form that PR_SET_MM_MAP sets.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LayoutMessage {
    /// The eleven addresses, in the order of `struct prctl_mm_map`.
    #[prost(uint64, repeated, tag = "1")]
    pub addresses: Vec<u64>,
    #[prost(bytes = "vec", tag = "2")]
    pub auxiliary_vector: Vec<u8>,
    /// The first address of the mappings that the kernel provides (vvar, vDSO); 0 if the process has no vDSO
    /// mappings.
    #[prost(uint64, tag = "3")]
    pub vdso_start: u64,
    #[prost(uint64, tag = "4")]
    pub vdso_length: u64,
    /// The first address of the vDSO code.
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

/// The areas (mappings) of one process.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct AreasMessage {
    #[prost(message, repeated, tag = "1")]
    pub areas: Vec<AreaRecord>,
    /// Guard regions (MADV_GUARD_INSTALL), as pairs of a start and an end address.
    #[prost(uint64, repeated, tag = "2")]
    pub guards: Vec<u64>,
}

/// The objects that the areas of all processes map.
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

/// The regular files that the subject can write, with their state at the checkpoint.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct FilesMessage {
    #[prost(message, repeated, tag = "1")]
    pub files: Vec<FileRecord>,
}

/// The directories of files that a restore can truncate, with their state at the checkpoint. If a restore can
/// truncate no file, the image does not contain this record.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct DirectoriesMessage {
    #[prost(message, repeated, tag = "1")]
    pub directories: Vec<DirectoryRecord>,
}

/// A message that is stored in its own record.
pub(crate) trait EngineRecord: Message + Default {
    const KIND: &'static str;

    /// Adds the message to `records`, as the record of `owner`.
    fn put(&self, records: &mut RecordSet, owner: Owner) {
        records.push(Record::new(Self::KIND, VERSION, owner, self.encode_to_vec()));
    }

    /// Removes the record of `owner` from `records` and decodes the record. Returns `Incomplete` if the record is
    /// missing.
    fn take(records: &mut RecordSet, owner: Owner) -> Result<Self> {
        Self::take_if_there(records, owner)?
            .ok_or_else(|| EngineError::Incomplete(format!("record {} of {owner:?} is missing", Self::KIND)))
    }

    /// Like `take`, but returns `None` if the record is missing. Used for records that do not exist in images of
    /// earlier versions.
    fn take_if_there(records: &mut RecordSet, owner: Owner) -> Result<Option<Self>> {
        let Some(record) = records.take(Self::KIND, owner) else { return Ok(None) };
        if record.version > VERSION {
            return Err(EngineError::UnknownRecord { kind: record.kind, version: record.version });
        }
        Ok(Some(resource::decode(Self::KIND, &record.payload)?))
    }
}

/// Implements `EngineRecord` for each message. The string is the kind of the record.
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

/// Reports whether a page space belongs to a process. If not, the page space belongs to a memory object.
pub(crate) const fn is_process_space(space: u32) -> bool {
    space < OBJECT_SPACES
}

/// Returns the page space of a memory object.
pub(crate) fn object_space(object: u64) -> SpaceId {
    SpaceId(OBJECT_SPACES | u32::try_from(object).expect("objects are numbered from 1 within one image"))
}
