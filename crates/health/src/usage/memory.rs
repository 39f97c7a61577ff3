//! Resident memory of a process tree.
//!
//! Owns: which of the kernel's counts is taken for a process.
//! Invariants: the kernel walks the page tables of `PSS_PAGES_PER_CALL` resident pages a call, and those of one more process.
//! Does not: count swapped-out pages, or memory of the kernel.
//!
//! The proportional set size (PSS) counts a page that n processes share with an n-th of its size in each of them, so
//! that the sum over a tree counts it once. For it the kernel walks the page tables, with the lock of the address space
//! held. For a large process the kernel's running counts are
//! taken instead: its anonymous memory, and file pages and shared memory of that large process alone which has most of
//! them. The sum is then a lower bound, so that no limit is exceeded by memory that was counted twice.

use model::{ByteCount, PAGE_BYTES, Pid};
use tracee::procfs;

use super::text::amount;

/// The largest process whose PSS is read: some milliseconds.
const PSS_RESIDENT_MAX: ByteCount = ByteCount(256 << 20);
/// Resident pages of the processes whose PSS one call reads: as many as the largest has.
const PSS_PAGES_PER_CALL: u64 = 1 << 16;
const KIB: u64 = 1024;

/// The sum over a tree.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// PSS of the other processes, and anonymous memory of large ones.
    own: u64,
    /// File pages and shared memory of the large process that has most of them.
    shared_max: u64,
    /// Pages that were walked in this call.
    walked: u64,
}

impl Memory {
    pub(super) fn begin_call(&mut self) {
        self.walked = 0;
    }

    /// Whether the next process is left for another call.
    pub(super) fn is_call_over(&self) -> bool {
        self.walked >= PSS_PAGES_PER_CALL
    }

    /// Adds a process; a process that has ended has no memory.
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
