//! The processes of a tree under construction.
//!
//! Owns: the stubs of the processes and threads.
//! Does not: create stubs; `tree` does.

use std::collections::HashMap;

use model::{AddressRange, Pid};
use tracee::{ProcessMemory, Stub};

/// SIGCHLD: by default, the signal that a parent receives when its child ends.
pub(super) const SIGCHLD: u64 = 17;

pub(super) struct Built {
    /// The living processes by pid, each with the stubs of its threads, leader first.
    pub(super) processes: HashMap<Pid, BuiltProcess>,
    /// The scratch pages, at the same address in every process. System calls of the stubs use these pages for code
    /// and arguments.
    pub(super) scratch: AddressRange,
}

pub(super) struct BuiltProcess {
    pub(super) memory: ProcessMemory,
    pub(super) threads: Vec<Stub>,
}
