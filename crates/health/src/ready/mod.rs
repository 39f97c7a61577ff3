//! Conditions under which a program counts as ready, apart from probes and sd_notify(3).
//!
//! Owns: the conditions and their poll intervals.
//! Invariants: a condition that is met is reported once. None of them has a deadline; the caller sets one.
//! Does not: know whether the program is alive; the end of a pipe may as well be its death.

mod fd;
mod listen;
mod log;
mod met;

pub use fd::FdReady;
pub use listen::{LISTEN_POLL, ListenReady};
pub use log::{LOG_POLL, LogReady, LogTextError};
pub use met::Ready;

#[cfg(test)]
mod tests;
