//! Parts of a payload that do not change between checkpoints.
//!
//! A payload is the saved state of one open file description. A payload can contain many bytes that the previous
//! checkpoint contains too, for example the unread bytes of a connection whose peer does not read. A kind divides such
//! bytes into *pieces*. A piece is saved as its own record, and the log of a subject writes only changed records.
//!
//! Owns: the form of a payload in which some bytes are pieces, and assembling the payload from this form.
//! Invariants: without pieces, the saved form is the payload itself. The owner of a piece names its description and
//! its number.
//! Does not: decide which bytes are pieces; the kind does.

use std::collections::HashMap;

use bytes::Bytes;
use image::{Owner, Record, RecordSet};
use model::DescriptionId;
use prost::Message;

use crate::error::{ResourceError, Result};

/// The kind of the records that contain pieces.
pub const NAME: &str = "fd/piece";
const VERSION: u32 = 1;
/// Number of low bits of the owner that contain the number of a piece. The other bits contain the description.
const NUMBER_BITS: u32 = 40;

/// A part of the payload of a description.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Part {
    /// Bytes that are saved in the record of the description.
    Own(Vec<u8>),
    /// The bytes of a piece after its first `skip` bytes. The piece is saved as a whole.
    Piece {
        /// The number of the piece. Pieces of one description have different numbers, below 2⁴⁰.
        number: u64,
        /// The number of bytes of the piece that do not belong to the payload.
        skip: usize,
        /// The bytes of the piece.
        bytes: Bytes,
    },
}

impl Part {
    /// Returns the bytes of the payload that the part contains.
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Piece { skip, bytes, .. } => &bytes[*skip..],
        }
    }
}

/// `message Part` of docs/format.md.
#[derive(Clone, PartialEq, Eq, Message)]
pub(super) struct PartMessage {
    #[prost(bytes = "vec", tag = "1")]
    own: Vec<u8>,
    #[prost(uint64, optional, tag = "2")]
    piece: Option<u64>,
    #[prost(uint64, tag = "3")]
    skip: u64,
}

/// Divides the parts that follow `payload`. Without pieces, appends them to `payload`. With pieces, adds the records of
/// the pieces to `records`, and returns the messages of the parts.
pub(super) fn put(
    parts: Vec<Part>,
    payload: &mut Vec<u8>,
    id: DescriptionId,
    records: &mut RecordSet,
) -> Vec<PartMessage> {
    if !parts.iter().any(|part| matches!(part, Part::Piece { .. })) {
        parts.iter().for_each(|part| payload.extend_from_slice(part.bytes()));
        return Vec::new();
    }
    let message = |part| match part {
        Part::Own(own) => PartMessage { own, ..PartMessage::default() },
        Part::Piece { number, skip, bytes } => {
            records.push(Record::new(NAME, VERSION, owner(id, number), bytes));
            PartMessage { piece: Some(number), skip: skip as u64, ..PartMessage::default() }
        }
    };
    parts.into_iter().map(message).collect()
}

fn owner(id: DescriptionId, number: u64) -> Owner {
    Owner::Object(u64::from(id.get()) << NUMBER_BITS | number)
}

/// All pieces of an image.
#[derive(Debug, Default)]
pub struct Pieces(HashMap<Owner, Bytes>);

impl Pieces {
    /// Takes the records of all pieces.
    ///
    /// # Errors
    ///
    /// Returns `Malformed` for a record of a later version.
    pub fn take(records: &mut RecordSet) -> Result<Self> {
        let mut pieces = HashMap::new();
        for record in records.take_all(NAME) {
            if record.version > VERSION {
                return Err(malformed("a piece has a version that this undying does not know"));
            }
            pieces.insert(record.owner, record.payload);
        }
        Ok(Self(pieces))
    }

    /// Appends the parts of a description to the first bytes of its payload. Each piece can be used once, so that a
    /// damaged image cannot need more memory than its own size.
    pub(super) fn assemble(
        &mut self,
        id: DescriptionId,
        payload: &mut Vec<u8>,
        parts: &[PartMessage],
    ) -> Result<()> {
        for part in parts {
            payload.extend_from_slice(&part.own);
            let Some(number) = part.piece else { continue };
            let piece = self.0.remove(&owner(id, number)).ok_or_else(|| malformed("a piece is missing"))?;
            let bytes = usize::try_from(part.skip).ok().and_then(|skip| piece.get(skip..));
            payload.extend_from_slice(bytes.ok_or_else(|| malformed("a piece is too short"))?);
        }
        Ok(())
    }

    /// Checks that all pieces were used.
    ///
    /// # Errors
    ///
    /// Returns `Malformed` if a piece belongs to no description.
    pub fn finish(self) -> Result<()> {
        if self.0.is_empty() { Ok(()) } else { Err(malformed("a piece belongs to no open file")) }
    }
}

fn malformed(why: &str) -> ResourceError {
    ResourceError::Malformed { kind: NAME, why: why.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts() -> Vec<Part> {
        vec![
            Part::Own(b" own".to_vec()),
            Part::Piece { number: 7, skip: 2, bytes: Bytes::from_static(b"xx piece") },
            Part::Own(b" end".to_vec()),
        ]
    }

    #[test]
    fn a_payload_with_pieces_is_assembled_and_nothing_is_left() {
        let (mut records, mut payload) = (RecordSet::new(), b"head".to_vec());
        let messages = put(parts(), &mut payload, DescriptionId(3), &mut records);
        assert_eq!((payload.as_slice(), records.len()), (b"head".as_slice(), 1));
        let mut pieces = Pieces::take(&mut records).unwrap();
        assert!(records.is_empty());
        pieces.assemble(DescriptionId(3), &mut payload, &messages).unwrap();
        assert_eq!(payload, b"head own piece end");
        assert!(pieces.assemble(DescriptionId(3), &mut payload, &messages).is_err());
        pieces.finish().unwrap();
    }

    #[test]
    fn a_piece_of_another_open_file_is_not_used() {
        let (mut records, mut payload) = (RecordSet::new(), Vec::new());
        let messages = put(parts(), &mut payload, DescriptionId(3), &mut records);
        let mut pieces = Pieces::take(&mut records).unwrap();
        assert!(pieces.assemble(DescriptionId(4), &mut payload, &messages).is_err());
        assert!(pieces.finish().is_err());
    }

    #[test]
    fn a_payload_without_pieces_is_one_record_that_every_version_reads() {
        let (mut records, mut payload) = (RecordSet::new(), b"head".to_vec());
        let own = parts().into_iter().filter(|part| matches!(part, Part::Own(_))).collect();
        assert_eq!(put(own, &mut payload, DescriptionId(3), &mut records), []);
        assert_eq!((payload.as_slice(), records.len()), (b"head own end".as_slice(), 0));
    }

    #[test]
    fn a_piece_that_is_shorter_than_its_skipped_bytes_is_refused() {
        let (mut records, mut payload) = (RecordSet::new(), Vec::new());
        let long = vec![Part::Piece { number: 1, skip: 5, bytes: Bytes::from_static(b"short") }];
        let mut messages = put(long, &mut payload, DescriptionId(0), &mut records);
        messages[0].skip = 6;
        let mut pieces = Pieces::take(&mut records).unwrap();
        assert!(pieces.assemble(DescriptionId(0), &mut payload, &messages).is_err());
    }
}
