//! Waits for the tracees of one OS thread, and reaps tracees that have ended.
//!
//! ptrace(2) attaches a tracee to one OS thread, its *tracer*. This module stores the state of each tracer in a
//! thread-local variable.
//!
//! Owns: every wait with a deadline, the list of threads that must be reaped, and the record of interrupted
//! calls.
//! Invariants: all state belongs to one OS thread, and is lost when this OS thread ends. Waits for threads of
//! a subject do not consume the status of a stop. Therefore, if this program dies while a thread is stopped
//! at a signal, the kernel delivers the signal. Only `wait_for_leader`, which waits for stubs (threads that a
//! restore builds), consumes the status. Children of this process are never reaped here, so that no exit
//! status is lost.
//! Does not: decide what a stop means; `thread` does.
//!
//! An execve(2) ends all other threads of its process, and waits until their tracer has reaped these threads.
//! An attach to a thread of the process waits for the execve(2). If the tracer has already attached to some
//! of the ending threads, the tracer would wait for itself. Therefore `sys::wait_timer::taking_ends` reaps
//! the ending threads during the attach.
//!
//! If a tracee is killed while it is stopped, it remains a zombie. The parent process cannot see the end of
//! the tracee until the tracer has reaped it.
//!
//! When a tracee creates a task, the kernel attaches the new task to the tracer, and then the creator reports
//! the new task. If the creator is killed between these two steps, the report is lost. A task without a
//! report is a *stray*: it stays in its first stop. If the creator was the parent of the stray, the stray is
//! no longer below the process tree of the subject.

use std::cell::RefCell;
use std::collections::HashSet;
use std::thread::JoinHandle;
use std::time::Duration;

use model::{Pid, Signal, Tid};
use sys::clock::Stopwatch;
use sys::ptrace::{self, Stop, WaitStatus};
use sys::wait_timer::Ticks;
use sys::{Errno, Error, Result};

use crate::interruption::TimedCalls;
use crate::procfs::{self, Status};

/// Interval at which a wait wakes up to check two conditions that the kernel does not report. The limit may
/// have expired. A leader may have ended before the other threads of its process.
const TICK: Duration = Duration::from_millis(1);
/// Waiting time after which the tracer checks whether a leader has ended before the other threads of its
/// process.
const TIMEOUT: Duration = Duration::from_millis(2);
/// Interval at which a reaper thread (`Reaper`) checks two conditions. First, an execve(2) may have given the
/// tid to another thread, which this program does not trace. Second, the kernel may report the end of a
/// leader only after the reaping of a thread that is on no list.
const END_TICK: Duration = Duration::from_millis(250);

thread_local! {
    static TRACER: RefCell<Tracer> = RefCell::default();
}

#[derive(Default)]
struct Tracer {
    calls: TimedCalls,
    attached: HashSet<Tid>,
    /// A tracee has ended since the last scan for strays.
    may_have_strays: bool,
    /// Threads that must be reaped.
    ending: Vec<(Pid, Tid)>,
    reapers: Vec<Reaper>,
}

/// A reaper thread: it blocks until some tracees have ended, reaps them, and then ends.
struct Reaper {
    tids: Vec<Tid>,
    thread: JoinHandle<()>,
}

/// Calls `change` with the record of interrupted calls of the present OS thread.
pub(crate) fn with_calls<T>(change: impl FnOnce(&mut TimedCalls) -> T) -> T {
    TRACER.with_borrow_mut(|tracer| change(&mut tracer.calls))
}

/// Returns the wait status of a traced thread. The status of a stop is not consumed. If the thread has ended,
/// reaps the thread. A child process of this process is not reaped, because the wait status is the only
/// report of its exit status. (Since Linux 6.15, a pidfd also has the exit status.)
pub(crate) fn inspect(pid: Pid, tid: Tid) -> Result<Option<WaitStatus>> {
    let seen = ptrace::peek(tid);
    let is_gone = seen.as_ref().is_err_and(|error| error.errno == Errno::ECHILD);
    let has_ended = matches!(seen, Ok(Some(WaitStatus::Exited(_) | WaitStatus::Killed(_))));
    if is_gone || has_ended {
        record_lost(tid);
    }
    if has_ended && !is_child(pid, tid) {
        ptrace::take_end(tid)?;
    }
    seen
}

/// Records that the present OS thread traces a task.
pub(crate) fn attached(tid: Tid) {
    TRACER.with_borrow_mut(|tracer| tracer.attached.insert(tid));
}

/// Reports whether the record contains a task that the present OS thread traces.
pub(crate) fn is_attached(tid: Tid) -> bool {
    TRACER.with_borrow(|tracer| tracer.attached.contains(&tid))
}

/// Records that the present OS thread no longer traces a task. The task continues to run.
pub(crate) fn detached(tid: Tid) {
    TRACER.with_borrow_mut(|tracer| tracer.attached.remove(&tid));
}

pub(crate) fn record_lost(tid: Tid) {
    TRACER.with_borrow_mut(|tracer| {
        tracer.attached.remove(&tid);
        tracer.may_have_strays = true;
    });
}

/// Returns strays: tasks that the present OS thread traces, but that are not in the record. If no tracee has
/// ended since the last call of this function, there can be no strays, and the function reads nothing. If a
/// tracee has ended, and the OS thread still has tracees, the function reads the status of every thread of
/// the system.
pub(crate) fn strays() -> Vec<(Pid, Tid)> {
    let is_possible = TRACER.with_borrow_mut(|tracer| std::mem::take(&mut tracer.may_have_strays));
    if !is_possible || !ptrace::has_tracees() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for pid in procfs::processes().unwrap_or_default() {
        for tid in procfs::threads(pid).unwrap_or_default() {
            // A child of this process that has ended is no stray. The code that started the child reaps it.
            let is_left = |status: &Status| status.state == 'Z' && is_child(pid, tid);
            let status = procfs::thread_status(pid, tid);
            let is_traced = status.is_ok_and(|status| is_ours(&status) && !is_left(&status));
            if is_traced && TRACER.with_borrow(|tracer| !tracer.knows(tid)) {
                found.push((pid, tid));
            }
        }
    }
    found
}

/// Reports whether a thread has ended, and the kernel has not reported the end. The kernel reports the end of
/// a leader only after the other threads of the process are reaped. The tracer must reap some of these
/// threads itself, so it must not wait for the report.
pub(crate) fn has_ended_unreported(pid: Pid, tid: Tid, waited: Duration) -> bool {
    waited > TIMEOUT && procfs::thread_stat(pid, tid).map_or(true, |stat| stat.is_zombie())
}

/// Reports whether the present OS thread is the tracer of the thread with this status.
pub(crate) fn is_ours(status: &Status) -> bool {
    status.tracer.get() == rustix::thread::gettid().as_raw_nonzero().get()
}

pub(crate) fn is_child(pid: Pid, tid: Tid) -> bool {
    let ours = std::process::id() as i32;
    tid == pid.leader() && procfs::stat(pid).is_ok_and(|stat| stat.ppid == Pid(ours))
}

/// Records that the next `reap_ended` must reap a traced thread.
pub(crate) fn record_end(pid: Pid, tid: Tid) {
    record_lost(tid);
    if !is_child(pid, tid) {
        TRACER.with_borrow_mut(|tracer| {
            tracer.reapers.retain(|reaper| !reaper.thread.is_finished());
            if !tracer.knows(tid) {
                tracer.ending.push((pid, tid));
            }
        });
    }
}

/// Reaps the recorded threads without blocking. If some threads have not ended yet, starts a reaper thread
/// for each process, which waits for them.
pub(crate) fn reap_ended() {
    TRACER.with_borrow_mut(Tracer::reap_ended);
}

impl Tracer {
    /// Reports whether the record contains a thread, as attached or as a thread that must be reaped.
    fn knows(&self, tid: Tid) -> bool {
        let is_ending = self.ending.iter().any(|(_, ending)| *ending == tid);
        is_ending
            || self.attached.contains(&tid)
            || self.reapers.iter().any(|reaper| reaper.tids.contains(&tid))
    }

    fn reap_ended(&mut self) {
        // An error (ECHILD) means that another wait has reaped the thread.
        self.ending.retain(|(_, tid)| matches!(ptrace::take_end(*tid), Ok(false)));
        // The leader is the last thread of its process that the kernel reports as ended.
        self.ending.sort_by_key(|(pid, tid)| (*pid, *tid == pid.leader()));
        for of_process in self.ending.chunk_by(|one, next| one.0 == next.0) {
            let tids: Vec<Tid> = of_process.iter().map(|(_, tid)| *tid).collect();
            let (pid, awaited) = (of_process[0].0, tids.clone());
            let thread = std::thread::Builder::new().name("undying-reaper".to_owned());
            // If no thread can be created, the next call of this function tries again.
            let Ok(thread) = thread.spawn(move || await_ends(pid, &awaited)) else { return };
            self.reapers.push(Reaper { tids, thread });
        }
        self.ending.clear();
    }
}

fn await_ends(pid: Pid, tids: &[Tid]) {
    let Ok(_ticks) = Ticks::start(END_TICK) else { return };
    for tid in tids {
        while matches!(ptrace::await_end(*tid), Ok(false)) {
            // The kernel reports the end of a leader only after all other threads of the process are reaped.
            // `tids` can lack a thread: if threads end while `/proc` lists the threads, the list can be
            // incomplete.
            for other in procfs::threads(pid).unwrap_or_default() {
                let _ = ptrace::take_end(other);
            }
            // If the task is stopped, another thread has this tid now.
            if matches!(ptrace::peek(*tid), Ok(Some(WaitStatus::Stopped(_)))) {
                std::thread::sleep(END_TICK);
            }
        }
    }
}

/// Blocks until a traced thread is stopped, and does not consume the status of the stop. Returns `None` if
/// the thread has ended.
///
/// # Errors
///
/// ETIMEDOUT, with `operation`, if the thread is neither stopped nor ended when the limit has passed.
pub(crate) fn await_stop(
    (pid, tid): (Pid, Tid),
    limit: Duration,
    operation: &'static str,
) -> Result<Option<Stop>> {
    let mut waiter = Waiter::new(limit);
    loop {
        match inspect(pid, tid)? {
            Some(WaitStatus::Stopped(stop)) => return Ok(Some(stop)),
            Some(_) => return Ok(None),
            None if has_ended_unreported(pid, tid, waiter.waited()) => {
                record_end(pid, tid);
                return Ok(None);
            }
            None if waiter.block(tid)? => {}
            None => return Err(Error::thread(operation, tid, Errno::ETIMEDOUT)),
        }
    }
}

/// Waits for the next change of a leader whose process has other threads, and consumes the wait status. The
/// kernel reports the end of a leader only after all other threads are reaped. If the leader is a zombie
/// before this report, the function returns a kill by SIGKILL.
pub(crate) fn wait_for_leader(pid: Pid) -> Result<WaitStatus> {
    let mut waiter = Waiter::new(Duration::MAX);
    let tid = pid.leader();
    loop {
        match ptrace::poll(tid)? {
            Some(status) => return Ok(status),
            None if has_ended_unreported(pid, tid, waiter.waited()) => {
                return Ok(WaitStatus::Killed(Signal(9)));
            }
            None => waiter.block(tid).map(drop)?,
        }
    }
}

/// Waits in the kernel for changes of traced threads, up to a limit.
///
/// The tracer blocks in the kernel, so that a stop wakes it immediately. The tracer must not spin: it has
/// real-time priority, and could occupy the processor that a tracee needs to reach its stop.
pub(crate) struct Waiter {
    began: Stopwatch,
    limit: Duration,
    ticks: Option<Ticks>,
}

impl Waiter {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { began: Stopwatch::start(), limit, ticks: None }
    }

    /// Returns how long the waiter has been waiting.
    pub(crate) fn waited(&self) -> Duration {
        self.began.elapsed()
    }

    /// Blocks until a thread is stopped or has ended, for at most a millisecond. Returns false when the limit
    /// has passed.
    pub(crate) fn block(&mut self, tid: Tid) -> Result<bool> {
        if self.ticks.is_none() {
            self.ticks = Some(Ticks::start(TICK)?);
        }
        match ptrace::await_change(tid) {
            // ECHILD is ignored, because the next call of `inspect` returns the same error.
            Err(error) if error.errno != Errno::ECHILD => return Err(error),
            _ => {}
        }
        Ok(self.waited() < self.limit)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_end_of_a_child_is_seen_and_left_to_who_waits_for_it() {
        let mut child = Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().unwrap();
        let (pid, tid) = (Pid(child.id() as i32), Tid(child.id() as i32));
        ptrace::seize(tid, ptrace::Options::NONE).unwrap();
        child.kill().unwrap();
        let seen = loop {
            if let Some(seen) = inspect(pid, tid).unwrap() {
                break seen;
            }
            std::thread::yield_now();
        };
        assert_eq!(seen, WaitStatus::Killed(model::Signal(9)));
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }
}
