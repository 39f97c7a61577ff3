//! The moments between two kernel calls at which this program might die, reported to tests.
//!
//! Owns: the observer that a test sets.
//! Invariants: without an observer, a step costs one atomic load.
//! Does not: change anything.

use std::sync::OnceLock;

static OBSERVER: OnceLock<fn(&'static str)> = OnceLock::new();

/// Calls `observer` with the name of every step from now on; the first observer stays.
pub fn observe(observer: fn(&'static str)) {
    // A second observer would be a mistake of the test alone.
    let _ = OBSERVER.set(observer);
}

pub(crate) fn reach(step: &'static str) {
    if let Some(observer) = OBSERVER.get() {
        observer(step);
    }
}
