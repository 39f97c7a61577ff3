//! Reads the history of subjects (protected process trees) from the journals of their guardians.
//!
//! Owns: the output of `events` and `deaths`, and the conversion of events to a trace for Chrome's trace viewer.
//! Invariants: only `write_trace` writes a file; all other functions only read.
//! Does not: contact a guardian.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use serde::Serialize;
use serde_json::{Value, json};
use store::SubjectName;
use supervise::Fault;
use sys::Error;
use sys::clock::Clock;

use crate::error::{GuardianError, Result};
use crate::event::{CheckpointEvent, RunEvent};
use crate::journal::{EventReader, EventRow};
use crate::location::StoreLocation;
use crate::record::Record;
use crate::time;

/// Reads the events of one subject or of all subjects: first the recorded events, then the new events.
#[derive(Debug)]
pub struct History {
    location: StoreLocation,
    wanted: Option<SubjectName>,
    readers: BTreeMap<String, EventReader>,
    /// Subjects that could not be read and were not reported yet, with the error.
    failed: Vec<(String, GuardianError)>,
    /// Subjects whose read error was already added to `failed`.
    noticed: BTreeSet<String>,
}

/// A death and its consequence.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct DeathRow {
    pub name: String,
    /// When the guardian detected the death.
    pub time: String,
    /// Pid of the root process.
    pub pid: i32,
    pub signal: Option<i32>,
    pub exit: Option<i32>,
    /// The child process whose failure ended the root, under `--restart-on child-signal`.
    pub child: Option<FailedChild>,
    /// The fault for which the guardian has killed the root. `None` if no check has found a fault.
    pub fault: Option<Fault>,
    pub followed_by: FollowedBy,
    /// The checkpoint from which the subject was restored.
    pub seq: Option<u64>,
    /// Age of this checkpoint at the death. The restart has discarded the work of this time.
    pub age_us: Option<u64>,
    /// Time from the detection of the death to the first instruction of the restored program.
    pub took_us: Option<u64>,
    /// Why the program was started from its beginning although it had checkpoints.
    pub why: Option<String>,
}

/// The consequence of a death.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FollowedBy {
    /// Nothing has followed so far.
    Nothing,
    /// A restart from a checkpoint.
    Restored,
    /// A restart from the beginning of the program.
    Started,
    /// No further restart, because there were too many restarts.
    GaveUp,
    /// The end of the run.
    Ended,
}

impl std::fmt::Display for FollowedBy {
    /// Writes the serialised name.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// A failed process of a subject, other than its root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[expect(missing_docs, reason = "the keys of the contract")]
pub struct FailedChild {
    pub pid: i32,
    pub signal: i32,
}

impl History {
    /// Opens the history of one subject, or of all subjects in the store.
    ///
    /// # Errors
    ///
    /// The name is not valid, or no subject of this name is or was guarded.
    pub fn open(location: &StoreLocation, name: Option<&str>) -> Result<Self> {
        let wanted: Option<SubjectName> = name.map(str::parse).transpose()?;
        if let Some(name) = &wanted {
            let directory = location.open()?.map(|store| store.root().join(name.as_str()));
            let is_known = directory.is_some_and(|directory| !matches!(Record::read(&directory), Ok(None)));
            if !is_known {
                return Err(GuardianError::NotGuarded { name: name.to_string() });
            }
        }
        Ok(Self {
            location: location.clone(),
            wanted,
            readers: BTreeMap::new(),
            failed: Vec::new(),
            noticed: BTreeSet::new(),
        })
    }

    /// Returns the events since the last call, sorted by time. The first call returns all recorded events.
    ///
    /// # Errors
    ///
    /// The store cannot be read, or the subject given to `open` cannot be read. If no subject was given, `take_failed`
    /// reports the subjects that cannot be read.
    pub fn read(&mut self) -> Result<Vec<EventRow>> {
        let Some(store) = self.location.open()? else { return Ok(Vec::new()) };
        let names = match &self.wanted {
            Some(name) => vec![name.clone()],
            None => store.names()?,
        };
        let mut rows = Vec::new();
        for name in names {
            let directory = store.root().join(name.as_str());
            let reader = self.readers.entry(name.to_string()).or_insert_with(|| EventReader::new(&directory));
            match reader.read() {
                Ok(read) => rows.extend(read),
                Err(error) if self.wanted.is_some() => return Err(error),
                Err(error) if self.noticed.insert(name.to_string()) => {
                    self.failed.push((name.to_string(), error));
                }
                Err(_) => {}
            }
        }
        rows.sort_by(|one, other| one.time.cmp(&other.time));
        Ok(rows)
    }

    /// Returns the subjects that could not be read, with the error. Each subject is returned once.
    pub fn take_failed(&mut self) -> Vec<(String, GuardianError)> {
        std::mem::take(&mut self.failed)
    }
}

/// Returns the deaths among the events, each with its consequence.
#[must_use]
pub fn deaths(rows: &[EventRow]) -> Vec<DeathRow> {
    let mut found: Vec<DeathRow> = Vec::new();
    // The failed child of each subject whose root is being ended because of that child.
    let mut failed: BTreeMap<String, FailedChild> = BTreeMap::new();
    let mut faults: BTreeMap<String, Fault> = BTreeMap::new();
    for row in rows {
        let last = found.iter_mut().rev().find(|death| death.name == row.name);
        let is_open = |death: &&mut DeathRow| death.followed_by == FollowedBy::Nothing;
        match (&row.what, last) {
            (RunEvent::ChildDied { pid, signal, .. }, _) => {
                failed.insert(row.name.clone(), FailedChild { pid: *pid, signal: *signal });
            }
            (RunEvent::Faulted { fault, .. }, _) => drop(faults.insert(row.name.clone(), *fault)),
            (RunEvent::Restored { seq, took_us, age_us, .. }, Some(death)) if is_open(&death) => {
                (death.followed_by, death.seq, death.age_us, death.took_us) =
                    (FollowedBy::Restored, Some(*seq), *age_us, Some(*took_us));
            }
            (RunEvent::Started { why, .. }, Some(death)) if is_open(&death) => {
                (death.followed_by, death.why) = (FollowedBy::Started, why.clone());
            }
            (RunEvent::GaveUp { .. }, Some(death)) if is_open(&death) => {
                death.followed_by = FollowedBy::GaveUp;
            }
            (RunEvent::Ended { .. }, Some(death)) if is_open(&death) => death.followed_by = FollowedBy::Ended,
            (RunEvent::Ended { .. }, Some(death)) if death.followed_by == FollowedBy::GaveUp => {}
            (what @ (RunEvent::Died { pid, signal, exit } | RunEvent::Ended { pid, signal, exit }), _) => {
                let is_end = matches!(what, RunEvent::Ended { .. });
                found.push(DeathRow {
                    name: row.name.clone(),
                    time: row.time.clone(),
                    pid: *pid,
                    signal: *signal,
                    exit: *exit,
                    child: failed.remove(&row.name),
                    fault: faults.remove(&row.name),
                    followed_by: if is_end { FollowedBy::Ended } else { FollowedBy::Nothing },
                    seq: None,
                    age_us: None,
                    took_us: None,
                    why: None,
                });
            }
            _ => {}
        }
    }
    found
}

/// Returns the age of an event with the RFC 3339 time `time`. Returns `None` if the text is not a time, or is a time in
/// the future.
#[must_use]
pub fn age(time: &str) -> Option<Duration> {
    Clock::default().wall().duration_since(time::parse(time)?).ok()
}

/// Writes events to a file, as a trace for Chrome's trace viewer.
///
/// # Errors
///
/// The file cannot be written.
pub fn write_trace(path: &Path, rows: &[EventRow]) -> Result<()> {
    let text = trace(rows).to_string();
    Ok(std::fs::write(path, text).map_err(|error| Error::path("write", path, error))?)
}

/// Rows of a trace on which phases are drawn. The trace format identifies a row by a thread number.
const SUBJECT: u32 = 1;
const CAPTURE: u32 = 2;
const LOG: u32 = 3;

/// Converts events to a trace in the JSON format of Chrome's trace viewer, which Perfetto also reads. Each subject is a
/// process with three rows: its pauses, the phases of its captures, and the commits to the log.
fn trace(rows: &[EventRow]) -> Value {
    let mut names: Vec<&str> = rows.iter().map(|row| row.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let mut events = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let process = number + 1;
        events.push(
            json!({"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}),
        );
        for (row, what) in [(SUBJECT, "subject"), (CAPTURE, "capture"), (LOG, "log")] {
            let args = json!({"name": what});
            events.push(json!({"ph": "M", "name": "thread_name", "pid": process, "tid": row, "args": args}));
        }
        for row in rows.iter().filter(|row| row.name == **name) {
            let Some(at) = since_epoch(&row.time) else { continue };
            match &row.what {
                RunEvent::Checkpoint(checkpoint) => draw(checkpoint, process, at, &mut events),
                what => events.push(json!({
                    "ph": "i", "s": "p", "name": what.to_string(), "pid": process, "tid": SUBJECT, "ts": at,
                })),
            }
        }
    }
    json!({"traceEvents": events, "displayTimeUnit": "ms"})
}

fn draw(checkpoint: &CheckpointEvent, process: usize, at: u64, events: &mut Vec<Value>) {
    let mut add = |row: u32, name: &str, from: u64, length: u64| {
        events.push(json!({
            "ph": "X", "name": name, "pid": process, "tid": row, "ts": from, "dur": length,
            "args": {"seq": checkpoint.seq},
        }));
    };
    let CheckpointEvent { phases, pause_us, .. } = checkpoint;
    add(SUBJECT, "pause", at, *pause_us);
    let ahead = phases.iter().filter(|(phase, _)| phase.precedes_pause()).map(|(_, us)| us).sum();
    let mut from = at.saturating_sub(ahead);
    for (phase, length) in phases.iter() {
        add(CAPTURE, phase.name(), from, length);
        from += length;
    }
    add(LOG, "commit", at + *pause_us, checkpoint.commit_us);
}

fn since_epoch(text: &str) -> Option<u64> {
    let since = time::parse(text)?.duration_since(UNIX_EPOCH).ok()?;
    Some(time::microseconds(since))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(second: u64, what: RunEvent) -> EventRow {
        let time = time::rfc3339(UNIX_EPOCH + Duration::from_secs(second));
        EventRow { time, name: "job".to_owned(), what }
    }

    #[test]
    fn each_death_is_listed_with_what_followed() {
        let rows = [
            row(1, RunEvent::Started { pid: 5, why: None }),
            row(2, RunEvent::Died { pid: 5, signal: Some(11), exit: None }),
            row(3, RunEvent::Restored { pid: 5, seq: 4, took_us: 900, age_us: Some(70) }),
            row(4, RunEvent::Died { pid: 5, signal: None, exit: Some(3) }),
            row(5, RunEvent::Started { pid: 9, why: Some("files".to_owned()) }),
            row(6, RunEvent::Ended { pid: 9, signal: None, exit: Some(0) }),
        ];
        let found = deaths(&rows);
        let followed: Vec<String> = found.iter().map(|death| death.followed_by.to_string()).collect();
        assert_eq!(followed, ["restored", "started", "ended"]);
        assert_eq!((found[0].seq, found[0].took_us, found[0].age_us), (Some(4), Some(900), Some(70)));
        assert_eq!((found[1].why.as_deref(), found[2].exit), (Some("files"), Some(0)));
    }
}

#[cfg(test)]
mod trace_tests {
    use engine::Phase;

    use super::*;
    use crate::event::PhaseTimes;

    fn row(second: u64, what: RunEvent) -> EventRow {
        let time = time::rfc3339(UNIX_EPOCH + Duration::from_secs(second));
        EventRow { time, name: "job".to_owned(), what }
    }

    #[test]
    fn a_trace_draws_the_phases_in_their_order() {
        let phases = PhaseTimes::with(&[(Phase::Scan, 10), (Phase::Descriptors, 10), (Phase::Resume, 10)]);
        let checkpoint = CheckpointEvent { phases, pause_us: 30, ..CheckpointEvent::default() };
        let trace = trace(&[row(2, RunEvent::Checkpoint(checkpoint))]);
        let events = trace["traceEvents"].as_array().unwrap();
        let is_phase = |event: &&Value| event["ph"] == "X" && event["dur"] != 0 && event["tid"] == CAPTURE;
        let mut found: Vec<&Value> = events.iter().filter(is_phase).collect();
        found.sort_by_key(|event| event["ts"].as_u64());
        let names: Vec<&str> = found.iter().map(|event| event["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["descriptors", "scan", "resume"]);
    }

    #[test]
    fn a_trace_draws_the_phases_inside_the_pause() {
        let phases = [
            (Phase::Precopy, 70),
            (Phase::Stop, 20),
            (Phase::Scan, 30),
            (Phase::Threads, 50),
            (Phase::Finish, 5),
        ];
        let checkpoint = CheckpointEvent {
            seq: 7,
            pause_us: 100,
            phases: PhaseTimes::with(&phases),
            commit_us: 500,
            ..CheckpointEvent::default()
        };
        let trace = trace(&[
            row(2, RunEvent::Checkpoint(checkpoint)),
            row(3, RunEvent::Started { pid: 5, why: None }),
        ]);
        let events = trace["traceEvents"].as_array().unwrap();
        let spans: Vec<(i64, i64)> = events
            .iter()
            .filter(|event| event["ph"] == "X" && event["dur"] != 0)
            .map(|event| (event["ts"].as_i64().unwrap() - 2_000_000, event["dur"].as_i64().unwrap()))
            .collect();
        assert_eq!(spans, [(0, 100), (-70, 70), (0, 20), (20, 50), (70, 30), (100, 5), (100, 500)]);
        assert!(events.iter().any(|event| event["ph"] == "i" && event["ts"] == 3_000_000));
    }
}
