//! A thread of the guardian traces the subject and copies the state of the subject.
//!
//! The guard sends orders to the thread, and receives reports from the thread.
//!
//! Owns: this thread, the values that are kept between two checkpoints, the choice of the tracker, and opening the log
//! again.
//! Invariants: only this thread traces a running subject. Without an order, the thread does not leave the subject
//! stopped. The thread waits for a disk at most as long as the subject
//! may be stopped. After a request to detach, the thread never waits for a buffer of the log.
//! Does not: decide when a checkpoint is due, or what follows a death.

use std::num::NonZeroU64;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use engine::{CheckpointOptions, Comparison, Continuous, EngineError, Held, Roots, Taken};
use model::{PageCount, ProcessKey};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use store::LogWriter;
use sys::Error;
use sys::clock::Clock;
use sys::packet_hold::PacketHold;
use track::{TrackError, TrackerKind};
use undo::watch::CheckpointWatch;

use super::child_stops::{ChildStops, Silence};
use super::place::Place;
use super::rebuild::Shared;
use super::request::{RunRequest, TRACKER_DEFAULT};
use super::tracer_news::{News, NewsSender, TakenNews};
use crate::error::Result;

/// How checkpoints are taken.
#[derive(Clone, Debug)]
pub(crate) struct Tracking {
    pub(super) kind: &'static dyn TrackerKind,
    pub(super) request: RunRequest,
    /// Binds the state of files to each checkpoint, if files are watched.
    pub(super) watch: Option<Arc<dyn CheckpointWatch>>,
    /// Holds the network output of the subject, if output is held.
    pub(super) hold: Option<Arc<PacketHold>>,
}

/// The use of a lesser tracker, because a better tracker could not be attached.
#[derive(Clone, Copy, Debug)]
struct Fallback {
    subject: ProcessKey,
    /// The time when the better tracker is tried again. Until then, the obstacle may disappear. A possible obstacle is
    /// a process that may open no further file.
    until: Instant,
    /// The time from a failure of the better tracker to the next attempt.
    wait: Duration,
}

/// The first value and the maximum of `Fallback::wait`.
const FALLBACK: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(640));

/// The present work of the thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Work {
    Nothing,
    /// Taking a checkpoint.
    Taking,
    /// Taking a checkpoint, after which the subject stays stopped.
    TakingToHold,
    /// Keeping the subject stopped.
    Holding,
    /// Resuming or killing the stopped subject.
    LettingGo,
    /// Opening the log.
    Opening,
}

enum Order {
    Take(Target, CheckpointOptions),
    TakeAndHold(Target, CheckpointOptions),
    LetGo(LetGo),
    Open,
}

/// The processes of a checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// Identifies the incarnation.
    pub(super) first: ProcessKey,
    /// All roots.
    pub(super) roots: Roots,
}

/// What happens to a stopped subject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LetGo {
    Resume,
    Kill,
}

/// The interface of the guard to the tracer thread.
#[derive(Debug)]
pub(super) struct Tracer {
    /// `None` after the last order.
    orders: Option<Sender<Order>>,
    news: Receiver<News>,
    alarm: Arc<OwnedFd>,
    work: Work,
    log: Option<Arc<LogWriter>>,
    thread: Option<JoinHandle<()>>,
    child_stops: Arc<ChildStops>,
    /// Exists while the subject is traced.
    silence: Option<Silence>,
}

impl Tracer {
    pub(super) fn start(place: Place, log: LogWriter, tracking: Tracking, host: &Shared) -> Result<Self> {
        let clock = host.clock.clone();
        let alarm = alarm()?;
        let (orders, received) = mpsc::channel();
        let (sender, news) = mpsc::channel();
        let log = Arc::new(log);
        let outbox = NewsSender::new(sender, Arc::clone(&alarm));
        let lent = Some(Arc::clone(&log));
        let thread = std::thread::Builder::new()
            .name("undying-tracer".to_owned())
            .spawn(move || {
                let (chosen, fallback) = (tracking.kind, None);
                Hand { place, log: lent, tracking, chosen, fallback, clock, subject: None, taken: 0, outbox }
                    .work(&received);
            })
            .map_err(|error| Error::new("start a thread", error))?;
        Ok(Self {
            orders: Some(orders),
            news,
            alarm,
            work: Work::Nothing,
            log: Some(log),
            thread: Some(thread),
            child_stops: Arc::clone(&host.child_stops),
            silence: None,
        })
    }

    /// Returns a tracer for a subject of which no checkpoints are taken.
    pub(super) fn none(host: &Shared) -> Result<Self> {
        let (_, news) = mpsc::channel();
        Ok(Self {
            orders: None,
            news,
            alarm: alarm()?,
            work: Work::Nothing,
            log: None,
            thread: None,
            child_stops: Arc::clone(&host.child_stops),
            silence: None,
        })
    }

    /// Reports whether the thread may be tracing the subject.
    pub(super) fn is_tracing(&self) -> bool {
        matches!(self.work, Work::Taking | Work::TakingToHold | Work::Holding | Work::LettingGo)
    }

    /// Returns the log, unless it is being opened again.
    pub(super) fn log(&self) -> Option<&LogWriter> {
        self.log.as_deref()
    }

    /// Returns a descriptor that becomes readable when a report is pending, or when the thread ends.
    pub(super) fn handle(&self) -> BorrowedFd<'_> {
        self.alarm.as_fd()
    }

    pub(super) fn take(&mut self, subject: Target, options: CheckpointOptions) {
        self.order(Work::Taking, Order::Take(subject, options));
    }

    /// Orders a checkpoint after which the subject stays stopped, until `let_go` is called.
    pub(super) fn take_and_hold(&mut self, subject: Target, options: CheckpointOptions) {
        self.order(Work::TakingToHold, Order::TakeAndHold(subject, options));
    }

    /// Orders that the stopped subject is resumed or killed. Without a stopped subject, does nothing.
    pub(super) fn let_go(&mut self, how: LetGo) {
        if self.work == Work::Holding {
            self.order(Work::LettingGo, Order::LetGo(how));
        }
    }

    /// Orders that the log is opened again. The next checkpoint after that is a full checkpoint.
    pub(super) fn open_again(&mut self) {
        self.log = None;
        self.order(Work::Opening, Order::Open);
    }

    /// Returns the next report, if one is pending. Never waits.
    pub(super) fn receive(&mut self) -> Option<News> {
        // The eventfd is reset before the channel is read, so that a report during the read makes the eventfd readable
        // again. An error means that the eventfd was already reset.
        let _ = rustix::io::read(&*self.alarm, &mut [0_u8; 8]);
        let news = match self.news.try_recv() {
            Ok(news) => news,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                self.join();
                return None;
            }
        };
        if let News::Opened(log) = &news {
            self.log = Some(Arc::clone(log));
        }
        let is_held = self.work == Work::TakingToHold && matches!(news, News::Taken(_));
        self.set_work(if is_held { Work::Holding } else { Work::Nothing });
        Some(news)
    }

    /// Waits until the thread no longer traces the subject, and returns the reports of the thread until that time.
    /// After the call, the thread may still be opening the log.
    pub(super) fn leave_subject(&mut self) -> Vec<News> {
        let mut reports = Vec::new();
        self.call_off_waits(true);
        while self.is_tracing() && self.thread.is_some() {
            self.let_go(LetGo::Resume);
            match self.receive() {
                Some(news) => reports.push(news),
                None => ring_of(self.handle()),
            }
        }
        self.call_off_waits(false);
        reports
    }

    /// Waits until the log reports an event, for example a written checkpoint.
    pub(super) fn await_log(&self) {
        if let Some(log) = &self.log {
            ring_of(log.event());
        }
    }

    /// Waits until all captured checkpoints are written, and ends the thread.
    pub(super) fn end(&mut self) {
        self.orders = None;
        self.join();
        // Dropping the last reference waits for the thread of the log.
        self.log = None;
    }

    /// With `true`, the thread no longer waits for buffers of the log. With `false`, the thread may wait again.
    pub(super) fn call_off_waits(&self, called_off: bool) {
        if let Some(log) = &self.log {
            log.call_off_waits(called_off);
        }
    }

    /// Sets the present work. While the subject is traced, its stops are not reported.
    fn set_work(&mut self, work: Work) {
        self.work = work;
        if !self.is_tracing() {
            self.silence = None;
        } else if self.silence.is_none() {
            self.silence = Some(self.child_stops.silence());
        }
    }

    fn order(&mut self, work: Work, order: Order) {
        self.set_work(work);
        // The send fails only after a panic of the thread. `receive` detects the panic, because the end of the thread
        // makes the eventfd readable.
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }

    fn join(&mut self) {
        self.set_work(Work::Nothing);
        if let Some(Err(panic)) = self.thread.take().map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
    }
}

fn alarm() -> Result<Arc<OwnedFd>> {
    let alarm = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
    Ok(Arc::new(alarm.map_err(|errno| Error::new("make an event descriptor", errno))?))
}

/// Waits until a descriptor is readable. Errors are ignored, because the caller checks the state again.
fn ring_of(handle: BorrowedFd<'_>) {
    let mut waiting = [PollFd::from_borrowed_fd(handle, PollFlags::IN)];
    let _ = poll(&mut waiting, None);
}

/// The values of the tracer thread.
struct Hand {
    place: Place,
    log: Option<Arc<LogWriter>>,
    tracking: Tracking,
    /// The tracker that is used unless there is a fallback.
    chosen: &'static dyn TrackerKind,
    fallback: Option<Fallback>,
    clock: Clock,
    subject: Option<(ProcessKey, Continuous)>,
    taken: u64,
    outbox: NewsSender,
}

impl Hand {
    fn work(mut self, orders: &Receiver<Order>) {
        // A stopped subject is resumed when this thread ends.
        let mut held: Option<Held> = None;
        for order in orders {
            let news = match order {
                Order::Take(target, options) => self.take(&target, &options),
                Order::TakeAndHold(target, options) => self.take_and_hold(&target, &options, &mut held),
                Order::LetGo(how) => let_go(held.take(), how),
                Order::Open => self.open(),
            };
            self.outbox.send(news);
        }
    }

    fn take(&mut self, target: &Target, options: &CheckpointOptions) -> News {
        let Some(log) = self.log.clone() else { return without_log() };
        let subject = target.first;
        self.climb_back(subject);
        self.continuous(subject).set_roots(&target.roots);
        if self.tracking.request.dry_run_tracking {
            return match self.continuous(subject).track(options) {
                Ok(found) => News::Scanned(found),
                Err(error) => self.not_taken(error),
            };
        }
        match self.checkpoint(subject, &log, options) {
            Ok(Some((taken, comparison))) => self.news_of(subject, taken, comparison),
            Ok(None) => News::Behind,
            Err(error) => self.not_taken(error),
        }
    }

    /// Takes a checkpoint, and keeps the subject stopped in `held`.
    fn take_and_hold(
        &mut self,
        target: &Target,
        options: &CheckpointOptions,
        held: &mut Option<Held>,
    ) -> News {
        let Some(log) = self.log.clone() else { return without_log() };
        let subject = target.first;
        self.climb_back(subject);
        self.continuous(subject).set_roots(&target.roots);
        match self.continuous(subject).checkpoint_and_hold(&*log, options) {
            Ok(Some((taken, stopped))) => {
                *held = Some(stopped);
                self.news_of(subject, taken, None)
            }
            Ok(None) => News::Behind,
            Err(error) => self.not_taken(error),
        }
    }

    fn news_of(&mut self, subject: ProcessKey, taken: Taken, comparison: Option<Comparison>) -> News {
        self.taken += 1;
        let descendants = self.continuous(subject).descendants();
        let tracker = self.tracking.kind.name();
        News::Taken(Box::new(TakenNews { taken, descendants, comparison, tracker }))
    }

    fn checkpoint(
        &mut self,
        subject: ProcessKey,
        log: &LogWriter,
        options: &CheckpointOptions,
    ) -> engine::Result<Option<(Taken, Option<Comparison>)>> {
        let is_due = |every: NonZeroU64| (self.taken + 1).is_multiple_of(every.get());
        if !self.tracking.request.verify_every.is_some_and(is_due) {
            let taken = self.continuous(subject).checkpoint(log, options)?;
            return Ok(taken.map(|taken| (taken, None)));
        }
        let place = self.place.clone();
        let read = |sequence| place.image(sequence);
        let verified = self.continuous(subject).checkpoint_and_verify(log, &read, options)?;
        if verified.as_ref().is_some_and(|(_, found)| found.differences > PageCount(0)) {
            // The tracker has missed a page. The next checkpoint starts tracking from the beginning, so that no page
            // stays missed.
            self.subject = None;
        }
        Ok(verified.map(|(taken, found)| (taken, Some(found))))
    }

    fn not_taken(&mut self, error: EngineError) -> News {
        match error {
            // The subject has ended or has executed another program. The next checkpoint attaches the tracker again.
            error @ EngineError::Track(TrackError::Gone(_)) => {
                self.subject = None;
                News::Failed(error.into())
            }
            EngineError::Track(error) if self.tracking.request.tracker == TRACKER_DEFAULT => {
                self.track_otherwise(error)
            }
            error => News::Failed(error.into()),
        }
    }

    fn track_otherwise(&mut self, error: TrackError) -> News {
        let error = EngineError::Track(error).into();
        let (Some(kind), Some((subject, _))) = (track::next_best(self.tracking.kind), &self.subject) else {
            return News::Failed(error);
        };
        let now = self.clock.now();
        let fallback =
            self.fallback.get_or_insert(Fallback { subject: *subject, until: now, wait: FALLBACK.0 });
        fallback.until = now + fallback.wait;
        (self.tracking.kind, self.subject) = (kind, None);
        News::Tracking(kind.name(), error)
    }

    /// Returns to the tracker `chosen` for a new incarnation of the subject, or after a wait. Each wait is twice as
    /// long as the previous wait.
    fn climb_back(&mut self, subject: ProcessKey) {
        let Some(fallback) = &mut self.fallback else { return };
        let is_another = fallback.subject != subject;
        if !is_another && self.clock.now() < fallback.until {
            return;
        }
        fallback.wait = (fallback.wait * 2).min(FALLBACK.1);
        fallback.until = self.clock.now() + fallback.wait;
        if is_another {
            self.fallback = None;
        }
        if self.tracking.kind.name() != self.chosen.name() {
            (self.tracking.kind, self.subject) = (self.chosen, None);
        }
    }

    /// Returns the values that are kept between two checkpoints of this incarnation.
    fn continuous(&mut self, subject: ProcessKey) -> &mut Continuous {
        if self.subject.as_ref().is_some_and(|(known, _)| *known != subject) {
            self.subject = None;
        }
        let Tracking { kind, request, watch, hold } = &self.tracking;
        let anew = || {
            let plain = Continuous::new(subject.pid, *kind).tuned(request.tuning.clone());
            let watched = watch.iter().cloned().fold(plain, Continuous::watched);
            (subject, hold.iter().cloned().fold(watched, Continuous::holding))
        };
        &mut self.subject.get_or_insert_with(anew).1
    }

    fn open(&mut self) -> News {
        // The set of dirty pages is no longer known.
        self.subject = None;
        // The old log must release its lock before the new log is opened. Closing the old log may wait for the disk.
        self.log = None;
        match self.place.open() {
            Ok(log) => {
                let log = Arc::new(log);
                self.log = Some(Arc::clone(&log));
                News::Opened(log)
            }
            Err(error) => News::Failed(error),
        }
    }
}

fn without_log() -> News {
    News::Failed(Error::new("take a checkpoint without a log", sys::Errno::EINVAL).into())
}

/// Resumes or kills a stopped subject.
fn let_go(held: Option<Held>, how: LetGo) -> News {
    if let Some(held) = held {
        // After an error, the other threads are detached. The guard then kills the root, or finds its end.
        let _ = match how {
            LetGo::Resume => held.resume(),
            LetGo::Kill => held.kill(),
        };
    }
    News::LetGo
}
