//! Runs the writer of a log in threads that all logs of the process share, while orders are queued.
//!
//! Owns: the writer while it is not at work.
//! Invariants: at most one thread runs the writer. The writer rests only when no order is queued and no write is in
//! flight, because the kernel may cancel the writes of a thread that ends.
//! Does not: know the orders.

use std::fmt;
use std::sync::{Arc, Mutex};

use super::queue::Shared;
use super::writer_thread::WriterThread;
use crate::lock::locked;
use crate::threads::{OnPanic, Task};

/// The writer of a log without its own thread.
pub(super) struct WriterTask {
    writer: Mutex<Option<WriterThread>>,
    shared: Arc<Shared>,
}

impl WriterTask {
    pub(super) fn new(writer: WriterThread) -> Arc<Self> {
        let shared = Arc::clone(&writer.shared);
        Arc::new(Self { writer: Mutex::new(Some(writer)), shared })
    }

    /// Waits until all queued orders are processed, and returns the writer; `None` if the writer has panicked.
    pub(super) fn take(&self) -> Option<WriterThread> {
        self.shared.await_rest();
        locked(&self.writer).take()
    }
}

impl Task for WriterTask {
    fn run(&self) {
        // Ends the waits for this writer.
        let _guard = OnPanic(|| self.shared.stop());
        loop {
            let Some(mut writer) = locked(&self.writer).take() else { return self.shared.stop() };
            writer.run();
            // The writer is here again before another thread can be told to run it.
            *locked(&self.writer) = Some(writer);
            if self.shared.rest() {
                return;
            }
        }
    }
}

impl fmt::Debug for WriterTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WriterTask").finish_non_exhaustive()
    }
}
