//! Reads the clocks of the kernel, and provides a manual clock for tests.
//!
//! Owns: every reading of a clock in this program.
//! Invariants: a `Clock` and its clones show the same time. The time of a manual clock never decreases.
//! Does not: wait.
//!
//! Code that makes decisions receives a [`Clock`]. A limit on a wait for the kernel is a [`Deadline`]. A duration
//! that is only reported is read from a [`Stopwatch`]. Tests cannot set deadlines and stopwatches, because both
//! types measure real time.
//!
//! Man page: clock_gettime(2)
//! Since: Linux 2.6
//! Probe: none; every kernel has it
//! Fallback: none

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use rustix::time::{ClockId, clock_gettime};

/// Returns the time of CLOCK_MONOTONIC since the start of this clock. Timestamps of the kernel use this clock. The
/// time does not include suspension of the machine.
#[must_use]
pub fn monotonic() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Returns the time of CLOCK_BOOTTIME since the start of this clock. The time includes suspension of the machine.
#[must_use]
pub fn boottime() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Returns the processor time that all threads of this process have used.
#[must_use]
pub fn process_cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Returns the time that the kernel stores as the time of a change of a file. This time advances with the ticks of the
/// kernel, and is up to 10 ms behind the calendar time.
#[must_use]
pub fn of_changes() -> SystemTime {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    SystemTime::UNIX_EPOCH + Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// Returns the id of this boot of the kernel; an empty text without procfs.
#[must_use]
pub fn boot_id() -> String {
    static ID: OnceLock<String> = OnceLock::new();
    let read = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    ID.get_or_init(|| read().trim().to_owned()).clone()
}

/// The source of the time for decisions: the kernel, or a test. Cloning is cheap.
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
    /// Creates a manual clock that shows the present time. Only [`Clock::advance`] changes the time of the clock.
    #[must_use]
    pub fn by_hand() -> Self {
        let began = (Instant::now(), SystemTime::now());
        Self { by_hand: Some(Arc::new(ByHand { began, passed_ns: AtomicU64::new(0) })) }
    }

    /// Moves a manual clock and all its clones forward.
    ///
    /// # Panics
    ///
    /// Panics if the clock is the clock of the kernel.
    pub fn advance(&self, by: Duration) {
        let Some(by_hand) = &self.by_hand else { panic!("the clock of the kernel is not set by hand") };
        by_hand.passed_ns.fetch_add(by.as_nanos() as u64, Ordering::Relaxed);
    }

    /// Returns the present time, for computing differences.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.by_hand.as_ref().map_or_else(Instant::now, |clock| clock.began.0 + clock.passed())
    }

    /// Returns the present calendar time.
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

/// Measures a duration that is only reported. No decision depends on the duration.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Instant);

impl Stopwatch {
    /// Starts a measurement.
    #[must_use]
    pub fn start() -> Self {
        Self(Instant::now())
    }

    /// Creates a stopwatch that was started at the earlier time `began`.
    #[must_use]
    pub fn since(began: Instant) -> Self {
        Self(began)
    }

    /// Returns the time since the start or since the last lap.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.0.elapsed()
    }

    /// Returns the time since the start or since the last lap, and starts the next lap.
    pub fn lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.0, now)
    }
}

/// The time at which a wait for the kernel or for another process must end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Deadline(Instant);

impl Deadline {
    /// Creates a deadline that is `limit` after the present time.
    #[must_use]
    pub fn after(limit: Duration) -> Self {
        Self(Instant::now() + limit)
    }

    /// Returns the remaining time; zero after the deadline.
    #[must_use]
    pub fn left(self) -> Duration {
        self.0.saturating_duration_since(Instant::now())
    }

    /// Reports whether the deadline has passed.
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
