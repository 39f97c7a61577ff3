//! The state of guarded subjects, read from the status files of their guardians.
//!
//! Owns: the answer of `status` in the form of the contract.
//! Invariants: a dead guardian is noticed, whatever its file says.
//! Does not: contact a guardian.

use std::time::{Duration, SystemTime};

use serde::Serialize;
use store::{Store, SubjectName};
use sys::clock::Clock;

use crate::error::{Found, GuardianError, Result};
use crate::event::wording::headline;
use crate::history::age;
use crate::images;
use crate::location::StoreLocation;
use crate::record::{Failing, Record, SubjectFacts, SubjectState};
use crate::run::without_numbers;
use crate::system::{self, ChannelFacts, ComponentFacts};
use crate::time;

/// Rounds without a checkpoint after which a subject counts as unprotected, and the shortest such time.
const ROUNDS_MISSED: f64 = 3.0;
const MISSED_MIN: Duration = Duration::from_secs(2);

/// One guarded subject.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct SubjectReport {
    /// What its guardian has recorded.
    #[serde(flatten)]
    pub facts: SubjectFacts,
    /// Its root, or what that was when it lived.
    pub pid: i32,
    /// What it is doing.
    pub state: SubjectState,
    /// Why the subject would not come back from a checkpoint, or only from an old one since no more can be taken, if it
    /// died now; `None` when it would, or has ended.
    pub unprotected_because: Option<String>,
    /// How old the newest checkpoint is; `None` when there is none.
    pub checkpoint_age_us: Option<u64>,
    /// Bytes of all its checkpoints.
    pub store_bytes: u64,
    /// The guardian's pid.
    pub guardian: i32,
    /// The facts of the guardian of its system, if it is a component.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub component: Option<ComponentFacts>,
    /// Its channels, if it is one.
    pub channels: Vec<ChannelFacts>,
}

impl SubjectReport {
    /// A component that was never started.
    fn not_started(component: ComponentFacts) -> Self {
        Self {
            facts: SubjectFacts { name: component.name.clone(), ..SubjectFacts::default() },
            pid: 0,
            state: SubjectState::Ended,
            unprotected_because: None,
            checkpoint_age_us: None,
            store_bytes: 0,
            guardian: component.guardian,
            channels: component.channels.clone(),
            component: Some(component),
        }
    }

    /// Whether `unprotected_because` names this reason, as far as numbers do not matter.
    #[must_use]
    pub fn is_unprotected_because(&self, reason: &str) -> bool {
        let reason = without_numbers(&headline(reason));
        self.unprotected_because.as_deref().is_some_and(|why| without_numbers(why).ends_with(&reason))
    }
}

/// The subjects of a store that are or were guarded; one of them, or all.
///
/// # Errors
///
/// When the store cannot be read, or has no subject of that name, or the status of that one cannot be read.
pub fn status(location: &StoreLocation, name: Option<&str>) -> Result<Found<SubjectReport>> {
    let wanted: Option<SubjectName> = name.map(str::parse).transpose()?;
    let mut found = location.rows(wanted.as_ref(), subject)?;
    if let Some(store) = location.open()? {
        add_components(&mut found.rows, system::components(&store)?, name);
    }
    match wanted {
        Some(name) if found.rows.is_empty() => Err(GuardianError::NotGuarded { name: name.to_string() }),
        _ => Ok(found),
    }
}

/// Adds the facts about components, including those that were never started.
fn add_components(rows: &mut Vec<SubjectReport>, components: Vec<ComponentFacts>, wanted: Option<&str>) {
    for mut facts in components.into_iter().filter(|facts| wanted.is_none_or(|wanted| wanted == facts.name)) {
        match rows.iter_mut().find(|row| row.facts.name == facts.name) {
            Some(row) => {
                row.channels = std::mem::take(&mut facts.channels);
                row.component = Some(facts);
            }
            None => rows.push(SubjectReport::not_started(facts)),
        }
    }
    rows.sort_by(|one, other| one.facts.name.cmp(&other.facts.name));
}

/// One subject; `None` if it is not and never was guarded.
fn subject(store: &Store, name: &SubjectName) -> Result<Option<SubjectReport>> {
    let record = Record::read(&store.root().join(name.as_str()))?;
    record.map(|record| report(store, name, record)).transpose()
}

fn report(store: &Store, name: &SubjectName, record: Record) -> Result<SubjectReport> {
    let state = state(&record);
    let unprotected_because = unprotected(store, name, &record, state)?;
    let (taken, store_bytes) = stored(store, name, &record)?;
    let age = taken.and_then(|taken| Clock::default().wall().duration_since(taken).ok());
    let mut facts = record.facts;
    if record.failing.is_some() {
        facts.achieved_hz = 0.0;
    }
    Ok(SubjectReport {
        facts,
        pid: record.root.pid,
        state,
        unprotected_because,
        checkpoint_age_us: age.map(time::microseconds),
        store_bytes,
        guardian: record.guardian.pid,
        component: None,
        channels: Vec::new(),
    })
}

/// When the newest checkpoint was taken, and the bytes of all. The record has them while its guardian lives, since only
/// that one writes checkpoints then. Later, `prune` and `squash` change the store and not the record.
fn stored(store: &Store, name: &SubjectName, record: &Record) -> Result<(Option<SystemTime>, u64)> {
    let recorded = record.last_checkpoint.as_deref().and_then(time::parse);
    if let Some(bytes) = record.store_bytes.filter(|_| record.is_guarded()) {
        return Ok((recorded, bytes));
    }
    let images = store.list(name)?;
    let own = images.iter().rev().find(|(sequence, _)| sequence.get() >= record.first_sequence);
    Ok((own.map(|(_, commit)| commit.time), images::bytes_of(&images)))
}

/// The reason why a subject that runs would not come back from a checkpoint: its guardian has ended, no checkpoint of
/// this program is committed, or one of its files prevents every restart.
fn unprotected(
    store: &Store,
    name: &SubjectName,
    record: &Record,
    state: SubjectState,
) -> Result<Option<String>> {
    if record.facts.requested_hz == 0.0 && state != SubjectState::Unprotected {
        // It is always started from its beginning.
        return Ok(None);
    }
    match state {
        SubjectState::Unprotected => {
            let (guardian, pid) = (record.guardian.pid, record.root.pid);
            let way = format!("`undying run --adopt {pid}` guards it again");
            return Ok(Some(format!("its guardian, pid {guardian}, has ended; {way}")));
        }
        SubjectState::Running | SubjectState::Restoring => {}
        _ => return Ok(None),
    }
    let newest = store.newest(name)?.map(|(sequence, _)| sequence.get());
    if newest.is_some_and(|newest| newest >= record.first_sequence) {
        if let Some(file) = record.facts.files.always_prevents() {
            return Ok(Some(format!(
                "no checkpoint can be restored, since {file} is mapped and can be written to unnoticed"
            )));
        }
        if let Some(why) = record.facts.files.lost() {
            return Ok(Some(format!("its files cannot go back to any checkpoint: {}", headline(why))));
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

/// Whether checkpoints have failed for so long that the operator has to know.
fn is_stale(failing: &Failing, requested_hz: f64) -> bool {
    let missed = Duration::try_from_secs_f64(ROUNDS_MISSED / requested_hz).unwrap_or(Duration::MAX);
    age(&failing.since).is_some_and(|age| age >= missed.max(MISSED_MIN))
}

/// The content of the file, corrected if its writer has died.
fn state(record: &Record) -> SubjectState {
    match (record.state.is_over(), record.is_guarded(), record.has_root()) {
        (false, false, true) => SubjectState::Unprotected,
        (false, false, false) => SubjectState::Dead,
        _ => record.state,
    }
}
