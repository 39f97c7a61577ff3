//! What a replicated run reports.
//!
//! Owns: the plain values for JSON.
//! Does not: decide anything.

use std::time::Duration;

/// What differed between two replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The replicas stopped for different reasons: another call, a signal, an end.
    Stop,
    /// A general register.
    Register,
    /// An extended register (x87, SSE, AVX).
    ExtendedRegister,
    /// Memory that a call passes to the kernel.
    Input,
    /// Memory that a call has passed to the kernel. It changed after the comparison, so wrong output may have left.
    Escaped,
    /// The result of a call that all replicas execute.
    Result,
    /// A replica needs much more processor time than the others.
    Late,
}

/// A difference between two replicas.
#[derive(Clone, PartialEq, Eq, Debug, serde::Serialize)]
pub struct Detection {
    /// The number of calls before the difference.
    pub at_check: u64,
    /// What differed.
    pub kind: Kind,
    /// The first difference, for people.
    pub first_difference: String,
    /// The time since the meeting before in microseconds. The fault is at most this old.
    pub latency_us: u64,
    /// What was done.
    pub action: &'static str,
}

/// Counts of a replicated run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Statistics {
    /// System calls of the program.
    pub calls: u64,
    /// Meetings, including those without a call.
    pub checks: u64,
    /// Signals that were delivered to all replicas.
    pub signals: u64,
    /// Signals that were sent to a follower, and dropped.
    pub dropped_signals: u64,
    /// The longest time between two meetings.
    pub gap_max: Duration,
}
