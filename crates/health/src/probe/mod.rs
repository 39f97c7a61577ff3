//! Probes: questions from outside, which need no help from the program.
//!
//! Owns: the questions, and the attempts to get an answer.
//! Does not: repeat an attempt, or decide what follows from a failure.

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
