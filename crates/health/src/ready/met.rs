//! The report of a readiness condition.
//!
//! Owns: the type of the report.

/// The report that the condition is met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready;
