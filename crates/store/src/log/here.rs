//! Waiting for a checkpoint. The caller waits for the writer thread, or does the work of the writer itself.
//!
//! Owns: `Ticket`; the writer of a log that works in the threads of its callers (`LogThreads::Caller`).
//! Does not: complete a ticket; the writer does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use model::Sequence;

use super::ticket::{LogCommitted, TicketState};
use super::writer_thread::WriterThread;
use crate::error::{Error, Result};
use crate::lock::locked;
use crate::pool::Drive;

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
    /// Returns a ticket of a checkpoint in progress, and the value that completes the ticket.
    #[must_use]
    pub fn pending(sequence: Sequence) -> (Self, Completer) {
        let state = TicketState::new(sequence);
        (Self { state: Arc::clone(&state), here: Arc::default() }, Completer(state))
    }

    /// Returns a ticket that is already completed.
    #[must_use]
    pub fn answered(committed: LogCommitted) -> Self {
        let (ticket, completer) = Self::pending(committed.sequence);
        completer.complete(Ok(committed));
        ticket
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

/// Completes a ticket. If the value is dropped, for example by a panic, the ticket is completed with an error.
#[derive(Debug)]
pub struct Completer(Arc<TicketState>);

impl Completer {
    /// Completes the ticket, and wakes the threads that wait for it.
    pub fn complete(self, result: Result<LogCommitted>) {
        self.0.set(result);
    }
}

impl Drop for Completer {
    fn drop(&mut self) {
        if self.0.get().is_none() {
            self.0.set(Err(Error::panicked()));
        }
    }
}

impl Drive for Here {
    fn drive(&self) -> Result<()> {
        Self::drive(self)
    }
}

impl Here {
    /// Runs the writer until its queue is empty, if the writer has no thread of its own.
    pub(super) fn drive(&self) -> Result<()> {
        locked(&self.0).as_mut().map_or(Ok(()), WriterThread::drive)
    }
}
