//! The cost of recording old content, and the minimum time between epochs that results from this cost.
//!
//! Owns: the time that recording has taken in the present epoch, and its share of the elapsed time.
//! Does not: choose the content that is recorded.

use std::time::{Duration, Instant};

use sys::clock::Clock;

use super::rates::Rates;

/// The cost of recording.
#[derive(Debug)]
pub(super) struct Costs {
    clock: Clock,
    pub(super) rates: Rates,
    /// The maximum share of time that recording may take.
    share_max: f64,
    /// Maximum time between two boundaries that the cost limit can demand. A restart can lose the work of this time.
    apart_max: Duration,
    /// When the present epoch began.
    began: Instant,
    /// Time that recording has taken in the present epoch.
    kept: Duration,
    /// Whether the next boundary is exact at any cost.
    is_demanded: bool,
}

impl Costs {
    pub(super) fn new(clock: Clock, share_max: f64, apart_max: Duration) -> Self {
        let began = clock.now();
        Self {
            clock,
            rates: Rates::default(),
            share_max,
            apart_max,
            began,
            kept: Duration::ZERO,
            is_demanded: false,
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn begin_epoch(&mut self) {
        (self.began, self.kept) = (self.clock.now(), Duration::ZERO);
    }

    /// Makes the next boundary exact at any cost.
    pub(super) fn demand(&mut self) {
        self.is_demanded = true;
    }

    /// Returns whether the present boundary is exact at any cost.
    pub(super) fn take_demand(&mut self) -> bool {
        std::mem::take(&mut self.is_demanded)
    }

    /// Adds time that recording has taken.
    pub(super) fn note_kept(&mut self, took: Duration) {
        self.kept += took;
    }

    /// Returns the share of time in the present epoch that recording took.
    pub(super) fn share(&self) -> f64 {
        self.kept.as_secs_f64() / self.passed().as_secs_f64().max(1e-3)
    }

    /// Returns the minimum time between boundaries with which recording takes no more than its maximum share of time.
    pub(super) fn apart(&self) -> Duration {
        // The estimate for the next epoch is the cost in this epoch so far.
        let apart = self.kept.as_secs_f64() / self.share_max.max(f64::MIN_POSITIVE);
        Duration::try_from_secs_f64(apart).unwrap_or(Duration::MAX).min(self.apart_max)
    }

    /// Reports whether a new epoch would begin too early, given the cost of recording in the present epoch.
    pub(super) fn are_too_high(&self) -> bool {
        self.passed() < self.apart()
    }

    fn passed(&self) -> Duration {
        self.clock.now() - self.began
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_lasts_until_keeping_has_taken_no_more_than_its_share() {
        let clock = Clock::by_hand();
        let mut costs = Costs::new(clock.clone(), 0.1, Duration::from_secs(30));
        assert!(!costs.are_too_high(), "nothing was kept");
        costs.note_kept(Duration::from_secs(1));
        clock.advance(Duration::from_millis(9_999));
        assert!(costs.are_too_high());
        clock.advance(Duration::from_millis(1));
        assert!(!costs.are_too_high());
        assert!((costs.share() - 0.1).abs() < 1e-9);
        costs.note_kept(Duration::from_secs(100));
        assert_eq!(costs.apart(), Duration::from_secs(30), "a restart would lose more");
        costs.begin_epoch();
        assert_eq!((costs.apart(), costs.share()), (Duration::ZERO, 0.0));
    }
}
