//! Health of a process tree, observed from outside or reported by the program.
//!
//! Owns: probes, both sides of the sd_notify(3) protocol, conditions of readiness, the resource usage, and the
//! comparison of executable pages with their files.
//! Invariants: each of these parts is a state machine that never blocks and has no thread. An event loop waits for the
//! handles and the due time of a state machine, and then calls `advance`. Every wait has a time limit. Dropping a state
//! machine closes its descriptors, and kills and reaps its child processes.
//! Does not: decide about the consequences, or restart programs; `supervise` does.
#![forbid(unsafe_code)]

mod interest;

pub mod integrity;
pub mod notify;
pub mod probe;
pub mod ready;
pub mod usage;

pub use interest::{Handle, Interest};

#[cfg(test)]
mod test_support;
