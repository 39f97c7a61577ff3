//! The resident memory of a process tree.
//!
//! Owns: the choice of the kernel counter that is used for a process.
//! Invariants: in one call, the kernel walks the page tables of `PSS_PAGES_PER_CALL` resident pages and of one more
//! process.
//! Does not: count swapped pages, or memory of the kernel.
//!
//! The proportional set size (PSS) divides a page by the number of processes that share the page. The sum over a tree
//! therefore counts such a page once. To compute the PSS, the kernel walks the page tables and holds the lock of the
//! address space.
//!
//! For large processes, other counters of the kernel are used. The anonymous memory of each large process is counted.
//! File pages and shared memory are counted only for the large process with the most such pages. The sum is then a
//! lower bound, so memory that is counted twice cannot cause a false report of an exceeded limit.

use model::{ByteCount, PAGE_BYTES, Pid};
use tracee::procfs;

use super::text::amount;

/// Maximum resident size of a process whose PSS is read. The read takes several milliseconds.
const PSS_RESIDENT_MAX: ByteCount = ByteCount(256 << 20);
/// Limit on the resident pages of the processes whose PSS one call reads: as many pages as `PSS_RESIDENT_MAX`.
const PSS_PAGES_PER_CALL: u64 = 1 << 16;
const KIB: u64 = 1024;

/// The sum over a process tree, in bytes.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// PSS of the small processes, and anonymous memory of the large processes.
    own: u64,
    /// File pages and shared memory of the large process with the most such pages.
    shared_max: u64,
    /// Number of pages that the kernel has walked in this call.
    walked: u64,
}

impl Memory {
    pub(super) fn begin_call(&mut self) {
        self.walked = 0;
    }

    /// Reports whether the remaining processes must wait for the next call.
    pub(super) fn is_call_over(&self) -> bool {
        self.walked >= PSS_PAGES_PER_CALL
    }

    /// Adds the memory of a process. A process that has ended has no memory.
    pub(super) fn add(&mut self, pid: Pid) {
        let Ok(text) = procfs::read_text(format!("/proc/{pid}/status")) else { return };
        let bytes = |name| amount(&text, name).unwrap_or(0) * KIB;
        let resident = bytes("VmRSS");
        if resident <= PSS_RESIDENT_MAX.get() {
            self.walked += resident / PAGE_BYTES;
            let rollup = procfs::read_text(format!("/proc/{pid}/smaps_rollup"));
            if let Some(proportional) = rollup.ok().and_then(|text| amount(&text, "Pss")) {
                self.own += proportional * KIB;
                return;
            }
        }
        self.own += bytes("RssAnon");
        self.shared_max = self.shared_max.max(bytes("RssFile") + bytes("RssShmem"));
    }

    pub(super) fn resident(&self) -> ByteCount {
        ByteCount(self.own + self.shared_max)
    }
}
