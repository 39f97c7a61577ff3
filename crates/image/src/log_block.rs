//! The blocks at the beginning of a log segment: the segment's header, and slots that name the newest commits.
//!
//! Owns: `LogHeader`, `LogSlot`, and their encoding in one block each.
//! Invariants: a block is used only if its checksum is correct. A slot names its log and its segment, so that a copied
//! or stale slot is never used for another log or segment.
//! Does not: decide when a slot is written; the store does.

use model::{ByteCount, Sequence};
use prost::Message;

use crate::error::{Error, Part, Result};
use crate::frame::{self, HEADER_BYTES, TRAILER_BYTES};
use crate::log_place::{Blob, BlobMessage, LOG_BLOCK_BYTES, LogPlace, LogSegment};

/// The random identifier of a log, generated when the log's first segment is created.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct LogId(pub [u8; 16]);

/// The first block of a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogHeader {
    /// The log that the segment belongs to.
    pub log: LogId,
    /// The number of the segment.
    pub segment: LogSegment,
    /// The length of the segment in bytes.
    pub length: ByteCount,
}

/// A slot, which announces a commit, or reports that a commit has become durable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogSlot {
    /// The log that the slot belongs to.
    pub log: LogId,
    /// The segment that contains the slot.
    pub segment: LogSegment,
    /// A counter that rises with every written slot; the newest slot has the highest value.
    pub generation: u64,
    /// The sequence number of the checkpoint.
    pub sequence: Sequence,
    /// The place before which all content was durable when the slot was written.
    pub durable: LogPlace,
    /// The location of the checkpoint's root ([`LogRoot`](crate::LogRoot)).
    pub root: Blob,
}

impl LogHeader {
    /// Encodes the header as one block.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let message =
            HeaderMessage { log: self.log.0.to_vec(), segment: self.segment.0, length: self.length.0 };
        block(Part::LogHeader, &message)
    }

    /// Verifies a block, then decodes the header.
    ///
    /// # Errors
    ///
    /// Returns an error for the first failed check.
    pub fn decode(block: &[u8]) -> Result<Self> {
        let part = Part::LogHeader;
        let message: HeaderMessage = open(part, block)?;
        let (log, segment) = (log_id(part, &message.log)?, LogSegment(message.segment));
        Ok(Self { log, segment, length: ByteCount(message.length) })
    }
}

impl LogSlot {
    /// Encodes the slot as one block.
    ///
    /// # Errors
    ///
    /// Returns `TooLarge` when the root has more pieces than a block can name.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let message = SlotMessage {
            log: self.log.0.to_vec(),
            segment: self.segment.0,
            generation: self.generation,
            sequence: self.sequence.0,
            durable_segment: self.durable.segment.0,
            durable_block: self.durable.block,
            root: Some(BlobMessage::from(&self.root)),
        };
        let encoded = block(Part::LogSlot, &message);
        if encoded.len() as u64 > LOG_BLOCK_BYTES {
            return Err(Error::TooLarge { part: Part::LogSlot, what: "the place of the root" });
        }
        Ok(encoded)
    }

    /// Verifies a block, then decodes the slot.
    ///
    /// # Errors
    ///
    /// Returns an error for the first failed check; `Foreign` for a block that was never written.
    pub fn decode(block: &[u8]) -> Result<Self> {
        let part = Part::LogSlot;
        let message: SlotMessage = open(part, block)?;
        let root = message.root.ok_or_else(|| malformed(part, "a slot without a root"))?;
        Ok(Self {
            log: log_id(part, &message.log)?,
            segment: LogSegment(message.segment),
            generation: message.generation,
            sequence: Sequence(message.sequence),
            durable: LogPlace { segment: LogSegment(message.durable_segment), block: message.durable_block },
            root: Blob::try_from(root).map_err(|what| malformed(part, what))?,
        })
    }
}

/// `message LogHeader` of docs/format.md.
#[derive(Clone, PartialEq, Message)]
struct HeaderMessage {
    #[prost(bytes = "vec", tag = "1")]
    log: Vec<u8>,
    #[prost(uint32, tag = "2")]
    segment: u32,
    #[prost(uint64, tag = "3")]
    length: u64,
}

/// `message LogSlot` of docs/format.md.
#[derive(Clone, PartialEq, Message)]
struct SlotMessage {
    #[prost(bytes = "vec", tag = "1")]
    log: Vec<u8>,
    #[prost(uint32, tag = "2")]
    segment: u32,
    #[prost(uint64, tag = "3")]
    generation: u64,
    #[prost(uint64, tag = "4")]
    sequence: u64,
    #[prost(uint32, tag = "5")]
    durable_segment: u32,
    #[prost(uint32, tag = "6")]
    durable_block: u32,
    #[prost(message, optional, tag = "7")]
    root: Option<BlobMessage>,
}

/// Wraps a message in an envelope (`frame`), and pads the result with zeros to whole blocks.
fn block(part: Part, message: &impl Message) -> Vec<u8> {
    let mut block = frame::seal(part, 1, frame::begin_with(message));
    block.resize(block.len().next_multiple_of(LOG_BLOCK_BYTES as usize), 0);
    block
}

fn open<M: Message + Default>(part: Part, block: &[u8]) -> Result<M> {
    let body_length = block.get(16..24).map_or(0, |_| frame::u64_at(block, 16));
    let length = usize::try_from(body_length).unwrap_or(usize::MAX);
    let length = length.saturating_add(HEADER_BYTES + TRAILER_BYTES).min(block.len());
    let (envelope, padding) = block.split_at(length);
    let body = frame::open(part, envelope)?;
    if padding.iter().any(|byte| *byte != 0) {
        return Err(malformed(part, "bytes behind the end"));
    }
    M::decode(body.bytes).map_err(|_| malformed(part, "not protobuf"))
}

fn log_id(part: Part, bytes: &[u8]) -> Result<LogId> {
    bytes.try_into().map(LogId).map_err(|_| malformed(part, "the name of a log has 16 bytes"))
}

fn malformed(part: Part, what: &'static str) -> Error {
    Error::Malformed { part, offset: ByteCount(HEADER_BYTES as u64), what }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::Checksum;
    use crate::log_place::BlobPiece;

    fn slot() -> LogSlot {
        let piece = BlobPiece { segment: LogSegment(7), offset: ByteCount(70_000), length: ByteCount(900) };
        LogSlot {
            log: LogId([3; 16]),
            segment: LogSegment(7),
            generation: 12,
            sequence: Sequence(9),
            durable: LogPlace { segment: LogSegment(6), block: 40 },
            root: Blob { pieces: vec![piece], checksum: Checksum(5) },
        }
    }

    #[test]
    fn blocks_come_back_as_they_were_written() {
        let block = slot().encode().unwrap();
        assert_eq!(block.len() as u64, LOG_BLOCK_BYTES);
        assert_eq!(LogSlot::decode(&block).unwrap(), slot());
        let header = LogHeader { log: LogId([1; 16]), segment: LogSegment(4), length: ByteCount(1 << 24) };
        assert_eq!(LogHeader::decode(&header.encode()).unwrap(), header);
        assert!(matches!(LogSlot::decode(&[0; 4096]), Err(Error::Foreign { .. })));
        assert!(LogSlot::decode(&header.encode()).is_err());
    }

    #[test]
    fn every_flipped_bit_of_a_block_is_found() {
        let block = slot().encode().unwrap();
        for bit in 0..block.len() * 8 {
            let mut damaged = block.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(LogSlot::decode(&damaged).is_err(), "bit {bit}");
        }
    }
}
