//! The frames that contain the records of the undo log, one frame for each record.
//!
//! Owns: the frame format.
//! Invariants: a record is returned only if the checksums of its frame are correct.
//! Does not: read or write files; know the content of a record.
//!
//! A frame consists of these fields, little-endian:
//!
//! - the length of the record, with [`CHECKED`] added (4 bytes)
//! - the length of the data (4 bytes)
//! - the CRC-32C of the two fields before (4 bytes)
//! - the CRC-32C of the first two fields, the record and the data (4 bytes)
//! - the record
//! - the data, which only records of the kind `range` have
//!
//! The third field tells a damaged length from a torn frame, whose end was never written. Frames of version 0.2.0
//! have neither [`CHECKED`] nor the third field.

use image::Checksum;

use super::record::{self, Kind};

/// Length of the head of a frame (the fields before the record), in bytes.
pub(crate) const HEAD_BYTES: usize = 16;
/// Length of the head of a frame without a checksum of its lengths, in bytes.
const UNCHECKED_HEAD_BYTES: usize = 12;
/// Length of the two fields with lengths, in bytes.
const LENGTHS_BYTES: usize = 8;
/// Marks a frame whose head has a checksum of the lengths. A length never uses this bit.
const CHECKED: u32 = 1 << 31;
/// Maximum length of a record without data, in bytes. The kernel limits the length of the names and extended attributes
/// in a record, so no valid record is longer.
const RECORD_BYTES_MAX: usize = 4 << 20;
/// Maximum length of the data in one frame, in bytes. A longer range needs several frames.
pub(crate) const DATA_BYTES_MAX: usize = 64 << 20;

/// Encodes the head and the record of a frame. The caller writes the data after the returned bytes.
pub(crate) fn encode<Body: Kind>(body: &Body, data: &[u8]) -> Vec<u8> {
    let record = record::encode(body);
    let mut frame = Vec::with_capacity(HEAD_BYTES + record.len());
    frame.extend_from_slice(&(record.len() as u32 | CHECKED).to_le_bytes());
    frame.extend_from_slice(&(data.len() as u32).to_le_bytes());
    let of_lengths = Checksum::of(&frame);
    frame.extend_from_slice(&of_lengths.get().to_le_bytes());
    frame.extend_from_slice(&of_lengths.extend(&record).extend(data).get().to_le_bytes());
    frame.extend_from_slice(&record);
    frame
}

/// The head of a frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    /// Length of the head, in bytes.
    pub(crate) bytes: usize,
    /// Length of the record, in bytes.
    pub(crate) record: usize,
    /// Length of the data, in bytes.
    pub(crate) data: usize,
    of_lengths: Checksum,
    stored: u32,
}

/// Why there is no head at the start of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoHead {
    /// The bytes end before the head does.
    Torn,
    /// The lengths are not the lengths that were written.
    Damaged,
}

impl Head {
    /// Reads the head of a frame at the start of `bytes`.
    pub(crate) fn of(bytes: &[u8]) -> Result<Self, NoHead> {
        let number = |at: usize| {
            bytes
                .get(at..)
                .and_then(<[u8]>::first_chunk)
                .map(|field| u32::from_le_bytes(*field))
                .ok_or(NoHead::Torn)
        };
        let is_checked = number(0)? & CHECKED != 0;
        let length = if is_checked { HEAD_BYTES } else { UNCHECKED_HEAD_BYTES };
        let head = Self {
            bytes: length,
            record: (number(0)? & !CHECKED) as usize,
            data: number(4)? as usize,
            of_lengths: Checksum::of(bytes.get(..LENGTHS_BYTES).ok_or(NoHead::Torn)?),
            stored: number(length - 4)?,
        };
        let is_damaged = is_checked && number(LENGTHS_BYTES)? != head.of_lengths.get();
        if is_damaged || head.record > RECORD_BYTES_MAX || head.data > DATA_BYTES_MAX {
            return Err(NoHead::Damaged);
        }
        Ok(head)
    }

    /// Returns the length of the frame, in bytes.
    pub(crate) fn frame_bytes(&self) -> usize {
        self.bytes + self.record + self.data
    }

    /// Returns the checksum of the lengths and `record`. The caller appends the checksum of the data.
    pub(crate) fn sum(&self, record: &[u8]) -> Checksum {
        self.of_lengths.extend(record)
    }

    /// Reports whether `sum` is the checksum of the frame.
    pub(crate) fn is_sum(&self, sum: Checksum) -> bool {
        self.stored == sum.get()
    }
}

/// Returns the first frame of `bytes`, and the bytes after the first frame. Returns `None` if the first frame is
/// incomplete, or its head damaged.
pub(crate) fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    bytes.split_at_checked(Head::of(bytes).ok()?.frame_bytes())
}

/// Returns the record of a complete frame, or `None` if a checksum is wrong.
pub(crate) fn verified(frame: &[u8]) -> Option<&[u8]> {
    let head = Head::of(frame).ok()?;
    let behind = frame.get(head.bytes..)?;
    if head.is_sum(head.sum(behind)) { behind.get(..head.record) } else { None }
}
