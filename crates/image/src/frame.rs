//! The envelope that all files of an image share, except the page segments.
//!
//! Owns: the header, the trailing checksum, and the order in which they are verified.
//! Invariants: the layout of the header is the same in every format version. The body is read only after magic, header
//! checksum, version, length and overall checksum were verified, in this order.
//! Does not: interpret the body.
//!
//! Layout: the section *The envelope* of `docs/format.md`.

use model::ByteCount;
use prost::Message;

use crate::checksum::Checksum;
use crate::error::{Error, Part, Result};

/// The latest format version that this program reads.
pub const FORMAT_VERSION: u32 = FORMAT_LENGTHS;

/// The first format version.
///
/// A part that needs no later version is written in this version, so that older releases can read the part.
const FORMAT_FIRST: u32 = 1;

/// The format version with compressed segments.
pub(crate) const FORMAT_COMPRESSED: u32 = 2;

/// The format version with segments of different lengths.
pub(crate) const FORMAT_LENGTHS: u32 = 3;

/// Returns the format version of a part that depends on compressed segments, if there are any.
pub(crate) const fn version(is_compressed: bool) -> u32 {
    if is_compressed { FORMAT_COMPRESSED } else { FORMAT_FIRST }
}

pub(crate) const HEADER_BYTES: usize = 32;
const HEADER_CHECKED_BYTES: usize = 28;
pub(crate) const TRAILER_BYTES: usize = 4;

/// A verified body, and the item count of its header.
#[derive(Debug)]
pub(crate) struct Body<'a> {
    pub(crate) items: u32,
    pub(crate) bytes: &'a [u8],
}

/// Returns the first bytes of a part: a byte outside ASCII, `undy`, a letter for the part, and a line end.
///
/// The first byte shows that the file is not text. A copy in text mode changes the line end, so that the copy is
/// detected.
pub(crate) const fn magic(part: Part) -> [u8; 8] {
    let letter = match part {
        Part::Commit => b'C',
        Part::Records => b'R',
        Part::Index => b'I',
        Part::Chunks => b'K',
        Part::LogHeader => b'H',
        Part::LogSlot => b'S',
        Part::LogRoot => b'T',
        Part::LogPart => b'D',
    };
    [0x89, b'u', b'n', b'd', b'y', letter, b'\r', b'\n']
}

/// Starts a file with space for the header. `seal` writes the header.
pub(crate) fn begin(body_capacity: usize) -> Vec<u8> {
    let mut file = Vec::with_capacity(HEADER_BYTES + body_capacity + TRAILER_BYTES);
    file.resize(HEADER_BYTES, 0);
    file
}

/// Starts a file whose body is a message.
pub(crate) fn begin_with(message: &impl Message) -> Vec<u8> {
    let mut file = begin(message.encoded_len());
    file.extend_from_slice(&message.encode_to_vec());
    file
}

/// Completes a file: the body was appended to the result of `begin`.
pub(crate) fn seal(part: Part, items: u32, file: Vec<u8>) -> Vec<u8> {
    seal_as(FORMAT_FIRST, part, items, file)
}

/// Completes a file as `seal` does, in the format version that readers need.
pub(crate) fn seal_as(version: u32, part: Part, items: u32, mut file: Vec<u8>) -> Vec<u8> {
    let body_length = (file.len() - HEADER_BYTES) as u64;
    file[0..8].copy_from_slice(&magic(part));
    file[8..12].copy_from_slice(&version.to_le_bytes());
    file[16..24].copy_from_slice(&body_length.to_le_bytes());
    file[24..28].copy_from_slice(&items.to_le_bytes());
    let header = Checksum::of(&file[..HEADER_CHECKED_BYTES]);
    file[HEADER_CHECKED_BYTES..HEADER_BYTES].copy_from_slice(&header.0.to_le_bytes());
    let all = Checksum::of(&file);
    file.extend_from_slice(&all.0.to_le_bytes());
    file
}

/// Verifies a file and returns its body.
pub(crate) fn open(part: Part, file: &[u8]) -> Result<Body<'_>> {
    let (header, items, body_length) = open_header(part, file)?;
    let body_length = usize::try_from(body_length).unwrap_or(usize::MAX);
    let needed = body_length.saturating_add(HEADER_BYTES + TRAILER_BYTES);
    if file.len() < needed {
        return Err(truncated(part, needed, file.len()));
    }
    if file.len() > needed {
        let offset = ByteCount(needed as u64);
        return Err(Error::Malformed { part, offset, what: "bytes behind the end" });
    }
    let (covered, trailer) = file.split_at(needed - TRAILER_BYTES);
    let body = &covered[HEADER_BYTES..];
    let stored = Checksum(u32_at(trailer, 0));
    let computed = header.extend(body);
    if stored != computed {
        return Err(Error::ChecksumMismatch { part, offset: ByteCount(0), stored, computed });
    }
    Ok(Body { items, bytes: body })
}

/// Verifies a header. Returns the checksum of the whole header, the item count and the body length.
fn open_header(part: Part, file: &[u8]) -> Result<(Checksum, u32, u64)> {
    let magic = magic(part);
    let seen = file.len().min(magic.len());
    if file[..seen] != magic[..seen] {
        let mut found = [0; 8];
        found[..seen].copy_from_slice(&file[..seen]);
        return Err(Error::Foreign { part, found });
    }
    let Some(header) = file.get(..HEADER_BYTES) else {
        return Err(truncated(part, HEADER_BYTES + TRAILER_BYTES, file.len()));
    };
    let stored = Checksum(u32_at(header, HEADER_CHECKED_BYTES));
    let computed = Checksum::of(&header[..HEADER_CHECKED_BYTES]);
    if stored != computed {
        return Err(Error::ChecksumMismatch { part, offset: ByteCount(0), stored, computed });
    }
    let found = u32_at(header, 8);
    if found > FORMAT_VERSION {
        return Err(Error::NewerVersion { part, found, supported: FORMAT_VERSION });
    }
    if found < FORMAT_FIRST || u32_at(header, 12) != 0 {
        let what = "a format version or flag that no release wrote";
        return Err(Error::Malformed { part, offset: ByteCount(8), what });
    }
    let whole = computed.extend(&header[HEADER_CHECKED_BYTES..]);
    Ok((whole, u32_at(header, 24), u64_at(header, 16)))
}

fn truncated(part: Part, needed: usize, available: usize) -> Error {
    Error::Truncated { part, needed: ByteCount(needed as u64), available: ByteCount(available as u64) }
}

/// Returns the 32-bit integer at an offset. The caller has checked that the integer lies inside `bytes`.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    let mut word = [0; 4];
    word.copy_from_slice(&bytes[offset..offset + 4]);
    u32::from_le_bytes(word)
}

/// Returns the 64-bit integer at an offset. The caller has checked that the integer lies inside `bytes`.
pub(crate) fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[offset..offset + 8]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Vec<u8> {
        let mut file = begin(16);
        file.extend_from_slice(b"some body bytes");
        seal(Part::Index, 3, file)
    }

    #[test]
    fn a_sealed_file_opens_with_its_body() {
        let file = sample();
        let body = open(Part::Index, &file).unwrap();
        assert_eq!((body.items, body.bytes), (3, &b"some body bytes"[..]));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let file = sample();
        for bit in 0..file.len() * 8 {
            let mut damaged = file.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(open(Part::Index, &damaged).is_err(), "bit {bit} passed");
        }
    }

    #[test]
    fn every_truncation_is_named_as_one() {
        let file = sample();
        for length in 0..file.len() {
            let result = open(Part::Index, &file[..length]);
            assert!(matches!(result, Err(Error::Truncated { .. })), "length {length}: {result:?}");
        }
    }

    #[test]
    fn another_part_or_another_program_is_foreign() {
        assert!(matches!(open(Part::Commit, &sample()), Err(Error::Foreign { .. })));
        assert!(matches!(open(Part::Commit, b"\x7fELF"), Err(Error::Foreign { .. })));
    }

    #[test]
    fn a_later_format_is_named_before_its_body_is_looked_at() {
        let mut file = sample();
        file[8..12].copy_from_slice(&7u32.to_le_bytes());
        let header = Checksum::of(&file[..28]).0;
        file[28..32].copy_from_slice(&header.to_le_bytes());
        let expected = Error::NewerVersion { part: Part::Index, found: 7, supported: FORMAT_VERSION };
        assert_eq!(open(Part::Index, &file).unwrap_err(), expected);
    }

    #[test]
    fn bytes_behind_the_end_are_refused() {
        let mut file = sample();
        file.push(0);
        assert!(matches!(open(Part::Index, &file), Err(Error::Malformed { .. })));
    }
}
