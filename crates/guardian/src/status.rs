//! The state of guarded subjects (protected process trees), read from the status files of their guardians.
//!
//! Owns: the output of `status`.
//! Invariants: a dead guardian is detected, whatever its status file states.
//! Does not: contact a guardian.

use std::cell::LazyCell;
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use model::Pid;
use serde::Serialize;
use store::{Store, SubjectName};
use sys::clock::Clock;
use tracee::procfs;

use crate::error::{Found, GuardianError, Result};
use crate::event::reason::headline;
use crate::history::age;
use crate::images;
use crate::location::StoreLocation;
use crate::mark;
use crate::record::{Brings, DeathNow, Failing, Record, SubjectFacts};
use crate::run::{adopt, without_numbers};
use crate::subject_state::SubjectState;
use crate::system::{ChannelFacts, ComponentFacts, SystemRecord};
use crate::time;

/// Number of successive missed checkpoints after which a subject counts as unprotected, and the minimum time for this.
const ROUNDS_MISSED: f64 = 3.0;
const MISSED_MIN: Duration = Duration::from_secs(2);

/// The processes of each mark. They are searched once for all subjects, and only if a subject has ended.
type Marked = LazyCell<HashMap<Vec<u8>, Vec<Pid>>>;

/// One guarded subject.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct SubjectReport {
    /// The facts that the guardian has recorded.
    #[serde(flatten)]
    pub facts: SubjectFacts,
    /// Pid of the root. If the subject has ended, the last pid of the root.
    pub pid: i32,
    /// State of the subject.
    pub state: SubjectState,
    /// Why the subject could not be restored if it died now, or could be restored only from an old checkpoint. A
    /// checkpoint is old if no newer checkpoint can be taken. `None` if the subject could be restored, or has ended.
    pub unprotected_because: Option<String>,
    /// The processes of a subject that has ended and that still run. No guardian protects them.
    pub left: Vec<LeftProcess>,
    /// Age of the newest checkpoint in microseconds. `None` if there is no checkpoint.
    pub checkpoint_age_us: Option<u64>,
    /// The bytes that all checkpoints occupy on the disk.
    pub store_bytes: u64,
    /// Pid of the guardian.
    pub guardian: i32,
    /// The facts that the guardian of a system has recorded, if the subject is a component of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component: Option<ComponentFacts>,
    /// The channels of the component, if the subject is a component.
    pub channels: Vec<ChannelFacts>,
}

/// A process that still runs although its subject has ended.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LeftProcess {
    /// Its pid.
    pub pid: i32,
    /// The name of its program, as in `/proc/PID/comm`.
    pub program: String,
}

impl SubjectReport {
    /// Returns the report of a component that was never started.
    fn not_started(component: ComponentFacts) -> Self {
        Self {
            facts: SubjectFacts {
                name: component.name.clone(),
                policy: component.policy.clone(),
                ..SubjectFacts::default()
            },
            pid: 0,
            state: SubjectState::Ended,
            unprotected_because: None,
            left: Vec::new(),
            checkpoint_age_us: None,
            store_bytes: 0,
            guardian: component.guardian,
            channels: component.channels.clone(),
            component: Some(component),
        }
    }

    /// Returns the report of a member of the group with this report. The checkpoints are those of the group.
    fn of_member(self, component: ComponentFacts) -> Self {
        let root = component.together.as_ref().and_then(|member| member.root);
        let state = if root.is_some() { self.state } else { SubjectState::Ended };
        Self {
            // Everything else is reported once, for the group.
            facts: SubjectFacts {
                name: component.name.clone(),
                policy: component.policy.clone(),
                incarnation: self.facts.incarnation,
                checkpoints: self.facts.checkpoints,
                requested_hz: self.facts.requested_hz,
                achieved_hz: self.facts.achieved_hz,
                pause_us: self.facts.pause_us,
                last_death: self.facts.last_death,
                ..SubjectFacts::default()
            },
            pid: root.map_or(0, |root| root.pid),
            state,
            channels: component.channels.clone(),
            component: Some(component),
            ..self
        }
    }

    /// Reports whether `unprotected_because` names this reason. Numbers in the texts are not compared.
    #[must_use]
    pub fn is_unprotected_because(&self, reason: &str) -> bool {
        let reason = without_numbers(&headline(reason));
        self.unprotected_because.as_deref().is_some_and(|why| without_numbers(why).ends_with(&reason))
    }
}

/// Returns the subjects of a store that are or were guarded, or only the subject `name`.
///
/// # Errors
///
/// The store cannot be read, it has no subject `name`, or the status of this subject cannot be read.
pub fn status(location: &StoreLocation, name: Option<&str>) -> Result<Found<SubjectReport>> {
    let wanted: Option<SubjectName> = name.map(str::parse).transpose()?;
    let marked = Marked::new(mark::all);
    let mut found = location.rows(wanted.as_ref(), |store, name| subject(store, name, &marked))?;
    let system = location.open()?.map(|store| SystemRecord::read(&store)).transpose()?.flatten();
    if let Some(system) = system {
        if system.is_guarded() {
            if let Some(group) = wanted.as_ref().and_then(|name| system.group_of(name.as_str())) {
                let group: SubjectName = group.parse()?;
                found
                    .rows
                    .extend(location.rows(Some(&group), |store, name| subject(store, name, &marked))?.rows);
            }
            add_components(&mut found.rows, system.components.into_values().collect(), name);
        } else {
            note_system(&mut found.rows, &system, location);
        }
    }
    if let Some(name) = name {
        found.rows.retain(|row| row.facts.name == name);
    }
    match wanted {
        Some(name) if found.rows.is_empty() => Err(GuardianError::NotGuarded { name: name.to_string() }),
        _ => Ok(found),
    }
}

/// Adds the facts about components, including components that were never started.
fn add_components(rows: &mut Vec<SubjectReport>, components: Vec<ComponentFacts>, wanted: Option<&str>) {
    for mut facts in components.into_iter().filter(|facts| wanted.is_none_or(|wanted| wanted == facts.name)) {
        match rows.iter_mut().find(|row| row.facts.name == facts.name) {
            Some(row) => {
                row.facts.policy.clone_from(&facts.policy);
                row.channels = std::mem::take(&mut facts.channels);
                row.component = Some(facts);
            }
            None => {
                let group = facts.together.as_ref().map(|member| member.group.as_str());
                let row = group.and_then(|group| rows.iter().find(|row| row.facts.name == group)).cloned();
                rows.push(match row {
                    Some(row) => row.of_member(facts),
                    None => SubjectReport::not_started(facts),
                });
            }
        }
    }
    rows.sort_by(|one, other| one.facts.name.cmp(&other.facts.name));
}

/// Corrects the rows of components whose guardian has died. Only `undying up` can guard them again as a system.
fn note_system(rows: &mut [SubjectReport], system: &SystemRecord, location: &StoreLocation) {
    for row in rows.iter_mut().filter(|row| row.guardian == system.guardian.pid) {
        match system.components.get(&row.facts.name) {
            Some(facts) => row.facts.policy.clone_from(&facts.policy),
            None if system.has_group(&row.facts.name) => {}
            None => continue,
        }
        if row.state == SubjectState::Unprotected {
            let way = format!("`{}` takes the system over", system.up_again(location.path()));
            row.unprotected_because = Some(without_guardian(row.guardian, &way));
        }
    }
}

/// Returns the reason why a subject without a guardian is not protected. `way` is the advice.
fn without_guardian(guardian: i32, way: &str) -> String {
    format!("its guardian, pid {guardian}, has ended; {way}")
}

/// Returns the report of one subject. Returns `None` if the subject was never guarded.
fn subject(store: &Store, name: &SubjectName, marked: &Marked) -> Result<Option<SubjectReport>> {
    let record = Record::read(&store.root().join(name.as_str()))?;
    record.map(|record| report(store, name, record, marked)).transpose()
}

fn report(store: &Store, name: &SubjectName, record: Record, marked: &Marked) -> Result<SubjectReport> {
    let state = state(&record);
    let unprotected_because = unprotected(store, name, &record, state)?;
    let (taken, store_bytes) = stored(store, name, &record)?;
    let age = taken.and_then(|taken| Clock::default().wall().duration_since(taken).ok());
    let left = if state.is_over() { left_by(&record, marked) } else { Vec::new() };
    let mut facts = record.facts;
    if record.failing.is_some() {
        facts.achieved_hz = 0.0;
    }
    Ok(SubjectReport {
        facts,
        pid: record.root.pid,
        state,
        unprotected_because,
        left,
        checkpoint_age_us: age.map(time::microseconds),
        store_bytes,
        guardian: record.guardian.pid,
        component: None,
        channels: Vec::new(),
    })
}

/// Returns the living processes of a subject that has ended.
fn left_by(record: &Record, marked: &Marked) -> Vec<LeftProcess> {
    let pids = marked.get(record.requests.as_bytes()).filter(|_| record.is_of_this_boot());
    let stats = pids.into_iter().flatten().filter_map(|pid| procfs::stat(*pid).ok());
    let living = stats.filter(|stat| !stat.is_ending());
    living.map(|stat| LeftProcess { pid: stat.pid.get(), program: stat.comm }).collect()
}

/// Returns the time of the newest checkpoint, and the bytes that all checkpoints occupy on the disk. While the guardian lives, only the
/// guardian writes checkpoints, and its record contains both values. Later, `prune` and `squash` change the store but
/// not the record.
fn stored(store: &Store, name: &SubjectName, record: &Record) -> Result<(Option<SystemTime>, u64)> {
    let recorded = record.last_checkpoint.as_deref().and_then(time::parse);
    if let Some(bytes) = record.store_bytes.filter(|_| record.is_guarded()) {
        return Ok((recorded, bytes));
    }
    let images = store.list(name)?;
    let own = images.iter().rev().find(|(sequence, _)| sequence.get() >= record.first_sequence);
    Ok((own.map(|(_, commit)| commit.time), images::occupied(store, name)))
}

/// Returns the reason why a running subject could not be restored. For example, its guardian has ended, no checkpoint
/// of this program is committed, or a file prevents every restart.
fn unprotected(
    store: &Store,
    name: &SubjectName,
    record: &Record,
    state: SubjectState,
) -> Result<Option<String>> {
    if record.facts.requested_hz == 0.0 && state != SubjectState::Unprotected {
        // Without checkpoints, the subject is always started from its beginning.
        return Ok(None);
    }
    match state {
        SubjectState::Unprotected => {
            let again =
                if record.started_as.is_some() { "; so does the command that started it" } else { "" };
            let way = format!("`{}` guards it again{again}", adopt(store, name, record));
            return Ok(Some(without_guardian(record.guardian.pid, &way)));
        }
        SubjectState::Running | SubjectState::Restoring => {}
        _ => return Ok(None),
    }
    let newest = store.newest(name)?.map(|(sequence, _)| sequence.get());
    if newest.is_some_and(|newest| newest >= record.first_sequence) {
        if let Some(file) = record.facts.files.always_prevents() {
            return Ok(Some(format!(
                "no checkpoint can be restored, because {file} is mapped and can change without detection"
            )));
        }
        if let Some(why) = record.facts.files.lost() {
            return Ok(Some(format!("its files cannot be rolled back to any checkpoint: {}", headline(why))));
        }
        let unused = |now: &&DeathNow| matches!(now.brings, Brings::PresentFiles | Brings::End);
        if let Some(why) = record.facts.death_now.as_ref().filter(unused).and_then(|now| now.why.as_ref()) {
            return Ok(Some(headline(why)));
        }
        return Ok(record
            .failing
            .as_ref()
            .filter(|failing| is_stale(failing, record.facts.requested_hz))
            .map(|failing| {
                format!("no checkpoint could be taken since {}: {}", failing.since, headline(&failing.reason))
            }));
    }
    Ok(Some(match record.facts.refusals.last().or(record.facts.held_back.last()) {
        Some(refusal) => headline(&refusal.reason),
        None if record.facts.in_flight > 0 => "its first checkpoint is being written".to_owned(),
        None => "no checkpoint of it has been taken yet".to_owned(),
    }))
}

/// Reports whether checkpoints have failed for so long that the operator must be informed.
fn is_stale(failing: &Failing, requested_hz: f64) -> bool {
    let missed = Duration::try_from_secs_f64(ROUNDS_MISSED / requested_hz).unwrap_or(Duration::MAX);
    age(&failing.since).is_some_and(|age| age >= missed.max(MISSED_MIN))
}

/// Returns the recorded state, corrected if the guardian or the root has died since.
fn state(record: &Record) -> SubjectState {
    match (record.state.is_over(), record.is_guarded(), record.has_root()) {
        (false, false, true) => SubjectState::Unprotected,
        (false, false, false) => SubjectState::Dead,
        _ => record.state,
    }
}
