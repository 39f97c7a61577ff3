//! Attaches to a process tree for as long as a client needs it. *Attached* and *stopped* are two states: the tree is
//! stopped many times, and stays attached in between.
//!
//! Owns: the list of the attached threads, and the reports about them.
//! Invariants: every stop is reported to the client with its reason, unless the client absorbs stops of this kind. New
//! threads and processes are attached before their first instruction. Wait statuses of stops are not consumed. Therefore,
//! if the tracer ends, the kernel resumes all threads and delivers the signals that were about to be delivered.
//! Does not: decide what a stop means. Does not keep a tree stopped; `StoppedAttached` does.

use std::collections::{HashMap, HashSet, VecDeque};
use std::marker::PhantomData;
use std::time::Duration;

use model::{Pid, Signal, Tid};
use sys::kcmp::{self, Shared};
use sys::ptrace::{self, Options, WaitStatus};
use sys::wait_timer::{Ticks, taking_ends};
use sys::{Errno, Error};

use crate::freeze::{FreezeError, OPTIONS, detach_running, detach_strays};
use crate::procfs;
use crate::stop::{Continue, StopKind, ThreadStop};
use crate::thread::Thread;
use crate::tracer::{self, Waiter};
use crate::tree;

/// Maximum number of lists of the tree until a list contains no new thread.
const ROUNDS_MAX: usize = 200;
/// Interval at which an attach reaps ended threads.
const ATTACH_TICK: Duration = Duration::from_millis(2);
/// Timeout for all threads of the tree to stop.
const STOP_LIMIT: Duration = Duration::from_secs(10);
/// Time after which the tracer checks what delays a thread.
const UNBLOCK_AFTER: Duration = Duration::from_millis(1);

/// What the clients of an attachment need, together.
#[derive(Clone, Copy, Debug)]
pub struct Clients {
    options: Options,
    absorbed: fn(StopKind) -> bool,
}

/// A report about a thread of an attached tree.
#[derive(Debug)]
pub enum Report {
    /// A thread is stopped. The client resumes it with [`Attached::resume`].
    Stopped(ThreadStop),
    /// A thread was stopped for this reason while the whole tree was being stopped. It has continued to the stop of the
    /// tree. A signal was delivered.
    Passed(Pid, Tid, StopKind),
    /// A thread has ended. `None`: an execve(2) or another wait has taken the status.
    Ended(Pid, Tid, Option<WaitStatus>),
}

#[derive(Debug)]
struct Known {
    pid: Pid,
    /// `None` while the thread runs, or stays in a group stop and reports the end of it.
    stop: Option<StopKind>,
    /// How the thread was resumed last.
    how: Continue,
    /// The number of stops.
    serial: u64,
    /// The thread is a leader that has ended before the other threads of its process. The kernel has not reported its
    /// end.
    has_ended: bool,
}

/// An attached process tree. Dropping the value detaches the tree, which then runs on.
#[derive(Debug)]
pub struct Attached {
    root: Pid,
    clients: Clients,
    threads: HashMap<Tid, Known>,
    reports: VecDeque<Report>,
    /// The whole tree is being stopped.
    is_stopping: bool,
    bound_to_tracer: PhantomData<*const ()>,
}

/// An attached tree whose threads are all in event stops or group stops.
#[derive(Debug)]
pub struct StoppedAttached(Attached);

impl Default for Clients {
    /// Returns the needs of no client: all stops are absorbed.
    fn default() -> Self {
        Self { options: OPTIONS.with(Options::EXEC), absorbed: |_| true }
    }
}

impl Clients {
    /// Adds options. The options to attach new threads and processes, and to report execve(2), are always set.
    #[must_use]
    pub fn with_options(self, options: Options) -> Self {
        Self { options: self.options.with(options), ..self }
    }

    /// Sets which stops are not reported. Their threads are resumed as without a tracer.
    #[must_use]
    pub fn absorbing(self, absorbed: fn(StopKind) -> bool) -> Self {
        Self { absorbed, ..self }
    }
}

impl Attached {
    /// Attaches to a process and all its descendants while they run.
    ///
    /// # Errors
    ///
    /// Another program traces a thread, or the tree grows faster than it can be attached. Nothing stays attached.
    pub fn seize(root: Pid, clients: Clients) -> Result<Self, FreezeError> {
        let (threads, reports) = (HashMap::new(), VecDeque::new());
        let mut attached =
            Self { root, clients, threads, reports, is_stopping: false, bound_to_tracer: PhantomData };
        for _ in 0..ROUNDS_MAX {
            let before = attached.threads.len();
            let mut is_changing = false;
            for pid in tree::descendants(root).map_err(|_| FreezeError::Ended(root))? {
                for tid in procfs::threads(pid).unwrap_or_default() {
                    is_changing |= !attached.seize_thread(pid, tid)?;
                }
            }
            if attached.threads.len() == before && !is_changing {
                return if before == 0 { Err(FreezeError::Ended(root)) } else { Ok(attached) };
            }
            attached.poll()?;
        }
        Err(FreezeError::Growing(root))
    }

    /// Returns false if the thread is changing, and the attach must be tried again. An attach waits for an execve(2) of
    /// the process. The execve(2) waits until the tracer has reaped the other threads of the process.
    fn seize_thread(&mut self, pid: Pid, tid: Tid) -> Result<bool, FreezeError> {
        if self.threads.contains_key(&tid) {
            return Ok(true);
        }
        let _ticks = Ticks::start(ATTACH_TICK)?;
        let others: Vec<Tid> =
            self.threads().filter(|(pid, tid)| *tid != pid.leader()).map(|(_, tid)| tid).collect();
        if taking_ends(&others, || ptrace::seize(tid, self.clients.options)).is_ok() {
            self.add(pid, tid);
            return Ok(true);
        }
        let Ok(status) = procfs::thread_status(pid, tid) else { return Ok(true) };
        if tracer::is_ours(&status) {
            // The kernel has attached the thread, because its creator is attached.
            self.add(pid, tid);
            return Ok(true);
        }
        match status.tracer {
            _ if matches!(status.state, 'Z' | 'X') => Ok(true),
            Pid(0) => Ok(false),
            tracer => Err(FreezeError::Traced { pid, tracer }),
        }
    }

    fn add(&mut self, pid: Pid, tid: Tid) {
        tracer::attached(tid);
        let new = Known { pid, stop: None, how: Continue::Freely, serial: 0, has_ended: false };
        self.threads.entry(tid).or_insert(new);
    }

    /// Returns the attached threads, with their processes.
    pub fn threads(&self) -> impl Iterator<Item = (Pid, Tid)> {
        self.threads.iter().map(|(tid, known)| (known.pid, *tid))
    }

    /// Waits for the next report. Returns `None` after `limit`, or if no thread runs.
    ///
    /// # Errors
    ///
    /// A kernel call failed. The tree stays attached.
    pub fn next(&mut self, limit: Duration) -> Result<Option<Report>, Error> {
        let mut waiter = Waiter::new(limit);
        loop {
            self.poll()?;
            if let Some(report) = self.reports.pop_front() {
                return Ok(Some(report));
            }
            let Some(tid) = self.running().next() else { return Ok(None) };
            if !waiter.block(tid)? {
                return Ok(None);
            }
        }
    }

    /// Resumes a stopped thread. A signal that was about to be delivered is delivered. It is no error if the thread was
    /// killed meanwhile; its end is reported.
    ///
    /// # Errors
    ///
    /// The thread cannot be resumed.
    pub fn resume(&mut self, stop: ThreadStop, how: Continue) -> Result<(), Error> {
        let signal = stop.kind.carried();
        self.resume_with(stop, how, signal)
    }

    /// Like `resume`, but delivers `signal` instead of the signal of the stop.
    ///
    /// # Errors
    ///
    /// The same as `resume`.
    pub fn resume_with(
        &mut self,
        stop: ThreadStop,
        how: Continue,
        signal: Option<Signal>,
    ) -> Result<(), Error> {
        let is_present = |known: &Known| known.serial == stop.serial && known.stop.is_some();
        if !self.threads.get(&stop.tid).is_some_and(is_present) {
            return Ok(());
        }
        self.leave(stop.tid, stop.kind, how, signal)
    }

    /// Stops all threads. Stops of other kinds that occur meanwhile are passed, and reported as [`Report::Passed`].
    /// Threads whose stops the client holds are resumed, too.
    ///
    /// # Errors
    ///
    /// A thread did not stop in time, or no thread is left. The tree is detached and runs on.
    pub fn stop(mut self) -> Result<StoppedAttached, FreezeError> {
        self.stop_all()?;
        if self.threads.is_empty() { Err(FreezeError::Ended(self.root)) } else { Ok(StoppedAttached(self)) }
    }

    fn stop_all(&mut self) -> Result<(), FreezeError> {
        self.is_stopping = true;
        self.pass_stops()?;
        let mut waiter = Waiter::new(STOP_LIMIT);
        let mut unblocked_at = Duration::ZERO;
        // Threads that have been asked to stop, and children of vfork(2) that must not be asked yet.
        let (mut asked, mut released) = (HashSet::new(), HashSet::new());
        loop {
            if self.running().all(|tid| released.contains(&tid)) {
                // The parents are stopped now.
                released.clear();
            }
            for tid in self.running().filter(|tid| !released.contains(tid)).collect::<Vec<_>>() {
                if asked.insert(tid) {
                    gone_is_ok(ptrace::interrupt(tid))?;
                }
            }
            self.poll()?;
            asked.retain(|tid| self.threads.get(tid).is_some_and(|known| known.stop.is_none()));
            let Some(tid) = self.running().next() else { break };
            if waiter.waited() > unblocked_at + UNBLOCK_AFTER {
                unblocked_at = waiter.waited();
                released.extend(self.unblock()?);
            }
            if !waiter.block(tid)? {
                let pid = self.threads.get(&tid).map_or_else(Pid::default, |known| known.pid);
                let place = procfs::read_text(format!("/proc/{pid}/task/{tid}/wchan")).unwrap_or_default();
                return Err(FreezeError::Stuck { pid, tid, place });
            }
        }
        self.is_stopping = false;
        Ok(())
    }

    /// Lets the threads run to the stop of the tree that are stopped for another reason.
    fn pass_stops(&mut self) -> Result<(), Error> {
        for report in &mut self.reports {
            if let Report::Stopped(stop) = report {
                *report = Report::Passed(stop.pid, stop.tid, stop.kind);
            }
        }
        let stopped = |(tid, known): (&Tid, &Known)| Some((*tid, known.stop?, known.how));
        for (tid, kind, how) in self.threads.iter().filter_map(stopped).collect::<Vec<_>>() {
            if !kind.is_quiet() {
                self.pass(tid, kind, how)?;
            }
        }
        Ok(())
    }

    /// Resumes a thread, and asks it to stop again immediately. Each stop cancels an earlier request.
    fn pass(&mut self, tid: Tid, kind: StopKind, how: Continue) -> Result<(), Error> {
        gone_is_ok(ptrace::interrupt(tid))?;
        self.leave(tid, kind, how, kind.carried())
    }

    /// Handles threads that cannot stop. A leader that has ended before the other threads of its process never stops. A
    /// parent in vfork(2) stops only after its child has run. Returns the threads of such children, which run now.
    fn unblock(&mut self) -> Result<Vec<Tid>, Error> {
        for (tid, known) in self.threads.iter_mut().filter(|(_, known)| known.stop.is_none()) {
            let is_zombie = || procfs::thread_stat(known.pid, *tid).is_ok_and(|stat| stat.is_zombie());
            known.has_ended = *tid == known.pid.leader() && is_zombie();
        }
        let parents: HashSet<Pid> =
            self.running().filter_map(|tid| Some(self.threads.get(&tid)?.pid)).collect();
        // An execve(2) in a running thread may have killed a stopped thread, and waits until this thread is reaped.
        let stopped =
            self.threads.iter().filter(|(_, known)| known.stop.is_some() && parents.contains(&known.pid));
        for (tid, pid) in stopped.map(|(tid, known)| (*tid, known.pid)).collect::<Vec<_>>() {
            match tracer::inspect(pid, tid) {
                Ok(Some(WaitStatus::Stopped(_)) | None) => {}
                Ok(end) => self.note_end(pid, tid, end),
                Err(_) => self.note_end(pid, tid, None),
            }
        }
        let is_child = |pid: Pid| {
            let parent = procfs::stat(pid).map(|stat| stat.ppid).ok().filter(|ppid| parents.contains(ppid));
            parent.is_some_and(|parent| kcmp::shared(Shared::Memory, pid, parent).unwrap_or(false))
        };
        let stopped = |(tid, known): (&Tid, &Known)| {
            Some((*tid, known.stop?, known.how)).filter(|_| is_child(known.pid))
        };
        let children: Vec<_> = self.threads.iter().filter_map(stopped).collect();
        for (tid, kind, how) in &children {
            self.leave(*tid, *kind, *how, kind.carried())?;
        }
        Ok(children.into_iter().map(|(tid, ..)| tid).collect())
    }

    fn leave(
        &mut self,
        tid: Tid,
        kind: StopKind,
        how: Continue,
        signal: Option<Signal>,
    ) -> Result<(), Error> {
        let Some(known) = self.threads.get_mut(&tid) else { return Ok(()) };
        (known.stop, known.how) = (None, how);
        let pid = known.pid;
        tracer::with_calls(|calls| calls.before_resume(pid, tid));
        gone_is_ok(kind.leave(tid, how, signal))
    }

    fn running(&self) -> impl Iterator<Item = Tid> {
        let running = self.threads.iter().filter(|(_, known)| known.stop.is_none() && !known.has_ended);
        running.map(|(tid, _)| *tid)
    }

    /// Checks all running threads once.
    fn poll(&mut self) -> Result<(), Error> {
        let running = self.threads.iter().filter(|(_, known)| known.stop.is_none());
        for (tid, pid) in running.map(|(tid, known)| (*tid, known.pid)).collect::<Vec<_>>() {
            match tracer::inspect(pid, tid) {
                Ok(None) => {}
                Ok(Some(WaitStatus::Stopped(stop))) => self.note_stop(pid, tid, stop)?,
                Ok(Some(end)) => self.note_end(pid, tid, Some(end)),
                Err(error) if error.errno == Errno::ECHILD => self.note_end(pid, tid, None),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn note_stop(&mut self, pid: Pid, tid: Tid, stop: ptrace::Stop) -> Result<(), Error> {
        if stop == ptrace::Stop::Exec {
            // Until this status is consumed, the kernel refuses requests with ESRCH if the tid of the thread has changed
            // (looks_like_a_spurious_pid, Linux 6.18). The stop carries no signal that could be lost.
            match ptrace::poll(tid)? {
                Some(WaitStatus::Stopped(_)) => {}
                Some(end) => {
                    self.note_end(pid, tid, Some(end));
                    return Ok(());
                }
                None => return Ok(()),
            }
        }
        let hidden = StopKind::of(tid, stop).and_then(|kind| {
            if kind.is_quiet() {
                tracer::with_calls(|calls| calls.hide_stop(pid, tid))?;
            }
            Ok(kind)
        });
        let kind = match hidden {
            // The thread was killed in its stop. The next poll finds its end.
            Err(error) if error.errno == Errno::ESRCH => return Ok(()),
            outcome => outcome?,
        };
        match kind {
            StopKind::Created(created) => self.add_created(created),
            // The thread has taken the tid of the leader. All other threads of the process have ended.
            StopKind::Exec(former) if former != tid && self.threads.remove(&former).is_some() => {
                tracer::detached(former);
                self.reports.push_back(Report::Ended(pid, former, None));
            }
            _ => {}
        }
        let Some(known) = self.threads.get_mut(&tid) else { return Ok(()) };
        known.stop = Some(kind);
        known.has_ended = false;
        known.serial += 1;
        let (how, serial) = (known.how, known.serial);
        let is_absorbed = (self.clients.absorbed)(kind);
        match (self.is_stopping, is_absorbed) {
            (true, _) if kind.is_quiet() => Ok(()),
            (true, false) => {
                self.reports.push_back(Report::Passed(pid, tid, kind));
                self.pass(tid, kind, how)
            }
            (true, true) => self.pass(tid, kind, how),
            (false, true) => self.leave(tid, kind, how, kind.carried()),
            (false, false) => {
                let stop = ThreadStop { pid, tid, kind, serial, bound_to_tracer: PhantomData };
                self.reports.push_back(Report::Stopped(stop));
                Ok(())
            }
        }
    }

    fn add_created(&mut self, tid: Tid) {
        let pid = procfs::read(format!("/proc/{tid}/status"))
            .ok()
            .and_then(|text| procfs::status_line(&text, "Tgid")?.parse().ok());
        if let Some(pid) = pid {
            self.add(Pid(pid), tid);
        }
    }

    fn note_end(&mut self, pid: Pid, tid: Tid, end: Option<WaitStatus>) {
        self.threads.remove(&tid);
        self.reports.push_back(Report::Ended(pid, tid, end));
        if matches!(end, Some(WaitStatus::Killed(_))) {
            // A killed thread can have created a task that it could not report.
            for (pid, tid) in tracer::strays() {
                self.add(pid, tid);
            }
        }
    }

    /// Detaches all threads, which run on. Signals that were about to be delivered are delivered.
    pub fn detach(self) {
        drop(self);
    }
}

impl Drop for Attached {
    /// Stops the tree first. A process that is in the middle of an execve(2) needs the tracer for it.
    fn drop(&mut self) {
        // After an error, the threads that run are detached when they stop.
        let _ = self.stop_all();
        let mut running = Vec::new();
        for (tid, known) in std::mem::take(&mut self.threads) {
            let Some(kind) = known.stop else {
                if known.has_ended {
                    tracer::record_end(known.pid, tid);
                } else {
                    running.push(Thread::attached(known.pid, tid, self.clients.options));
                }
                continue;
            };
            tracer::with_calls(|calls| calls.before_resume(known.pid, tid));
            match ptrace::detach(tid, kind.carried()) {
                Ok(()) => tracer::detached(tid),
                // The thread was killed in its stop.
                Err(_) => tracer::record_end(known.pid, tid),
            }
        }
        detach_running(running);
        detach_strays();
        tracer::reap_ended();
    }
}

impl StoppedAttached {
    /// Returns the stopped threads with their processes. The kind is `Event` or `Group`.
    pub fn threads(&self) -> impl Iterator<Item = (Pid, Tid, StopKind)> {
        self.0.threads.iter().filter_map(|(tid, known)| Some((known.pid, *tid, known.stop?)))
    }

    /// Resumes all threads. The tree stays attached.
    ///
    /// # Errors
    ///
    /// A thread cannot be resumed. The tree is detached and runs on.
    pub fn release(self) -> Result<Attached, Error> {
        let mut attached = self.0;
        let stopped: Vec<_> =
            attached.threads.iter().filter_map(|(tid, known)| Some((*tid, known.stop?, known.how))).collect();
        for (tid, kind, how) in stopped {
            attached.leave(tid, kind, how, kind.carried())?;
        }
        Ok(attached)
    }

    /// Detaches all threads, which run on.
    pub fn detach(self) {
        drop(self);
    }
}

fn gone_is_ok(outcome: Result<(), Error>) -> Result<(), Error> {
    match outcome {
        Err(error) if error.errno == Errno::ESRCH => Ok(()),
        outcome => outcome,
    }
}
