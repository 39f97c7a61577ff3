//! What an attempt to capture a subject gives: the stopped subject, and what was copied of it.
//!
//! Owns: the value between the attempt and the caller, who decides what becomes of the subject.
//! Does not: act on it.

use std::time::Duration;

use super::super::pipeline::Captured;
use super::super::reserve::Reserve;
use super::counts::Counts;

/// A subject that is stopped and captured.
pub(crate) struct Stood<'a> {
    /// Dropped in this order: the tree goes on first.
    pub(crate) captured: Captured,
    /// What was copied inside the pause.
    pub(crate) reserve: Reserve<'a>,
    /// An earlier pause, in which trackers were attached.
    pub(crate) arming: Duration,
    pub(super) counts: Counts,
}
