//! What a process tree uses of memory and descriptors, and whether it makes progress.
//!
//! Owns: the counted resources, and the cost of counting.
//! Invariants: an inspection of a tree is made in steps of bounded cost. A process that ends meanwhile counts with nothing.
//! Does not: compare with limits; the caller has them.

mod descriptors;
mod memory;
mod progress;
mod text;

use std::time::Instant;

use model::{ByteCount, Pid};
use sys::Result;
use tracee::tree;

pub use descriptors::open_descriptors;
pub use progress::{Hang, Progress};

use memory::Memory;

/// Processes that one call inspects, at most: about 2 ms, and what their page tables take.
const PROCESSES_PER_CALL: usize = 32;

/// What a process tree uses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Resident memory. A page that several processes share counts once, or not at all.
    pub resident: ByteCount,
    /// The process with most descriptors, and how many it has; `None` if none can be read.
    pub descriptors: Option<(Pid, u32)>,
    /// What the processes have done so far.
    pub progress: Progress,
}

/// An inspection of a tree that is going on.
#[derive(Debug)]
pub struct Inspection {
    /// Processes to be inspected, the next one last.
    processes: Vec<Pid>,
    memory: Memory,
    usage: Usage,
    due: Option<Instant>,
}

impl Inspection {
    /// Begins an inspection of the tree of this root.
    ///
    /// # Errors
    ///
    /// ENOENT or ESRCH if there is no such process.
    pub fn begin(root: Pid, now: Instant) -> Result<Self> {
        let mut processes = tree::descendants(root)?;
        processes.reverse();
        Ok(Self { processes, memory: Memory::default(), usage: Usage::default(), due: Some(now) })
    }

    /// When it is to be advanced: at once, until it is over.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Inspects the next processes; what the tree uses, once all are inspected.
    pub fn advance(&mut self, now: Instant) -> Option<Usage> {
        self.due?;
        self.memory.begin_call();
        for _ in 0..PROCESSES_PER_CALL {
            if self.memory.is_call_over() {
                break;
            }
            let Some(pid) = self.processes.pop() else { break };
            self.memory.add(pid);
            self.usage.progress.add(pid);
            if let Ok(count) = open_descriptors(pid)
                && self.usage.descriptors.is_none_or(|(_, most)| count > most)
            {
                self.usage.descriptors = Some((pid, count));
            }
        }
        if !self.processes.is_empty() {
            self.due = Some(now);
            return None;
        }
        self.due = None;
        self.usage.resident = self.memory.resident();
        Some(std::mem::take(&mut self.usage))
    }
}

#[cfg(test)]
mod tests;
