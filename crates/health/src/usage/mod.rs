//! The memory and the descriptors that a process tree uses, and whether the tree makes progress.
//!
//! Owns: the counted resources, and the limits on the cost of counting.
//! Invariants: an inspection of a tree consists of steps of limited cost. A process that ends during the inspection
//! counts as zero.
//! Does not: compare the usage with limits; the caller does.

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

/// Maximum number of processes that one call inspects: about 2 ms, plus the time for walking their page tables.
const PROCESSES_PER_CALL: usize = 32;

/// The resources that a process tree uses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Usage {
    /// Resident memory. A page that several processes share is counted once, or is not counted.
    pub resident: ByteCount,
    /// The process with the most descriptors, and the number of its descriptors. `None` if no process can be read.
    pub descriptors: Option<(Pid, u32)>,
    /// The counters of the work that the processes have done.
    pub progress: Progress,
}

/// An inspection of a process tree in progress.
#[derive(Debug)]
pub struct Inspection {
    /// Processes that are not inspected yet, in reverse order.
    processes: Vec<Pid>,
    memory: Memory,
    usage: Usage,
    due: Option<Instant>,
}

impl Inspection {
    /// Begins an inspection of the tree of this root process.
    ///
    /// # Errors
    ///
    /// ENOENT or ESRCH if the root process does not exist.
    pub fn begin(root: Pid, now: Instant) -> Result<Self> {
        let mut processes = tree::descendants(root)?;
        processes.reverse();
        Ok(Self { processes, memory: Memory::default(), usage: Usage::default(), due: Some(now) })
    }

    /// Returns the time of the next call of [`Inspection::advance`], which is due at once. Returns `None` after the end
    /// of the inspection.
    #[must_use]
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Inspects the next processes. Returns the usage of the tree when all processes are inspected.
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
