//! Compares a stopped tree with one of its checkpoints.
//!
//! Owns: the decision which differences can be set in a living tree.
//! Invariants: all objects that a restore would create are compared here, or are set later.
//! Does not: compare pages and registers; `apply` writes pages and registers in any case.

use std::collections::HashMap;

use model::{Fd, Pid};
use resource::fd::envelope::Envelope;
use resource::memory::{AreaRecord, ObjectRecord};
use resource::state::{self, Renumber, StateKind};

use crate::error::{EngineError, Result};
use crate::records::{DescriptorRow, ProcessMessage};
use crate::restore::plan::{Plan, PlannedProcess, PlannedState};

/// The maximum number of differences in an error message.
const REPORTED_MAX: usize = 16;

/// The result of a comparison in which every difference can be set.
pub(super) struct Comparison {
    /// The open file descriptions to set: a process and fd that hold the description now, and the state at the
    /// checkpoint.
    pub(super) descriptions: Vec<((Pid, Fd), Envelope)>,
    /// For each object number of the checkpoint, the present number of the object.
    pub(super) objects: HashMap<u64, u64>,
}

/// A one-to-one relation between the numbers of equal objects in two sets of records.
#[derive(Default)]
struct Pairs {
    wanted_of: HashMap<u64, u64>,
    present_of: HashMap<u64, u64>,
}

struct Comparing<'a> {
    renumber: Renumber<'a>,
    objects: Pairs,
    descriptions: Pairs,
    found: Vec<String>,
}

impl Comparison {
    /// Compares the present records of a tree with the records of a checkpoint. The records of processes and threads
    /// already have the present numbers. `renumber` returns the present number for a number in the payload of a kind.
    ///
    /// # Errors
    ///
    /// `NotInPlace` with the differences that cannot be set.
    pub(super) fn of(is: &Plan, wanted: &Plan, renumber: Renumber<'_>) -> Result<Self> {
        let (objects, descriptions) = (Pairs::default(), Pairs::default());
        let mut comparing = Comparing { renumber, objects, descriptions, found: Vec::new() };
        comparing.processes(is, wanted);
        // After any other difference, the pairs of object numbers and description numbers are not reliable.
        if comparing.found.is_empty() {
            comparing.objects(is, wanted);
        }
        let mut descriptions = Vec::new();
        if comparing.found.is_empty() {
            descriptions = comparing.descriptions(is, wanted);
        }
        if comparing.found.is_empty() {
            Ok(Self { descriptions, objects: comparing.objects.present_of })
        } else {
            comparing.found.truncate(REPORTED_MAX);
            Err(EngineError::NotInPlace(comparing.found))
        }
    }
}

impl Pairs {
    /// Adds a pair to the relation. Returns false if one of the two numbers already has another partner.
    fn fit(&mut self, present: u64, wanted: u64) -> bool {
        *self.wanted_of.entry(present).or_insert(wanted) == wanted
            && *self.present_of.entry(wanted).or_insert(present) == present
    }
}

impl Comparing<'_> {
    fn same(&mut self, is_same: bool, what: impl FnOnce() -> String) {
        if !is_same {
            self.found.push(what());
        }
    }

    fn processes(&mut self, is: &Plan, wanted: &Plan) {
        for process in &is.processes {
            let pid = process.pid;
            let is_wanted = wanted.processes.iter().any(|other| other.pid == pid);
            self.same(is_wanted, || format!("pid {pid} is new"));
        }
        for other in &wanted.processes {
            match is.processes.iter().find(|process| process.pid == other.pid) {
                Some(process) => self.process(process, other),
                None => self.found.push(format!("pid {} has gone", other.pid)),
            }
        }
    }

    fn process(&mut self, is: &PlannedProcess, wanted: &PlannedProcess) {
        let pid = is.pid;
        self.same(relations(is) == relations(wanted), || {
            format!("pid {pid} has other relations or has ended")
        });
        let threads = |process: &PlannedProcess| {
            let mut tids: Vec<_> = process.threads.iter().map(|thread| thread.tid).collect();
            tids.sort_unstable();
            tids
        };
        self.same(threads(is) == threads(wanted), || format!("pid {pid} has other threads"));
        self.same(is.layout == wanted.layout, || {
            format!("pid {pid} has another layout of memory (brk, arguments)")
        });
        let is_same = self.objects.fit(is.message.executable, wanted.message.executable);
        self.same(is_same, || format!("pid {pid} runs another program"));
        self.mappings(pid, &is.areas, &wanted.areas);
        self.same(is.guards == wanted.guards, || format!("pid {pid} has other guard regions"));
        self.table(pid, &is.descriptors, &wanted.descriptors);
        self.states(&format!("pid {pid}"), &is.states, &wanted.states);
        for thread in &is.threads {
            if let Some(other) = wanted.threads.iter().find(|other| other.tid == thread.tid) {
                self.states(&format!("thread {}", thread.tid), &thread.states, &other.states);
            }
        }
    }

    fn mappings(&mut self, pid: Pid, is: &[AreaRecord], wanted: &[AreaRecord]) {
        let without_object = |area: &AreaRecord| AreaRecord { object: 0, ..area.clone() };
        let first = is.iter().zip(wanted).find(|(area, other)| {
            without_object(area) != without_object(other) || !self.objects.fit(area.object, other.object)
        });
        let differs =
            first.map(|(area, _)| area).or_else(|| is.get(wanted.len())).or_else(|| wanted.get(is.len()));
        if let Some(area) = differs {
            self.found.push(format!("pid {pid} has other areas of memory, at {}", area.range()));
        }
    }

    fn table(&mut self, pid: Pid, is: &[DescriptorRow], wanted: &[DescriptorRow]) {
        let sorted = |rows: &[DescriptorRow]| {
            let mut rows = rows.to_vec();
            rows.sort_unstable_by_key(|row| row.fd);
            rows
        };
        let (is, wanted) = (sorted(is), sorted(wanted));
        let first = is.iter().zip(&wanted).find(|(row, other)| {
            (row.fd, row.close_on_exec) != (other.fd, other.close_on_exec)
                || !self.descriptions.fit(row.description.into(), other.description.into())
        });
        let differs =
            first.map(|(row, _)| row).or_else(|| is.get(wanted.len())).or_else(|| wanted.get(is.len()));
        if let Some(row) = differs {
            self.found.push(format!("pid {pid} has other descriptors, at {}", row.fd));
        }
    }

    fn states(&mut self, whose: &str, is: &[PlannedState], wanted: &[PlannedState]) {
        let differs = state::REGISTRY.iter().find(|kind| {
            let of = |states: &[PlannedState]| {
                let of_kind = states.iter().filter(|one| one.kind.name() == kind.name());
                let mut found: Vec<_> = of_kind.map(|one| (one.version, one.payload.clone())).collect();
                found.sort_unstable();
                found
            };
            let (is, wanted) = (of(is), of(wanted));
            is != wanted && !self.can_set(**kind, &is, &wanted)
        });
        if let Some(kind) = differs {
            self.found.push(format!("{whose} has another `{}`", kind.name()));
        }
    }

    fn can_set(&self, kind: &dyn StateKind, is: &[(u32, Vec<u8>)], wanted: &[(u32, Vec<u8>)]) -> bool {
        let payload = |states: &[(u32, Vec<u8>)]| match states {
            [] => Some(None),
            [(_, payload)] => Some(Some(payload.clone())),
            _ => None,
        };
        let (Some(in_place), Some(is), Some(wanted)) = (kind.in_place(), payload(is), payload(wanted)) else {
            return false;
        };
        in_place.can_set(is.as_deref(), wanted.as_deref(), self.renumber).unwrap_or(false)
    }

    fn objects(&mut self, is: &Plan, wanted: &Plan) {
        for other in &wanted.objects {
            let number = self.objects.present_of.get(&other.id);
            let object = is.objects.iter().find(|object| number == Some(&object.id));
            // An object that no area (mapping) uses needs no change.
            let Some(object) = object else { continue };
            let without_number =
                |object: &ObjectRecord| ObjectRecord { id: 0, writable: false, ..object.clone() };
            let is_same = without_number(object) == without_number(other);
            self.same(is_same, || {
                format!("mapped object {} ({}) is a different object", other.id, other.kind)
            });
        }
    }

    /// Compares the open file descriptions. Returns the descriptions whose position or flags must be set.
    fn descriptions(&mut self, is: &Plan, wanted: &Plan) -> Vec<((Pid, Fd), Envelope)> {
        let mut set = Vec::new();
        for (id, other) in &wanted.envelopes {
            let number = self.descriptions.present_of.get(&u64::from(*id)).copied();
            let found = is.envelopes.iter().find(|(id, _)| number == Some(u64::from(*id)));
            let (pid, fd) = other.holder;
            let Some((_, envelope)) = found else {
                self.found
                    .push(format!("descriptor {fd} of pid {pid} ({}) is in flight in a socket", other.kind));
                continue;
            };
            let settable = Envelope {
                position: other.position,
                flags: other.flags,
                holder: other.holder,
                ..envelope.clone()
            };
            let is_same = settable == *other && envelope.position.is_some() == other.position.is_some();
            self.same(is_same, || format!("descriptor {fd} of pid {pid} ({}) has another state", other.kind));
            if (envelope.position, envelope.flags) != (other.position, other.flags) {
                set.push((envelope.holder, other.clone()));
            }
        }
        set
    }
}

/// Returns the part of a process record that describes its relations to other processes.
fn relations(process: &PlannedProcess) -> ProcessMessage {
    ProcessMessage {
        threads: Vec::new(),
        executable: 0,
        layout: None,
        space: 0,
        foreground: None,
        ..process.message.clone()
    }
}
