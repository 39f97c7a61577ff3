//! Real-time priority for a tracer as long as something stands still for it.
//!
//! Owns: raising the priority of the calling thread, and giving it back.
//! Invariants: what the thread had before comes back when the guard is dropped; without the right to raise it, nothing
//! changes; threads that are made meanwhile do not inherit it.
//! Does not: choose a processor.
//!
//! A thread that is let go preempts an ordinary tracer that has others to let go; anything else that runs does too. A
//! thread of real-time priority must not spin where what it waits for may need the same processor: see `Waiter`.

use model::Tid;
use sys::scheduling::{self, Attributes};

const ORDINARY: u32 = 0;
const BATCH: u32 = 3;
/// SCHED_FIFO, of the lowest priority: whoever has a higher one has a reason.
const FIFO: u32 = 1;
const PRIORITY: u32 = 1;
const RESET_ON_FORK: u64 = 1;
/// The calling thread.
const SELF: Tid = Tid(0);

/// The calling thread runs before all ordinary ones as long as this lives.
#[derive(Debug)]
pub struct Urgent {
    before: Option<Attributes>,
}

impl Urgent {
    /// Raises the priority of the calling thread, if that is allowed and it has an ordinary one.
    #[must_use]
    pub fn begin() -> Self {
        let raised =
            Attributes { policy: FIFO, priority: PRIORITY, flags: RESET_ON_FORK, ..Attributes::default() };
        let ordinary = |before: &Attributes| matches!(before.policy, ORDINARY | BATCH);
        let before = scheduling::attributes(SELF).ok().filter(ordinary);
        let before = before.filter(|_| scheduling::set_attributes(SELF, &raised).is_ok());
        Self { before }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // Giving up a priority is always allowed.
            let _ = scheduling::set_attributes(SELF, &before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_comes_back() {
        let before = scheduling::attributes(SELF).unwrap();
        let urgent = Urgent::begin();
        let inside = scheduling::attributes(SELF).unwrap();
        if inside.policy != FIFO {
            println!("unsupported: real-time priority");
        }
        drop(urgent);
        assert_eq!(scheduling::attributes(SELF).unwrap(), before);
    }
}
