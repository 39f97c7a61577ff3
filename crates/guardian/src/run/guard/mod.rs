//! The guard of one subject: the host of its state machine.
//!
//! Owns: nothing itself; `parts` has the values, `turn` the order in which events are reported.
//! Invariants: the loop of the host waits for no disk and no dying process in here. Signals and commits that have
//! arrived are reported before a death. No child is reaped that may be traced.
//! Does not: trace a running subject, decide, or know the form of the status file; their modules do.

mod actions;
mod begin;
mod death;
mod news;
mod parts;
mod rewind;
mod turn;

pub(crate) use self::begin::start;
pub(crate) use self::death::Left;
pub(crate) use self::parts::{After, Guard};
