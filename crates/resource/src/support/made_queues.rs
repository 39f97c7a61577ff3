//! The POSIX message queues that a restore has created under a name.
//!
//! Owns: removing these queues after a failed restore.
//! Does not: create queues; the descriptor kind does.

use sys::message_queue;

/// The names of the created queues. On drop, the queues are removed, unless `keep` was called.
#[derive(Debug, Default)]
pub(crate) struct MadeQueues(Vec<Vec<u8>>);

impl MadeQueues {
    /// Adds the name of a queue that was just created.
    pub(crate) fn add(&mut self, name: Vec<u8>) {
        self.0.push(name);
    }

    /// Keeps the queues. Called when the restore has succeeded.
    pub(crate) fn keep(&mut self) {
        self.0.clear();
    }
}

impl Drop for MadeQueues {
    fn drop(&mut self) {
        for name in &self.0 {
            let _ = message_queue::unlink(name);
        }
    }
}
