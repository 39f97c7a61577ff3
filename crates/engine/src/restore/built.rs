//! A tree under construction.
//!
//! Owns: the stubs of its processes and threads.
//! Does not: make them.

use std::collections::HashMap;

use model::{AddressRange, Pid};
use tracee::{ProcessMemory, Stub};

/// The signal that a child sends to its parent when it ends, as a rule.
pub(super) const SIGCHLD: u64 = 17;

pub(super) struct Built {
    /// Stubs of each living process, leader first.
    pub(super) processes: HashMap<Pid, BuiltProcess>,
    /// The scratch pages, at the same place in every process.
    pub(super) scratch: AddressRange,
}

pub(super) struct BuiltProcess {
    pub(super) memory: ProcessMemory,
    pub(super) threads: Vec<Stub>,
}
