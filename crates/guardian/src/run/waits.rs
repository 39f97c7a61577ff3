//! Measures how long the threads of a subject waited for a processor.
//!
//! `/proc/PID/task/TID/schedstat` contains the time that a thread has run, and the time that it was ready to run and
//! waited. A stopped thread is not ready to run.
//!
//! Owns: the times of each thread at the last measurement.
//! Invariants: one measurement reads at most `THREADS_MAX` files. Measurements take at most one of `READ_SHARE` parts
//! of the time.
//! Does not: tell for whom a thread waited.
//!
//! Man page: proc_pid_schedstat(5)
//! Since: Linux 2.6.9, with CONFIG_SCHED_INFO
//! Fallback: without these files, nothing is known

use std::collections::HashMap;
use std::time::Duration;

use model::{Pid, Tid};
use sys::clock::Stopwatch;
use tracee::procfs;

/// The maximum number of threads of a measurement. Reading the times of this many threads takes about 2 ms.
const THREADS_MAX: usize = 256;

/// A measurement takes at most one of this many parts of the time since the last one.
const READ_SHARE: u32 = 50;

/// Times of all threads of a subject since the last measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Times {
    /// The time that the threads have run.
    pub(crate) ran: Duration,
    /// The time that the threads were ready to run and waited for a processor.
    pub(crate) waited: Duration,
    pub(crate) elapsed: Duration,
    /// The last measurement was too recent for another one. The values are those of the last measurement, without
    /// `waited`.
    pub(crate) is_estimate: bool,
}

/// What the kernel has counted for one thread since its begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Counts {
    ran: Duration,
    waited: Duration,
}

/// The times of the threads of one subject.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    threads: HashMap<Tid, Counts>,
    /// The time since the last measurement. `None`: there is no measurement to compare with.
    since: Option<Stopwatch>,
    /// How long the last measurement took.
    took: Duration,
    last: Option<Times>,
}

impl Waits {
    /// Returns the times since the last measurement. `None`: unknown, because the kernel has no such files, this is the
    /// first measurement, or the processes have more than `THREADS_MAX` threads.
    pub(crate) fn measure(&mut self, processes: impl IntoIterator<Item = Pid>) -> Option<Times> {
        if let (Some(since), Some(last)) = (&self.since, self.last)
            && since.elapsed() < READ_SHARE * self.took
        {
            return Some(Times { waited: Duration::ZERO, is_estimate: true, ..last });
        }
        let reading = Stopwatch::start();
        let mut threads = HashMap::new();
        for pid in processes {
            // A process or a thread that has ended meanwhile is left out.
            for tid in procfs::threads(pid).unwrap_or_default() {
                if threads.len() == THREADS_MAX {
                    (self.since, self.last) = (None, None);
                    return None;
                }
                if let Ok(text) = std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")) {
                    threads.insert(tid, counts_of(&text)?);
                }
            }
        }
        let before = std::mem::replace(&mut self.threads, threads);
        self.took = reading.elapsed();
        let elapsed = self.since.replace(Stopwatch::start())?.elapsed();
        let Counts { ran, waited } = counted_since(&before, &self.threads);
        self.last = Some(Times { ran, waited, elapsed, is_estimate: false });
        self.last
    }
}

/// Returns what was counted for all threads since `before`. A thread that is not in `before` has begun since.
fn counted_since(before: &HashMap<Tid, Counts>, now: &HashMap<Tid, Counts>) -> Counts {
    now.iter().fold(Counts::default(), |sum, (tid, now)| {
        let before = before.get(tid).filter(|before| before.ran <= now.ran).copied().unwrap_or_default();
        Counts {
            ran: sum.ran + now.ran.saturating_sub(before.ran),
            waited: sum.waited + now.waited.saturating_sub(before.waited),
        }
    })
}

fn counts_of(schedstat: &str) -> Option<Counts> {
    let mut numbers = schedstat.split_whitespace().map(|word| word.parse().ok().map(Duration::from_nanos));
    Some(Counts { ran: numbers.next()??, waited: numbers.next()?? })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn only_times_since_the_last_measurement_count() {
        let of = |ran, waited| Counts { ran: Duration::from_secs(ran), waited: Duration::from_secs(waited) };
        let before = HashMap::from([(Tid(1), of(5, 1)), (Tid(2), of(9, 9)), (Tid(3), of(50, 50))]);
        // Thread 2 has ended, 4 has begun, and another thread has got the number 3.
        let now = HashMap::from([(Tid(1), of(8, 2)), (Tid(3), of(1, 1)), (Tid(4), of(2, 3))]);
        assert_eq!(counted_since(&before, &now), of(3 + 1 + 2, 1 + 1 + 3));
        assert_eq!(counts_of("2000000000 1000000000 7\n"), Some(of(2, 1)));
        assert_eq!((counts_of("1"), counts_of("x y 1")), (None, None));
    }

    #[test]
    fn threads_that_share_a_processor_wait_for_each_other() {
        let own = Pid(std::process::id() as i32);
        if !std::path::Path::new("/proc/self/schedstat").exists() {
            println!("unsupported: schedstat");
            return;
        }
        let is_over = AtomicBool::new(false);
        let first = rustix::thread::sched_getaffinity(None).unwrap();
        let processor = (0..1024).find(|number| first.is_set(*number)).unwrap();
        let busy = || {
            let mut only = rustix::thread::CpuSet::new();
            only.set(processor);
            rustix::thread::sched_setaffinity(None, &only).unwrap();
            while !is_over.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        };
        let mut waits = Waits::default();
        assert_eq!(waits.measure([own]), None);
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2).map(|_| scope.spawn(busy)).collect();
            std::thread::sleep(Duration::from_millis(200));
            let times = waits.measure([own]).unwrap();
            is_over.store(true, Ordering::Relaxed);
            assert!(times.ran > Duration::from_millis(20), "{times:?}");
            // Other threads of this process may run meanwhile, on other processors.
            assert!(times.waited > times.elapsed / 4, "{times:?}");
            assert!(times.elapsed >= Duration::from_millis(200), "{times:?}");
            assert_eq!(threads.len(), 2);
            waits.took = Duration::from_secs(3600);
            let estimate = waits.measure([own]).unwrap();
            assert_eq!(estimate, Times { waited: Duration::ZERO, is_estimate: true, ..times });
            waits.took = Duration::ZERO;
            assert!(!waits.measure([own]).unwrap().is_estimate);
        });
    }
}
