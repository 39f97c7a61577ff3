//! The records of the newest checkpoint, so that unchanged records are not written again.
//!
//! Owns: `RecordMap`: keys, and the bytes of each record.
//! Invariants: two records are equal only if all their bytes are.
//! Does not: interpret a payload.

use std::collections::{BTreeMap, BTreeSet};

use image::{LogPartEncoder, RecordKey, RecordSet};

/// Records by kind, owner and number among those of both.
#[derive(Clone, Debug, Default)]
pub(super) struct RecordMap {
    records: BTreeMap<RecordKey, Vec<u8>>,
}

impl RecordMap {
    /// The records of a set.
    pub(super) fn of(set: &RecordSet) -> Self {
        let mut records = BTreeMap::new();
        let mut counts: BTreeMap<(&str, image::Owner), u32> = BTreeMap::new();
        for record in set.iter() {
            let count = counts.entry((&record.kind, record.owner)).or_default();
            let key = RecordKey { kind: record.kind.clone(), owner: record.owner, ordinal: *count };
            *count += 1;
            records.insert(key, record.to_bytes());
        }
        Self { records }
    }

    /// The keys of all records that are in one of the two only, or differ.
    pub(super) fn changes(&self, before: &Self) -> BTreeSet<RecordKey> {
        let changed = self.records.iter().filter(|(key, bytes)| before.records.get(*key) != Some(*bytes));
        let gone = before.records.keys().filter(|key| !self.records.contains_key(*key));
        changed.map(|(key, _)| key).chain(gone).cloned().collect()
    }

    /// Writes the state of these records into a part.
    pub(super) fn encode(&self, keys: &BTreeSet<RecordKey>, part: &mut LogPartEncoder) {
        for key in keys {
            match self.records.get(key) {
                Some(bytes) => part.record(key.ordinal, bytes),
                None => part.removed(key),
            }
        }
    }

    /// Writes all records into a part.
    pub(super) fn encode_all(&self, part: &mut LogPartEncoder) {
        self.records.iter().for_each(|(key, bytes)| part.record(key.ordinal, bytes));
    }
}
