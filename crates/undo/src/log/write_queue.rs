//! Changes of log files that are held back while the subject is stopped, so that no pause waits for a disk.
//!
//! At a boundary, the log writes records while the subject is stopped. A write can wait for the disk for seconds: the
//! file system can be frozen for a snapshot, or the kernel can have too much unwritten data. The records of a boundary
//! are therefore written after the pause. If the guardian ends before this, the log lacks the boundary. Then a rollback
//! goes to the boundary before, for which the log is complete: a change of the subject that needs a record waits until
//! the records of the boundary and its own record are written.
//!
//! Owns: the changes that are not made yet, and their order.
//! Invariants: writes are made in the order in which they were requested, and so are removals. After a write has
//! failed, no further change is made until the next boundary begins. A removal that fails costs no record: it is tried
//! again.
//! Does not: decide what is written.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Result;

/// A change of a file of the log. `File` is an open file.
#[derive(Debug)]
pub(crate) enum Change<File> {
    Write {
        to: Arc<File>,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// The removal of a file in the directory of the log.
    Remove(String),
    /// The removal of a file in a keep directory.
    DropKept(PathBuf),
}

impl<File> Change<File> {
    fn is_removal(&self) -> bool {
        matches!(self, Self::Remove(_) | Self::DropKept(_))
    }
}

/// The maximum number of removals that are tried again. What is left over is removed when the log is opened again.
const AGAIN_MAX: usize = 4096;

#[derive(Debug)]
pub(crate) struct WriteQueue<File> {
    state: Mutex<State<File>>,
    is_made: Condvar,
}

#[derive(Debug)]
struct State<File> {
    changes: VecDeque<Change<File>>,
    /// A removal that has failed, and the removals that were requested after it. They follow after the next boundary.
    again: VecDeque<Change<File>>,
    /// Whether new writes are added to the queue.
    is_held: bool,
    /// Whether a thread makes the change that was the first of the queue.
    is_busy: bool,
    has_failed: bool,
}

/// The result of an attempt to make all changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Drained {
    Whole,
    /// An earlier change has failed, and its error was reported.
    FailedBefore,
}

impl<File> Default for WriteQueue<File> {
    fn default() -> Self {
        let (changes, again) = (VecDeque::new(), VecDeque::new());
        let state = State { changes, again, is_held: false, is_busy: false, has_failed: false };
        Self { state: Mutex::new(state), is_made: Condvar::new() }
    }
}

impl<File> WriteQueue<File> {
    fn state(&self) -> MutexGuard<'_, State<File>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Holds writes back from now on.
    pub(crate) fn hold(&self) {
        let mut state = self.state();
        (state.is_held, state.has_failed) = (true, false);
        let mut again = std::mem::take(&mut state.again);
        again.append(&mut state.changes);
        state.changes = again;
    }

    /// Holds further writes back no longer. Writes that were held back follow with the next `drain`.
    pub(crate) fn end_hold(&self) {
        self.state().is_held = false;
    }

    pub(crate) fn is_held(&self) -> bool {
        self.state().is_held
    }

    pub(crate) fn add(&self, change: Change<File>) {
        self.state().changes.push_back(change);
    }

    /// Makes all changes of the queue, and waits for a change that another thread makes.
    pub(crate) fn drain(&self, make: impl Fn(&Change<File>) -> Result<()>) -> Result<Drained> {
        let mut state = self.state();
        loop {
            if state.is_busy {
                state = self.is_made.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if state.has_failed {
                return Ok(Drained::FailedBefore);
            }
            let Some(change) = state.changes.pop_front() else { return Ok(Drained::Whole) };
            if change.is_removal() && !state.again.is_empty() {
                state.try_again(change);
                continue;
            }
            state.is_busy = true;
            drop(state);
            let outcome = make(&change);
            state = self.state();
            state.is_busy = false;
            self.is_made.notify_all();
            if outcome.is_err() && change.is_removal() {
                state.try_again(change);
            } else if outcome.is_err() {
                state.has_failed = true;
                state.changes.clear();
                outcome?;
            }
        }
    }
}

impl<File> State<File> {
    fn try_again(&mut self, removal: Change<File>) {
        if self.again.len() < AGAIN_MAX {
            self.again.push_back(removal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::error::UndoError;
    use crate::log::opened_file::OpenedFile;

    fn removals(queue: &WriteQueue<OpenedFile>, names: &[&str]) {
        names.iter().for_each(|name| queue.add(Change::Remove((*name).to_owned())));
    }

    fn name(change: &Change<OpenedFile>) -> String {
        match change {
            Change::Remove(name) => name.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn two_threads_make_each_change_once_and_in_order() {
        let (queue, made) = (WriteQueue::default(), Mutex::new(Vec::new()));
        let names: Vec<String> = (0..200).map(|number| number.to_string()).collect();
        removals(&queue, &names.iter().map(String::as_str).collect::<Vec<_>>());
        let make = |change: &Change<OpenedFile>| {
            std::thread::yield_now();
            made.lock().unwrap().push(name(change));
            Ok(())
        };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| assert_eq!(queue.drain(make).unwrap(), Drained::Whole));
            }
        });
        assert_eq!(*made.lock().unwrap(), names);
    }

    fn write(queue: &WriteQueue<OpenedFile>, offset: u64) {
        let file = tempfile::tempfile().unwrap();
        let to = Arc::new(OpenedFile { file, path: PathBuf::new(), reserve: None });
        queue.add(Change::Write { to, offset, bytes: Vec::new() });
    }

    #[test]
    fn after_a_failed_write_nothing_is_changed_until_the_next_hold() {
        let (queue, made) = (WriteQueue::default(), AtomicUsize::new(0));
        (0..3).for_each(|offset| write(&queue, offset));
        let make = |change: &Change<OpenedFile>| {
            made.fetch_add(1, Ordering::Relaxed);
            match change {
                Change::Write { offset: 1, .. } => Err(UndoError::Short { directory: PathBuf::new() }),
                _ => Ok(()),
            }
        };
        assert!(queue.drain(make).is_err());
        write(&queue, 3);
        assert_eq!((queue.drain(make).unwrap(), made.load(Ordering::Relaxed)), (Drained::FailedBefore, 2));
        queue.hold();
        assert_eq!((queue.drain(make).unwrap(), made.load(Ordering::Relaxed)), (Drained::Whole, 3));
    }

    #[test]
    fn a_removal_that_fails_is_tried_again_before_the_removals_behind_it_and_prevents_no_write() {
        let (queue, made) = (WriteQueue::default(), Mutex::new(String::new()));
        let is_short = AtomicUsize::new(1);
        removals(&queue, &["a", "b"]);
        write(&queue, 7);
        removals(&queue, &["c"]);
        let make = |change: &Change<OpenedFile>| {
            let name = match change {
                Change::Write { offset, .. } => offset.to_string(),
                other => name(other),
            };
            if name == "b" && is_short.load(Ordering::Relaxed) == 1 {
                return Err(UndoError::Short { directory: PathBuf::new() });
            }
            made.lock().unwrap().push_str(&name);
            Ok(())
        };
        assert_eq!(queue.drain(make).unwrap(), Drained::Whole);
        assert_eq!(*made.lock().unwrap(), "a7");
        queue.hold();
        assert_eq!(queue.drain(make).unwrap(), Drained::Whole);
        is_short.store(0, Ordering::Relaxed);
        write(&queue, 8);
        queue.hold();
        assert_eq!(queue.drain(make).unwrap(), Drained::Whole);
        assert_eq!(*made.lock().unwrap(), "a7bc8");
    }
}
