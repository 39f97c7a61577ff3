//! What excludes the thread that joins epochs of the undo log and other threads.
//!
//! Owns: the lock of the files of the log, and whether the thread runs.
//! Does not: join epochs; `join` does.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Debug, Default)]
pub(super) struct Joins {
    /// Held while files of the log are exchanged, and while the log is read or opened again. Locked before the state of
    /// the watch.
    files: Mutex<()>,
    is_running: AtomicBool,
}

impl Joins {
    /// Excludes other threads that exchange files of the log, read the log or open it again.
    pub(super) fn exclude(&self) -> MutexGuard<'_, ()> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_running(&self) -> bool {
        self.is_running.load(Ordering::Acquire)
    }

    pub(super) fn set_running(&self, is_running: bool) {
        self.is_running.store(is_running, Ordering::Release);
    }
}
