//! What a process has once, however many subjects it hosts.
//!
//! Owns: the values that workers and guards share.
//! Does not: change; the reaper has a lock of its own.

use sys::clock::Clock;

use super::leftovers::ProcessReaper;
use crate::streams::Streams;

/// Shared by the loop, its guards and its workers.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Whose a process is.
    pub(crate) reaper: ProcessReaper,
    /// What this program was started with.
    pub(crate) streams: Streams,
    /// Decides what is due.
    pub(crate) clock: Clock,
    /// Signals that were blocked before this program took them, as a set of bits.
    pub(crate) blocked_before: u64,
    /// Signals that programs started from here meet with their default actions, as a set of bits.
    pub(crate) defaults: u64,
}
