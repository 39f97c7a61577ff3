//! What a guardian writes down while it guards, on a thread that may wait for the disk.
//!
//! Owns: that thread, when the status and the events are written.
//! Invariants: nobody waits for the disk but this thread; what waits to be written is bounded; the status is written
//! every 200 ms at most, unless something has happened.
//! Does not: word events, or know the shape of the status.

mod files;

use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use sys::Error;
use sys::clock::Clock;

use self::files::EventFiles;
pub(crate) use self::files::EventReader;
pub use self::files::EventRow;
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::record::Record;
use crate::time;

/// How often anything is written while nothing but checkpoints happens.
const QUIET: Duration = Duration::from_millis(200);
/// Events that wait for a disk at most: many seconds of them. Those beyond are lost, like the disk.
const EVENTS_MAX: usize = 4096;

/// The guard's end.
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
    rows: Vec<EventRow>,
    is_urgent: bool,
    is_closed: bool,
    error: Option<GuardianError>,
}

impl Journal {
    /// Begins to write in a subject's directory.
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

    /// Has the status written when it is time.
    pub(crate) fn set(&self, record: &Record) {
        self.update(|state| state.record = Some(Box::new(record.clone())), false);
    }

    /// Has it written at once.
    pub(crate) fn set_now(&self, record: &Record) {
        self.update(|state| state.record = Some(Box::new(record.clone())), true);
    }

    /// Writes down what has happened now.
    pub(crate) fn tell(&self, what: RunEvent) {
        self.tell_of(self.clock.wall(), what);
    }

    /// Writes down what has happened at a time.
    pub(crate) fn tell_of(&self, time: SystemTime, what: RunEvent) {
        let is_urgent = !what.is_frequent();
        let row = EventRow { time: time::rfc3339(time), name: self.name.clone(), what };
        self.update(
            |state| {
                if state.rows.len() < EVENTS_MAX {
                    state.rows.push(row);
                }
            },
            is_urgent,
        );
    }

    /// What went wrong with writing since the last call.
    pub(crate) fn take_error(&self) -> Option<GuardianError> {
        self.shared.state().error.take()
    }

    /// Writes what is left, and ends.
    pub(crate) fn end(&mut self) {
        self.update(|state| state.is_closed = true, true);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }

    fn update(&self, change: impl FnOnce(&mut State), is_urgent: bool) {
        let mut state = self.shared.state();
        change(&mut state);
        state.is_urgent |= is_urgent;
        drop(state);
        self.shared.changed.notify_one();
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        self.shared.state().is_closed = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be written now; `None` when there is no more.
    fn next(&self, due: Instant, clock: &Clock) -> Option<(Option<Box<Record>>, Vec<EventRow>)> {
        let mut state = self.state();
        loop {
            let has_work = state.record.is_some() || !state.rows.is_empty();
            let left = due.saturating_duration_since(clock.now());
            if has_work && (state.is_urgent || state.is_closed || left.is_zero()) {
                state.is_urgent = false;
                return Some((state.record.take(), std::mem::take(&mut state.rows)));
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
    while let Some((record, rows)) = shared.next(due, clock) {
        due = clock.now() + QUIET;
        // Events first: who sees the new status finds what led to it.
        let written =
            events.append(&rows).and(record.map_or(Ok(()), |record| record.write(events.directory())));
        if let Err(error) = written {
            shared.state().error = Some(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::CheckpointEvent;
    use crate::record::SubjectFacts;

    #[test]
    fn everything_is_written_in_the_end_and_a_failure_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let mut journal = Journal::start(folder.path(), "job", Clock::default()).unwrap();
        for number in 1..=100 {
            let facts = SubjectFacts { checkpoints: number, ..SubjectFacts::default() };
            journal.set(&Record { facts, ..Record::default() });
            let checkpoint = CheckpointEvent { seq: number, ..CheckpointEvent::default() };
            journal.tell(RunEvent::Checkpoint(checkpoint));
        }
        journal.tell(RunEvent::Died { pid: 3, signal: None, exit: Some(1) });
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
