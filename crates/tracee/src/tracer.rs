//! What one OS thread does as a tracer: it waits for its tracees, and takes their ends.
//!
//! Owns: every wait with a deadline, the ends that are still to be taken, what is known of calls that stops break off.
//! Invariants: all of it belongs to one OS thread, as ptrace does, and goes with it. Stops are left untaken: a signal
//! that a thread is stopped at is delivered should this program die. The end of a child of this process is never taken,
//! so that no exit status is lost.
//! Does not: decide what a stop means; `thread` does.
//!
//! An exec ends all other threads of its process, and waits until their tracer has waited for each. An attach to a
//! thread of that process waits for the exec. A tracer that is attached to some threads already would so wait for
//! itself: `sys::wait_timer::taking_ends` takes their ends meanwhile.
//!
//! A process that is killed while it is stopped remains a zombie that its own parent cannot see, until its tracer has
//! waited for it.
//!
//! The kernel attaches a new task before its creator reports it, and a creator that is killed in between never does.
//! Such a task is a stray: it stays in its first stop, and outside the tree if its creator was its parent.

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

/// How often a wait comes back to see what the kernel does not report: a limit that has passed, the end of a leader
/// before that of its other threads.
const TICK: Duration = Duration::from_millis(1);
/// How long a thread may take until it is looked whether it is a leader that has ended before its other threads.
const TIMEOUT: Duration = Duration::from_millis(2);
/// How often a wait for an end sees whether the thread is still traced: an exec may have given its number to another
/// one, which was detached. And whether it waits for the end of a thread that nothing else takes.
const END_TICK: Duration = Duration::from_millis(250);

thread_local! {
    static TRACER: RefCell<Tracer> = RefCell::default();
}

#[derive(Default)]
struct Tracer {
    calls: TimedCalls,
    attached: HashSet<Tid>,
    /// A tracee has ended since strays were looked for.
    may_have_strays: bool,
    /// Threads whose ends are to be taken.
    ending: Vec<(Pid, Tid)>,
    takers: Vec<Taker>,
}

/// A thread that blocks until some tracees have ended, takes their ends, and ends itself.
struct Taker {
    tids: Vec<Tid>,
    thread: JoinHandle<()>,
}

/// Uses what this thread knows of calls that stops break off.
pub(crate) fn with_calls<T>(change: impl FnOnce(&mut TimedCalls) -> T) -> T {
    TRACER.with_borrow_mut(|tracer| change(&mut tracer.calls))
}

/// Inspects a traced thread, and leaves a stop untaken. Takes its end, unless the thread's process is a child of ours:
/// nothing else tells then how it ended, before Linux 6.15 not even a pidfd.
pub(crate) fn inspect(pid: Pid, tid: Tid) -> Result<Option<WaitStatus>> {
    let seen = ptrace::peek(tid);
    let is_gone = seen.as_ref().is_err_and(|error| error.errno == Errno::ECHILD);
    let has_ended = matches!(seen, Ok(Some(WaitStatus::Exited(_) | WaitStatus::Killed(_))));
    if is_gone || has_ended {
        lose(tid);
    }
    if has_ended && !is_child(pid, tid) {
        ptrace::take_end(tid)?;
    }
    seen
}

/// Notes that this thread traces a task.
pub(crate) fn attached(tid: Tid) {
    TRACER.with_borrow_mut(|tracer| tracer.attached.insert(tid));
}

/// Whether this thread traces a task, as far as it has been told.
pub(crate) fn is_attached(tid: Tid) -> bool {
    TRACER.with_borrow(|tracer| tracer.attached.contains(&tid))
}

/// Notes that this thread no longer traces a task, which goes on.
pub(crate) fn detached(tid: Tid) {
    TRACER.with_borrow_mut(|tracer| tracer.attached.remove(&tid));
}

/// Notes that a tracee has ended, or is about to.
pub(crate) fn lose(tid: Tid) {
    TRACER.with_borrow_mut(|tracer| {
        tracer.attached.remove(&tid);
        tracer.may_have_strays = true;
    });
}

/// What this thread traces without having been told. Costs a call where it traces nothing, and reads the status of
/// every thread of the system otherwise, but only after a tracee has ended.
pub(crate) fn strays() -> Vec<(Pid, Tid)> {
    let is_possible = TRACER.with_borrow_mut(|tracer| std::mem::take(&mut tracer.may_have_strays));
    if !is_possible || !ptrace::has_tracees() {
        return Vec::new();
    }
    let mut found = Vec::new();
    for pid in procfs::processes().unwrap_or_default() {
        for tid in procfs::threads(pid).unwrap_or_default() {
            // A child of ours that has ended is left to its parent.
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

/// Whether a thread has ended although nothing reports it: the end of a leader is held back until the ends of its other
/// threads have been taken. A tracer that has these in hand would wait for itself.
pub(crate) fn has_ended_unseen(pid: Pid, tid: Tid, waited: Duration) -> bool {
    waited > TIMEOUT && procfs::thread_stat(pid, tid).map_or(true, |stat| stat.is_zombie())
}

/// Whether this thread traces the one that a status was read of.
pub(crate) fn is_ours(status: &Status) -> bool {
    status.tracer.get() == rustix::thread::gettid().as_raw_nonzero().get()
}

fn is_child(pid: Pid, tid: Tid) -> bool {
    let ours = std::process::id() as i32;
    tid == pid.leader() && procfs::stat(pid).is_ok_and(|stat| stat.ppid == Pid(ours))
}

/// Has the end of a traced thread taken by the next `take_ends`.
pub(crate) fn note_end(pid: Pid, tid: Tid) {
    lose(tid);
    if !is_child(pid, tid) {
        TRACER.with_borrow_mut(|tracer| {
            tracer.takers.retain(|taker| !taker.thread.is_finished());
            if !tracer.knows(tid) {
                tracer.ending.push((pid, tid));
            }
        });
    }
}

/// Takes the ends that were noted. What has not ended yet is waited for by a thread of its own; this one does not block.
pub(crate) fn take_ends() {
    TRACER.with_borrow_mut(Tracer::take_ends);
}

impl Tracer {
    /// Whether a thread is attached, or its end will be taken.
    fn knows(&self, tid: Tid) -> bool {
        let is_ending = self.ending.iter().any(|(_, ending)| *ending == tid);
        is_ending || self.attached.contains(&tid) || self.takers.iter().any(|taker| taker.tids.contains(&tid))
    }

    fn take_ends(&mut self) {
        // ECHILD means that another wait has taken it.
        self.ending.retain(|(_, tid)| matches!(ptrace::take_end(*tid), Ok(false)));
        // The kernel reports the end of a leader after those of its other threads.
        self.ending.sort_by_key(|(pid, tid)| (*pid, *tid == pid.leader()));
        for of_process in self.ending.chunk_by(|one, next| one.0 == next.0) {
            let tids: Vec<Tid> = of_process.iter().map(|(_, tid)| *tid).collect();
            let (pid, awaited) = (of_process[0].0, tids.clone());
            let thread = std::thread::Builder::new().name("ends".to_owned());
            // Where no thread can be made, the next call of this function tries again.
            let Ok(thread) = thread.spawn(move || await_ends(pid, &awaited)) else { return };
            self.takers.push(Taker { tids, thread });
        }
        self.ending.clear();
    }
}

fn await_ends(pid: Pid, tids: &[Tid]) {
    let Ok(_ticks) = Ticks::start(END_TICK) else { return };
    for tid in tids {
        while matches!(ptrace::await_end(*tid), Ok(false)) {
            // The kernel reports the end of a leader after those of all others. A list that was read while threads ended
            // may lack some, and what is not listed is no stray.
            for other in procfs::threads(pid).unwrap_or_default() {
                let _ = ptrace::take_end(other);
            }
            // Where it is stopped, another thread has its number now.
            if matches!(ptrace::peek(*tid), Ok(Some(WaitStatus::Stopped(_)))) {
                std::thread::sleep(END_TICK);
            }
        }
    }
}

/// Blocks until a traced thread is stopped, and leaves the stop untaken; `None` when the thread has ended.
///
/// # Errors
///
/// ETIMEDOUT, with this operation, when it does neither within the limit.
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
            None if has_ended_unseen(pid, tid, waiter.waited()) => {
                note_end(pid, tid);
                return Ok(None);
            }
            None if waiter.block(tid)? => {}
            None => return Err(Error::thread(operation, tid, Errno::ETIMEDOUT)),
        }
    }
}

/// Waits for the next change of the leader of a process that has other threads, and takes it. The kernel reports the end
/// of a leader only once the ends of all others were taken: one that was seen to be a zombie counts as killed.
pub(crate) fn wait_for_leader(pid: Pid) -> Result<WaitStatus> {
    let mut waiter = Waiter::new(Duration::MAX);
    let tid = pid.leader();
    loop {
        match ptrace::poll(tid)? {
            Some(status) => return Ok(status),
            None if has_ended_unseen(pid, tid, waiter.waited()) => return Ok(WaitStatus::Killed(Signal(9))),
            None => waiter.block(tid).map(drop)?,
        }
    }
}

/// Waits in the kernel for changes of traced threads, up to a limit.
///
/// The tracer must not spin or sleep instead: with its real-time priority it keeps the processor that a tracee may need
/// to come to its stop. A stop wakes a tracer that blocks at once.
pub(crate) struct Waiter {
    began: Stopwatch,
    limit: Duration,
    ticks: Option<Ticks>,
}

impl Waiter {
    pub(crate) fn new(limit: Duration) -> Self {
        Self { began: Stopwatch::start(), limit, ticks: None }
    }

    /// How long it has been waiting.
    pub(crate) fn waited(&self) -> Duration {
        self.began.elapsed()
    }

    /// Blocks until a thread is stopped or has ended, a millisecond at most; false once the limit has passed.
    pub(crate) fn block(&mut self, tid: Tid) -> Result<bool> {
        if self.ticks.is_none() {
            self.ticks = Some(Ticks::start(TICK)?);
        }
        match ptrace::await_change(tid) {
            // The next inspection gets the same error.
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
