//! Where bytes lie in a log: segments, blocks, and blobs that may span segments.
//!
//! Owns: `LogSegment`, `LogPlace`, `Blob` and its protobuf shape.
//! Invariants: segment numbers of one log rise and are never used twice, so that a place means the same
//! bytes for ever.
//! Does not: read or write them.

use std::fmt;

use model::{ByteCount, PAGE_BYTES};
use prost::Message;

use crate::checksum::Checksum;

/// Bytes of a block of a log: what pages and header blocks are aligned to.
pub const LOG_BLOCK_BYTES: u64 = PAGE_BYTES;

/// The number of a segment of a log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogSegment(pub u32);

/// A block of a log. Places rise in the order in which they are written.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogPlace {
    /// The segment.
    pub segment: LogSegment,
    /// The block in it.
    pub block: u32,
}

/// Consecutive bytes of one segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlobPiece {
    /// The segment.
    pub segment: LogSegment,
    /// Where in it.
    pub offset: ByteCount,
    /// How many bytes.
    pub length: ByteCount,
}

/// Bytes in a log, in pieces because a segment may have ended between them.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Blob {
    /// The pieces, in order.
    pub pieces: Vec<BlobPiece>,
    /// Over all bytes.
    pub checksum: Checksum,
}

impl LogPlace {
    /// The first byte's offset in the segment.
    #[must_use]
    pub const fn offset(self) -> ByteCount {
        ByteCount(self.block as u64 * LOG_BLOCK_BYTES)
    }
}

impl Blob {
    /// Bytes of all pieces.
    #[must_use]
    pub fn length(&self) -> ByteCount {
        ByteCount(self.pieces.iter().map(|piece| piece.length.0).fold(0, u64::saturating_add))
    }

    /// The place of the first byte; that of nothing for an empty blob.
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
    /// Which rule of the format the message breaks.
    type Error = &'static str;

    fn try_from(message: BlobMessage) -> Result<Self, Self::Error> {
        let mut pieces = Vec::with_capacity(message.pieces.len());
        for piece in message.pieces {
            let end = piece.offset.checked_add(piece.length);
            // A block number is 32 bits wide; no segment is longer.
            if piece.length == 0 || end.is_none_or(|end| end / LOG_BLOCK_BYTES > u64::from(u32::MAX)) {
                return Err("a piece outside any segment");
            }
            let (offset, length) = (ByteCount(piece.offset), ByteCount(piece.length));
            pieces.push(BlobPiece { segment: LogSegment(piece.segment), offset, length });
        }
        Ok(Self { pieces, checksum: Checksum(message.crc32c) })
    }
}
