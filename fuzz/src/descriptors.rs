//! Descriptors and memory objects created from hostile records.
//!
//! Owns: the choice of kinds whose creation touches nothing but this process.
//! Invariants: what is created is closed before the function returns.
//! Does not: create what has a path, an address or a pid: a hostile record could name any.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};

use image::{Owner, RecordSet};
use resource::fd::envelope::Envelope;
use resource::fd::pieces::Pieces;
use resource::fd::{self, FdCreate, FdRecord, Kept};
use resource::files::Covered;
use resource::memory;
use resource::{Opener, Shared};

use crate::payloads::Objects;
use crate::repair::repair_records;

/// Kinds of descriptors.
const KINDS: [&str; 6] = ["fd/pipe", "fd/eventfd", "fd/timerfd", "fd/signalfd", "fd/memfd", "fd/epoll"];
/// Kinds of memory objects.
const OBJECTS: [&str; 2] = ["memory/memfd", "memory/shared_anonymous"];
/// Records of one kind that are created at most: some take memory of the kernel.
const RECORDS_MAX: usize = 16;

/// Creates them; whether any could be.
pub(crate) fn create(input: &[u8]) -> bool {
    create_of(input, |kind| KINDS.contains(&kind) || OBJECTS.contains(&kind))
}

/// Creates descriptors and memory objects of every kind, as far as that goes before there are processes; whether any
/// could be. To be called only where paths, addresses, pids and System V identifiers lead to nothing of this machine:
/// in namespaces and below a root directory that are there for this alone.
#[must_use]
pub fn create_all(input: &[u8]) -> bool {
    create_of(input, |_| true)
}

fn create_of(input: &[u8], is_wanted: impl Fn(&str) -> bool) -> bool {
    let Ok(mut records) = RecordSet::decode(&repair_records(input)) else { return false };
    let opener = Opener::default();
    let Ok(mut pieces) = Pieces::take(&mut records) else { return false };
    let objects = open_objects(&records, &opener, &is_wanted);
    let (mut created, mut shared) = (HashMap::new(), Shared::default());
    let mut is_made = !objects.is_empty();
    for kind in fd::REGISTRY.iter().filter(|kind| is_wanted(kind.name())) {
        let of_kind = records.take_all(kind.name()).into_iter().take(RECORDS_MAX);
        let envelopes: Vec<(FdRecord, Envelope)> = of_kind
            .filter_map(|record| {
                let Owner::Description(id) = record.owner else { return None };
                let envelope = Envelope::from_record(&record, id, &mut pieces).ok()?;
                kind.check(record.version, &envelope.payload).ok()?;
                Some((envelope.fd_record(id, opener.clone()), envelope))
            })
            .collect();
        let (rows, envelopes): (Vec<FdRecord>, Vec<Envelope>) = envelopes.into_iter().unzip();
        let mut context = FdCreate {
            covered: &Covered::Nothing,
            created: &mut created,
            held: &mut Vec::new(),
            inherited: &[],
            handed_on: &mut HashSet::new(),
            objects: &objects,
            connections_lost: false,
            kept: &Kept::default(),
            connections: &mut Default::default(),
            shared: &mut shared,
        };
        is_made |= !rows.is_empty() && kind.create(&rows, &mut context).is_ok();
        for (row, envelope) in rows.iter().zip(&envelopes) {
            if let Some(file) = created.get(&row.id) {
                let _ = envelope.apply(file.as_fd(), false);
            }
        }
        let _ = kind.start(&rows, &created);
    }
    is_made
}

/// Opens the memory objects of an `objects` record: field 1 of it, again and again, is one of them.
fn open_objects(
    records: &RecordSet,
    opener: &Opener,
    is_wanted: impl Fn(&str) -> bool,
) -> HashMap<u64, OwnedFd> {
    let of_objects = records.iter().filter(|record| record.kind == "objects");
    let messages =
        of_objects.filter_map(|record| resource::decode::<Objects>("objects", &record.payload).ok());
    let objects = messages.flat_map(|message| message.objects).take(RECORDS_MAX);
    objects
        .filter(|object| is_wanted(&object.kind))
        .filter_map(|object| {
            let kind = memory::kind_named(&object.kind)?;
            kind.check(&object).ok()?;
            let opened = kind.open(&object, opener).ok();
            kind.abandon(&object);
            Some((object.id, opened?))
        })
        .collect()
}
