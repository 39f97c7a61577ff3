//! What has happened to subjects, told from what their guardians have written down.
//!
//! Owns: the answers of `events` and `deaths`.
//! Invariants: reads only.
//! Does not: ask a guardian.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use model::Escaped;
use serde::Serialize;
use store::SubjectName;

use crate::error::{GuardianError, Result};
use crate::files::FilesReport;
use crate::journal::{CheckpointEvent, EventReader, EventRow, What};
use crate::location::StoreLocation;
use crate::record::Record;
use crate::run::{CHILDREN_UNSEEN, files_broken, files_compared};
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
        match (&row.what, last) {
            (What::ChildDied { pid, signal }, _) => {
                failed.insert(row.name.clone(), FailedChild { pid: *pid, signal: *signal });
            }
            (What::Died { pid, signal, exit }, _) => found.push(DeathRow {
                name: row.name.clone(),
                time: row.time.clone(),
                pid: *pid,
                signal: *signal,
                exit: *exit,
                child: failed.remove(&row.name),
                followed_by: FollowedBy::Nothing,
                seq: None,
                took_us: None,
                why: None,
            }),
            (What::Restored { seq, took_us, .. }, Some(death))
                if death.followed_by == FollowedBy::Nothing =>
            {
                (death.followed_by, death.seq, death.took_us) =
                    (FollowedBy::Restored, Some(*seq), Some(*took_us));
            }
            (What::Started { why, .. }, Some(death)) if death.followed_by == FollowedBy::Nothing => {
                (death.followed_by, death.why) = (FollowedBy::Started, why.clone());
            }
            (What::GaveUp { .. }, Some(death)) if death.followed_by == FollowedBy::Nothing => {
                death.followed_by = FollowedBy::GaveUp;
            }
            (What::Ended { pid, signal, exit }, last) => match last {
                Some(death) if death.followed_by == FollowedBy::Nothing => {
                    death.followed_by = FollowedBy::Ended
                }
                Some(death) if death.followed_by == FollowedBy::GaveUp => {}
                _ => found.push(DeathRow {
                    name: row.name.clone(),
                    time: row.time.clone(),
                    pid: *pid,
                    signal: *signal,
                    exit: *exit,
                    child: failed.remove(&row.name),
                    followed_by: FollowedBy::Ended,
                    seq: None,
                    took_us: None,
                    why: None,
                }),
            },
            _ => {}
        }
    }
    found
}

/// How old an event of this time is; `None` when the text is no time, or one to come.
#[must_use]
pub fn age(time: &str) -> Option<Duration> {
    SystemTime::now().duration_since(time::parse(time)?).ok()
}

/// A reason of several lines as one.
#[must_use]
pub fn one_line(text: &str) -> String {
    let mut joined = String::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        // What ends with a colon leads to the next line; others are items of a list.
        let between = if joined.is_empty() {
            ""
        } else if joined.ends_with(':') {
            " "
        } else {
            "; "
        };
        joined.push_str(between);
        joined.push_str(line);
    }
    joined
}

/// A reason without its help and its list: its first line, with the next where that only leads to it.
#[must_use]
pub fn headline(reason: &str) -> String {
    let count = if reason.lines().next().is_some_and(|line| line.trim_end().ends_with(':')) { 2 } else { 1 };
    one_line(&reason.lines().take(count).collect::<Vec<_>>().join("\n"))
}

impl std::fmt::Display for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Started { pid, why: None } => write!(f, "started as pid {pid}"),
            Self::Started { pid, why: Some(why) } => {
                write!(f, "started from the beginning as pid {pid}: {}", one_line(why))
            }
            Self::BackOff { wait_us } => {
                write!(f, "the restart waits {:.2} s", Duration::from_micros(*wait_us).as_secs_f64())
            }
            Self::MovedAside { path, bytes, to } => {
                write!(f, "{path} was taken back, the {bytes} bytes that went are in {to}")
            }
            Self::FilesInPlace { in_place, unknown } => {
                let report = FilesReport {
                    in_place: in_place.clone(),
                    unknown: unknown.clone(),
                    ..FilesReport::default()
                };
                report.fmt(f)
            }
            Self::FilesCompared { .. }
            | Self::FilesWentBack { .. }
            | Self::FilesDeferred { .. }
            | Self::FilesBroken { .. }
            | Self::FilesExactAgain { .. } => files_text(self, f),
            Self::Adopted { pid } => write!(f, "adopted as pid {pid}"),
            Self::Checkpoint(one) => checkpoint_text(one, f),
            Self::Refused { reason } => {
                write!(f, "no checkpoint: {}", headline(reason))
            }
            Self::Resumed { seq } => write!(f, "checkpoints again, from {seq}"),
            Self::Dropped { seq } => write!(f, "checkpoint {seq} was still being written and is dropped"),
            Self::Scan { pages, scan_us, .. } => write!(f, "{pages} pages were dirty, found in {scan_us} us"),
            Self::Verified { seq, pages, differences } => {
                write!(f, "checkpoint {seq} was compared: {differences} of {pages} pages differ")
            }
            Self::HoldEnded { pid } => write!(f, "pid {pid} has held checkpoints back for too long"),
            Self::Tracker { tracker, reason } => {
                write!(f, "tracker {tracker} is used: {}", headline(reason))
            }
            Self::Died { pid, signal, exit } => write!(f, "pid {pid} died of {}", cause(signal, exit)),
            Self::ChildDied { pid, signal } => {
                write!(f, "child pid {pid} died of signal {signal}; the program is ended for it")
            }
            Self::ChildrenUnseen => f.write_str(CHILDREN_UNSEEN),
            Self::Departed { pid, program } => {
                write!(
                    f,
                    "pid {pid} ({}) has left the program's tree; it is in no checkpoint",
                    Escaped(program)
                )
            }
            Self::Poisoned { seq } => write!(f, "checkpoint {seq} leads to death again"),
            Self::RestoreFailed { seq, reason } => {
                write!(f, "checkpoint {seq} cannot be restored: {}", headline(reason))
            }
            Self::Restored { pid, seq, took_us } => {
                let took = Duration::from_micros(*took_us).as_secs_f64() * 1e3;
                write!(f, "pid {pid} is back at checkpoint {seq} after {took:.1} ms")
            }
            Self::GaveUp { restarts, within_us } => {
                let within = Duration::from_micros(*within_us).as_secs();
                write!(f, "gave up after {restarts} restarts within {within} s")
            }
            Self::Ended { pid, signal, exit } => {
                write!(f, "pid {pid} ended with {}", cause(signal, exit))
            }
        }
    }
}

/// What has happened to files that go back with the program.
fn files_text(what: &What, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    match what {
        What::FilesCompared { reason } => f.write_str(&files_compared(&headline(reason))),
        What::FilesWentBack { seq, changed, aside, .. } => match seq {
            0 => write!(f, "files went back to the beginning: {changed} changed, {aside} moved aside"),
            seq => {
                write!(f, "files went back to checkpoint {seq}: {changed} changed, {aside} moved aside")
            }
        },
        What::FilesDeferred { seq, reason } => {
            write!(f, "files cannot go back to checkpoint {seq}: {}", headline(reason))
        }
        What::FilesBroken { reason } => f.write_str(&files_broken(&headline(reason))),
        What::FilesExactAgain { seq } => write!(f, "files can go back again, to checkpoint {seq}"),
        _ => Ok(()),
    }
}

fn checkpoint_text(one: &CheckpointEvent, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    let kind = if one.full { "full" } else { "delta" };
    let (copied, pause) = (one.precopied_pages + one.residual_pages, one.pause_us);
    write!(f, "checkpoint {} ({kind}): {} pages, {copied} of them copied, ", one.seq, one.pages)?;
    write!(f, "{} in the pause of {pause} us; ", one.residual_pages)?;
    if one.slices.count > 0 {
        write!(f, "{} slices before it, the longest {} us", one.slices.count, one.slices.longest_us)?;
        one.max_pause_us.map_or(Ok(()), |budget| write!(f, " (budget {budget} us)"))?;
        f.write_str("; ")?;
    }
    f.write_str("durable after ")?;
    write!(f, "{} us", one.commit_us)
}

fn cause(signal: &Option<i32>, exit: &Option<i32>) -> String {
    match (signal, exit) {
        (Some(signal), _) => format!("signal {signal}"),
        (None, Some(exit)) => format!("exit {exit}"),
        (None, None) => "a cause that is not known".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use super::*;
    use crate::record::SlicesReport;

    #[test]
    fn reasons_of_several_lines_fit_on_one() {
        let reason = "files do not fit:\n  /a was written to\n  /b is gone\nhelp: none";
        assert_eq!(one_line(reason), "files do not fit: /a was written to; /b is gone; help: none");
        assert_eq!(headline(reason), "files do not fit: /a was written to");
        assert_eq!(headline("no room\nhelp: make some"), "no room");
    }

    fn row(second: u64, what: What) -> EventRow {
        let time = time::rfc3339(UNIX_EPOCH + Duration::from_secs(second));
        EventRow { time, name: "job".to_owned(), what }
    }

    #[test]
    fn each_death_is_told_with_what_followed() {
        let rows = [
            row(1, What::Started { pid: 5, why: None }),
            row(2, What::Died { pid: 5, signal: Some(11), exit: None }),
            row(3, What::Restored { pid: 5, seq: 4, took_us: 900 }),
            row(4, What::Died { pid: 5, signal: None, exit: Some(3) }),
            row(5, What::Started { pid: 9, why: Some("files".to_owned()) }),
            row(6, What::Ended { pid: 9, signal: None, exit: Some(0) }),
        ];
        let found = deaths(&rows);
        let followed: Vec<String> = found.iter().map(|death| death.followed_by.to_string()).collect();
        assert_eq!(followed, ["restored", "started", "ended"]);
        assert_eq!((found[0].seq, found[0].took_us), (Some(4), Some(900)));
        assert_eq!((found[1].why.as_deref(), found[2].exit), (Some("files"), Some(0)));
    }

    #[test]
    fn a_checkpoint_is_told_with_the_pages_that_ls_lists() {
        let checkpoint = CheckpointEvent {
            seq: 7,
            pages: 400,
            precopied_pages: 20,
            residual_pages: 3,
            ..CheckpointEvent::default()
        };
        let text = What::Checkpoint(checkpoint.clone()).to_string();
        assert!(text.contains("400 pages, 23 of them copied, 3 in the pause"), "{text}");
        assert!(!text.contains("slices"), "{text}");
        let slices = SlicesReport { count: 4, total_us: 15_000, longest_us: 4_900 };
        let checkpoint = CheckpointEvent { slices, max_pause_us: Some(5_000), ..checkpoint };
        let text = What::Checkpoint(checkpoint).to_string();
        assert!(text.contains("4 slices before it, the longest 4900 us (budget 5000 us)"), "{text}");
    }
}
