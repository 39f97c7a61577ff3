//! The root of a checkpoint in a log: its commit record, the places of its index and records, and older kept
//! checkpoints.
//!
//! Owns: `LogRoot` and its encoding.
//! Invariants: a root names all parts and all segments that a restore of its checkpoint reads. A restore never has to
//! read an older root.
//! Does not: read the named parts or segments.

use model::{ByteCount, Sequence};
use prost::Message;

use crate::commit::Commit;
use crate::error::{Error, Part, Result};
use crate::frame::{self, HEADER_BYTES};
use crate::log_place::{Blob, BlobMessage, LogSegment};

/// A reference to one part: a delta of a checkpoint's page index and records.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogPartRef {
    /// The location of the part.
    pub blob: Blob,
    /// The tier: 0 for the delta of one checkpoint, 1 for merged deltas, 2 for the complete state.
    pub tier: u32,
}

/// An older checkpoint that can still be restored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogKept {
    /// The sequence number of the older checkpoint.
    pub sequence: Sequence,
    /// The time of the older checkpoint, in nanoseconds since 1970.
    pub time_unix_ns: u64,
    /// The location of the older checkpoint's root.
    pub root: Blob,
}

/// The content of a checkpoint in a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogRoot {
    /// The commit record of the checkpoint.
    pub commit: Commit,
    /// The parts of the index and of the records, oldest first. A later part supersedes earlier parts.
    pub parts: Vec<LogPartRef>,
    /// The older checkpoints that were kept when this checkpoint was made, in rising order.
    pub kept: Vec<LogKept>,
    /// All segments that contain pages or parts of this checkpoint, in rising order.
    pub segments: Vec<LogSegment>,
}

/// What a reader of a log must know. An older release reports the unknown format version of the root, instead of a missing
/// file or a wrong place.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LogFeature {
    /// All segments have the same length, and none is compressed.
    Plain,
    /// Segments may be compressed.
    Compressed,
    /// Segments have different lengths. They may also be compressed.
    Lengths,
}

impl LogRoot {
    /// Encodes the root, in the first format version that has this feature of the log.
    ///
    /// # Errors
    ///
    /// Returns `TooLarge`, as for a commit record.
    pub fn encode(&self, feature: LogFeature) -> Result<Vec<u8>> {
        let part = |part: &LogPartRef| PartMessage { blob: Some((&part.blob).into()), tier: part.tier };
        let kept = |kept: &LogKept| KeptMessage {
            sequence: kept.sequence.0,
            time_unix_ns: kept.time_unix_ns,
            root: Some((&kept.root).into()),
        };
        let message = RootMessage {
            commit: self.commit.encode()?,
            parts: self.parts.iter().map(part).collect(),
            kept: self.kept.iter().map(kept).collect(),
            segments: self.segments.iter().map(|segment| segment.0).collect(),
        };
        let items = u32::try_from(self.parts.len())
            .map_err(|_| Error::TooLarge { part: Part::LogRoot, what: "the number of parts" })?;
        let version = match feature {
            LogFeature::Plain => frame::version(false),
            LogFeature::Compressed => frame::version(true),
            LogFeature::Lengths => frame::FORMAT_LENGTHS,
        };
        Ok(frame::seal_as(version, Part::LogRoot, items, frame::begin_with(&message)))
    }

    /// Verifies the bytes of a root, then decodes the root.
    ///
    /// # Errors
    ///
    /// Returns an error for the first failed check.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let body = frame::open(Part::LogRoot, bytes)?;
        let message = RootMessage::decode(body.bytes).map_err(|_| malformed("not protobuf"))?;
        if message.parts.len() as u64 != u64::from(body.items) {
            return Err(malformed("another number of parts than the header counts"));
        }
        let blob = |blob: Option<BlobMessage>, missing| {
            Blob::try_from(blob.ok_or(malformed(missing))?).map_err(malformed)
        };
        let part = |part: PartMessage| {
            Ok(LogPartRef { blob: blob(part.blob, "a part without a place")?, tier: part.tier })
        };
        let kept = |kept: KeptMessage| {
            let (sequence, time_unix_ns) = (Sequence(kept.sequence), kept.time_unix_ns);
            Ok(LogKept {
                sequence,
                time_unix_ns,
                root: blob(kept.root, "a kept checkpoint without a place")?,
            })
        };
        Ok(Self {
            commit: Commit::decode(&message.commit)?,
            parts: message.parts.into_iter().map(part).collect::<Result<_>>()?,
            kept: message.kept.into_iter().map(kept).collect::<Result<_>>()?,
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

fn malformed(what: &'static str) -> Error {
    Error::Malformed { part: Part::LogRoot, offset: ByteCount(HEADER_BYTES as u64), what }
}
