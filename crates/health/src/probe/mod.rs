//! Probes: health checks from outside, without support by the program.
//!
//! Owns: the kinds of probes, and the attempts to get an outcome.
//! Does not: repeat an attempt, or decide about the consequences of a failure.

mod attempt;
mod dial;
mod http;
mod program;
mod question;

pub use attempt::{Attempt, Failure, Outcome, Step};
pub use http::AnswerError;
pub use question::{HttpTarget, Probe, ProbeError};

#[cfg(test)]
mod tests;
