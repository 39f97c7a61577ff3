//! How soon a restart follows a death, and how many are allowed.
//!
//! Owns: the back-off of a crash loop, the limit on restarts.
//! Invariants: no wait is longer than `BACK_OFF_MAX`; no window holds more restarts than its limit.
//! Does not: wait.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::status::{KILL, SubjectStatus};

/// The shortest wait between a death and the restart, after the first one, which does not wait.
const BACK_OFF_MIN: Duration = Duration::from_millis(50);
/// The longest one.
pub const BACK_OFF_MAX: Duration = Duration::from_secs(10);
/// By how much it grows with each death.
const BACK_OFF_FACTOR: u32 = 4;
/// An incarnation of this length is no part of a crash loop.
const HEALTHY: Duration = Duration::from_secs(10);

/// How long a restart waits. The first one after a healthy incarnation does not wait at all. Then the time grows, so
/// that a program that waits for a port or a file does not use up its restarts in a second.
#[derive(Debug, Default)]
pub(crate) struct BackOff {
    next: Duration,
}

impl BackOff {
    /// The time to wait after an incarnation has ended. SIGKILL comes from outside: an incarnation that it ended after a
    /// checkpoint was healthy.
    pub(crate) fn died(&mut self, lived: Duration, status: SubjectStatus, has_checkpoint: bool) -> Duration {
        let was_healthy = lived >= HEALTHY || (has_checkpoint && status == SubjectStatus::Killed(KILL));
        let wait = if was_healthy { Duration::ZERO } else { self.next };
        self.next = if wait.is_zero() { BACK_OFF_MIN } else { (wait * BACK_OFF_FACTOR).min(BACK_OFF_MAX) };
        wait
    }
}

/// So many restarts within so much time.
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

    /// Whether the next death would be one too many.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.times.len() >= self.limit.count
    }
}

#[cfg(test)]
mod tests {
    use model::Signal;

    use super::*;

    const CRASH: SubjectStatus = SubjectStatus::Killed(Signal(11));

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

    #[test]
    fn restarts_of_a_crash_loop_are_further_and_further_apart() {
        let mut back_off = BackOff::default();
        let short = Duration::from_millis(20);
        let waits: Vec<u128> = (0..7).map(|_| back_off.died(short, CRASH, false).as_millis()).collect();
        assert_eq!(waits, [0, 50, 200, 800, 3_200, 10_000, 10_000]);
        assert_eq!(back_off.died(HEALTHY, CRASH, false), Duration::ZERO);
        assert_eq!(back_off.died(short, CRASH, false), BACK_OFF_MIN);
        let killed = SubjectStatus::Killed(KILL);
        assert_eq!(back_off.died(short, killed, false).as_millis(), 200);
        assert_eq!(back_off.died(short, killed, true), Duration::ZERO);
    }
}
