//! The threads of the watch, which receive system calls and content events, and answer them.
//!
//! The watch records the earlier state of files under a lock, and then answers.
//!
//! Owns: receiving calls and events, and answering each call and event.
//! Invariants: every call and event is answered, even if recording fails. An event that this program itself has caused
//! is answered without the lock. The reason is that the waiting thread can be the thread that holds the lock.
//! Does not: record file states; `State` does.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use model::{Pid, Tid};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::clock::Deadline;
use sys::fanotify::{ContentEvents, Enabler, Event, EventRange, EventReader};
use sys::listener_holder::{HeldCalls, NotificationBuffer};
use sys::seccomp_listener::{CallTable, Listener, Notification, Receipt, Waited};
use sys::socket_call::{CallHandler, CallKind, Handled, ReportedCall, kind_of};

use super::answer::Answer;
use super::calls::Call;
use super::joins::Joins;
use super::marks::ContentSource;
use super::state::State;
use crate::error::{Result, UndoError};

/// The time between a failed read of events and the next read. A read fails if descriptors or memory are missing, and
/// other threads may release some in this time.
const RETRY: Duration = Duration::from_millis(1);
/// The time to wait for an event while another thread holds the lock. Most records take about this time, so the lock is
/// probably free afterwards.
const LOCK_POLL: Duration = Duration::from_micros(20);

/// Maximum time for which a call or event waits because this program lacks descriptors or memory, and the time between
/// two attempts.
const SHORTAGE_MAX: Duration = Duration::from_secs(5);
const SHORTAGE_POLL: Duration = Duration::from_millis(10);
const DEFECT: &str = "a change was not recorded because of a defect in undying";

/// The data that the threads share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    events: Arc<ContentEvents>,
    pub(super) joins: Joins,
}

/// The source of content events that uses fanotify(7).
#[derive(Debug)]
pub(super) struct Fanotify {
    events: Arc<ContentEvents>,
    enabler: Enabler,
}

impl Fanotify {
    pub(super) fn new() -> sys::Result<Self> {
        let enabler = Enabler::new()?;
        Ok(Self { events: Arc::new(ContentEvents::new(&enabler)?), enabler })
    }

    pub(super) fn events(&self) -> Arc<ContentEvents> {
        Arc::clone(&self.events)
    }
}

impl ContentSource for Fanotify {
    fn watch(&self, file: BorrowedFd<'_>) -> sys::Result<()> {
        self.events.watch(file)?;
        self.events.unsilence(file)
    }

    fn silence(&self, file: BorrowedFd<'_>) -> sys::Result<()> {
        // Set the ignore mask before the mark, so that the mark never reports a change.
        self.events.silence(file)?;
        self.events.watch(file)
    }

    fn forget(&self, file: BorrowedFd<'_>) -> sys::Result<()> {
        self.events.forget(file)
    }

    fn enable(&self, directory: BorrowedFd<'_>) -> sys::Result<()> {
        self.enabler.enable_mount(directory)
    }

    fn disable(&self, directory: BorrowedFd<'_>) -> sys::Result<()> {
        self.enabler.disable_mount(directory)
    }
}

impl Shared {
    pub(super) fn new(state: State, events: Arc<ContentEvents>) -> Self {
        Self { state: Mutex::new(state), events, joins: Joins::default() }
    }

    /// Locks the state, even if another thread has panicked while that thread held the lock.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives the calls of a subject that can change files.
pub(super) trait Recipient: fmt::Debug + Send + Sync {
    /// Notes that an incarnation begins to run.
    fn begins(&self);

    /// Handles a call before it is executed. `is_over` reports whether the thread of the call was killed.
    fn answer(&self, thread: Tid, call: &Call, is_over: &dyn Fn() -> bool);

    /// Notes that a call may have been missed, and why.
    fn missed(&self, why: &str);
}

impl Recipient for Shared {
    fn begins(&self) {
        // The restore no longer changes files. From now on, every change of a file is a change by the subject.
        let mut state = self.state();
        state.is_restoring = false;
        let recorded = state.log.running();
        state.or_break(recorded, "the start of the program");
    }

    fn answer(&self, thread: Tid, call: &Call, is_over: &dyn Fn() -> bool) {
        self.state().begin_call(thread, call, is_over);
        let limit = Deadline::after(SHORTAGE_MAX);
        // The lock is free between two attempts.
        while self.state().answer(thread, call, is_over, limit.has_passed()) == Answer::Later {
            std::thread::sleep(SHORTAGE_POLL);
        }
    }

    fn missed(&self, why: &str) {
        self.state().break_epoch(why);
    }
}

/// Records a change. A panic of `record` is a defect of this program. After a panic, the epoch is broken, but the call
/// of the subject continues.
fn or_break(mut state: MutexGuard<'_, State>, record: impl FnOnce(&mut State)) {
    if catch_unwind(AssertUnwindSafe(|| record(&mut state))).is_err() {
        state.break_epoch(DEFECT);
    }
}

/// The listener of a filter, and the memory for received calls and for held calls.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) listener: Arc<Listener>,
    pub(super) buffer: NotificationBuffer,
    pub(super) held: HeldCalls,
    /// The handler for socket calls: bind(2), listen(2) and connect(2).
    pub(super) channels: Option<Arc<dyn CallHandler>>,
}

/// Answers the calls of one incarnation, until no thread of the incarnation is left.
pub(super) fn answer_calls(recipient: &dyn Recipient, mut source: Source) {
    loop {
        match source.listener.wait(None) {
            Ok(Waited::Ready) => {}
            Ok(Waited::TimedOut) => continue,
            Ok(Waited::Gone) => return,
            // This thread must not end, because no other thread answers calls. The fd holder, a process with a copy of
            // the listener, answers calls only after the death of this program.
            Err(error) => {
                recipient.missed(&error.to_string());
                std::thread::sleep(RETRY);
                continue;
            }
        }
        if matches!(source.listener.receive(&mut source.buffer), Ok(Receipt::Call)) {
            source.answer(recipient);
        }
    }
}

impl Source {
    /// Answers the call that was received last. A socket call is passed to the handler, which can answer the call
    /// itself.
    fn answer(&self, recipient: &dyn Recipient) {
        let kind = kind_of(&self.buffer);
        // Among the socket calls, only bind(2) can change a file: bind(2) to a path creates a name.
        if matches!(kind, None | Some(CallKind::Bind)) {
            let (thread, call) = (self.buffer.tid(), call_of(&self.buffer));
            let is_over = || !self.listener.is_valid(self.buffer.id());
            // A panic is a defect of this program. After a panic, the call of the subject continues.
            if catch_unwind(AssertUnwindSafe(|| recipient.answer(thread, &call, &is_over))).is_err() {
                recipient.missed(DEFECT);
            }
        }
        let handled = match &self.channels {
            Some(channels) if kind.is_some() => self.handle(channels.as_ref()),
            _ => Handled::Pass,
        };
        if handled == Handled::Pass {
            // The answer fails if the calling thread was killed. In this case, no answer is needed.
            let _ = self.listener.answer_continue(self.buffer.id());
        }
    }

    fn handle(&self, channels: &dyn CallHandler) -> Handled {
        let call = ReportedCall { notification: &self.buffer, listener: &self.listener, held: &self.held };
        // A panic is a defect of the handler. After a panic, the call of the subject continues.
        catch_unwind(AssertUnwindSafe(|| channels.handle(&call))).unwrap_or(Handled::Pass)
    }
}

fn call_of(notification: &Notification) -> Call {
    Call {
        number: notification.call(),
        arguments: notification.arguments(),
        is_native: notification.table() == CallTable::X86_64,
    }
}

/// Answers content events as long as this program lives.
pub(super) fn answer_events(shared: &Shared) {
    let reader = shared.events.reader();
    let own = Pid(std::process::id() as i32);
    let mut receiver = Receiver { shared, reader, own, queue: VecDeque::new(), failure: None };
    loop {
        if receiver.queue.is_empty() && receiver.failure.is_none() {
            receiver.receive();
            continue;
        }
        let state = receiver.lock();
        if let Some(why) = receiver.failure.take() {
            or_break(state, |state| state.break_epoch(&why));
        } else if let Some(mut waiting) = receiver.queue.pop_front() {
            let mut answer = Answer::Given;
            or_break(state, |state| answer = waiting.record(state));
            match answer {
                Answer::Given => waiting.event.allow(),
                Answer::Later => {
                    // Other events need not wait for this event.
                    receiver.queue.push_back(waiting);
                    receiver.pause();
                }
            }
        }
    }
}

/// An event that waits for an answer.
struct Waiting<'a> {
    event: Event<'a>,
    /// The time of the last attempt, if an attempt has failed because of a shortage.
    limit: Option<Deadline>,
}

impl Waiting<'_> {
    /// Records the content that is about to change.
    fn record(&mut self, state: &mut State) -> Answer {
        let range = self.event.range().map(|EventRange { offset, length }| (offset.get(), length.get()));
        let outcome = state.event(self.event.file().as_fd(), range);
        if outcome.as_ref().is_err_and(UndoError::is_shortage)
            && !self.limit.get_or_insert_with(|| Deadline::after(SHORTAGE_MAX)).has_passed()
        {
            return Answer::Later;
        }
        state.or_break(outcome, "the content of a file");
        Answer::Given
    }
}

/// Receives events, and never blocks on the lock.
///
/// Another thread of this program can hold the lock and read a marked file. The read causes an event, and waits for the
/// answer. If the receiver waited for the lock, neither thread would continue. Therefore, while another thread holds
/// the lock, the receiver continues to receive events. The receiver answers events that this program has caused, and
/// queues events that other programs have caused.
struct Receiver<'a> {
    shared: &'a Shared,
    reader: EventReader<'a>,
    own: Pid,
    /// Events that other programs have caused.
    queue: VecDeque<Waiting<'a>>,
    /// The error, if the last read of an event has failed.
    failure: Option<String>,
}

impl<'a> Receiver<'a> {
    /// Receives an event. Waits until an event arrives.
    fn receive(&mut self) {
        match self.reader.receive() {
            Ok(Some(event)) if event.pid() == self.own => event.allow(),
            Ok(event) => self.queue.extend(event.map(|event| Waiting { event, limit: None })),
            Err(error) => {
                self.failure = Some(error.to_string());
                std::thread::sleep(RETRY);
            }
        }
    }

    fn lock(&mut self) -> MutexGuard<'a, State> {
        loop {
            match self.shared.state.try_lock() {
                Ok(state) => return state,
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Err(TryLockError::WouldBlock) if self.has_event(LOCK_POLL) => self.receive(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
    }

    /// Waits for the next attempt to record.
    fn pause(&mut self) {
        let end = Deadline::after(SHORTAGE_POLL);
        while !end.has_passed() {
            if self.has_event(end.left()) {
                self.receive();
            }
        }
    }

    /// Reports whether an event is available. Waits for an event at most for the time `wait`.
    fn has_event(&self, wait: Duration) -> bool {
        let mut events = [PollFd::from_borrowed_fd(self.shared.events.as_fd(), PollFlags::IN)];
        let wait = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        // If the wait fails, no event is available.
        self.reader.has_read() || poll(&mut events, Some(&wait)).is_ok_and(|ready| ready > 0)
    }
}

/// Starts a thread of the watch.
pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    started.map(drop).map_err(|error| sys::Error::new("start a thread", error).into())
}
