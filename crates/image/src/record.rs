//! A record: one piece of a subject's state, with its kind, its owner and its encoded bytes.
//!
//! Owns: `Record`, `Owner` and their protobuf messages.
//! Invariants: this module never interprets the payload. The module of the kind encodes and decodes the payload.
//! Does not: list the kinds. A new kind needs no change in this module.

use std::fmt;

use bytes::Bytes;
use model::{DescriptionId, Pid, Tid};
use prost::Message;

/// The object whose state a record describes. One object may have several records.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Owner {
    /// The process tree as a whole.
    Tree,
    /// One process, identified by its pid at the checkpoint.
    Process(Pid),
    /// One thread, identified by its tid at the checkpoint.
    Thread(Tid),
    /// One open file description, shared by all its descriptors.
    Description(DescriptionId),
    /// Any other object that several owners share. The kind that saved the object assigns the number.
    Object(u64),
}

/// A piece of state of any kind.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The name of the kind, as in the registry entry of the kind.
    pub kind: String,
    /// The version of the payload's encoding. Each kind counts its own versions.
    pub version: u32,
    /// The object whose state the record describes.
    pub owner: Owner,
    /// The state, encoded by the kind.
    pub payload: Bytes,
}

impl Record {
    /// Creates a record of a kind for an owner.
    pub fn new(kind: impl Into<String>, version: u32, owner: Owner, payload: impl Into<Bytes>) -> Self {
        Self { kind: kind.into(), version, owner, payload: payload.into() }
    }

    /// Encodes the record as `message Record` of docs/format.md.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        RecordMessage::from(self).encode_to_vec()
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tree => f.write_str("the tree"),
            Self::Process(pid) => write!(f, "pid {pid}"),
            Self::Thread(tid) => write!(f, "thread {tid}"),
            Self::Description(id) => write!(f, "open file {id}"),
            Self::Object(number) => write!(f, "object {number}"),
        }
    }
}

/// `message Record` of docs/format.md.
#[derive(Clone, PartialEq, Message)]
struct RecordMessage {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(uint32, tag = "2")]
    version: u32,
    #[prost(oneof = "OwnerMessage", tags = "3, 4, 5, 6, 7")]
    owner: Option<OwnerMessage>,
    #[prost(bytes = "bytes", tag = "8")]
    payload: Bytes,
}

#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
enum OwnerMessage {
    #[prost(bool, tag = "3")]
    Tree(bool),
    #[prost(int32, tag = "4")]
    Process(i32),
    #[prost(int32, tag = "5")]
    Thread(i32),
    #[prost(uint32, tag = "6")]
    Description(u32),
    #[prost(uint64, tag = "7")]
    Object(u64),
}

impl From<&Record> for RecordMessage {
    fn from(record: &Record) -> Self {
        let owner = match record.owner {
            Owner::Tree => OwnerMessage::Tree(true),
            Owner::Process(pid) => OwnerMessage::Process(pid.0),
            Owner::Thread(tid) => OwnerMessage::Thread(tid.0),
            Owner::Description(id) => OwnerMessage::Description(id.0),
            Owner::Object(number) => OwnerMessage::Object(number),
        };
        Self {
            kind: record.kind.clone(),
            version: record.version,
            owner: Some(owner),
            payload: record.payload.clone(),
        }
    }
}

/// Decodes the bytes of `to_bytes`.
impl TryFrom<&[u8]> for Record {
    /// The rule of the format that the bytes break.
    type Error = &'static str;

    fn try_from(bytes: &[u8]) -> Result<Self, Self::Error> {
        let message = RecordMessage::decode(bytes).map_err(|_| "a record that is not protobuf")?;
        let owner = match message.owner.ok_or("a record without an owner")? {
            OwnerMessage::Tree(_) => Owner::Tree,
            OwnerMessage::Process(pid) => Owner::Process(Pid(pid)),
            OwnerMessage::Thread(tid) => Owner::Thread(Tid(tid)),
            OwnerMessage::Description(id) => Owner::Description(DescriptionId(id)),
            OwnerMessage::Object(number) => Owner::Object(number),
        };
        if message.kind.is_empty() {
            return Err("a record without a kind");
        }
        Ok(Self { kind: message.kind, version: message.version, owner, payload: message.payload })
    }
}
