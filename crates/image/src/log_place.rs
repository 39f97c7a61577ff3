//! Positions of bytes in a log: segments, blocks, and blobs that may span segments.
//!
//! Owns: `LogSegment`, `LogPlace`, `Blob` and the protobuf message of `Blob`.
//! Invariants: segment numbers of one log rise and are never reused. A place therefore always means the same bytes.
//! Does not: read or write segments.

use std::fmt;

use model::{ByteCount, PAGE_BYTES};
use prost::Message;

use crate::checksum::Checksum;

/// The size of a block of a log in bytes. Pages and header blocks are aligned to this size.
pub const LOG_BLOCK_BYTES: u64 = PAGE_BYTES;

/// The number of a segment of a log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogSegment(pub u32);

/// The position of a block of a log. Positions rise in the order in which blocks are written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogPlace {
    /// The segment.
    pub segment: LogSegment,
    /// The number of the block within the segment.
    pub block: u32,
}

/// Consecutive bytes of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlobPiece {
    /// The segment.
    pub segment: LogSegment,
    /// The offset of the first byte within the segment.
    pub offset: ByteCount,
    /// The number of bytes.
    pub length: ByteCount,
}

/// Bytes in a log, in one or more pieces: a blob that reaches the end of a segment continues in another segment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Blob {
    /// The pieces, in the order of the bytes.
    pub pieces: Vec<BlobPiece>,
    /// The checksum of all bytes.
    pub checksum: Checksum,
}

impl LogPlace {
    /// Returns the offset of the block's first byte within the segment.
    #[must_use]
    pub const fn offset(self) -> ByteCount {
        ByteCount(self.block as u64 * LOG_BLOCK_BYTES)
    }
}

impl Blob {
    /// Returns the total number of bytes of all pieces.
    #[must_use]
    pub fn length(&self) -> ByteCount {
        ByteCount(self.pieces.iter().map(|piece| piece.length.0).fold(0, u64::saturating_add))
    }

    /// Returns the place of the first byte, or the default place for an empty blob.
    #[must_use]
    pub fn place(&self) -> LogPlace {
        self.pieces.first().map_or_else(LogPlace::default, |piece| LogPlace {
            segment: piece.segment,
            block: (piece.offset.0 / LOG_BLOCK_BYTES) as u32,
        })
    }
}

impl fmt::Display for LogSegment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// `message Blob` of docs/format.md.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct BlobMessage {
    #[prost(message, repeated, tag = "1")]
    pieces: Vec<PieceMessage>,
    #[prost(fixed32, tag = "2")]
    crc32c: u32,
}

/// `message Piece` of docs/format.md.
#[derive(Clone, PartialEq, Message)]
struct PieceMessage {
    #[prost(uint32, tag = "1")]
    segment: u32,
    #[prost(uint64, tag = "2")]
    offset: u64,
    #[prost(uint64, tag = "3")]
    length: u64,
}

impl From<&Blob> for BlobMessage {
    fn from(blob: &Blob) -> Self {
        let piece = |piece: &BlobPiece| PieceMessage {
            segment: piece.segment.0,
            offset: piece.offset.0,
            length: piece.length.0,
        };
        Self { pieces: blob.pieces.iter().map(piece).collect(), crc32c: blob.checksum.0 }
    }
}

impl TryFrom<BlobMessage> for Blob {
    /// The rule of the format that the message breaks.
    type Error = &'static str;

    fn try_from(message: BlobMessage) -> Result<Self, Self::Error> {
        let mut pieces = Vec::with_capacity(message.pieces.len());
        for piece in message.pieces {
            let end = piece.offset.checked_add(piece.length);
            // A block number has 32 bits, and no segment has more blocks.
            if piece.length == 0 || end.is_none_or(|end| end / LOG_BLOCK_BYTES > u64::from(u32::MAX)) {
                return Err("a piece outside any segment");
            }
            let (offset, length) = (ByteCount(piece.offset), ByteCount(piece.length));
            pieces.push(BlobPiece { segment: LogSegment(piece.segment), offset, length });
        }
        Ok(Self { pieces, checksum: Checksum(message.crc32c) })
    }
}
