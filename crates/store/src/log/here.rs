//! Waiting for a checkpoint: for the writer thread, or by doing its work.
//!
//! Owns: `Ticket`; the log writer of a log whose callers do the work.
//! Does not: complete a ticket; the log writer does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::Sequence;

use super::ticket::{LogCommitted, TicketState};
use super::writer_thread::WriterThread;
use crate::error::Result;
use crate::pool::locked;

/// A log writer that works when it is called.
#[derive(Debug, Default)]
pub(super) struct Here(pub(super) Mutex<Option<WriterThread>>);

/// The promise of an answer: durable, or why not.
#[derive(Clone, Debug)]
pub struct Ticket {
    pub(super) state: Arc<TicketState>,
    pub(super) here: Arc<Here>,
}

impl Ticket {
    /// Of a checkpoint that is all that it will be.
    pub(crate) fn answered(committed: LogCommitted) -> Self {
        let state = TicketState::new(committed.sequence);
        state.set(Ok(committed));
        Self { state: Arc::new(state), here: Arc::default() }
    }

    /// The checkpoint that was promised.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        self.state.sequence
    }

    /// Waits until it is durable.
    ///
    /// # Errors
    ///
    /// Why it never will be.
    pub fn wait(&self) -> Result<LogCommitted> {
        let _ = self.here.drive();
        let gone = || Err(sys::Error::new("wait for a checkpoint", sys::Errno::SHORT).into());
        self.state.wait(None).unwrap_or_else(gone)
    }

    /// As `wait`, for so long at most; `None` when it is still under way then. Fails as `wait`.
    pub fn wait_for(&self, timeout: Duration) -> Result<Option<LogCommitted>> {
        let _ = self.here.drive();
        self.state.wait(Some(timeout)).transpose()
    }

    /// Whether it is durable yet; `None` while it is under way. Fails as `wait`.
    pub fn poll(&self) -> Result<Option<LogCommitted>> {
        self.state.get().transpose()
    }
}

impl Here {
    /// Lets the writer thread work, if it is one that works here.
    pub(super) fn drive(&self) -> Result<()> {
        locked(&self.0).as_mut().map_or(Ok(()), WriterThread::drive)
    }
}
