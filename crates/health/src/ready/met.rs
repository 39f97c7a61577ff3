//! The report of a condition.
//!
//! Owns: the value for it.

/// That the condition is met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ready;
