//! The journal of a subject consists of files beside the images of the subject. The files contain the status and the
//! events of the subject.
//!
//! The guard submits the status and the events.
//!
//! Owns: the thread that writes these files, the times of the writes, the two event files, and reading the events in
//! order.
//! Invariants: only the journal thread waits for the disk; its queue is bounded. The status is written at most every
//! 200 ms, and immediately after an event. A status and events that could not be written are tried again. An event
//! reports the number of dropped events. Checkpoint events have a separate file, so that they never displace the event
//! of a death. A truncated line is skipped. Only the owner may read the files.
//! Does not: make the text of events, know the form of the status, or protect the newest lines from a power cut. A
//! restore does not need these lines.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use store::trust;
use sys::Error;
use sys::clock::Clock;

use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::record::Record;
use crate::time;

/// Minimum interval between two writes while no other events than checkpoints occur.
const QUIET: Duration = Duration::from_millis(200);
/// Maximum number of events that wait for the disk. This number is enough for many seconds. If the disk is full or blocks
/// for a longer time, events of checkpoints are dropped first.
const EVENTS_MAX: usize = 4096;

/// The interface of the guard to the journal thread.
#[derive(Debug)]
pub(crate) struct Journal {
    name: String,
    clock: Clock,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    record: Option<Box<Record>>,
    rows: VecDeque<EventRow>,
    /// Number of events that were dropped since the last report of this number.
    dropped: u64,
    is_urgent: bool,
    is_closed: bool,
    error: Option<GuardianError>,
}

impl Journal {
    /// Starts the journal thread for the directory of a subject.
    pub(crate) fn start(directory: &Path, name: &str, clock: Clock) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let events = EventFiles::new(directory);
        let (theirs, time) = (Arc::clone(&shared), clock.clone());
        let thread = std::thread::Builder::new()
            .name("undying-journal".to_owned())
            .spawn(move || write(&theirs, events, &time))
            .map_err(|error| Error::new("start a thread", error))?;
        Ok(Self { name: name.to_owned(), clock, shared, thread: Some(thread) })
    }

    /// Queues the status for the next regular write.
    pub(crate) fn set(&self, record: &Record) {
        self.update(|state| state.record = Some(Box::new(record.clone())), false);
    }

    /// Queues the status for an immediate write.
    pub(crate) fn set_now(&self, record: &Record) {
        self.update(|state| state.record = Some(Box::new(record.clone())), true);
    }

    /// Records an event with the current time.
    pub(crate) fn record_event(&self, what: RunEvent) {
        self.record_event_at(self.clock.wall(), what);
    }

    pub(crate) fn record_event_at(&self, time: SystemTime, what: RunEvent) {
        let is_urgent = !what.is_frequent();
        let row = EventRow { time: time::rfc3339(time), name: self.name.clone(), what };
        self.update(|state| state.queue(row), is_urgent);
    }

    /// Returns the last write error since the previous call.
    pub(crate) fn take_error(&self) -> Option<GuardianError> {
        self.shared.state().error.take()
    }

    /// Writes the remaining queue, and ends the thread.
    pub(crate) fn end(&mut self) {
        self.update(|state| state.is_closed = true, true);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }

    fn update(&self, change: impl FnOnce(&mut State), is_urgent: bool) {
        let mut state = self.shared.state();
        let had_work = state.has_work();
        change(&mut state);
        state.is_urgent |= is_urgent;
        drop(state);
        // With work, the thread waits for the time of the next write, and finds the change then.
        if is_urgent || !had_work {
            self.shared.changed.notify_one();
        }
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.state().is_closed = true;
        self.shared.changed.notify_one();
    }
}

impl State {
    fn has_work(&self) -> bool {
        self.record.is_some() || !self.rows.is_empty()
    }

    /// Adds an event. If the queue is full, drops the oldest event of a checkpoint, or else the oldest event.
    fn queue(&mut self, row: EventRow) {
        self.rows.push_back(row);
        if self.rows.len() > EVENTS_MAX {
            let place = self.rows.iter().position(|row| row.what.is_frequent()).unwrap_or(0);
            self.rows.remove(place);
            self.dropped += 1;
        }
    }

    /// Returns the queued events. An event with the number of dropped events comes first.
    fn take_rows(&mut self) -> Vec<EventRow> {
        let count = std::mem::take(&mut self.dropped);
        let first = self.rows.front().filter(|_| count > 0);
        let lost = first.map(|first| EventRow { what: RunEvent::EventsLost { count }, ..first.clone() });
        lost.into_iter().chain(self.rows.drain(..)).collect()
    }

    /// Takes back events that could not be written.
    fn take_back(&mut self, rows: Vec<EventRow>) {
        let newer = std::mem::take(&mut self.rows);
        for row in rows.into_iter().chain(newer) {
            match row.what {
                RunEvent::EventsLost { count } => self.dropped += count,
                _ => self.queue(row),
            }
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back a status and events that could not be written, for example on a full disk. They are written again after
    /// `QUIET`, the status only unless a newer one has come. Without this status, the next guardian would start the program
    /// beside its present process.
    fn keep(&self, record: Option<Box<Record>>, rows: Vec<EventRow>) {
        let mut state = self.state();
        if state.is_closed {
            return;
        }
        if state.record.is_none() {
            state.record = record;
        }
        state.take_back(rows);
    }

    /// Waits for the next data to write. Returns `None` when the journal is closed and everything is written.
    fn next(&self, due: Instant, clock: &Clock) -> Option<(Option<Box<Record>>, Vec<EventRow>)> {
        let mut state = self.state();
        loop {
            let has_work = state.has_work();
            let left = due.saturating_duration_since(clock.now());
            if has_work && (state.is_urgent || state.is_closed || left.is_zero()) {
                state.is_urgent = false;
                return Some((state.record.take(), state.take_rows()));
            }
            if state.is_closed {
                return None;
            }
            state = if has_work {
                self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
            } else {
                self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
            };
        }
    }
}

fn write(shared: &Shared, mut events: EventFiles, clock: &Clock) {
    let mut due = clock.now();
    while let Some((record, mut rows)) = shared.next(due, clock) {
        due = clock.now() + QUIET;
        // Events are written first, so that a reader of the new status finds the events that led to this status.
        let appended = events.append(&mut rows);
        let written = record.as_ref().map_or(Ok(()), |record| record.write(&events.directory));
        if written.is_err() {
            Record::mark_outdated(&events.directory);
        }
        shared.keep(record.filter(|_| written.is_err()), rows);
        if let Err(error) = appended.and(written) {
            shared.state().error = Some(error);
        }
    }
}

/// Size in bytes at which an event file is renamed. The renamed file replaces the previous renamed file. At a hundred
/// checkpoints a second, the current and the renamed file hold more than a minute of checkpoint events.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// The event files of a subject, first for rare events, and second for frequent events (checkpoints). For each kind:
/// the names of the current file and of the renamed file.
const FILES: [(&str, &str); 2] =
    [("events.jsonl", "events.old.jsonl"), ("checkpoints.jsonl", "checkpoints.old.jsonl")];

/// One event.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EventRow {
    /// Time in RFC 3339. For a checkpoint, the time when the subject was stopped.
    pub time: String,
    /// Name of the subject.
    pub name: String,
    /// The event itself.
    #[serde(flatten)]
    pub what: RunEvent,
}

/// The event files that are being written.
#[derive(Debug)]
struct EventFiles {
    directory: PathBuf,
    files: [Option<(File, u64)>; 2],
}

impl EventFiles {
    fn new(directory: &Path) -> Self {
        Self { directory: directory.to_path_buf(), files: [None, None] }
    }

    /// Appends events, and removes them from `rows`. After an error, `rows` contains the events that are in no file. The
    /// events for one file are written with one write.
    fn append(&mut self, rows: &mut Vec<EventRow>) -> Result<()> {
        for (number, (name, _)) in FILES.iter().enumerate() {
            let mut text = Vec::new();
            for row in rows.iter().filter(|row| usize::from(row.what.is_frequent()) == number) {
                serde_json::to_writer(&mut text, row).map_err(|error| {
                    Error::path("write", self.directory.join(name), std::io::Error::from(error))
                })?;
                text.push(b'\n');
            }
            if !text.is_empty() {
                self.write(number, &text)?;
                rows.retain(|row| usize::from(row.what.is_frequent()) != number);
            }
        }
        Ok(())
    }

    fn write(&mut self, number: usize, text: &[u8]) -> Result<()> {
        let path = self.directory.join(FILES[number].0);
        let failed = |error: std::io::Error| Error::path("write", &path, error);
        if self.files[number].as_ref().is_some_and(|(_, length)| *length >= FILE_BYTES_MAX) {
            std::fs::rename(&path, self.directory.join(FILES[number].1)).map_err(failed)?;
            self.files[number] = None;
        }
        let (file, length) = match &mut self.files[number] {
            Some(open) => open,
            empty => {
                let file = trust::open_or_create(&path, trust::Access::Append)?;
                let length = file.metadata().map_err(failed)?.len();
                empty.insert((file, length))
            }
        };
        if let Err(error) = file.write_all(text) {
            // The events are written again, so no part of them stays. If the part cannot be removed, a reader skips the
            // line that it cuts off.
            let _ = file.set_len(*length);
            return Err(failed(error).into());
        }
        *length += text.len() as u64;
        Ok(())
    }
}

/// Reads the recorded events of a subject, and after that the new events.
#[derive(Debug)]
pub(crate) struct EventReader {
    directory: PathBuf,
    /// For each kind of event file: the inode of the current file, and the number of bytes that were read from this
    /// file.
    places: [(u64, u64); 2],
}

impl EventReader {
    pub(crate) fn new(directory: &Path) -> Self {
        Self { directory: directory.to_path_buf(), places: [(0, 0); 2] }
    }

    /// Returns the events since the last call, sorted by time. The first call returns all recorded events.
    pub(crate) fn read(&mut self) -> Result<Vec<EventRow>> {
        let mut rows = Vec::new();
        match trust::check_directory(&self.directory) {
            Err(error) if !trust::is_absence(&error) => return Err(error.into()),
            _ => {}
        }
        for number in 0..FILES.len() {
            self.read_files(number, &mut rows)?;
        }
        // All times have the same length and time zone, so their texts can be compared.
        rows.sort_by(|one, other| one.time.cmp(&other.time));
        Ok(rows)
    }

    fn read_files(&mut self, number: usize, rows: &mut Vec<EventRow>) -> Result<()> {
        let (place, done) = self.places[number];
        let old = self.directory.join(FILES[number].1);
        let new = self.directory.join(FILES[number].0);
        // The renamed file contains unread events in two cases. Either no file was read before, or the previous call
        // read this file when it was the current file.
        if let Some((file, inode)) = open(&old)?
            && (place == 0 || place == inode)
        {
            read_from(file, &old, if place == inode { done } else { 0 }, rows)?;
        }
        if let Some((file, inode)) = open(&new)? {
            let from = if place == inode { done } else { 0 };
            self.places[number] = (inode, read_from(file, &new, from, rows)?);
        }
        Ok(())
    }
}

fn open(path: &Path) -> Result<Option<(File, u64)>> {
    match trust::open_file(path) {
        Ok(file) => {
            let metadata = file.metadata().map_err(|error| Error::path("read", path, error))?;
            Ok(Some((file, metadata.ino())))
        }
        Err(error) if trust::is_absence(&error) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads whole lines from an offset. Returns the offset of the next line.
fn read_from(mut file: File, path: &Path, from: u64, rows: &mut Vec<EventRow>) -> Result<u64> {
    let failed = |error: std::io::Error| Error::path("read", path, error);
    file.seek(SeekFrom::Start(from)).map_err(failed)?;
    let mut text = Vec::new();
    file.take(2 * FILE_BYTES_MAX).read_to_end(&mut text).map_err(failed)?;
    let whole = text.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
    let lines = text[..whole].split(|byte| *byte == b'\n');
    rows.extend(lines.filter_map(|line| serde_json::from_slice(line).ok()));
    Ok(from + whole as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::CheckpointEvent;
    use crate::record::SubjectFacts;

    #[test]
    fn a_status_that_could_not_be_written_is_written_later() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("job");
        let journal = Journal::start(&directory, "job", Clock::default()).unwrap();
        journal.set(&Record { first_sequence: 7, ..Record::default() });
        testkit::until("an error", || journal.take_error());
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let written = testkit::until("the status", || Record::read(&directory).ok().flatten());
        assert_eq!(written.first_sequence, 7);
    }

    #[test]
    fn events_that_could_not_be_written_are_written_later_and_dropped_ones_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("job");
        let mut journal = Journal::start(&directory, "job", Clock::default()).unwrap();
        let death = RunEvent::Died { pid: 3, signal: Some(9), exit: None };
        journal.record_event(death.clone());
        let many = EVENTS_MAX as u64 + 100;
        for number in 1..=many {
            let checkpoint = CheckpointEvent { seq: number, ..CheckpointEvent::default() };
            journal.record_event(RunEvent::Checkpoint(checkpoint));
        }
        testkit::until("an error", || journal.take_error());
        std::fs::create_dir(&directory).unwrap();
        std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        let mut reader = EventReader::new(&directory);
        let mut rows = Vec::new();
        testkit::until("the events", || {
            rows.extend(reader.read().unwrap());
            (rows.len() > EVENTS_MAX).then_some(())
        });
        journal.end();
        assert_eq!(
            rows.iter().filter(|row| row.what == death).count(),
            1,
            "a death is never dropped for a checkpoint"
        );
        assert!(rows.iter().any(|row| row.what == RunEvent::EventsLost { count: 101 }));
        let last = rows.iter().rev().find(|row| row.what.is_frequent()).unwrap();
        assert!(matches!(&last.what, RunEvent::Checkpoint(checkpoint) if checkpoint.seq == many));
    }

    #[test]
    fn everything_is_written_in_the_end_and_a_failure_is_reported() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::start(folder.path(), "job", Clock::default()).unwrap();
        for number in 1..=100 {
            let facts = SubjectFacts { checkpoints: number, ..SubjectFacts::default() };
            journal.set(&Record { facts, ..Record::default() });
            let checkpoint = CheckpointEvent { seq: number, ..CheckpointEvent::default() };
            journal.record_event(RunEvent::Checkpoint(checkpoint));
        }
        journal.record_event(RunEvent::Died { pid: 3, signal: None, exit: Some(1) });
        journal.end();
        assert_eq!(Record::read(folder.path()).unwrap().unwrap().facts.checkpoints, 100);
        assert_eq!(EventReader::new(folder.path()).read().unwrap().len(), 101);
        assert!(journal.take_error().is_none());
        let mut journal = Journal::start(&folder.path().join("gone"), "job", Clock::default()).unwrap();
        journal.set_now(&Record::default());
        journal.end();
        assert!(journal.take_error().is_some());
    }
}

#[cfg(test)]
mod file_tests {
    use super::*;
    use crate::event::CheckpointEvent;

    fn row(number: u64, what: RunEvent) -> EventRow {
        let time = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::from_micros(number);
        EventRow { time: crate::time::rfc3339(time), name: "job".to_owned(), what }
    }

    fn checkpoint(number: u64) -> EventRow {
        row(number, RunEvent::Checkpoint(CheckpointEvent { seq: number, ..CheckpointEvent::default() }))
    }

    #[test]
    fn checkpoints_push_out_checkpoints_only() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = EventFiles::new(folder.path());
        let death = row(0, RunEvent::Died { pid: 7, signal: Some(9), exit: None });
        files.append(&mut vec![death.clone()]).unwrap();
        let line = serde_json::to_vec(&checkpoint(100_000)).unwrap().len() as u64 + 1;
        let many = 3 * FILE_BYTES_MAX / line;
        for number in 100_000..100_000 + many {
            files.append(&mut vec![checkpoint(number)]).unwrap();
        }
        let rows = EventReader::new(folder.path()).read().unwrap();
        assert_eq!(rows[0], death);
        assert_eq!(rows.last(), Some(&checkpoint(100_000 + many - 1)));
        let kept = (rows.len() - 1) as u64 * line;
        assert!((FILE_BYTES_MAX..=2 * FILE_BYTES_MAX + 2 * line).contains(&kept), "{kept}");
        assert!(rows[1..].windows(2).all(|pair| pair[0].time < pair[1].time));
    }

    #[test]
    fn a_reader_receives_each_event_once_while_files_are_rotated() {
        let folder = tempfile::tempdir().unwrap();
        let mut files = EventFiles::new(folder.path());
        let mut reader = EventReader::new(folder.path());
        let mut received = Vec::new();
        for number in 0..60_000 {
            files.append(&mut vec![checkpoint(1_000_000 + number)]).unwrap();
            if number % 1_000 == 0 {
                received.extend(reader.read().unwrap());
            }
        }
        received.extend(reader.read().unwrap());
        assert_eq!(received.len(), 60_000);
        assert!(received.iter().zip(0..).all(|(row, number)| *row == checkpoint(1_000_000 + number)));
    }

    #[test]
    fn a_line_that_is_cut_short_is_read_when_it_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILES[0].0);
        let mut reader = EventReader::new(folder.path());
        let started = row(5, RunEvent::Started { pid: 7, why: None });
        let line = serde_json::to_string(&started).unwrap();
        drop(trust::open_or_create(&path, trust::Access::Write).unwrap());
        std::fs::write(&path, format!("nonsense\n{}", &line[..20])).unwrap();
        assert!(reader.read().unwrap().is_empty());
        std::fs::write(&path, format!("nonsense\n{line}\n")).unwrap();
        assert_eq!(reader.read().unwrap(), [started]);
    }
}
