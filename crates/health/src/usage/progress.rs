//! Detection of progress and of hangs in a process tree.
//!
//! Owns: the counters that indicate progress, and the thresholds below which a change is ignored.
//! Invariants: a started or ended process counts as progress.
//! Does not: count calls of send(2) and recv(2), because the kernel counts only calls of the read(2) and write(2)
//! families. Such calls are visible only through their CPU time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::{Pid, ProcessKey};
use tracee::procfs;

use super::text::amount;

/// CPU time between two inspections that does not count as progress. The resolution of the kernel's counters is one
/// tick.
const CPU_NOISE: Duration = Duration::from_millis(10);
/// Divisor of the time between two inspections. CPU time up to this share does not count as progress. A stop for a
/// checkpoint uses several microseconds of each thread, up to a hundred times a second.
const CPU_NOISE_SHARE: u32 = 200;

/// Counters of the work of all processes of a tree since their start.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    processes: BTreeMap<ProcessKey, Work>,
}

/// The work of all threads of a process, including ended threads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Work {
    cpu: Duration,
    /// Number of read and write system calls.
    calls: u64,
}

impl Progress {
    /// Adds the counters of a process. A process that has ended is ignored.
    pub(super) fn add(&mut self, pid: Pid) {
        let Ok(text) = procfs::read_text(format!("/proc/{pid}/stat")) else { return };
        let (Ok(key), Some(cpu)) = (procfs::key(pid), cpu_time(&text)) else { return };
        // Without the permission to trace the process, only its CPU time is known.
        let io = procfs::read_text(format!("/proc/{pid}/io")).unwrap_or_default();
        let calls = amount(&io, "syscr").unwrap_or(0) + amount(&io, "syscw").unwrap_or(0);
        self.processes.insert(key, Work { cpu, calls });
    }

    /// Reports whether the tree has made progress since the inspection `earlier`, `elapsed` ago.
    #[must_use]
    pub fn is_beyond(&self, earlier: &Self, elapsed: Duration) -> bool {
        let are_same = self.processes.keys().eq(earlier.processes.keys());
        let pairs = || self.processes.values().zip(earlier.processes.values());
        let has_called = pairs().any(|(now, before)| now.calls != before.calls);
        let cpu: Duration = pairs().map(|(now, before)| now.cpu.saturating_sub(before.cpu)).sum();
        !are_same || has_called || cpu > CPU_NOISE + elapsed / CPU_NOISE_SHARE
    }
}

/// Returns the user time plus the system time of all threads.
fn cpu_time(stat: &str) -> Option<Duration> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    // Fields 14 and 15 of proc_pid_stat(5). Field 3 is the first field after the name.
    let mut fields = behind_name.split_ascii_whitespace().skip(14 - 3);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let (user, system) = (ticks()?, ticks()?);
    let a_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_millis((user + system) * 1000 / a_second))
}

/// Detects a hang: the probe fails, and the tree has made no progress since the last inspection.
#[derive(Clone, Debug, Default)]
pub struct Hang {
    last: Option<(Instant, Progress)>,
}

impl Hang {
    /// Records the progress of an inspection and the outcome of the last probe. Returns true for a hang: the probe has
    /// failed at two successive inspections, and the tree has made no progress between the two. Use a new value for a
    /// new incarnation, and after the program was stopped.
    pub fn note(&mut self, now: Instant, has_probe_failed: bool, progress: Progress) -> bool {
        let last = self.last.take().filter(|_| has_probe_failed);
        let hangs = last.is_some_and(|(then, before)| !progress.is_beyond(&before, now - then));
        self.last = has_probe_failed.then_some((now, progress));
        hangs
    }
}
