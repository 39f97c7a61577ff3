//! The page buffers that circulate between the copiers, the worker and the device.
//!
//! Owns: how many there are, who waits for one.
//! Invariants: at most `limit` buffers are made; one that comes back wakes a waiter; after a failure nobody
//! waits any more.
//! Does not: clear a buffer between two uses.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use model::ByteCount;
use sys::page_buffer::PageBuffer;

use crate::error::{Error, Result};

#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
    size: ByteCount,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<PageBuffer>,
    made: usize,
    failure: Option<Error>,
}

impl Pool {
    pub(crate) fn new(limit: usize, size: ByteCount) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), limit, size }
    }

    /// The size of a buffer.
    pub(crate) const fn size(&self) -> ByteCount {
        self.size
    }

    /// A buffer: one that came back, else a new one, else the next to come back.
    pub(crate) fn take(&self) -> Result<PageBuffer> {
        let mut state = self.state();
        loop {
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            if let Some(buffer) = state.free.pop() {
                return Ok(buffer);
            }
            if state.made < self.limit {
                let buffer = PageBuffer::new(self.size)?;
                state.made += 1;
                return Ok(buffer);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Brings a buffer back. One that is not the pool's own is kept in place of one that is missing.
    pub(crate) fn give(&self, buffer: PageBuffer) {
        let mut state = self.state();
        if buffer.size() == self.size && state.free.len() < self.limit {
            state.free.push(buffer);
            self.changed.notify_one();
        }
    }

    /// From now on `take` gives this error.
    pub(crate) fn fail(&self, error: &Error) {
        self.state().failure.get_or_insert_with(|| error.clone());
        self.changed.notify_all();
    }

    /// The error that `fail` was given first.
    pub(crate) fn failure(&self) -> Option<Error> {
        self.state().failure.clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
