//! How many restarts are allowed.
//!
//! Owns: the limit on restarts within a window.
//! Invariants: no window holds more restarts than its limit.
//! Does not: say how long a restart waits; `back_off` does.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::system::Rate;

/// A number of restarts within a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestartLimit {
    /// How many.
    pub count: usize,
    /// Within which time.
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

/// The restarts so far, as far as they count.
#[derive(Debug)]
pub(crate) struct Restarts {
    limit: RestartLimit,
    times: VecDeque<Instant>,
}

impl Restarts {
    /// None so far.
    pub(crate) fn new(limit: RestartLimit) -> Self {
        Self { limit, times: VecDeque::new() }
    }

    /// Asks for one more; `false` when there were too many.
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

    /// Whether the next death would exceed the limit.
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
