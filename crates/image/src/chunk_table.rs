//! Encodes and decodes the *chunk table* of a compressed segment: the position of each chunk in the segment file.
//!
//! A compressed segment is cut into *chunks*, and each chunk is compressed separately. The *stored* bytes of a chunk
//! are its bytes in the file. The *expanded* bytes are its bytes after decompression.
//!
//! Owns: `ChunkTable`, its rules and its encoding.
//! Invariants: all chunks except the last have the same expanded length. The last chunk has at least one expanded byte.
//! A chunk's stored length is at most its expanded length. If both lengths are equal, the chunk is stored uncompressed.
//! Chunks are contiguous in the file, from offset 0.
//! Does not: compress, or know which codec has compressed the chunks.
//!
//! Encoding: the section *`chunks-N` and compressed segments* of `docs/format.md`.

use std::ops::Range;

use model::{ByteCount, PAGE_BYTES};

use crate::checksum::Checksum;
use crate::error::{Error, Part, Result};
use crate::frame::{self, HEADER_BYTES, u32_at, u64_at};

/// The expanded length of each chunk in a new segment.
///
/// A chunk must be long, because the codec searches for repetitions only inside the chunk. A chunk must be short,
/// because a reader expands the whole chunk even if it needs only one page.
pub const CHUNK_BYTES: ByteCount = ByteCount(128 << 10);

/// The maximum expanded length of a chunk in any segment. The limit bounds the memory of a reader.
const CHUNK_BYTES_MAX: u64 = 4 << 20;

const FIXED_BYTES: usize = 16;
const CHUNK_ENTRY_BYTES: usize = 8;

/// The stored length and the checksum of one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredChunk {
    /// The number of stored bytes.
    pub length: u32,
    /// The checksum of the stored bytes.
    pub checksum: Checksum,
}

/// The chunks of one compressed segment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkTable {
    chunk: u32,
    whole: u64,
    /// The offset of each chunk in the file, in order, then the end of the last chunk.
    bounds: Vec<u64>,
    checksums: Vec<Checksum>,
}

impl ChunkTable {
    /// Returns the table of a segment that was cut into chunks of `CHUNK_BYTES`. `whole` is the expanded length of the
    /// segment.
    ///
    /// # Errors
    ///
    /// Returns `Malformed` if the table breaks a rule. The error contains the rule.
    pub fn new(whole: ByteCount, chunks: &[StoredChunk]) -> Result<Self> {
        Self::from_chunks(CHUNK_BYTES.0 as u32, whole.0, chunks.iter().copied())
    }

    /// Returns the expanded length of the segment.
    #[must_use]
    pub const fn whole(&self) -> ByteCount {
        ByteCount(self.whole)
    }

    /// Returns the total number of stored bytes of all chunks.
    #[must_use]
    pub fn stored(&self) -> ByteCount {
        ByteCount(self.bounds.last().copied().unwrap_or_default())
    }

    /// Returns the numbers of the chunks that contain the bytes of a range. `bytes` is a range inside the expanded
    /// segment.
    #[must_use]
    pub const fn chunks(&self, bytes: &Range<u64>) -> Range<usize> {
        let chunk = self.chunk as u64;
        (bytes.start / chunk) as usize..bytes.end.div_ceil(chunk) as usize
    }

    /// Returns the byte range of a chunk in the expanded segment.
    #[must_use]
    pub fn expanded(&self, number: usize) -> Range<u64> {
        let start = number as u64 * u64::from(self.chunk);
        start..(start + u64::from(self.chunk)).min(self.whole)
    }

    /// Returns the byte range of a chunk in the file, and the chunk's checksum; `None` when no chunk has this number.
    #[must_use]
    pub fn place(&self, number: usize) -> Option<(Range<u64>, Checksum)> {
        let bytes = *self.bounds.get(number)?..*self.bounds.get(number + 1)?;
        Some((bytes, *self.checksums.get(number)?))
    }

    /// Encodes the table as the content of its file.
    ///
    /// # Errors
    ///
    /// Returns `TooLarge` when there are 2³² chunks or more.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let too_large = |_| Error::TooLarge { part: Part::Chunks, what: "the number of chunks" };
        let items = u32::try_from(self.checksums.len()).map_err(too_large)?;
        let mut file = frame::begin(FIXED_BYTES + self.checksums.len() * CHUNK_ENTRY_BYTES);
        file.extend_from_slice(&self.chunk.to_le_bytes());
        file.extend_from_slice(&0_u32.to_le_bytes());
        file.extend_from_slice(&self.whole.to_le_bytes());
        for (bounds, checksum) in self.bounds.windows(2).zip(&self.checksums) {
            file.extend_from_slice(&((bounds[1] - bounds[0]) as u32).to_le_bytes());
            file.extend_from_slice(&checksum.0.to_le_bytes());
        }
        Ok(frame::seal_as(frame::FORMAT_COMPRESSED, Part::Chunks, items, file))
    }

    /// Verifies the content of a table's file, then decodes the table.
    ///
    /// # Errors
    ///
    /// Returns an error for the first failed check, with the offset.
    pub fn decode(file: &[u8]) -> Result<Self> {
        let body = frame::open(Part::Chunks, file)?;
        let Some((fixed, rest)) = body.bytes.split_first_chunk::<FIXED_BYTES>() else {
            return Err(malformed(0, "a table without a beginning"));
        };
        let (entries, rest) = rest.as_chunks::<CHUNK_ENTRY_BYTES>();
        if !rest.is_empty() || entries.len() as u64 != u64::from(body.items) {
            return Err(malformed(entries.len(), "another number of chunks than the header counts"));
        }
        if u32_at(fixed, 4) != 0 {
            return Err(malformed(0, "a field that no release wrote"));
        }
        let chunk = |entry| StoredChunk { length: u32_at(entry, 0), checksum: Checksum(u32_at(entry, 4)) };
        let chunks = entries.iter().map(|entry| chunk(entry));
        Self::from_chunks(u32_at(fixed, 0), u64_at(fixed, 8), chunks)
    }

    fn from_chunks(
        chunk: u32,
        whole: u64,
        chunks: impl ExactSizeIterator<Item = StoredChunk>,
    ) -> Result<Self> {
        let size = u64::from(chunk);
        if size == 0 || !size.is_multiple_of(PAGE_BYTES) || size > CHUNK_BYTES_MAX {
            return Err(malformed(0, "chunks of a size that is not allowed"));
        }
        if whole == 0 || !whole.is_multiple_of(PAGE_BYTES) || whole.div_ceil(size) != chunks.len() as u64 {
            return Err(malformed(0, "another number of chunks than the length takes"));
        }
        let bounds = Vec::with_capacity(chunks.len() + 1);
        let mut table = Self { chunk, whole, bounds, checksums: Vec::with_capacity(chunks.len()) };
        let mut end = 0;
        table.bounds.push(end);
        for (number, StoredChunk { length, checksum }) in chunks.enumerate() {
            let expanded = table.expanded(number);
            if length == 0 || u64::from(length) > expanded.end - expanded.start {
                return Err(malformed(number, "a chunk stored in more bytes than it has, or in none"));
            }
            // The sum cannot overflow: there are at most 2³² chunks of at most 4 MiB each.
            end += u64::from(length);
            table.bounds.push(end);
            table.checksums.push(checksum);
        }
        Ok(table)
    }
}

fn malformed(number: usize, what: &'static str) -> Error {
    let offset = HEADER_BYTES + FIXED_BYTES + number * CHUNK_ENTRY_BYTES;
    Error::Malformed { part: Part::Chunks, offset: ByteCount(offset as u64), what }
}
