//! Signs of health of a process tree: seen from outside, or reported by the program.
//!
//! Owns: probes, the sd_notify(3) protocol on both sides, conditions of readiness, the use of resources, the comparison
//! of executable pages with their files.
//! Invariants: each of them is a state machine that never waits and has no thread. An event loop waits for its handles
//! and for its due time, and then calls `advance`. Every wait has a limit. Nothing is left behind: dropping a state
//! machine closes its descriptors, and kills and reaps its child processes.
//! Does not: decide what follows from a sign; `supervise` does. Does not restart anything.
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
