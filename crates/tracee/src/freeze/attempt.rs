//! Makes one attempt to stop a process tree.
//!
//! An attempt consists of rounds. Each round lists the tree, attaches to the new threads, interrupts them, and waits
//! until they are stopped. The attempt succeeds when a round finds no new thread.
//!
//! Owns: the threads of the attempt until all are stopped.
//! Invariants: a failed attempt resumes every thread, including threads that stop only after the failure.
//! Does not: try again; `Freezer` does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use model::{Pid, Tid};
use sys::clock::Clock;
use sys::kcmp::{self, Shared};
use sys::ptrace;
use sys::wait_timer::{Ticks, taking_ends};
use sys::{Errno, Error};

use super::stopped::{FreezeError, OPTIONS, StoppedProcess, StoppedTree, detach_running};
use crate::procfs::{self, KeptFiles, Stat};
use crate::remote::restore_frame;
use crate::thread::{Running, StopOutcome, Stopped, Thread};
use crate::tracer::{self, Waiter};
use crate::tree::{self, Roots};

/// Maximum number of rounds. If the last round still finds new threads, the tree is refused.
const ROUNDS_MAX: usize = 200;
/// Maximum number of lists of the tree before the first thread is stopped. Threads that appear after the last
/// list are found when the other threads are stopped.
const RUNNING_ROUNDS_MAX: usize = 4;
/// Maximum number of failed attempts to attach to a thread that is changing. If the thread has another
/// tracer, the first failure is final.
const CHANGES_MAX: usize = 10;
/// Timeout for all threads to stop.
const STOP_LIMIT: Duration = Duration::from_millis(250);
/// Time after which the tracer checks what delays a thread.
const TIMEOUT: Duration = Duration::from_millis(1);
/// Interval of the timer that runs during an attach. An attach can wait for an execve(2), which waits for
/// threads that only the tracer can reap. Each tick of the timer reaps these threads.
const ATTACH_TICK: Duration = Duration::from_millis(2);

#[derive(Default)]
pub(super) struct Attempt {
    stopped: HashMap<Pid, Vec<Thread<Stopped>>>,
    pending: Vec<Thread<Running>>,
    /// Threads of `pending` that have not been interrupted yet.
    to_interrupt: Vec<Tid>,
    /// Children of vfork(2) that must run before their parent can stop.
    vfork_children: Vec<Thread<Running>>,
    /// Since the tree was listed, a thread was attached, has disappeared, or could not be identified.
    changed: bool,
    /// Threads that could not be attached because they were changing, with the number of failures.
    changing: HashMap<Tid, usize>,
    zombies: Vec<Pid>,
    order: Vec<Pid>,
    /// The stat of each stopped process, read while all its threads were stopped. Empty if the tree was listed again after
    /// the first stop.
    stats: HashMap<Pid, Stat>,
    /// Attached threads that are not leaders. An execve(2) in another thread of the process waits until these
    /// threads are reaped.
    non_leaders: Vec<Tid>,
    /// A time before the first thread stopped.
    began: Option<Instant>,
}

impl Attempt {
    pub(super) fn run(&mut self, roots: &Roots, files: &mut KeptFiles) -> Result<(), FreezeError> {
        self.attach_running(roots, files)?;
        self.began = Some(Clock::default().now());
        self.interrupt_all()?;
        self.wait_all()?;
        if !self.changed && self.all_still_stopped()? && self.is_whole(roots, files) {
            return Ok(());
        }
        for _ in 0..ROUNDS_MAX {
            self.changed = false;
            self.stats.clear();
            self.attach_new(roots, files)?;
            self.interrupt_all()?;
            self.wait_all()?;
            if !self.changed && self.all_still_stopped()? {
                return Ok(());
            }
        }
        Err(FreezeError::Growing(roots.first()))
    }

    /// Attaches to all threads while they run, so that few threads remain to be found after the first stop.
    fn attach_running(&mut self, roots: &Roots, files: &mut KeptFiles) -> Result<(), FreezeError> {
        for _ in 0..RUNNING_ROUNDS_MAX {
            self.changed = false;
            self.attach_new(roots, files)?;
            if !self.changed {
                break;
            }
        }
        self.changed = false;
        Ok(())
    }

    fn interrupt_all(&mut self) -> Result<(), FreezeError> {
        for tid in std::mem::take(&mut self.to_interrupt) {
            gone_is_none(ptrace::interrupt(tid))?;
        }
        Ok(())
    }

    /// Reports whether the stopped threads are the whole tree. In each process, the number of threads must be
    /// the number of stopped threads. Each child of a process must be in the list of the tree. A thread can
    /// be missing if the tracer attached to its creator while the creator was creating the thread. The
    /// missing thread is not in the list, and is not attached.
    fn is_whole(&mut self, roots: &Roots, files: &mut KeptFiles) -> bool {
        let mut children = 0;
        self.stats.clear();
        for (pid, threads) in &self.stopped {
            // If the leader has ended before other threads, the kernel counts the leader, but the leader is
            // not stopped. The function returns false, and the tree is listed again.
            let stat = procfs::stat_through(files, *pid).ok();
            let Some(stat) = stat.filter(|stat| stat.num_threads == threads.len()) else { return false };
            self.stats.insert(*pid, stat);
            let tids: Vec<Tid> = threads.iter().map(Thread::tid).collect();
            let Ok(found) = procfs::children_through(files, *pid, &tids) else { return false };
            if !found.iter().all(|child| self.order.contains(child)) {
                return false;
            }
            children += found.len();
        }
        self.stopped.len() + self.zombies.len() == self.order.len()
            && children + roots.count() == self.order.len()
    }

    /// Reports whether every thread that stopped is still stopped. Removes threads that were killed, or that
    /// an execve(2) in another thread has ended. If a dead tracer has left a thread inside a remote call, the
    /// function first runs this thread until it has restored itself.
    fn all_still_stopped(&mut self) -> Result<bool, FreezeError> {
        let mut lost = Vec::new();
        for thread in self.stopped.values().flatten() {
            if gone_is_none(restore_frame::finish_restore(thread))?.is_none() {
                lost.push(thread.tid());
                tracer::record_end(thread.pid(), thread.tid());
            }
        }
        self.stopped.retain(|_, threads| {
            threads.retain(|thread| !lost.contains(&thread.tid()));
            !threads.is_empty()
        });
        Ok(lost.is_empty())
    }

    fn attach_new(&mut self, roots: &Roots, files: &mut KeptFiles) -> Result<(), FreezeError> {
        let _ticks = Ticks::start(ATTACH_TICK)?;
        let is_gone = |root: &Pid| procfs::stat(*root).is_err();
        let ended = || FreezeError::Ended(roots.iter().find(is_gone).unwrap_or(roots.first()));
        let listed = gone_is_none(tree::with_threads(files, roots))?.ok_or_else(ended)?;
        self.order = listed.iter().map(|(pid, _)| *pid).collect();
        self.zombies.clear();
        for (pid, threads) in listed {
            let Some(stat) = gone_is_none(procfs::stat_through(files, pid))? else { continue };
            if stat.is_zombie() && procfs::threads(pid).is_ok_and(|threads| threads.len() <= 1) {
                if roots.contains(pid) {
                    return Err(FreezeError::Ended(pid));
                }
                if gone_is_none(procfs::status(pid))?.is_some_and(|status| tracer::is_ours(&status)) {
                    tracer::record_end(pid, pid.leader());
                }
                self.zombies.push(pid);
                continue;
            }
            for tid in threads {
                self.attach(pid, tid)?;
            }
        }
        Ok(())
    }

    fn attach(&mut self, pid: Pid, tid: Tid) -> Result<(), FreezeError> {
        if tracer::is_attached(tid) {
            return Ok(());
        }
        match taking_ends(&self.non_leaders, || Thread::seize(pid, tid, OPTIONS)) {
            Ok(thread) => {
                self.expect(thread);
                Ok(())
            }
            Err(error) if error.errno == Errno::ESRCH => Ok(()),
            Err(error) => self.attached_or(pid, tid, error),
        }
    }

    /// Adds an attached thread, to be interrupted with the others.
    fn expect(&mut self, thread: Thread<Running>) {
        self.changed = true;
        if thread.tid() != thread.pid().leader() {
            self.non_leaders.push(thread.tid());
        }
        self.to_interrupt.push(thread.tid());
        self.pending.push(thread);
    }

    fn attached_or(&mut self, pid: Pid, tid: Tid, error: Error) -> Result<(), FreezeError> {
        let Some(status) = gone_is_none(procfs::thread_status(pid, tid))? else { return Ok(()) };
        let ended = matches!(status.state, 'Z' | 'X');
        if tracer::is_ours(&status) {
            if ended && tid == pid.leader() {
                // The leader has ended. The kernel reports its end after the end of the last other thread.
                tracer::record_end(pid, tid);
                return Ok(());
            }
            self.expect(Thread::attached(pid, tid, OPTIONS));
            return Ok(());
        }
        if ended {
            return Ok(());
        }
        if status.tracer.get() != 0 {
            return Err(FreezeError::Traced { pid, tracer: status.tracer });
        }
        // The thread was ending when the attach failed. After the failure, an execve(2) has given the tid to
        // another thread.
        self.changed = true;
        let attempts = self.changing.entry(tid).or_default();
        *attempts += 1;
        if *attempts < CHANGES_MAX { Ok(()) } else { Err(error.into()) }
    }

    fn wait_all(&mut self) -> Result<(), FreezeError> {
        let mut waiter = Waiter::new(STOP_LIMIT);
        let mut unblocked_at = Duration::ZERO;
        loop {
            let inspected_at = Clock::default().now();
            self.inspect_all()?;
            if self.stopped.is_empty() && self.vfork_children.is_empty() {
                // No thread was stopped at `inspected_at`.
                self.began = Some(inspected_at);
            }
            if self.pending.is_empty() {
                if self.vfork_children.is_empty() {
                    return Ok(());
                }
                // The parents are stopped now, so these children are interrupted, too.
                self.to_interrupt.extend(self.vfork_children.iter().map(Thread::tid));
                self.pending.append(&mut self.vfork_children);
                self.interrupt_all()?;
            }
            if waiter.waited() > unblocked_at + TIMEOUT {
                unblocked_at = waiter.waited();
                self.unblock_pending()?;
            }
            let Some(first) = self.pending.first().map(Thread::tid) else { continue };
            if !waiter.block(first)? {
                return Err(self.stuck());
            }
        }
    }

    fn stuck(&self) -> FreezeError {
        let (pid, tid) =
            self.pending.first().map_or_else(Default::default, |first| (first.pid(), first.tid()));
        let place = procfs::read_text(format!("/proc/{pid}/task/{tid}/wchan")).unwrap_or_default();
        FreezeError::Stuck { pid, tid, place }
    }

    /// Handles threads that cannot stop. A leader that has ended before the other threads of its process
    /// never stops. A parent in vfork(2) stops only after its child has run.
    fn unblock_pending(&mut self) -> Result<(), FreezeError> {
        let ended = |thread: &mut Thread<Running>| {
            thread.tid() == thread.pid().leader()
                && procfs::thread_stat(thread.pid(), thread.tid()).is_ok_and(|stat| stat.is_zombie())
        };
        for leader in self.pending.extract_if(.., ended) {
            // The next round finds out whether an execve(2) has given the tid of the leader to another
            // thread.
            self.changed = true;
            tracer::record_lost(leader.tid());
        }
        let mut parents: Vec<Pid> = self.pending.iter().map(Thread::pid).collect();
        parents.dedup();
        // An execve(2) in a pending thread may have killed a stopped thread. The execve(2) waits until the
        // killed thread is reaped.
        for thread in parents.iter().filter_map(|pid| self.stopped.get(pid)).flatten() {
            if thread.tid() != thread.pid().leader() {
                // Normally the thread is alive, and this call has no effect.
                let _ = ptrace::take_end(thread.tid());
            }
        }
        for child in self.stopped.keys().copied().collect::<Vec<_>>() {
            if parents.iter().any(|parent| runs_in_memory_of(child, *parent)) {
                for thread in self.stopped.remove(&child).unwrap_or_default() {
                    self.vfork_children.push(thread.resume()?);
                }
            }
        }
        Ok(())
    }

    fn inspect_all(&mut self) -> Result<(), FreezeError> {
        let mut outcome = Ok(());
        for thread in std::mem::take(&mut self.pending) {
            let pid = thread.pid();
            match thread.check_stop() {
                Ok(StopOutcome::Stopped(stopped)) => self.stopped.entry(pid).or_default().push(stopped),
                Ok(StopOutcome::Pending(thread)) => self.pending.push(thread),
                Ok(StopOutcome::Created(thread, created)) => {
                    self.pending.push(thread);
                    Thread::adopted(created, OPTIONS).into_iter().for_each(|new| self.expect(new));
                    outcome = outcome.and(self.interrupt_all());
                }
                Ok(StopOutcome::Gone) => self.changed = true,
                Err((thread, error)) => {
                    // The thread stays attached, so it is resumed with the others.
                    self.pending.push(thread);
                    outcome = Err(error.into());
                }
            }
        }
        outcome
    }

    pub(super) fn finish(&mut self, roots: &Roots) -> Result<StoppedTree, FreezeError> {
        let mut processes = Vec::new();
        for pid in &self.order {
            if let Some(mut threads) = self.stopped.remove(pid) {
                threads.sort_by_key(|thread| (thread.tid() != pid.leader(), thread.tid()));
                processes.push(StoppedProcess { pid: *pid, threads, stat: self.stats.remove(pid) });
            }
        }
        let began = self.began.unwrap_or_else(|| Clock::default().now());
        let tree = StoppedTree {
            roots: roots.clone(),
            processes,
            zombies: std::mem::take(&mut self.zombies),
            began,
        };
        self.release();
        match roots.iter().find(|root| tree.process(*root).is_none()) {
            None => Ok(tree),
            Some(root) => Err(FreezeError::Ended(root)),
        }
    }

    /// Detaches every thread: stopped threads immediately, other threads when they stop.
    pub(super) fn release(&mut self) {
        for thread in self.stopped.drain().flat_map(|(_, threads)| threads) {
            // An error means that the thread has died.
            let _ = thread.detach();
        }
        tracer::reap_ended();
        self.pending.append(&mut self.vfork_children);
        detach_running(std::mem::take(&mut self.pending));
    }
}

/// Reports whether `child` is a child of `parent` and uses the memory of `parent`.
fn runs_in_memory_of(child: Pid, parent: Pid) -> bool {
    let is_child = procfs::stat(child).is_ok_and(|stat| stat.ppid == parent);
    is_child && kcmp::shared(Shared::Memory, child, parent).unwrap_or(false)
}

fn gone_is_none<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.errno, Errno::ESRCH | Errno::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}
