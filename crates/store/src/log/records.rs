//! The records of the newest checkpoint, so that unchanged records are not written again.
//!
//! Owns: `RecordMap`: the keys and the bytes of all records.
//! Invariants: two records are equal only if all their bytes are equal.
//! Does not: interpret a payload.

use std::collections::{BTreeMap, BTreeSet};

use image::{LogPartEncoder, Record, RecordKey, RecordSet};

/// Records by kind, owner, and ordinal (the position among the records with the same kind and owner).
#[derive(Clone, Debug, Default)]
pub(super) struct RecordMap {
    records: BTreeMap<RecordKey, Record>,
}

impl RecordMap {
    /// Returns a map of the records in `set`.
    pub(super) fn of(set: &RecordSet) -> Self {
        let mut records = BTreeMap::new();
        let mut counts: BTreeMap<(&str, image::Owner), u32> = BTreeMap::new();
        for record in set.iter() {
            let count = counts.entry((&record.kind, record.owner)).or_default();
            let key = RecordKey { kind: record.kind.clone(), owner: record.owner, ordinal: *count };
            *count += 1;
            records.insert(key, record.clone());
        }
        Self { records }
    }

    /// Returns the keys of records that differ between the two maps or exist in only one map.
    pub(super) fn changes(&self, before: &Self) -> BTreeSet<RecordKey> {
        let is_same = |key, record| before.records.get(key).is_some_and(|before| are_equal(record, before));
        let changed = self.records.iter().filter(|(key, record)| !is_same(*key, *record));
        let gone = before.records.keys().filter(|key| !self.records.contains_key(*key));
        changed.map(|(key, _)| key).chain(gone).cloned().collect()
    }

    /// Encodes the current state of the records with these keys: the content, or the removal.
    pub(super) fn encode(&self, keys: &BTreeSet<RecordKey>, part: &mut LogPartEncoder) {
        for key in keys {
            match self.records.get(key) {
                Some(record) => part.record(key.ordinal, &record.to_bytes()),
                None => part.removed(key),
            }
        }
    }

    /// Encodes all records.
    pub(super) fn encode_all(&self, part: &mut LogPartEncoder) {
        self.records.iter().for_each(|(key, record)| part.record(key.ordinal, &record.to_bytes()));
    }
}

/// Reports whether two records have equal bytes. The payload of an unchanged record is often the same memory, which is
/// not compared with itself.
fn are_equal(one: &Record, other: &Record) -> bool {
    let is_same_memory = std::ptr::eq::<[u8]>(&*one.payload, &*other.payload);
    (one.version, &one.kind, one.owner) == (other.version, &other.kind, other.owner)
        && (is_same_memory || one.payload == other.payload)
}
