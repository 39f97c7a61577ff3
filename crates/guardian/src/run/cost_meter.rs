//! Measures what checkpoints cost subjects (protected process trees) besides the time in which they are stopped.
//!
//! After a checkpoint, the first write to each copied page causes a page fault. And the work of this process can take
//! processor time that subjects would have used: their threads wait meanwhile.
//!
//! Owns: the processor time of this process, and the idle time of the machine, since the last measurement.
//! Invariants: the processor time of this process is charged once, to the subject whose checkpoint ends first.
//! Does not: limit costs; `supervise` does.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use model::PageCount;

use super::waits;

/// What a page fault after write protection costs (docs/design/0055).
const FAULT: Duration = Duration::from_nanos(1900);
/// What it costs more if another thread of the program runs: the kernel must tell the other processor, and the threads wait
/// for each other's page tables.
const FAULT_OF_TWO: Duration = Duration::from_nanos(900);

/// The processor times of this process and of the machine.
#[derive(Debug)]
pub(crate) struct CostMeter {
    processors: u32,
    last: Mutex<Times>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// The present time on CLOCK_MONOTONIC.
    at: Duration,
    /// Processor time that this process has used.
    used: Duration,
    /// Idle time of all processors together.
    idle: Duration,
}

impl CostMeter {
    pub(crate) fn new() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
        Self { processors, last: Mutex::new(Times::now()) }
    }

    /// Returns the time that a subject has lost by a checkpoint with this number of copied pages, besides the stops.
    /// `threads` are the times of its threads since the last measurement, if known.
    pub(crate) fn charge(&self, copied: PageCount, threads: Option<waits::Times>) -> Duration {
        let copied = u32::try_from(copied.get()).unwrap_or(u32::MAX);
        let running = threads.map_or(1.0, |threads| self.running(threads));
        let faults = (FAULT + FAULT_OF_TWO.mul_f64((2.0 * (running - 1.0)).min(1.0))).saturating_mul(copied);
        if threads.is_some_and(|threads| threads.is_estimate) {
            // The next measurement counts the waits of this checkpoint, too.
            return faults.div_f64(running);
        }
        let now = Times::now();
        let last = std::mem::replace(&mut *self.last.lock().unwrap_or_else(PoisonError::into_inner), now);
        let Some(threads) = threads else { return faults + taken_by(last, now) / self.processors };
        let waited = threads.waited.min(now.used.saturating_sub(last.used)).mul_f64(self.busy(last, now));
        (faults + waited).div_f64(running)
    }

    /// Returns the share of the processors that were busy. While processors are idle, threads wait for each other and not
    /// for this process: many of them wake up at the same time.
    fn busy(&self, last: Times, now: Times) -> f64 {
        let all = now.at.saturating_sub(last.at).as_secs_f64() * f64::from(self.processors);
        let idle = now.idle.saturating_sub(last.idle).as_secs_f64();
        if all > 0.0 { (1.0 - idle / all).clamp(0.0, 1.0) } else { 1.0 }
    }

    /// Returns how many threads of a subject run at the same time, on average.
    fn running(&self, threads: waits::Times) -> f64 {
        let running = threads.ran.as_secs_f64() / threads.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        running.clamp(1.0, f64::from(self.processors.max(1)))
    }
}

/// Returns how much of the processor time of this process other programs could have used: the part beyond the time in
/// which processors were idle.
fn taken_by(last: Times, now: Times) -> Duration {
    now.used.saturating_sub(last.used).saturating_sub(now.idle.saturating_sub(last.idle))
}

impl Times {
    fn now() -> Self {
        Self {
            at: sys::clock::monotonic(),
            used: sys::clock::process_cpu_time(),
            idle: idle().unwrap_or(Duration::MAX),
        }
    }
}

/// Returns the idle time of all processors together, since the start of the machine. `None` if it is unknown.
fn idle() -> Option<Duration> {
    idle_of(&std::fs::read_to_string("/proc/uptime").ok()?)
}

fn idle_of(uptime: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(uptime.split_whitespace().nth(1)?.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_idle_time_is_the_second_number() {
        assert_eq!(idle_of("350735.47 234388.90\n"), Some(Duration::from_millis(234_388_900)));
        assert_eq!((idle_of("350735.47"), idle_of("1 x")), (None, None));
        assert!(idle().is_some_and(|idle| idle > Duration::ZERO));
    }

    #[test]
    fn processor_time_counts_only_if_no_processor_was_idle() {
        let times = |used, idle| Times {
            used: Duration::from_secs(used),
            idle: Duration::from_secs(idle),
            ..Times::default()
        };
        assert_eq!(taken_by(times(5, 100), times(8, 100)), Duration::from_secs(3));
        assert_eq!(taken_by(times(5, 100), times(8, 102)), Duration::from_secs(1));
        assert_eq!(taken_by(times(5, 100), times(8, 120)), Duration::ZERO);
        let unknown = Times { idle: Duration::MAX, ..Times::default() };
        assert_eq!(taken_by(unknown, times(8, 100)), Duration::from_secs(8));
    }

    #[test]
    fn faults_count_for_each_copied_page() {
        let meter = CostMeter::new();
        assert!(meter.charge(PageCount(1_000_000), None) >= Duration::from_millis(1900));
    }

    #[test]
    fn faults_of_several_threads_cost_more_and_overlap() {
        let meter = CostMeter { processors: 4, ..CostMeter::new() };
        let cost = |running: f64| {
            let elapsed = Duration::from_secs(1);
            let threads = waits::Times {
                ran: elapsed.mul_f64(running),
                elapsed,
                is_estimate: true,
                ..waits::Times::default()
            };
            meter.charge(PageCount(1_000_000), Some(threads)).as_millis()
        };
        assert_eq!([0.5, 1.0, 1.5, 2.0, 4.0].map(cost), [1900, 1900, 1866, 1400, 700]);
    }

    #[test]
    fn waits_count_up_to_the_processor_time_of_this_process() {
        let meter = CostMeter { processors: 4, ..CostMeter::new() };
        let waited = |waited| Some(waits::Times { waited, ..waits::Times::default() });
        assert_eq!(meter.charge(PageCount(0), waited(Duration::ZERO)), Duration::ZERO);
        let begun = sys::clock::process_cpu_time();
        while sys::clock::process_cpu_time() < begun + Duration::from_millis(20) {}
        let charged = meter.charge(PageCount(0), waited(Duration::from_secs(1000)));
        // The machine has fewer processors, and some of them can be idle.
        assert!((Duration::from_millis(5)..Duration::from_secs(500)).contains(&charged), "{charged:?}");
        let at = |at, idle| Times {
            at: Duration::from_secs(at),
            idle: Duration::from_secs(idle),
            ..Times::default()
        };
        let busy = [(at(1, 5), at(2, 5)), (at(1, 5), at(2, 6)), (at(1, 5), at(2, 10)), (at(1, 5), at(1, 5))]
            .map(|(last, now)| meter.busy(last, now));
        assert!(
            busy.iter().zip([1.0, 0.75, 0.0, 1.0]).all(|(is, wanted)| (is - wanted).abs() < 1e-9),
            "{busy:?}"
        );
        let elapsed = Duration::from_secs(1);
        let running = [elapsed / 2, 3 * elapsed, 9 * elapsed]
            .map(|ran| meter.running(waits::Times { ran, elapsed, ..waits::Times::default() }) as u32);
        assert_eq!(running, [1, 3, 4]);
    }
}
