//! Whether a process tree does anything.
//!
//! Owns: the counts that stand for progress, and what counts as none.
//! Invariants: a process that was started or has ended is progress.
//! Does not: see reads and writes of sockets by send(2) and recv(2), other than by their CPU time: the kernel counts
//! calls of the read(2) and write(2) families alone.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use model::{Pid, ProcessKey};
use tracee::procfs;

use super::text::amount;

/// CPU time between two inspections that is none: the counts of the kernel have a resolution of one tick.
const CPU_NOISE: Duration = Duration::from_millis(10);
/// The part of the time between two inspections that is none, as a divisor: a stop for a checkpoint takes some microseconds
/// of each thread, up to a hundred times a second.
const CPU_NOISE_SHARE: u32 = 200;

/// What the processes of a tree have done since they were started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Progress {
    processes: BTreeMap<ProcessKey, Work>,
}

/// What all threads of a process have done, ended ones included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Work {
    cpu: Duration,
    /// System calls that read and write.
    calls: u64,
}

impl Progress {
    /// Adds a process; a process that has ended counts for nothing.
    pub(super) fn add(&mut self, pid: Pid) {
        let Ok(text) = procfs::read_text(format!("/proc/{pid}/stat")) else { return };
        let (Ok(key), Some(cpu)) = (procfs::key(pid), cpu_time(&text)) else { return };
        // Without the right to trace the process, its CPU time alone counts.
        let io = procfs::read_text(format!("/proc/{pid}/io")).unwrap_or_default();
        let calls = amount(&io, "syscr").unwrap_or(0) + amount(&io, "syscw").unwrap_or(0);
        self.processes.insert(key, Work { cpu, calls });
    }

    /// Whether the tree has done something between an earlier inspection and this one.
    #[must_use]
    pub fn is_beyond(&self, earlier: &Self, elapsed: Duration) -> bool {
        let are_same = self.processes.keys().eq(earlier.processes.keys());
        let pairs = || self.processes.values().zip(earlier.processes.values());
        let has_called = pairs().any(|(now, before)| now.calls != before.calls);
        let cpu: Duration = pairs().map(|(now, before)| now.cpu.saturating_sub(before.cpu)).sum();
        !are_same || has_called || cpu > CPU_NOISE + elapsed / CPU_NOISE_SHARE
    }
}

/// User and system time of all threads.
fn cpu_time(stat: &str) -> Option<Duration> {
    let (_, behind_name) = stat.rsplit_once(')')?;
    // Fields 14 and 15 of proc_pid_stat(5); field 3 is the first behind the name.
    let mut fields = behind_name.split_ascii_whitespace().skip(14 - 3);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let (user, system) = (ticks()?, ticks()?);
    let a_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_millis((user + system) * 1000 / a_second))
}

/// Finds a hang: a probe fails, and the tree has done nothing since the last inspection.
#[derive(Clone, Debug, Default)]
pub struct Hang {
    last: Option<(Instant, Progress)>,
}

impl Hang {
    /// Takes the progress of an inspection and the outcome of the last probe. True for a hang: the probe has failed at two
    /// inspections in a row, and the tree has done nothing between them. Begin anew for a new incarnation, and after the program was stopped.
    pub fn note(&mut self, now: Instant, has_probe_failed: bool, progress: Progress) -> bool {
        let last = self.last.take().filter(|_| has_probe_failed);
        let hangs = last.is_some_and(|(then, before)| !progress.is_beyond(&before, now - then));
        self.last = has_probe_failed.then_some((now, progress));
        hangs
    }
}
