//! One process that guards many subjects.
//!
//! Owns: the loop and its epoll instance; what a process has once: signals, the children of this program, the terminal.
//! Invariants: the loop waits for no disk and no dying process; what may block is a worker's. A signal that has arrived
//! is handed to a subject before a death of it is reported.
//! Does not: decide anything about a subject; its guard does.

mod workers;

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use supervise::SubjectStatus;
use sys::Error;
use sys::clock::Clock;

use self::workers::Workers;
use crate::error::{GuardianError, Result};
use crate::event::RunEvent;
use crate::foreground::Foreground;
use crate::inspection::{require_features, require_restorable};
use crate::run::{After, Guard, Left, ProcessReaper, RunRequest, Shared, start};
use crate::signals::{self, CONT, Request, Signals};
use crate::streams::Streams;

/// One subject of a host, by the order in which they were added.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SubjectId(u32);

/// Tokens of descriptors that belong to no subject.
const SIGNALS: u64 = u64::MAX;
const WORKERS: u64 = u64::MAX - 1;

/// A program that guards subjects.
///
/// It takes the signals of the process, and is the parent to whom orphans of the subjects fall. So there is one in a
/// process, made before the process has other threads and other children than those that it keeps.
pub struct Host {
    shared: Arc<Shared>,
    signals: Signals,
    workers: Workers<Done>,
    poller: Poller,
    /// For the first subject; a terminal has one job in the foreground.
    foreground: Option<Foreground>,
    added: u32,
    waiting: Vec<(SubjectId, RunRequest)>,
    guards: BTreeMap<SubjectId, Guarded>,
    away: Away,
    /// Signals since the first of the subjects was begun to be started that is still being started.
    early: Vec<Request>,
    /// A child has changed, and the dead ones were not reaped since.
    has_orphans: bool,
    outcomes: BTreeMap<SubjectId, Result<SubjectStatus>>,
}

/// What workers are at.
#[derive(Clone, Copy, Default)]
struct Away {
    starting: usize,
    working: usize,
    leaving: usize,
}

/// A subject that runs.
struct Guarded {
    guard: Box<Guard>,
    due: Option<Instant>,
}

/// What a worker has done.
enum Done {
    Started(SubjectId, Result<Box<Guard>>),
    Worked(SubjectId, After),
    Left(SubjectId, Left),
}

/// Hears what happens to a subject of this name.
pub type Tell<'a> = &'a mut dyn FnMut(&str, &RunEvent);

/// Runs or adopts a program, and keeps it alive until it has ended for good.
///
/// # Errors
///
/// When it cannot be started, watched or, once dead, restored. A program that runs goes on.
pub fn run(request: &RunRequest, tell: &mut dyn FnMut(&RunEvent)) -> Result<SubjectStatus> {
    let mut host = Host::new()?;
    let id = host.add(request.clone());
    let mut outcomes = host.run(&mut |_, event| tell(event))?;
    outcomes.remove(&id).expect("each subject that was added has an outcome")
}

impl Host {
    /// A host without subjects.
    ///
    /// # Errors
    ///
    /// When the kernel lacks something, or this user may not restore what it checkpoints.
    pub fn new() -> Result<Self> {
        // Before anything is opened.
        let streams = Streams::inherited()?;
        require_features()?;
        require_restorable()?;
        sys::descriptor_table::make_room()?;
        // Before there is any thread, which would take signals with their usual actions.
        let signals = Signals::take()?;
        let shared = Shared {
            reaper: ProcessReaper::found()?,
            streams,
            clock: Clock::default(),
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
            outcomes: BTreeMap::new(),
        })
    }

    /// Adds a subject, which is started or adopted by `run`.
    pub fn add(&mut self, request: RunRequest) -> SubjectId {
        let id = SubjectId(self.added);
        self.added += 1;
        self.waiting.push((id, request));
        id
    }

    /// Guards all subjects until the last of them has ended for good; gives how each has ended, or why it could not be
    /// started, watched or restored.
    ///
    /// # Errors
    ///
    /// When the host can wait for nothing. Programs that run go on.
    pub fn run(&mut self, tell: Tell<'_>) -> Result<BTreeMap<SubjectId, Result<SubjectStatus>>> {
        for (id, request) in std::mem::take(&mut self.waiting) {
            self.start(id, request)?;
        }
        self.poller.ask(self.signals.handle(), SIGNALS)?;
        self.poller.ask(self.workers.handle(), WORKERS)?;
        while self.away.starting + self.away.leaving > 0 || !self.guards.is_empty() {
            self.turn(tell)?;
        }
        Ok(std::mem::take(&mut self.outcomes))
    }

    fn start(&mut self, id: SubjectId, request: RunRequest) -> Result<()> {
        let (shared, foreground) = (Arc::clone(&self.shared), self.foreground.take());
        self.away.starting += 1;
        self.workers.submit(move || {
            let foreground = foreground.unwrap_or_else(Foreground::none);
            Done::Started(id, start(request, shared, foreground).map(Box::new))
        })
    }

    /// Waits for something to happen, and has each subject that it concerns take a step.
    fn turn(&mut self, tell: Tell<'_>) -> Result<()> {
        let first = self.guards.values().filter_map(|guarded| guarded.due).min();
        let timeout = first.map(|due| due.saturating_duration_since(self.shared.clock.now()));
        let mut woken = self.poller.wait(timeout)?;
        self.take_signals()?;
        self.take_done(tell)?;
        if woken.contains(&SIGNALS) {
            self.poller.ask(self.signals.handle(), SIGNALS)?;
        }
        if woken.contains(&WORKERS) {
            self.poller.ask(self.workers.handle(), WORKERS)?;
        }
        let now = self.shared.clock.now();
        let due = self.guards.iter().filter(|(_, guarded)| guarded.due.is_some_and(|due| due <= now));
        woken.extend(due.map(|(id, _)| u64::from(id.0)));
        woken.sort_unstable();
        woken.dedup();
        for id in woken.into_iter().filter_map(|token| u32::try_from(token).ok()).map(SubjectId) {
            self.step(id, tell)?;
        }
        if self.has_orphans {
            let is_building = self.away.starting + self.away.working > 0;
            self.has_orphans = self.shared.reaper.reap(is_building);
        }
        Ok(())
    }

    /// Has a subject take a step, and sees to what follows from it.
    fn step(&mut self, id: SubjectId, tell: Tell<'_>) -> Result<()> {
        let Some(guarded) = self.guards.get_mut(&id) else { return Ok(()) };
        let guard = &mut guarded.guard;
        guard.step();
        for event in guard.take_told() {
            tell(guard.name(), &event);
        }
        if guard.is_over() {
            if let Some(Guarded { guard, .. }) = self.guards.remove(&id) {
                self.away.leaving += 1;
                self.workers.submit(move || Done::Left(id, guard.leave()))?;
            }
            return Ok(());
        }
        if let Some(work) = guard.take_work() {
            self.away.working += 1;
            self.workers.submit(move || Done::Worked(id, work()))?;
        }
        guarded.due = guard.due(self.shared.clock.now());
        guard.handles().into_iter().try_for_each(|handle| self.poller.ask(handle, u64::from(id.0)))
    }

    /// Takes over what workers have done.
    fn take_done(&mut self, tell: Tell<'_>) -> Result<()> {
        while let Some(done) = self.workers.take() {
            match done {
                Done::Started(id, started) => {
                    self.away.starting -= 1;
                    match started {
                        Ok(mut guard) => {
                            self.early.iter().for_each(|request| guard.signal(*request));
                            self.guards.insert(id, Guarded { guard, due: None });
                            self.step(id, tell)?;
                        }
                        Err(error) => drop(self.outcomes.insert(id, Err(error))),
                    }
                    if self.away.starting == 0 {
                        self.early.clear();
                    }
                }
                Done::Worked(id, after) => {
                    if let Some(guarded) = self.guards.get_mut(&id) {
                        guarded.guard.work_done(after);
                    }
                    // Its new root is known to the reaper by now.
                    self.away.working -= 1;
                    self.step(id, tell)?;
                }
                Done::Left(id, left) => {
                    self.away.leaving -= 1;
                    left.told.iter().for_each(|event| tell(&left.name, event));
                    self.outcomes.insert(id, left.outcome);
                }
            }
        }
        Ok(())
    }

    /// Hands signals to this program on to the subjects.
    fn take_signals(&mut self) -> Result<()> {
        while let Some(request) = self.signals.poll()? {
            match request {
                Request::Child => self.has_orphans = true,
                Request::Stop { signal, from_terminal } => self.stop(signal, from_terminal)?,
                Request::End { .. } | Request::PassOn(_) => {
                    if self.away.starting > 0 {
                        self.early.push(request);
                    }
                    for guarded in self.guards.values_mut() {
                        guarded.guard.signal(request);
                        guarded.due = guarded.guard.due(self.shared.clock.now()).or(guarded.due);
                    }
                }
            }
        }
        Ok(())
    }

    /// Stops this program and the subjects together, until something continues this program.
    fn stop(&mut self, signal: model::Signal, from_terminal: bool) -> Result<()> {
        let guards = || self.guards.values().map(|guarded| &guarded.guard);
        let stopped: Vec<_> = guards().filter(|guard| guard.is_to_stop(from_terminal)).collect();
        stopped.iter().for_each(|guard| guard.send(signal));
        signals::stop_ourselves()?;
        stopped.iter().for_each(|guard| guard.send(CONT));
        self.guards.values_mut().for_each(|guarded| guarded.guard.continued());
        Ok(())
    }
}

/// Events that one call reports at most; others come with the next.
const EVENTS_MAX: usize = 64;

/// What the loop waits for: descriptors of many subjects. An interest ends with the event that it reports, so that a
/// subject which does not ask again is not woken again. A descriptor that is closed needs no farewell.
struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    fn new() -> Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(|errno| failed("make an epoll", errno))?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS_MAX) })
    }

    /// Asks for one event of a descriptor.
    fn ask(&self, handle: BorrowedFd<'_>, token: u64) -> Result<()> {
        let (data, flags) = (EventData::new_u64(token), EventFlags::IN | EventFlags::ONESHOT);
        let asked = match epoll::modify(&self.epoll, handle, data, flags) {
            Err(Errno::NOENT) => epoll::add(&self.epoll, handle, data, flags),
            asked => asked,
        };
        asked.map_err(|errno| failed("wait for a descriptor", errno))
    }

    /// Waits for events, so long at most; gives their tokens.
    fn wait(&mut self, timeout: Option<Duration>) -> Result<Vec<u64>> {
        // epoll_wait(2) counts milliseconds, and checkpoints are due by the microsecond.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut waiting = [PollFd::new(&self.epoll, PollFlags::IN)];
        match poll(&mut waiting, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("wait for events", errno)),
        }
        self.events.clear();
        epoll::wait(&self.epoll, spare_capacity(&mut self.events), Some(&Timespec::default()))
            .map_err(|errno| failed("take events", errno))?;
        // Fields of a packed structure are not borrowed.
        Ok(self.events.iter().map(|event| { event.data }.u64()).collect())
    }
}

fn failed(what: &'static str, errno: Errno) -> GuardianError {
    Error::new(what, errno).into()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn an_event_is_reported_once_for_each_time_that_it_is_asked_for() {
        let mut poller = Poller::new().unwrap();
        let ready = eventfd(1, EventfdFlags::empty()).unwrap();
        let now = Some(Duration::ZERO);
        for _ in 0..3 {
            poller.ask(ready.as_fd(), 7).unwrap();
            assert_eq!(poller.wait(now).unwrap(), [7]);
            assert!(poller.wait(now).unwrap().is_empty());
        }
        poller.ask(ready.as_fd(), 7).unwrap();
        drop(ready);
        assert!(poller.wait(now).unwrap().is_empty(), "it was closed");
    }
}
