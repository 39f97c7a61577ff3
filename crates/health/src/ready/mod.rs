//! Conditions under which a program is ready. Probes and sd_notify(3) are in other modules.
//!
//! Owns: the conditions and their poll intervals.
//! Invariants: a met condition is reported once. A condition has no deadline; the caller sets the deadline.
//! Does not: check whether the program is alive. The program may have died when the end of a pipe is reached.

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
