//! The root of a checkpoint in a log: what it is, where its index is, and which older ones are kept.
//!
//! Owns: `LogRoot` and its encoding.
//! Invariants: a root names everything that a restore of its checkpoint reads, and the segments that hold it;
//! nothing older has to be walked.
//! Does not: read what it names.

use model::{ByteCount, Sequence};
use prost::Message;

use crate::commit::Commit;
use crate::error::{Error, Part, Result};
use crate::frame::{self, HEADER_BYTES};
use crate::log_place::{Blob, BlobMessage, LogSegment};

/// A piece of a checkpoint's index and records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogPartRef {
    /// Where it is.
    pub blob: Blob,
    /// 0 one checkpoint's delta, 1 merged deltas, 2 everything.
    pub tier: u32,
}

/// An older checkpoint that can still be restored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogKept {
    /// Its number.
    pub sequence: Sequence,
    /// When it was taken, in nanoseconds since 1970.
    pub time_unix_ns: u64,
    /// Its root.
    pub root: Blob,
}

/// What a checkpoint in a log consists of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogRoot {
    /// What it is.
    pub commit: Commit,
    /// Its index and records: later parts supersede what earlier ones say.
    pub parts: Vec<LogPartRef>,
    /// The older checkpoints that were kept when it was made, rising.
    pub kept: Vec<LogKept>,
    /// Every segment that holds pages or parts of it, rising.
    pub segments: Vec<LogSegment>,
}

impl LogRoot {
    /// The root's bytes, in a later format if segments of its log may be compressed: releases that do not know of that
    /// are to say so rather than to miss a file.
    ///
    /// # Errors
    ///
    /// `TooLarge`, as for a commit record.
    pub fn encode(&self, compressed: bool) -> Result<Vec<u8>> {
        let message = RootMessage {
            commit: self.commit.encode()?,
            parts: self.parts.iter().map(PartMessage::from).collect(),
            kept: self.kept.iter().map(KeptMessage::from).collect(),
            segments: self.segments.iter().map(|segment| segment.0).collect(),
        };
        let mut file = frame::begin(message.encoded_len());
        file.extend_from_slice(&message.encode_to_vec());
        let items = u32::try_from(self.parts.len())
            .map_err(|_| Error::TooLarge { part: Part::LogRoot, what: "the number of parts" })?;
        let version = if compressed { frame::FORMAT_COMPRESSED } else { frame::FORMAT_FIRST };
        Ok(frame::seal_as(version, Part::LogRoot, items, file))
    }

    /// Verifies a root, then decodes it.
    ///
    /// # Errors
    ///
    /// Which check failed first.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let body = frame::open(Part::LogRoot, bytes)?;
        let message = RootMessage::decode(body.bytes).map_err(|_| malformed("not protobuf"))?;
        if message.parts.len() as u64 != u64::from(body.items) {
            return Err(malformed("another number of parts than the header counts"));
        }
        let parts =
            message.parts.into_iter().map(LogPartRef::try_from).collect::<std::result::Result<_, _>>();
        let kept = message.kept.into_iter().map(LogKept::try_from).collect::<std::result::Result<_, _>>();
        Ok(Self {
            commit: Commit::decode(&message.commit)?,
            parts: parts.map_err(malformed)?,
            kept: kept.map_err(malformed)?,
            segments: message.segments.into_iter().map(LogSegment).collect(),
        })
    }
}

/// `message LogRoot` of docs/format.md.
#[derive(Clone, PartialEq, Message)]
struct RootMessage {
    #[prost(bytes = "vec", tag = "1")]
    commit: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    parts: Vec<PartMessage>,
    #[prost(message, repeated, tag = "3")]
    kept: Vec<KeptMessage>,
    #[prost(uint32, repeated, tag = "4")]
    segments: Vec<u32>,
}

/// `message LogPart` of docs/format.md.
#[derive(Clone, PartialEq, Message)]
struct PartMessage {
    #[prost(message, optional, tag = "1")]
    blob: Option<BlobMessage>,
    #[prost(uint32, tag = "2")]
    tier: u32,
}

/// `message LogKept` of docs/format.md.
#[derive(Clone, PartialEq, Message)]
struct KeptMessage {
    #[prost(uint64, tag = "1")]
    sequence: u64,
    #[prost(fixed64, tag = "2")]
    time_unix_ns: u64,
    #[prost(message, optional, tag = "3")]
    root: Option<BlobMessage>,
}

impl From<&LogPartRef> for PartMessage {
    fn from(part: &LogPartRef) -> Self {
        Self { blob: Some(BlobMessage::from(&part.blob)), tier: part.tier }
    }
}

impl From<&LogKept> for KeptMessage {
    fn from(kept: &LogKept) -> Self {
        let root = Some(BlobMessage::from(&kept.root));
        Self { sequence: kept.sequence.0, time_unix_ns: kept.time_unix_ns, root }
    }
}

impl TryFrom<PartMessage> for LogPartRef {
    type Error = &'static str;

    fn try_from(message: PartMessage) -> std::result::Result<Self, Self::Error> {
        let blob = message.blob.ok_or("a part without a place")?;
        Ok(Self { blob: blob.try_into()?, tier: message.tier })
    }
}

impl TryFrom<KeptMessage> for LogKept {
    type Error = &'static str;

    fn try_from(message: KeptMessage) -> std::result::Result<Self, Self::Error> {
        let root = message.root.ok_or("a kept checkpoint without a place")?;
        let sequence = Sequence(message.sequence);
        Ok(Self { sequence, time_unix_ns: message.time_unix_ns, root: root.try_into()? })
    }
}

fn malformed(what: &'static str) -> Error {
    Error::Malformed { part: Part::LogRoot, offset: ByteCount(HEADER_BYTES as u64), what }
}
