//! A history of bounded length.
//!
//! Owns: nothing.
//! Invariants: a history never has more values than its limit. The oldest value is dropped first.
//! Does not: know what the values mean.

use std::collections::VecDeque;

/// Adds a value. If the history has `limit` values, drops the oldest one.
pub(super) fn push<T>(ring: &mut VecDeque<T>, value: T, limit: usize) {
    if ring.len() == limit {
        ring.pop_front();
    }
    ring.push_back(value);
}
