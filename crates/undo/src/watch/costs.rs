//! What keeping costs, and how far apart epochs are for it.
//!
//! Owns: the time that keeping has taken in the present epoch, of the time that has passed in it.
//! Does not: choose what is kept.

use std::time::{Duration, Instant};

use sys::clock::Clock;

use super::rates::Rates;

/// The longest time between two boundaries that the cost of keeping asks for: a restart loses as much.
const APART_MAX: Duration = Duration::from_secs(30);

/// What keeping costs.
#[derive(Debug)]
pub(super) struct Costs {
    clock: Clock,
    pub(super) rates: Rates,
    /// Part of the time that keeping may take.
    share_max: f64,
    /// When the epoch began.
    began: Instant,
    /// Time that keeping has taken since.
    kept: Duration,
}

impl Costs {
    pub(super) fn new(clock: Clock, share_max: f64) -> Self {
        let began = clock.now();
        Self { clock, rates: Rates::default(), share_max, began, kept: Duration::ZERO }
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn begin_epoch(&mut self) {
        (self.began, self.kept) = (self.clock.now(), Duration::ZERO);
    }

    /// Keeping has taken that much time.
    pub(super) fn note_kept(&mut self, took: Duration) {
        self.kept += took;
    }

    /// Part of the time of the epoch that keeping took.
    pub(super) fn share(&self) -> f64 {
        self.kept.as_secs_f64() / self.passed().as_secs_f64().max(1e-3)
    }

    /// How far apart boundaries are, so that keeping takes no larger part of the time than allowed.
    pub(super) fn apart(&self) -> Duration {
        // What keeping has cost so far in this epoch, it costs again in the next.
        self.kept.div_f64(self.share_max.max(f64::MIN_POSITIVE)).min(APART_MAX)
    }

    /// Whether another epoch would begin too early for what keeping has cost in this one.
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
        let mut costs = Costs::new(clock.clone(), 0.1);
        assert!(!costs.are_too_high(), "nothing was kept");
        costs.note_kept(Duration::from_secs(1));
        clock.advance(Duration::from_millis(9_999));
        assert!(costs.are_too_high());
        clock.advance(Duration::from_millis(1));
        assert!(!costs.are_too_high());
        assert!((costs.share() - 0.1).abs() < 1e-9);
        costs.note_kept(Duration::from_secs(100));
        assert_eq!(costs.apart(), APART_MAX);
        costs.begin_epoch();
        assert_eq!((costs.apart(), costs.share()), (Duration::ZERO, 0.0));
    }
}
