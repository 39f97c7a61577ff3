//! The payloads of records, as their kinds decode them.
//!
//! Owns: which kind a record or an object belongs to; a file of records that has one kind alone.
//! Invariants: nothing is opened or made.
//! Does not: need the records of an image to fit one another; the target `plan` does.

use image::{Owner, Record, RecordSet};
use prost::Message;
use resource::fd::envelope::Envelope;
use resource::fd::pieces::Pieces;
use resource::memory::{AreaRecord, ObjectRecord};
use resource::{ResourceError, fd, memory, state};

use crate::repair::repair_records;

/// The kind of private memory, which has areas and no objects.
const PRIVATE: &str = "memory/private_anonymous";
/// Records of the engine: the objects behind areas, and the areas of a process.
const OBJECTS: &str = "objects";
const AREAS: &str = "areas";

/// As the engine writes it.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Objects {
    #[prost(message, repeated, tag = "1")]
    pub(crate) objects: Vec<ObjectRecord>,
}

/// As the engine writes it, without guard regions.
#[derive(Clone, PartialEq, Message)]
struct Areas {
    #[prost(message, repeated, tag = "1")]
    areas: Vec<AreaRecord>,
}

/// Has the kind of every record check it; whether all accept theirs.
pub(crate) fn check(input: &[u8]) -> bool {
    let Ok(mut records) = RecordSet::decode(&repair_records(input)) else { return false };
    let Ok(mut pieces) = Pieces::take(&mut records) else { return false };
    let outcomes: Vec<bool> =
        records.iter().map(|record| check_record(record, &mut pieces).is_ok()).collect();
    !outcomes.is_empty() && outcomes.iter().all(|is_accepted| *is_accepted)
}

fn check_record(record: &Record, pieces: &mut Pieces) -> resource::Result<()> {
    let unknown = || ResourceError::Malformed { kind: "any", why: format!("`{}` is unknown", record.kind) };
    if let Some(kind) = fd::REGISTRY.iter().find(|kind| kind.name() == record.kind) {
        let id = match record.owner {
            Owner::Description(id) => id,
            _ => model::DescriptionId(0),
        };
        return kind.check(record.version, &Envelope::from_record(record, id, pieces)?.payload);
    }
    if let Some(kind) = state::kind_named(&record.kind) {
        return kind.check(record.version, &record.payload);
    }
    match record.kind.as_str() {
        OBJECTS => {
            let message: Objects = resource::decode(OBJECTS, &record.payload)?;
            message
                .objects
                .iter()
                .try_for_each(|object| memory::kind_named(&object.kind).ok_or_else(unknown)?.check(object))
        }
        AREAS => resource::decode::<Areas>(AREAS, &record.payload).map(|message| {
            for area in message.areas {
                let _ = (memory::map_flags(&area), memory::advice(&area), memory::advice_before_pages(&area));
            }
        }),
        _ => Err(unknown()),
    }
}

/// The names of all kinds.
#[must_use]
pub fn kinds() -> Vec<&'static str> {
    let fds = fd::REGISTRY.iter().map(|kind| kind.name());
    let states = state::REGISTRY.iter().map(|kind| kind.name());
    fds.chain(states).chain(memory::REGISTRY.iter().map(|kind| kind.name())).collect()
}

/// Those records of an image that are of one kind, with other objects and areas taken out; `None` if there are none.
#[must_use]
pub fn of_kind(records: &RecordSet, kind: &str) -> Option<RecordSet> {
    let mut found = RecordSet::new();
    for record in records.iter() {
        if record.kind == kind {
            found.push(record.clone());
        } else if kind.starts_with("memory/")
            && let Some(payload) = memory_of(record, kind)
        {
            found.push(Record::new(record.kind.clone(), record.version, record.owner, payload));
        }
    }
    (!found.is_empty()).then_some(found)
}

fn memory_of(record: &Record, kind: &str) -> Option<Vec<u8>> {
    if record.kind == OBJECTS && record.owner == Owner::Tree {
        let mut message = Objects::decode(&*record.payload).ok()?;
        message.objects.retain(|object| object.kind == kind);
        return (!message.objects.is_empty()).then(|| message.encode_to_vec());
    }
    if record.kind == AREAS && kind == PRIVATE {
        let mut message = Areas::decode(&*record.payload).ok()?;
        message.areas.retain(|area| area.object == 0 && !area.shared);
        return (!message.areas.is_empty()).then(|| message.encode_to_vec());
    }
    None
}
