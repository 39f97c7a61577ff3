//! Runs the event loop of a process that guards several subjects (protected process trees).
//!
//! The guard of a subject controls this subject. A director decides which subjects exist. A worker is a thread that
//! executes one task at a time.
//!
//! Owns: the loop, its epoll instance, and the resources that exist once in a process: signals, children, the terminal.
//! Invariants: the loop never waits for a disk or for a dying process; workers execute tasks that may block. Signals
//! that have arrived are passed to a subject before the death of the subject is reported.
//! Does not: control a subject, or decide which subjects exist.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use health::Interest;
use model::{Pid, Signal};
use store::StorageService;
use supervise::{Fault, SubjectStatus};
use sys::clock::Clock;
use sys::listener_holder::ListenerHolder;

use super::poller::Poller;
use super::workers::Workers;
use crate::error::Result;
use crate::event::RunEvent;
use crate::foreground::Foreground;
use crate::inspection::require_features;
use crate::run::{
    After, CostMeter, EndedRun, Guard, MemberNumber, ProcessReaper, RunRequest, Shared, SubjectReport, start,
};
use crate::signals::{Arrived, CONT, PendingStop, Request, Signals};
use crate::streams::Streams;

/// The identifier of a subject in a host. Identifiers are numbered in the order in which subjects are added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SubjectId(u32);

/// Poll tokens of descriptors that belong to no subject.
const SIGNALS: u64 = u64::MAX;
const WORKERS: u64 = u64::MAX - 1;
/// A bit that is set in the poll tokens of the director.
const DIRECTOR: u64 = 1 << 32;

/// Guards the subjects of one process.
///
/// The host receives the signals of the process, and is the subreaper of the subjects' orphans. Therefore a process has
/// only one host. The host must be created before the process starts other threads. Children that exist at the creation
/// of the host belong to no subject. The host never ends these children.
pub struct Host {
    shared: Arc<Shared>,
    signals: Signals,
    workers: Workers<Done>,
    poller: Poller,
    /// The terminal. The first subject takes the terminal, because a terminal has only one job in the foreground.
    foreground: Option<Foreground>,
    added: u32,
    /// Subjects that were added, but are not being started yet.
    waiting: Vec<(SubjectId, RunRequest)>,
    guards: BTreeMap<SubjectId, Guarded>,
    away: Away,
    /// Signals for subjects that are being started. A signal without an identifier is for all these subjects.
    early: Vec<(Option<SubjectId>, Request)>,
    /// Whether a child has changed its state since dead children were last reaped.
    has_orphans: bool,
}

/// Numbers of tasks that workers are executing, by kind.
#[derive(Clone, Copy, Default)]
struct Away {
    starting: usize,
    working: usize,
    leaving: usize,
}

/// A running subject, with the time of its next step.
struct Guarded {
    guard: Box<Guard>,
    due: Option<Instant>,
}

impl Guarded {
    fn take_signal(&mut self, request: Request, clock: &Clock) {
        self.guard.signal(request);
        self.due = self.guard.due(clock.now()).or(self.due);
    }
}

/// The result of a task of a worker.
enum Done {
    Started(SubjectId, Result<Box<Guard>>),
    Worked(SubjectId, After),
    Ended(SubjectId, EndedRun),
    Background,
}

/// A descriptor that a director waits for. When the descriptor is ready, `turn` receives `number`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source<'a> {
    pub(crate) number: u32,
    pub(crate) handle: BorrowedFd<'a>,
    pub(crate) interest: Interest,
}

/// Decides which subjects a host guards.
pub(crate) trait Director {
    /// Receives the report that a subject runs for the first time. `root` is the pid of the first process of the
    /// subject.
    fn started(&mut self, id: SubjectId, root: Pid);

    /// Receives a report of a subject, as soon as it has happened.
    fn noticed(&mut self, _id: SubjectId, _report: SubjectReport) {}

    /// Receives an event that people may learn now. While files are being rolled back, people learn nothing.
    fn tell(&mut self, name: &str, event: &RunEvent);

    /// Receives the report that the run of a subject is over, or could not begin.
    fn ended(&mut self, id: SubjectId, outcome: Result<SubjectStatus>);

    /// Reports whether a signal to this program is for the director, and not for the subjects.
    fn takes(&mut self, _signal: Request) -> bool {
        false
    }

    /// Reports whether this program stops when it receives a stop signal, together with the subjects.
    fn stops(&self) -> bool {
        true
    }

    /// Returns the descriptors to wait for until the next turn.
    fn sources(&self) -> Vec<Source<'_>> {
        Vec::new()
    }

    /// Returns the time when a turn is due, even without other events.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// Handles reports, ready descriptors and due times. May call methods of the host.
    fn turn(&mut self, _ready: &[u32], _host: &mut Host) {}

    /// Reports whether no further subject will be added.
    fn is_over(&self) -> bool {
        true
    }
}

impl Host {
    /// Creates a host without subjects.
    ///
    /// # Errors
    ///
    /// The kernel lacks a required feature.
    pub fn new() -> Result<Self> {
        // Inherited files must be recorded before this process opens a file.
        let streams = Streams::inherited()?;
        require_features()?;
        sys::heap::limit();
        sys::descriptor_table::raise_limit();
        sys::descriptor_table::enlarge()?;
        // Signals must be blocked before another thread starts. The new thread inherits the signal mask. Otherwise, the
        // new thread could receive signals, and their default actions would be executed.
        let signals = Signals::take()?;
        let shared = Shared {
            reaper: ProcessReaper::found()?,
            streams: Arc::new(streams),
            clock: Clock::default(),
            storage: StorageService::default(),
            costs: CostMeter::new(),
            child_stops: Arc::default(),
            blocked_before: signals.blocked_before,
            defaults: signals.defaults,
        };
        Ok(Self {
            shared: Arc::new(shared),
            signals,
            workers: Workers::new()?,
            poller: Poller::new()?,
            foreground: Some(Foreground::new()),
            added: 0,
            waiting: Vec::new(),
            guards: BTreeMap::new(),
            away: Away::default(),
            early: Vec::new(),
            has_orphans: false,
        })
    }

    /// Adds a subject. The running host starts or adopts the subject.
    pub fn add(&mut self, request: RunRequest) -> SubjectId {
        let id = SubjectId(self.added);
        self.added += 1;
        self.waiting.push((id, request));
        id
    }

    /// Guards subjects until the director adds no further subject and the last subject has ended.
    ///
    /// # Errors
    ///
    /// The host cannot wait for events. Running programs continue.
    pub(crate) fn direct(&mut self, director: &mut dyn Director) -> Result<()> {
        self.poller.ask(self.signals.handle(), SIGNALS, Interest::Readable)?;
        self.poller.ask(self.workers.handle(), WORKERS, Interest::Readable)?;
        director.turn(&[], self);
        while !director.is_over() || !self.is_empty() {
            for (id, request) in std::mem::take(&mut self.waiting) {
                self.start(id, request)?;
            }
            self.turn(director)?;
        }
        Ok(())
    }

    /// Ends a subject: sends the signal to its root, and then ends the run. A subject that is still being started gets
    /// the signal as soon as it runs.
    pub(crate) fn end(&mut self, id: SubjectId, signal: Signal) {
        let request = Request::End { signal, from_terminal: false, is_of_group: false };
        match self.guards.get_mut(&id) {
            Some(guarded) => guarded.take_signal(request, &self.shared.clock),
            None => self.early.push((Some(id), request)),
        }
    }

    /// Lets a program join a subject that runs. A report follows, unless the subject dies first.
    pub(crate) fn join(&mut self, id: SubjectId, member: MemberNumber, request: RunRequest) {
        self.with_guard(id, |guard| guard.join(member, request));
    }

    /// Ends one root of a subject. The end of the only root is the end of the run.
    pub(crate) fn end_root(&mut self, id: SubjectId, root: Pid, signal: Signal) {
        self.with_guard(id, |guard| guard.end_root(root, signal));
    }

    /// With `true`, no checkpoint of a subject is taken, because a member is not ready.
    pub(crate) fn set_incomplete(&mut self, id: SubjectId, is_incomplete: bool) {
        self.with_guard(id, |guard| guard.set_incomplete(is_incomplete));
    }

    /// Changes a guard, and lets it take a step at once.
    fn with_guard(&mut self, id: SubjectId, change: impl FnOnce(&mut Guard)) {
        if let Some(guarded) = self.guards.get_mut(&id) {
            change(&mut guarded.guard);
            guarded.due = Some(self.shared.clock.now());
        }
    }

    /// Records that a subject is ready. Checkpoints that wait for readiness become due.
    pub(crate) fn ready(&mut self, id: SubjectId) {
        self.with_guard(id, Guard::ready);
    }

    /// Kills a subject in which a fault was found. The policy of the subject decides what follows.
    pub(crate) fn fail(&mut self, id: SubjectId, fault: Fault) {
        self.with_guard(id, |guard| guard.fault(fault));
    }

    pub(crate) fn note(&mut self, id: SubjectId, event: &RunEvent) {
        if let Some(guarded) = self.guards.get(&id) {
            guarded.guard.note(event);
        }
    }

    /// Returns the reaper, which assigns processes to subjects.
    pub(crate) fn reaper(&self) -> &ProcessReaper {
        &self.shared.reaper
    }

    /// Starts a program that belongs to no subject; must be called after [`ProcessReaper::share`]. The host reaps the program.
    pub(crate) fn execute(&self, command: &mut std::process::Command) -> std::io::Result<Pid> {
        sys::signal::start_with(command, self.shared.blocked_before, self.shared.defaults);
        sys::descriptor_table::start_with_first_limit(command);
        sys::launch::start_in_session(command);
        Ok(Pid(command.spawn()?.id() as i32))
    }

    /// Creates listener holders, which belong to no subject.
    pub(crate) fn start_holder(&self) -> Result<ListenerHolder> {
        let shared = Arc::clone(&self.shared);
        Ok(ListenerHolder::start(move |create| shared.reaper.create_exempt(create))?)
    }

    /// Lets a worker do work that may wait for a disk.
    pub(crate) fn run_on_worker(&mut self, work: impl FnOnce() + Send + 'static) -> Result<()> {
        self.workers.submit(move || {
            work();
            Done::Background
        })
    }

    /// Returns the clock for decisions that depend on time.
    pub(crate) fn clock(&self) -> &Clock {
        &self.shared.clock
    }

    /// Reports whether no subject runs, is being started or is ending.
    fn is_empty(&self) -> bool {
        self.away.starting + self.away.leaving == 0 && self.guards.is_empty() && self.waiting.is_empty()
    }

    fn start(&mut self, id: SubjectId, request: RunRequest) -> Result<()> {
        let is_service = request.launch.is_service;
        let foreground = if is_service { None } else { self.foreground.take() };
        let shared = Arc::clone(&self.shared);
        self.away.starting += 1;
        self.workers.submit(move || {
            let foreground = foreground.unwrap_or_else(Foreground::none);
            Done::Started(id, start(request, shared, foreground).map(Box::new))
        })
    }

    /// Waits for events. Then each affected subject takes a step, and the director takes a turn.
    fn turn(&mut self, director: &mut dyn Director) -> Result<()> {
        let first = self.guards.values().filter_map(|guarded| guarded.due).chain(director.due()).min();
        let timeout = first.map(|due| due.saturating_duration_since(self.shared.clock.now()));
        for source in director.sources() {
            self.poller.ask(source.handle, DIRECTOR | u64::from(source.number), source.interest)?;
        }
        let mut woken = self.poller.wait(timeout)?;
        self.take_signals(director)?;
        self.take_done(director)?;
        if woken.contains(&SIGNALS) {
            self.poller.ask(self.signals.handle(), SIGNALS, Interest::Readable)?;
        }
        if woken.contains(&WORKERS) {
            self.poller.ask(self.workers.handle(), WORKERS, Interest::Readable)?;
        }
        let is_directors = |token: &&u64| **token & DIRECTOR != 0 && **token < WORKERS;
        let ready: Vec<u32> =
            woken.iter().filter(is_directors).map(|token| (*token & (DIRECTOR - 1)) as u32).collect();
        let now = self.shared.clock.now();
        let due = self.guards.iter().filter(|(_, guarded)| guarded.due.is_some_and(|due| due <= now));
        woken.extend(due.map(|(id, _)| u64::from(id.0)));
        woken.sort_unstable();
        woken.dedup();
        for id in woken.into_iter().filter_map(|token| u32::try_from(token).ok()).map(SubjectId) {
            self.step(id, director)?;
        }
        director.turn(&ready, self);
        if self.has_orphans {
            let is_building = self.away.starting + self.away.working > 0;
            self.has_orphans = self.shared.reaper.reap(is_building);
        }
        Ok(())
    }

    /// Lets a subject take a step, and handles the consequences of the step.
    fn step(&mut self, id: SubjectId, director: &mut dyn Director) -> Result<()> {
        let Some(guarded) = self.guards.get_mut(&id) else { return Ok(()) };
        let guard = &mut guarded.guard;
        guard.step();
        let (reports, messages) = (guard.take_reports(), guard.take_messages());
        messages.iter().for_each(|event| director.tell(guard.name(), event));
        reports.into_iter().for_each(|report| director.noticed(id, report));
        guard.draw_again();
        if guard.is_over() {
            if let Some(Guarded { guard, .. }) = self.guards.remove(&id) {
                self.away.leaving += 1;
                self.workers.submit(move || Done::Ended(id, guard.leave()))?;
            }
            return Ok(());
        }
        if let Some(work) = guard.take_work() {
            self.away.working += 1;
            self.workers.submit(move || Done::Worked(id, work()))?;
        }
        guarded.due = guard.due(self.shared.clock.now());
        guard
            .handles()
            .into_iter()
            .try_for_each(|handle| self.poller.ask(handle, u64::from(id.0), Interest::Readable))
    }

    fn take_done(&mut self, director: &mut dyn Director) -> Result<()> {
        while let Some(done) = self.workers.take() {
            match done {
                Done::Started(id, started) => {
                    self.away.starting -= 1;
                    match started {
                        Ok(mut guard) => {
                            let early = self.early.iter().filter(|(of, _)| of.is_none_or(|of| of == id));
                            early.for_each(|(_, request)| guard.signal(*request));
                            director.started(id, guard.root());
                            self.guards.insert(id, Guarded { guard, due: None });
                            self.step(id, director)?;
                        }
                        Err(error) => director.ended(id, Err(error)),
                    }
                    if self.away.starting == 0 {
                        self.early.clear();
                    }
                }
                Done::Worked(id, after) => {
                    if let Some(guarded) = self.guards.get_mut(&id) {
                        guarded.guard.work_done(after);
                    }
                    // While a task counts, the reaper does not reap unknown children. Now the reaper knows the new root
                    // of the subject.
                    self.away.working -= 1;
                    self.step(id, director)?;
                }
                Done::Background => {}
                Done::Ended(id, ended) => {
                    self.away.leaving -= 1;
                    ended.messages.iter().for_each(|event| director.tell(&ended.name, event));
                    ended.reports.into_iter().for_each(|report| director.noticed(id, report));
                    director.ended(id, ended.outcome);
                }
            }
        }
        Ok(())
    }

    /// Passes the signals that this program has received to the subjects, except signals for the director.
    fn take_signals(&mut self, director: &mut dyn Director) -> Result<()> {
        while let Some(arrived) = self.signals.poll()? {
            match arrived {
                Arrived::Stop { .. } if !director.stops() => {}
                Arrived::Stop { signal, from_terminal, stop } => self.stop(signal, from_terminal, stop)?,
                Arrived::Request(Request::Child) => self.has_orphans = true,
                Arrived::Request(request) if director.takes(request) => {}
                Arrived::Request(request) => {
                    if self.away.starting > 0 {
                        self.early.push((None, request));
                    }
                    for guarded in self.guards.values_mut() {
                        guarded.take_signal(request, &self.shared.clock);
                    }
                }
            }
        }
        Ok(())
    }

    /// Stops this program together with the subjects, until another process continues this program.
    fn stop(&mut self, signal: Signal, from_terminal: bool, stop: PendingStop) -> Result<()> {
        let guards = || self.guards.values().map(|guarded| &guarded.guard);
        let stopped: Vec<_> = guards().filter(|guard| guard.is_to_stop(from_terminal)).collect();
        stopped.iter().for_each(|guard| guard.send(signal));
        stop.take_effect()?;
        stopped.iter().for_each(|guard| guard.send(CONT));
        self.guards.values_mut().for_each(|guarded| guarded.guard.continued());
        Ok(())
    }
}
