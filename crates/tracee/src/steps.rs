//! Reports steps to tests. A step is a moment between two kernel calls at which this program can die.
//!
//! Owns: the observer that a test sets.
//! Invariants: without an observer, a step costs one atomic load.
//! Does not: change the behaviour of the program.

use std::sync::OnceLock;

static OBSERVER: OnceLock<fn(&'static str)> = OnceLock::new();

/// Sets the observer, which receives the name of every later step. Only the first call has an effect.
pub fn observe(observer: fn(&'static str)) {
    // A second observer is a mistake in the test.
    let _ = OBSERVER.set(observer);
}

pub(crate) fn reach(step: &'static str) {
    if let Some(observer) = OBSERVER.get() {
        observer(step);
    }
}
