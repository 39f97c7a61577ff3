//! The guard of one subject: the host of the state machine of the subject.
//!
//! Owns: nothing itself. `parts` contains the values. `turn` defines the order in which events are reported.
//! Invariants: no function here makes the event loop wait for a disk or a dying process. Signals and commits that have
//! arrived are reported before a death. A child that may be traced is not reaped.
//! Does not: trace a running subject, decide what to do, or know the form of the status file; other modules do.

mod actions;
mod begin;
mod death;
mod joining;
mod members;
mod news;
mod outbox;
mod outlook;
mod parts;
mod requested;
mod rewind;
mod turn;

pub(crate) use self::begin::start;
pub(crate) use self::death::EndedRun;
pub(crate) use self::outbox::{MemberNumber, SubjectReport};
pub(crate) use self::parts::{After, Guard};
