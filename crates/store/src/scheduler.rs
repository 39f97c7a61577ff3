//! The order of the I/O of all logs of a process, and the measured speed of the store.
//!
//! Owns: which log has urgent writes; how long other I/O gives way; the time that data needs until it is durable.
//! Invariants: I/O gives way only to more urgent I/O of other logs, and at most for the time limit of its urgency, so
//! that no log starves. I/O of a log with urgent writes never gives way. A stopped subject that waits for a buffer makes
//! the writes of its log urgent.
//! Does not: read or write.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use model::ByteCount;
use sys::clock::{Deadline, Stopwatch};

use crate::lock::locked;

/// The maximum time that one write of pre-copied pages gives way. With buffers of 2 MiB, at least 100 MB/s remain.
const PRECOPY_DELAY_MAX: Duration = Duration::from_millis(20);
/// The maximum time that one read or write of background work gives way. With parts of 1 MiB, at least 10 MB/s remain.
const BACKGROUND_DELAY_MAX: Duration = Duration::from_millis(100);
/// The time after which a waiting log checks whether its own writes have become urgent.
const POLL: Duration = Duration::from_millis(1);

/// Measurements are kept for powers of two, from this size on.
const CLASS_MIN: ByteCount = ByteCount(64 << 10);
/// The number of sizes: up to 32 GiB.
const CLASSES: usize = 20;
/// The share of a new measurement in the average of its size.
const NEW_SHARE: f64 = 0.25;
/// The assumed speed before the first measurement: that of a hard disk. The sum of a fixed time and a time for each byte.
const ASSUMED_SYNC: Duration = Duration::from_millis(50);
const ASSUMED_BYTES_PER_SECOND: f64 = 50e6;

/// How urgent the writes of a checkpoint are. When several logs of a process write, the more urgent writes come first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum Urgency {
    /// Nothing waits for the writes: compaction, compression, the removal of files.
    Background,
    /// Pages that are copied while the subject runs.
    #[default]
    Precopy,
    /// The pages of the pause and all that follows them. A caller may wait for the ticket.
    Final,
}

/// The I/O of all logs. Clones refer to the same state.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scheduler(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// The number of `Urgent` values of all logs.
    urgent: usize,
    /// The number of writers at work, and the time since their last change or measurement.
    working: usize,
    since: Option<Stopwatch>,
    /// The time at work since the last measurement, without the time since `since`.
    spent: Duration,
    speeds: [Option<Speed>; CLASSES],
}

/// The average of measurements of one size.
#[derive(Clone, Copy, Debug)]
struct Speed {
    bytes: f64,
    seconds: f64,
}

/// The I/O of one log.
#[derive(Debug)]
pub(crate) struct LogIo {
    scheduler: Scheduler,
    /// The number of `Urgent` values of this log.
    urgent: AtomicUsize,
}

/// Writes of a log are urgent. Other logs give way until the value is dropped.
#[derive(Debug)]
pub struct Urgent(Arc<LogIo>);

/// A writer works. The value measures the time.
#[derive(Debug)]
pub(crate) struct Working(Scheduler);

impl Scheduler {
    /// Returns how many bytes are probably durable after this time, if all logs write as fast as they can.
    pub(crate) fn durable_within(&self, limit: Duration) -> ByteCount {
        let state = locked(&self.0.state);
        let limit = limit.as_secs_f64();
        let fixed = state.speeds.iter().flatten().next().map_or(0.0, |least| least.seconds);
        let known = state.speeds.iter().flatten().map(|speed| {
            if speed.seconds <= limit {
                // More bytes need at most proportionally more time.
                speed.bytes * limit / speed.seconds
            } else if speed.seconds > fixed {
                // The fixed time is needed for fewer bytes, too.
                speed.bytes * ((limit - fixed) / (speed.seconds - fixed)).max(0.0)
            } else {
                0.0
            }
        });
        let assumed = (limit - ASSUMED_SYNC.as_secs_f64()).max(0.0) * ASSUMED_BYTES_PER_SECOND;
        ByteCount(known.reduce(f64::max).unwrap_or(assumed) as u64)
    }

    /// Begins to measure the work of a writer.
    pub(crate) fn work(&self) -> Working {
        let mut state = locked(&self.0.state);
        state.lap();
        state.working += 1;
        Working(self.clone())
    }

    /// Records that these bytes, which were written since the last sync of a log, are durable.
    pub(crate) fn note_durable(&self, bytes: ByteCount) {
        let mut state = locked(&self.0.state);
        state.lap();
        let took = std::mem::take(&mut state.spent);
        state.note(bytes, took);
    }
}

impl State {
    /// Adds the time since the last call to `spent`, if a writer was at work.
    fn lap(&mut self) {
        let since = self.since.replace(Stopwatch::start());
        if self.working > 0 {
            self.spent += since.map_or(Duration::ZERO, |since| since.elapsed());
        }
    }

    fn note(&mut self, bytes: ByteCount, took: Duration) {
        if took.is_zero() || bytes.get() == 0 {
            return;
        }
        let class = (bytes.get() / CLASS_MIN.get()).max(1).ilog2() as usize;
        let new = Speed { bytes: bytes.get() as f64, seconds: took.as_secs_f64() };
        let speed = self.speeds[class.min(CLASSES - 1)].get_or_insert(new);
        speed.bytes += (new.bytes - speed.bytes) * NEW_SHARE;
        speed.seconds += (new.seconds - speed.seconds) * NEW_SHARE;
    }
}

impl LogIo {
    /// Returns the I/O of a log without urgent writes.
    pub(crate) fn new(scheduler: Scheduler) -> Arc<Self> {
        Arc::new(Self { scheduler, urgent: AtomicUsize::new(0) })
    }

    pub(crate) const fn scheduler(&self) -> &Scheduler {
        &self.scheduler
    }

    /// Makes the writes of this log urgent.
    pub(crate) fn urgent(self: &Arc<Self>) -> Urgent {
        self.urgent.fetch_add(1, Ordering::Relaxed);
        locked(&self.scheduler.0.state).urgent += 1;
        Urgent(Arc::clone(self))
    }

    /// Waits while another log has more urgent writes, at most for the time limit of this urgency. Returns as soon as
    /// `is_hurried` returns true, or writes of this log are urgent.
    pub(crate) fn give_way(&self, urgency: Urgency, is_hurried: impl Fn() -> bool) {
        let deadline = Deadline::after(match urgency {
            Urgency::Final => return,
            Urgency::Precopy => PRECOPY_DELAY_MAX,
            Urgency::Background => BACKGROUND_DELAY_MAX,
        });
        let shared = &self.scheduler.0;
        let mut state = locked(&shared.state);
        while state.urgent > 0
            && self.urgent.load(Ordering::Relaxed) == 0
            && !deadline.has_passed()
            && !is_hurried()
        {
            let wait = deadline.left().min(POLL);
            state = shared.changed.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        self.0.urgent.fetch_sub(1, Ordering::Relaxed);
        let mut state = locked(&self.0.scheduler.0.state);
        state.urgent -= 1;
        if state.urgent == 0 {
            self.0.scheduler.0.changed.notify_all();
        }
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        let mut state = locked(&self.0.0.state);
        state.lap();
        state.working -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_logs_give_way_until_the_urgent_writes_end_or_a_limit_has_passed() {
        let scheduler = Scheduler::default();
        let [one, other] = [(); 2].map(|()| LogIo::new(scheduler.clone()));
        let took = |log: &LogIo, urgency, is_hurried| {
            let begun = Stopwatch::start();
            log.give_way(urgency, || is_hurried);
            begun.elapsed()
        };
        assert!(took(&other, Urgency::Background, false) < PRECOPY_DELAY_MAX, "nothing is urgent");
        let urgent = one.urgent();
        assert!(took(&other, Urgency::Precopy, false) >= PRECOPY_DELAY_MAX);
        assert!(took(&other, Urgency::Background, false) >= BACKGROUND_DELAY_MAX);
        assert!(took(&other, Urgency::Background, true) < BACKGROUND_DELAY_MAX, "its subject is stopped");
        assert!(took(&other, Urgency::Final, false) < PRECOPY_DELAY_MAX);
        assert!(took(&one, Urgency::Background, false) < BACKGROUND_DELAY_MAX, "its own writes are urgent");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| took(&other, Urgency::Background, false));
            std::thread::sleep(Duration::from_millis(5));
            drop(urgent);
            assert!(waits.join().unwrap() < BACKGROUND_DELAY_MAX);
        });
    }

    #[test]
    fn the_measured_speed_says_what_becomes_durable_in_time() {
        let scheduler = Scheduler::default();
        let within = |milliseconds| scheduler.durable_within(Duration::from_millis(milliseconds)).get();
        assert_eq!((within(50), within(1_050)), (0, 50_000_000), "assumed");
        let note = |bytes: u64, milliseconds| {
            locked(&scheduler.0.state).note(ByteCount(bytes), Duration::from_millis(milliseconds));
        };
        // A sync takes 10 ms, and a megabyte 1 ms.
        note(100_000, 10);
        assert_eq!(within(800), 8_000_000, "more is unknown");
        note(100_000_000, 110);
        assert!((700_000_000..800_000_000).contains(&within(800)), "{}", within(800));
        assert!((35_000_000..=45_000_000).contains(&within(50)), "{}", within(50));
        assert!(within(10) >= 100_000);
        (0..30).for_each(|_| note(100_000_000, 1_010));
        assert!((70_000_000..90_000_000).contains(&within(800)), "{}: it has become slower", within(800));
    }

    #[test]
    fn only_the_time_of_work_is_measured() {
        let scheduler = Scheduler::default();
        let pause = Duration::from_millis(40);
        std::thread::sleep(pause);
        let working = scheduler.work();
        scheduler.note_durable(ByteCount(1 << 20));
        drop(working);
        std::thread::sleep(pause);
        let working = scheduler.work();
        scheduler.note_durable(ByteCount(1 << 20));
        drop(working);
        let speed = locked(&scheduler.0.state).speeds[4].unwrap();
        assert!(speed.seconds < pause.as_secs_f64() / 2.0, "{speed:?}");
    }
}
