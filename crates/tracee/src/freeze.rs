//! Stopping a whole process tree, and letting it go on.
//!
//! Owns: the loop that stops every thread of every process until no new one turns up.
//! Invariants: dropping a stopped tree lets every thread of it go on; a failed stop does too.
//! Does not: read any state of what it stopped.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use model::{Pid, Signal, Tid};
use sys::kcmp::{self, Shared};
use sys::ptrace::{self, OPTION_CLONE, OPTION_FORK, OPTION_SYSCALL_GOOD, OPTION_VFORK, WaitStatus};
use sys::{Errno, Error};

use crate::procfs::{self, KeptFiles, Status};
use crate::reaper::{self, Watch};
use crate::remote::home;
use crate::thread::{Running, StopOutcome, Stopped, Thread, Waiter};
use crate::tree;

/// Options a subject's threads are seized with while they are being stopped.
pub(crate) const OPTIONS: u64 = OPTION_SYSCALL_GOOD | OPTION_CLONE | OPTION_FORK | OPTION_VFORK;
/// Times the tree is listed again because it grew; a tree that outgrows this is refused.
const ROUNDS_MAX: usize = 200;
/// The same before anything stands; what is found later is found while the rest stands.
const RUNNING_ROUNDS_MAX: usize = 4;
/// Files of a thread that say whether there is more.
const CHILDREN: &str = "children";
const STAT: &str = "stat";
/// Times a thread that cannot be attached is tried again; one that belongs to somebody else never can be.
const CHANGES_MAX: usize = 10;
/// How long all threads may take to stop.
const STOP_LIMIT: Duration = Duration::from_millis(250);
/// How long a thread may take before it is looked at what holds it.
const PATIENCE: Duration = Duration::from_millis(1);
/// How long a failed stop waits for the rest to come to its stop, to let it go properly.
const DRAIN_LIMIT: Duration = Duration::from_secs(10);
/// Attempts before a tree that does not stop in time is given up.
const ATTEMPTS_MAX: usize = 20;

const KILL: Signal = Signal(9);

/// Why a tree could not be stopped.
#[derive(Debug, thiserror::Error)]
pub enum FreezeError {
    /// The root process ended meanwhile.
    #[error("pid {0} ended while it was being stopped")]
    Ended(Pid),
    /// A thread did not stop in time, attempt after attempt.
    #[error("thread {tid} of pid {pid} did not stop (in {place})")]
    Stuck {
        /// Its process.
        pid: Pid,
        /// The thread.
        tid: Tid,
        /// The kernel function it waits in.
        place: String,
    },
    /// Another program traces a process of the tree.
    #[error("pid {pid} is already traced by pid {tracer}")]
    Traced {
        /// The traced process.
        pid: Pid,
        /// Its tracer.
        tracer: Pid,
    },
    /// The tree grew faster than it could be stopped.
    #[error("the process tree of pid {0} grows faster than it can be stopped")]
    Growing(Pid),
    /// A kernel call failed.
    #[error(transparent)]
    Kernel(#[from] Error),
}

/// One process with all its threads stopped, leader first.
#[derive(Debug)]
pub struct StoppedProcess {
    /// Its number.
    pub pid: Pid,
    /// Its threads; never empty.
    pub threads: Vec<Thread<Stopped>>,
}

/// A tree of which every thread is stopped.
#[derive(Debug)]
pub struct StoppedTree {
    /// Living processes, parents first.
    pub processes: Vec<StoppedProcess>,
    /// Processes that ended and wait to be reaped by a parent in the tree.
    pub zombies: Vec<Pid>,
    /// When the first thread was told to stop.
    pub began: Instant,
}

/// Stops trees, the same one again and again; keeps what it needs of `/proc` open meanwhile.
#[derive(Debug, Default)]
pub struct Freezer {
    files: KeptFiles,
}

#[derive(Default)]
struct Progress {
    stopped: HashMap<Pid, Vec<Thread<Stopped>>>,
    pending: Vec<Thread<Running>>,
    /// Those of them that have not been asked to stop yet.
    unasked: Vec<Tid>,
    /// Children of vfork(2) that must go on before their parent can stop.
    let_go: Vec<Thread<Running>>,
    seen: HashSet<Tid>,
    /// Something was attached, went away or could not be told since the tree was listed.
    changed: bool,
    /// Threads that could not be attached because they were changing, and how often.
    changing: HashMap<Tid, usize>,
    zombies: Vec<Pid>,
    order: Vec<Pid>,
    ends: Watch,
    began: Option<Instant>,
}

impl StoppedTree {
    /// Stops a process and all its descendants.
    pub fn stop(root: Pid) -> Result<Self, FreezeError> {
        Freezer::default().stop(root)
    }

    /// The stopped process of a number.
    #[must_use]
    pub fn process(&self, pid: Pid) -> Option<&StoppedProcess> {
        self.processes.iter().find(|process| process.pid == pid)
    }

    /// Lets every thread go on, detached.
    pub fn resume(mut self) -> Result<(), Error> {
        self.detach_all()
    }

    /// Kills every process. The end of every thread has been taken afterwards: only then are their parents told.
    pub fn kill(mut self) -> Result<(), Error> {
        for process in &self.processes {
            match sys::signal::send(process.pid, KILL) {
                Err(error) if error.errno != Errno::ESRCH => return Err(error),
                _ => {}
            }
        }
        for process in &self.processes {
            // The kernel reports a leader's end only when its other threads have been waited for.
            for thread in process.threads.iter().rev() {
                await_end(thread.tid())?;
            }
        }
        // Nobody is left to be let go.
        self.processes.clear();
        Ok(())
    }

    fn detach_all(&mut self) -> Result<(), Error> {
        let mut outcome = Ok(());
        for thread in self.processes.drain(..).flat_map(|process| process.threads) {
            if let Err(error) = thread.detach() {
                outcome = Err(error);
            }
        }
        outcome
    }
}

impl Freezer {
    /// Stops a process and all its descendants.
    pub fn stop(&mut self, root: Pid) -> Result<StoppedTree, FreezeError> {
        let mut last = FreezeError::Growing(root);
        for _ in 0..ATTEMPTS_MAX {
            let mut progress = Progress::default();
            match progress.run(root, &mut self.files) {
                Ok(()) => {
                    self.files.sweep();
                    return progress.finish(root);
                }
                Err(error @ FreezeError::Stuck { .. }) => {
                    progress.release();
                    last = error;
                }
                Err(error) => {
                    progress.release();
                    return Err(error);
                }
            }
        }
        Err(last)
    }
}

/// Waits until a thread that was killed has ended.
fn await_end(tid: Tid) -> Result<(), Error> {
    loop {
        match ptrace::wait(tid) {
            Ok(WaitStatus::Stopped { .. }) => {}
            Ok(_) => return Ok(()),
            Err(error) if matches!(error.errno, Errno::ECHILD | Errno::ESRCH) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

impl Drop for StoppedTree {
    fn drop(&mut self) {
        // Nobody is left to report to; a thread that cannot be detached has died.
        let _ = self.detach_all();
    }
}

impl Progress {
    fn run(&mut self, root: Pid, files: &mut KeptFiles) -> Result<(), FreezeError> {
        self.attach_running(root, files)?;
        self.began = Some(Instant::now());
        self.interrupt_all()?;
        self.wait_all()?;
        if !self.changed && self.all_still_stand()? && self.is_whole(files) {
            return Ok(());
        }
        for _ in 0..ROUNDS_MAX {
            self.changed = false;
            self.attach_new(root)?;
            self.interrupt_all()?;
            self.wait_all()?;
            if !self.changed && self.all_still_stand()? {
                return Ok(());
            }
        }
        Err(FreezeError::Growing(root))
    }

    /// Attaches to everything while it runs on, so that hardly anything is left to be found once the first thread
    /// stands.
    fn attach_running(&mut self, root: Pid, files: &mut KeptFiles) -> Result<(), FreezeError> {
        for _ in 0..RUNNING_ROUNDS_MAX {
            self.changed = false;
            self.attach_new(root)?;
            if !self.changed {
                break;
            }
        }
        for thread in &self.pending {
            let (pid, tid) = (thread.pid(), thread.tid());
            // What has ended is noticed when it does not stop.
            gone_is_none(files.open(pid, tid, CHILDREN))?;
            if tid == pid.leader() {
                gone_is_none(files.open(pid, tid, STAT))?;
            }
        }
        self.changed = false;
        Ok(())
    }

    fn interrupt_all(&mut self) -> Result<(), FreezeError> {
        for tid in std::mem::take(&mut self.unasked) {
            gone_is_none(ptrace::interrupt(tid))?;
        }
        Ok(())
    }

    /// Whether what stands is all there is: as many threads as each process has, and no child but those listed. A
    /// thread that was being created when its creator was attached to appears in no earlier list, and is not attached.
    fn is_whole(&self, files: &mut KeptFiles) -> bool {
        let mut children = 0;
        for (pid, threads) in &self.stopped {
            // A process without threads of ours, or whose leader ended before others, is one for a new list.
            let whole = files
                .read(*pid, pid.leader(), STAT)
                .ok()
                .and_then(procfs::thread_count)
                .is_some_and(|count| count == threads.len());
            if !whole {
                return false;
            }
            for thread in threads {
                let Ok(text) = files.read(*pid, thread.tid(), CHILDREN) else { return false };
                for child in text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
                    let number = std::str::from_utf8(child).ok().and_then(|word| word.parse().ok());
                    if number.is_none_or(|number| !self.order.contains(&Pid(number))) {
                        return false;
                    }
                    children += 1;
                }
            }
        }
        self.stopped.len() + self.zombies.len() == self.order.len() && children + 1 == self.order.len()
    }

    /// Whether every thread that came to a stop still stands there; those that do not (killed, or replaced by an
    /// exec in another thread) are forgotten. Threads that an earlier tracer left on their way arrive first.
    fn all_still_stand(&mut self) -> Result<bool, FreezeError> {
        let mut lost = Vec::new();
        for thread in self.stopped.values().flatten() {
            if gone_is_none(home::arrive(thread))?.is_none() {
                lost.push(thread.tid());
                reaper::bury(thread.pid(), thread.tid());
            }
        }
        for tid in &lost {
            self.seen.remove(tid);
        }
        for threads in self.stopped.values_mut() {
            threads.retain(|thread| !lost.contains(&thread.tid()));
        }
        Ok(lost.is_empty())
    }

    fn attach_new(&mut self, root: Pid) -> Result<(), FreezeError> {
        self.order = tree::descendants(root).map_err(|error| ended_or(root, error))?;
        self.zombies.clear();
        for pid in self.order.clone() {
            let Some(stat) = gone_is_none(procfs::stat(pid))? else { continue };
            if stat.is_zombie() && procfs::threads(pid).is_ok_and(|threads| threads.len() <= 1) {
                if pid == root {
                    return Err(FreezeError::Ended(root));
                }
                if gone_is_none(procfs::status(pid))?.is_some_and(|status| is_ours(&status)) {
                    reaper::bury(pid, pid.leader());
                }
                self.zombies.push(pid);
                continue;
            }
            for tid in gone_is_none(procfs::threads(pid))?.unwrap_or_default() {
                self.attach(pid, tid)?;
            }
        }
        Ok(())
    }

    fn attach(&mut self, pid: Pid, tid: Tid) -> Result<(), FreezeError> {
        if self.seen.contains(&tid) {
            return Ok(());
        }
        match Thread::seize(pid, tid, OPTIONS) {
            Ok(thread) => {
                self.expect(thread);
                Ok(())
            }
            Err(error) if error.errno == Errno::ESRCH => Ok(()),
            Err(error) => self.attached_or(pid, tid, error),
        }
    }

    /// Takes over an attached thread, to be asked to stop with the others.
    fn expect(&mut self, thread: Thread<Running>) {
        self.changed = true;
        self.seen.insert(thread.tid());
        self.ends.add(thread.pid(), thread.tid());
        self.unasked.push(thread.tid());
        self.pending.push(thread);
    }

    fn attached_or(&mut self, pid: Pid, tid: Tid, error: Error) -> Result<(), FreezeError> {
        let Some(status) = gone_is_none(procfs::thread_status(pid, tid))? else { return Ok(()) };
        let ended = matches!(status.state, 'Z' | 'X');
        if is_ours(&status) {
            if ended && tid == pid.leader() {
                // A leader ends for good with the last of its threads.
                reaper::bury(pid, tid);
                return Ok(());
            }
            self.expect(Thread::attached(pid, tid));
            return Ok(());
        }
        if ended {
            return Ok(());
        }
        if status.tracer.get() != 0 {
            return Err(FreezeError::Traced { pid, tracer: status.tracer });
        }
        // It was ending then, and an exec gave its number to another thread.
        self.changed = true;
        let attempts = self.changing.entry(tid).or_default();
        *attempts += 1;
        if *attempts < CHANGES_MAX { Ok(()) } else { Err(error.into()) }
    }

    fn wait_all(&mut self) -> Result<(), FreezeError> {
        let mut waiter = Waiter::new(STOP_LIMIT);
        let mut helped = Duration::ZERO;
        loop {
            self.look_at_all()?;
            if self.pending.is_empty() {
                if self.let_go.is_empty() {
                    return Ok(());
                }
                // Their parents stand now; so shall they.
                let asked: Result<Vec<_>, _> = self.let_go.iter().map(Thread::interrupt).collect();
                self.pending.append(&mut self.let_go);
                gone_is_none(asked)?;
            }
            if waiter.waited() > helped + PATIENCE {
                helped = waiter.waited();
                self.help_those_held_up()?;
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

    /// A leader that ended before its other threads never stops; a parent in vfork(2) stops after its child went on.
    fn help_those_held_up(&mut self) -> Result<(), FreezeError> {
        let ended = |thread: &mut Thread<Running>| {
            let stat = procfs::thread_stat(thread.pid(), thread.tid());
            thread.tid() == thread.pid().leader() && stat.is_ok_and(|stat| stat.is_zombie())
        };
        for leader in self.pending.extract_if(.., ended) {
            // The next round looks whether an exec has brought another thread under its number.
            self.changed = true;
            self.seen.remove(&leader.tid());
        }
        let mut parents: Vec<Pid> = self.pending.iter().map(Thread::pid).collect();
        parents.dedup();
        for child in self.stopped.keys().copied().collect::<Vec<_>>() {
            if parents.iter().any(|parent| runs_in_memory_of(child, *parent)) {
                for thread in self.stopped.remove(&child).unwrap_or_default() {
                    self.let_go.extend(gone_is_none(thread.resume())?);
                }
            }
        }
        Ok(())
    }

    fn look_at_all(&mut self) -> Result<(), FreezeError> {
        let mut outcome = Ok(());
        for thread in std::mem::take(&mut self.pending) {
            let (pid, tid) = (thread.pid(), thread.tid());
            match thread.look() {
                Ok(StopOutcome::Stopped(stopped)) => self.stopped.entry(pid).or_default().push(stopped),
                Ok(StopOutcome::Pending(thread)) => self.pending.push(thread),
                Ok(StopOutcome::Created(thread, created)) => {
                    self.pending.push(thread);
                    outcome = outcome.and(self.adopt(created));
                }
                Ok(StopOutcome::Gone) => {
                    self.changed = true;
                    self.seen.remove(&tid);
                }
                Err(error) => {
                    // It stays attached, so it is let go with the others.
                    self.pending.push(Thread::attached(pid, tid));
                    outcome = Err(error.into());
                }
            }
        }
        outcome
    }

    fn adopt(&mut self, tid: Tid) -> Result<(), FreezeError> {
        let path = format!("/proc/{tid}/status");
        let Some(text) = gone_is_none(procfs::read_text(&path))? else { return Ok(()) };
        let tgid = text.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        match tgid {
            Some(tgid) if !self.seen.contains(&tid) => {
                self.expect(Thread::attached(Pid(tgid), tid));
                self.interrupt_all()
            }
            _ => Ok(()),
        }
    }

    fn finish(mut self, root: Pid) -> Result<StoppedTree, FreezeError> {
        let mut processes = Vec::new();
        for pid in &self.order {
            if let Some(mut threads) = self.stopped.remove(pid) {
                threads.sort_by_key(|thread| (thread.tid() != pid.leader(), thread.tid()));
                processes.push(StoppedProcess { pid: *pid, threads });
            }
        }
        let began = self.began.unwrap_or_else(Instant::now);
        let tree = StoppedTree { processes, zombies: std::mem::take(&mut self.zombies), began };
        self.release();
        if tree.processes.first().is_some_and(|process| process.pid == root) {
            Ok(tree)
        } else {
            Err(FreezeError::Ended(root))
        }
    }

    /// Lets everything go: what stands at once, what is still on its way as soon as it stands.
    fn release(&mut self) {
        for thread in self.stopped.drain().flat_map(|(_, threads)| threads) {
            // A thread that cannot be detached has died.
            let _ = thread.detach();
        }
        self.pending.append(&mut self.let_go);
        for thread in &self.pending {
            // One that has been let go before is asked to stop again, so that it can be detached.
            let _ = thread.interrupt();
        }
        let mut waiter = Waiter::new(DRAIN_LIMIT);
        while !self.pending.is_empty() {
            for thread in std::mem::take(&mut self.pending) {
                match thread.look() {
                    Ok(StopOutcome::Stopped(stopped)) => drop(stopped.detach()),
                    Ok(StopOutcome::Pending(thread)) => {
                        let (pid, tid) = (thread.pid(), thread.tid());
                        if reaper::has_ended_unseen(pid, tid, waiter.waited()) {
                            reaper::bury(pid, tid);
                        } else {
                            self.pending.push(thread);
                        }
                    }
                    Ok(StopOutcome::Created(thread, tid)) => {
                        let pid = thread.pid();
                        self.pending.extend([thread, Thread::attached(pid, tid)]);
                    }
                    Ok(StopOutcome::Gone) | Err(_) => {}
                }
            }
            let Some(first) = self.pending.first().map(Thread::tid) else { return };
            if !matches!(waiter.block(first), Ok(true)) {
                return;
            }
        }
    }
}

/// Whether the calling thread traces it already.
fn is_ours(status: &Status) -> bool {
    status.tracer.get() == rustix::thread::gettid().as_raw_nonzero().get()
}

/// Whether a process is a child of another that uses its parent's memory.
fn runs_in_memory_of(child: Pid, parent: Pid) -> bool {
    let is_child = procfs::stat(child).is_ok_and(|stat| stat.ppid == parent);
    is_child && kcmp::shared(Shared::Memory, child, parent).unwrap_or(false)
}

fn ended_or(root: Pid, error: Error) -> FreezeError {
    if is_gone(&error) { FreezeError::Ended(root) } else { error.into() }
}

fn is_gone(error: &Error) -> bool {
    error.errno == Errno::ESRCH || error.errno == Errno::ENOENT
}

fn gone_is_none<T>(result: Result<T, Error>) -> Result<Option<T>, Error> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}
