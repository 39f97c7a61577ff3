//! What has happened to subjects, told from what their guardians have written down.
//!
//! Owns: the answers of `events` and `deaths`.
//! Invariants: reads only.
//! Does not: ask a guardian.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Serialize;
use store::SubjectName;
use sys::clock::Clock;

use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::journal::{EventReader, EventRow};
use crate::location::StoreLocation;
use crate::record::Record;
use crate::time;

/// The events of one subject or of all, from the oldest that are still there, and those that come.
#[derive(Debug)]
pub struct History {
    location: StoreLocation,
    wanted: Option<SubjectName>,
    readers: BTreeMap<String, EventReader>,
    /// Subjects that could not be read and were not reported yet, and why.
    failed: Vec<(String, GuardianError)>,
    /// Those that were noticed; each is reported once.
    noticed: BTreeSet<String>,
}

/// A death and what followed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DeathRow {
    /// The subject.
    pub name: String,
    /// When it was noticed.
    pub time: String,
    /// The root's pid.
    pub pid: i32,
    /// The signal that killed it.
    pub signal: Option<i32>,
    /// Its exit code.
    pub exit: Option<i32>,
    /// The child whose failure ended it, under `--restart-on child-signal`.
    pub child: Option<FailedChild>,
    /// What followed it.
    pub followed_by: FollowedBy,
    /// The checkpoint that it was restored from.
    pub seq: Option<u64>,
    /// From the notice of the death to the first instruction.
    pub took_us: Option<u64>,
    /// Why the program was started from its beginning although it had checkpoints.
    pub why: Option<String>,
}

/// What has followed a death.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FollowedBy {
    /// Nothing so far.
    Nothing,
    /// A restart from a checkpoint.
    Restored,
    /// A restart from the beginning of the program.
    Started,
    /// There were too many restarts.
    GaveUp,
    /// The end of the run.
    Ended,
}

impl std::fmt::Display for FollowedBy {
    /// The name that is serialised.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.serialize(f)
    }
}

/// A process of a subject that is not its root, and has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct FailedChild {
    /// The process.
    pub pid: i32,
    /// The signal that killed it.
    pub signal: i32,
}

impl History {
    /// Opens the history of a subject, or of all in the store.
    ///
    /// # Errors
    ///
    /// When the name is none, or nobody of this name is or was guarded.
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

    /// The events since the last call, in the order of their times; at first, all that are there.
    ///
    /// # Errors
    ///
    /// When the store cannot be read, or the only subject that was asked for. With several, one that cannot be read is
    /// left out and reported by `take_failed`.
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

    /// Subjects that could not be read, each once, and why.
    pub fn take_failed(&mut self) -> Vec<(String, GuardianError)> {
        std::mem::take(&mut self.failed)
    }
}

/// The deaths among events, each with what followed it.
#[must_use]
pub fn deaths(rows: &[EventRow]) -> Vec<DeathRow> {
    let mut found: Vec<DeathRow> = Vec::new();
    // Of each subject, the failure that its root is being ended for.
    let mut failed: BTreeMap<String, FailedChild> = BTreeMap::new();
    for row in rows {
        let last = found.iter_mut().rev().find(|death| death.name == row.name);
        let is_open = |death: &&mut DeathRow| death.followed_by == FollowedBy::Nothing;
        match (&row.what, last) {
            (RunEvent::ChildDied { pid, signal, .. }, _) => {
                failed.insert(row.name.clone(), FailedChild { pid: *pid, signal: *signal });
            }
            (RunEvent::Restored { seq, took_us, .. }, Some(death)) if is_open(&death) => {
                (death.followed_by, death.seq, death.took_us) =
                    (FollowedBy::Restored, Some(*seq), Some(*took_us));
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
                    followed_by: if is_end { FollowedBy::Ended } else { FollowedBy::Nothing },
                    seq: None,
                    took_us: None,
                    why: None,
                });
            }
            _ => {}
        }
    }
    found
}

/// How old an event of this time is; `None` when the text is no time, or one to come.
#[must_use]
pub fn age(time: &str) -> Option<Duration> {
    Clock::default().wall().duration_since(time::parse(time)?).ok()
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;

    fn row(second: u64, what: RunEvent) -> EventRow {
        let time = time::rfc3339(UNIX_EPOCH + Duration::from_secs(second));
        EventRow { time, name: "job".to_owned(), what }
    }

    #[test]
    fn each_death_is_told_with_what_followed() {
        let rows = [
            row(1, RunEvent::Started { pid: 5, why: None }),
            row(2, RunEvent::Died { pid: 5, signal: Some(11), exit: None }),
            row(3, RunEvent::Restored { pid: 5, seq: 4, took_us: 900 }),
            row(4, RunEvent::Died { pid: 5, signal: None, exit: Some(3) }),
            row(5, RunEvent::Started { pid: 9, why: Some("files".to_owned()) }),
            row(6, RunEvent::Ended { pid: 9, signal: None, exit: Some(0) }),
        ];
        let found = deaths(&rows);
        let followed: Vec<String> = found.iter().map(|death| death.followed_by.to_string()).collect();
        assert_eq!(followed, ["restored", "started", "ended"]);
        assert_eq!((found[0].seq, found[0].took_us), (Some(4), Some(900)));
        assert_eq!((found[1].why.as_deref(), found[2].exit), (Some("files"), Some(0)));
    }
}
