//! Time: the clocks of the kernel, and a clock that tests set by hand.
//!
//! Owns: every reading of a clock in this program.
//! Invariants: a `Clock` and its clones tell the same time; time set by hand never goes back.
//! Does not: wait.
//!
//! What takes a decision is given a [`Clock`]. A limit on a wait for the kernel is a [`Deadline`], a duration that is
//! only reported is read from a [`Stopwatch`]: neither can be set, since what they measure is real.
//!
//! Man page: clock_gettime(2)
//! Since: Linux 2.6
//! Probe: none; every kernel has it
//! Fallback: none

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// The time on CLOCK_MONOTONIC since it began, as timestamps of the kernel tell it; suspension does not count.
#[must_use]
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Where a decision takes the time from: the kernel, or a test. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Clock {
    by_hand: Option<Arc<ByHand>>,
}

#[derive(Debug)]
struct ByHand {
    began: (Instant, SystemTime),
    passed_ns: AtomicU64,
}

impl Clock {
    /// A clock at the present time that only [`Clock::advance`] moves.
    #[must_use]
    pub fn by_hand() -> Self {
        let began = (Instant::now(), SystemTime::now());
        Self { by_hand: Some(Arc::new(ByHand { began, passed_ns: AtomicU64::new(0) })) }
    }

    /// Moves a clock set by hand, and all clones of it, forward.
    ///
    /// # Panics
    ///
    /// If it is the clock of the kernel.
    pub fn advance(&self, by: Duration) {
        let Some(by_hand) = &self.by_hand else { panic!("the clock of the kernel is not set by hand") };
        by_hand.passed_ns.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Now, for differences.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.by_hand.as_ref().map_or_else(Instant::now, |clock| clock.began.0 + clock.passed())
    }

    /// Now, by the calendar.
    #[must_use]
    pub fn wall(&self) -> SystemTime {
        self.by_hand.as_ref().map_or_else(SystemTime::now, |clock| clock.began.1 + clock.passed())
    }
}

impl ByHand {
    fn passed(&self) -> Duration {
        Duration::from_nanos(self.passed_ns.load(Ordering::Relaxed))
    }
}

/// Measures a duration that is reported and decides nothing.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Begins to measure.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Has begun to measure at a time that was read earlier.
    #[must_use]
    pub fn since(began: Instant) -> Self {
        Self(began)
    }

    /// The time since it was started, or since the last lap.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// The time since it was started, or since the last lap; begins the next one.
    pub fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}

/// The end of the time that a wait for the kernel or another process may take.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// That much time from now.
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    /// What is left of the time; zero once it has passed.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Whether nothing is left.
    #[must_use]
    pub fn has_passed(self) -> bool {
        self.left().is_zero()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_clock_set_by_hand_and_its_clones_move_together_and_by_hand_only() {
        let clock = Clock::by_hand();
        let (clone, now, wall) = (clock.clone(), clock.now(), clock.wall());
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!((clone.now(), clone.wall()), (now, wall));
        clock.advance(HOUR);
        assert_eq!((clone.now(), clone.wall()), (now + HOUR, wall + HOUR));
    }

    #[test]
    fn the_clock_of_the_kernel_goes_on() {
        let clock = Clock::default();
        let (now, before) = (clock.now(), Instant::now());
        assert!(now <= before && before <= clock.now());
    }

    #[test]
    fn a_deadline_passes() {
        assert!(Deadline::after(Duration::ZERO).has_passed());
        let later = Deadline::after(HOUR);
        assert!(!later.has_passed() && later.left() <= HOUR && later.left() > HOUR / 2);
    }

    #[test]
    fn a_lap_begins_where_the_last_one_ended() {
        let (all, mut laps) = (Stopwatch::start(), Stopwatch::start());
        std::thread::sleep(Duration::from_millis(2));
        let first = laps.lap();
        let second = laps.lap();
        assert!(first >= Duration::from_millis(2) && first + second <= all.elapsed());
    }
}
