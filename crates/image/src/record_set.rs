//! The records of one image in insertion order, and the file that contains these records.
//!
//! Owns: the framing of records, the lookup by kind and owner, and the list of records that were not taken.
//! Invariants: every record carries its own checksum. A decoded set equals the encoded set, in the same order.
//! Does not: interpret a payload.
//!
//! Encoding: the section *`records`* of `docs/format.md`.

use std::collections::{BTreeMap, VecDeque};

use model::ByteCount;

use crate::checksum::Checksum;
use crate::error::{Error, Part, Result};
use crate::frame::{self, HEADER_BYTES};
use crate::record::{Owner, Record};

const FRAME_BYTES: usize = 8;

/// A set of records that will be written to an image, or consumed by a restore.
#[derive(Clone, Debug, Default)]
pub struct RecordSet {
    slots: Vec<Option<Record>>,
    places: BTreeMap<String, BTreeMap<Owner, VecDeque<usize>>>,
    left: usize,
}

impl RecordSet {
    /// Returns an empty set.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a record. Records of the same kind and owner are kept as separate records, in insertion order.
    pub fn push(&mut self, record: Record) {
        let owners = match self.places.get_mut(&record.kind) {
            Some(owners) => owners,
            None => self.places.entry(record.kind.clone()).or_default(),
        };
        owners.entry(record.owner).or_default().push_back(self.slots.len());
        self.slots.push(Some(record));
        self.left += 1;
    }

    /// Removes and returns the first remaining record of this kind and owner.
    pub fn take(&mut self, kind: &str, owner: Owner) -> Option<Record> {
        let owners = self.places.get_mut(kind)?;
        let places = owners.get_mut(&owner)?;
        let place = places.pop_front()?;
        if places.is_empty() {
            owners.remove(&owner);
        }
        self.take_slot(place)
    }

    /// Removes and returns all remaining records of this kind and owner, in insertion order.
    pub fn take_each(&mut self, kind: &str, owner: Owner) -> Vec<Record> {
        let places = self.places.get_mut(kind).and_then(|owners| owners.remove(&owner)).unwrap_or_default();
        places.into_iter().filter_map(|place| self.take_slot(place)).collect()
    }

    /// Removes and returns all remaining records of this kind, of every owner, in insertion order.
    pub fn take_all(&mut self, kind: &str) -> Vec<Record> {
        let owners = self.places.remove(kind).unwrap_or_default();
        let mut places: Vec<usize> = owners.into_values().flatten().collect();
        places.sort_unstable();
        places.into_iter().filter_map(|place| self.take_slot(place)).collect()
    }

    /// Returns the records that were not taken, in insertion order.
    pub fn iter(&self) -> impl Iterator<Item = &Record> {
        self.slots.iter().flatten()
    }

    /// Returns the first record that was not taken. A restore that leaves a record is refused, and the error names the
    /// record.
    #[must_use]
    pub fn first_left(&self) -> Option<&Record> {
        self.iter().next()
    }

    /// Returns the number of records that were not taken.
    #[must_use]
    pub fn len(&self) -> usize {
        self.left
    }

    /// Reports whether every record has been taken.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Encodes the remaining records as the content of a record file.
    ///
    /// # Errors
    ///
    /// Returns `TooLarge` when there are 2³² records or more, or when a record has 4 GiB or more.
    pub fn encode(&self) -> Result<Vec<u8>> {
        let items = u32::try_from(self.left).map_err(|_| too_large("the number of records"))?;
        let mut file = frame::begin(0);
        for record in self.iter() {
            let bytes = record.to_bytes();
            let length = u32::try_from(bytes.len()).map_err(|_| too_large("a record"))?;
            file.extend_from_slice(&length.to_le_bytes());
            file.extend_from_slice(&Checksum::of(&bytes).0.to_le_bytes());
            file.extend_from_slice(&bytes);
        }
        Ok(frame::seal(Part::Records, items, file))
    }

    /// Verifies the content of a record file, then decodes the records.
    ///
    /// # Errors
    ///
    /// Returns an error for the first failed check, with the offset.
    pub fn decode(file: &[u8]) -> Result<Self> {
        let body = frame::open(Part::Records, file)?;
        let mut set = Self::new();
        let mut offset = 0;
        for _ in 0..body.items {
            let (record, end) = decode_record(body.bytes, offset)?;
            set.push(record);
            offset = end;
        }
        if offset != body.bytes.len() {
            return Err(malformed(offset, "bytes behind the last record"));
        }
        Ok(set)
    }

    fn take_slot(&mut self, place: usize) -> Option<Record> {
        let record = self.slots[place].take();
        self.left -= usize::from(record.is_some());
        record
    }
}

impl FromIterator<Record> for RecordSet {
    fn from_iter<I: IntoIterator<Item = Record>>(records: I) -> Self {
        let mut set = Self::new();
        set.extend(records);
        set
    }
}

impl Extend<Record> for RecordSet {
    fn extend<I: IntoIterator<Item = Record>>(&mut self, records: I) {
        records.into_iter().for_each(|record| self.push(record));
    }
}

/// Decodes the record at an offset of the body. Returns the record and the offset behind the record.
fn decode_record(body: &[u8], offset: usize) -> Result<(Record, usize)> {
    let start = offset + FRAME_BYTES;
    if body.len() < start {
        return Err(malformed(offset, "fewer records than the header counts"));
    }
    let length = frame::u32_at(body, offset) as usize;
    let stored = Checksum(frame::u32_at(body, offset + 4));
    let Some(bytes) = body.get(start..).and_then(|rest| rest.get(..length)) else {
        return Err(malformed(offset, "a record longer than the file"));
    };
    let computed = Checksum::of(bytes);
    if stored != computed {
        let offset = file_offset(start);
        return Err(Error::ChecksumMismatch { part: Part::Records, offset, stored, computed });
    }
    let record = Record::try_from(bytes).map_err(|what| malformed(start, what))?;
    Ok((record, start + length))
}

fn malformed(body_offset: usize, what: &'static str) -> Error {
    Error::Malformed { part: Part::Records, offset: file_offset(body_offset), what }
}

fn file_offset(body_offset: usize) -> ByteCount {
    ByteCount((HEADER_BYTES + body_offset) as u64)
}

fn too_large(what: &'static str) -> Error {
    Error::TooLarge { part: Part::Records, what }
}
