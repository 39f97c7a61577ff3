//! Waiting for a checkpoint. The caller waits for the writer thread, or does the work of the writer itself.
//!
//! Owns: `Ticket`; the writer of a log that works in the threads of its callers (`LogThreads::Caller`).
//! Does not: complete a ticket; the writer does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::Sequence;

use super::ticket::{LogCommitted, TicketState};
use super::writer_thread::WriterThread;
use crate::error::Result;
use crate::lock::locked;

/// The writer of a log without its own thread. The writer works when a caller waits.
#[derive(Debug, Default)]
pub(super) struct Here(pub(super) Mutex<Option<WriterThread>>);

/// A handle for the result of a checkpoint that may be in progress. The result is the durable checkpoint or an error.
#[derive(Clone, Debug)]
pub struct Ticket {
    pub(super) state: Arc<TicketState>,
    pub(super) here: Arc<Here>,
}

impl Ticket {
    /// Returns a ticket that is already completed.
    pub(crate) fn answered(committed: LogCommitted) -> Self {
        let state = TicketState::new(committed.sequence);
        state.set(Ok(committed));
        Self { state: Arc::new(state), here: Arc::default() }
    }

    /// Returns the sequence number of the checkpoint.
    #[must_use]
    pub fn sequence(&self) -> Sequence {
        self.state.sequence
    }

    /// Waits until the checkpoint is durable.
    ///
    /// # Errors
    ///
    /// Returns the error that has prevented the checkpoint.
    pub fn wait(&self) -> Result<LogCommitted> {
        let _ = self.here.drive();
        let gone = || Err(sys::Error::new("wait for a checkpoint", sys::Errno::SHORT).into());
        self.state.wait(None).unwrap_or_else(gone)
    }

    /// Waits as `wait` does, at most for `timeout`. Returns `None` if the checkpoint is still in progress. Fails as
    /// `wait` does.
    pub fn wait_for(&self, timeout: Duration) -> Result<Option<LogCommitted>> {
        let _ = self.here.drive();
        self.state.wait(Some(timeout)).transpose()
    }

    /// Returns the result if the checkpoint is durable; `None` while the checkpoint is in progress. Fails as `wait`
    /// does.
    pub fn poll(&self) -> Result<Option<LogCommitted>> {
        self.state.get().transpose()
    }
}

impl Here {
    /// Runs the writer until its queue is empty, if the writer has no thread of its own.
    pub(super) fn drive(&self) -> Result<()> {
        locked(&self.0).as_mut().map_or(Ok(()), WriterThread::drive)
    }
}
