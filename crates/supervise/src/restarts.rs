//! The limit on restarts of a subject.
//!
//! Owns: the count of restarts within a sliding window.
//! Invariants: no window contains more restarts than the limit.
//! Does not: decide how long a restart waits; `back_off` decides about the wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::system::Rate;

/// The maximum number of restarts within a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestartLimit {
    /// The number of restarts.
    pub count: usize,
    /// The length of the window.
    pub window: Duration,
}

impl Default for RestartLimit {
    fn default() -> Self {
        Self { count: 5, window: Duration::from_secs(60) }
    }
}

impl From<Rate> for RestartLimit {
    fn from(Rate(count, window): Rate) -> Self {
        Self { count: count.get() as usize, window }
    }
}

/// The times of earlier restarts that still count.
#[derive(Debug)]
pub(crate) struct Restarts {
    limit: RestartLimit,
    times: VecDeque<Instant>,
}

impl Restarts {
    /// Returns a count without restarts.
    pub(crate) fn new(limit: RestartLimit) -> Self {
        Self { limit, times: VecDeque::new() }
    }

    /// Requests one more restart. Returns `false`, and records nothing, if the limit is reached.
    pub(crate) fn admit(&mut self, now: Instant) -> bool {
        while self.times.front().is_some_and(|time| now.duration_since(*time) > self.limit.window) {
            self.times.pop_front();
        }
        if self.times.len() >= self.limit.count {
            return false;
        }
        self.times.push_back(now);
        true
    }

    /// Reports whether a restart after the next death would exceed the limit.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.times.len() >= self.limit.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_counts_within_its_window_only() {
        let limit = RestartLimit { count: 2, window: Duration::from_secs(60) };
        let mut restarts = Restarts::new(limit);
        let start = Instant::now();
        assert!(restarts.admit(start));
        assert!(!restarts.is_exhausted());
        assert!(restarts.admit(start + Duration::from_secs(10)));
        assert!(restarts.is_exhausted());
        assert!(!restarts.admit(start + Duration::from_secs(20)));
        assert!(restarts.admit(start + Duration::from_secs(65)));
    }
}
