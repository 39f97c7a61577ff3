//! The threads that answer the kernel.
//!
//! Owns: receiving calls and events, and letting them happen.
//! Invariants: every call and event is answered, whatever recording it has come to; what this program does itself is
//! answered without the lock, since a thread that holds it may wait for the answer.
//! Does not: record; `State` does.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use model::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sys::fanotify::{ContentEvents, Enabler, Event, EventRange, EventReader};
use sys::listener_holder::{HeldCalls, NotificationBuffer};
use sys::seccomp_listener::{CallTable, Listener, Notification, Receipt, Waited};
use sys::socket_call::{CallHandler, CallKind, Handled, ReportedCall, kind_of};

use super::calls::Call;
use super::marks::ContentSource;
use super::state::State;

/// How long a failure to read events is left alone: descriptors or memory are missing, and others may give some back.
const RETRY: Duration = Duration::from_millis(1);
/// How long an event is waited for while another thread holds the lock: about as long as most records take.
const LOCK_POLL: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000 };

/// What the threads share.
#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    events: Arc<ContentEvents>,
}

/// Marks of fanotify(7).
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
        // Silent first, so that no change is reported in between.
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
        Self { state: Mutex::new(state), events }
    }

    /// The state. A panic of another thread has left it as it was between two records.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records a change. A panic is a defect of this program: it costs the way back, and not the call of the subject.
fn or_break(mut state: MutexGuard<'_, State>, record: impl FnOnce(&mut State)) {
    if catch_unwind(AssertUnwindSafe(|| record(&mut state))).is_err() {
        state.break_epoch("a defect of undying kept a change from being recorded");
    }
}

/// A listener, and where its calls are received and noted.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) listener: Arc<Listener>,
    pub(super) buffer: NotificationBuffer,
    pub(super) held: HeldCalls,
    /// Handles calls that name addresses of sockets.
    pub(super) channels: Option<Arc<dyn CallHandler>>,
}

/// Answers the calls of one incarnation, until no task uses its filter.
pub(super) fn answer_calls(shared: &Shared, mut source: Source) {
    loop {
        match source.listener.wait(None) {
            Ok(Waited::Ready) => {}
            Ok(Waited::TimedOut) => continue,
            Ok(Waited::Gone) => return,
            // The holder answers only once this program is dead: without a receiver, calls would wait.
            Err(error) => {
                shared.state().break_epoch(&error.to_string());
                std::thread::sleep(RETRY);
                continue;
            }
        }
        if matches!(source.listener.receive(&mut source.buffer), Ok(Receipt::Call)) {
            source.answer(shared);
        }
    }
}

impl Source {
    /// Answers the call that was received last, or leaves it to the handler of channels.
    fn answer(&self, shared: &Shared) {
        let kind = kind_of(&self.buffer);
        // Of these calls, only bind(2) makes a name.
        if matches!(kind, None | Some(CallKind::Bind)) {
            let (thread, call) = (self.buffer.tid(), call_of(&self.buffer));
            let is_over = || !self.listener.is_valid(self.buffer.id());
            or_break(shared.state(), |state| state.answer(thread, &call, is_over));
        }
        let handled = match &self.channels {
            Some(channels) if kind.is_some() => self.handle(channels.as_ref()),
            _ => Handled::Pass,
        };
        if handled == Handled::Pass {
            // A call whose thread was killed needs none.
            let _ = self.listener.answer_continue(self.buffer.id());
        }
    }

    fn handle(&self, channels: &dyn CallHandler) -> Handled {
        let call = ReportedCall { notification: &self.buffer, listener: &self.listener, held: &self.held };
        // A panic is a defect of the handler; the call of the subject continues.
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

/// Answers events of files, as long as this program lives.
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
        match (receiver.failure.take(), receiver.queue.pop_front()) {
            (Some(why), event) => {
                or_break(state, |state| state.break_epoch(&why));
                receiver.queue.extend(event);
            }
            (None, Some(event)) => {
                or_break(state, |state| {
                    let range =
                        event.range().map(|EventRange { offset, length }| (offset.get(), length.get()));
                    let outcome = state.event(event.file().as_fd(), range);
                    state.or_break(outcome, "the content of a file");
                });
                event.allow();
            }
            (None, None) => {}
        }
    }
}

/// Receives events.
///
/// A thread that holds the lock may read a file that reports, and then waits for the answer to its own event. So the
/// receiving thread never blocks on the lock: meanwhile it receives, answers events of this program, and queues others.
struct Receiver<'a> {
    shared: &'a Shared,
    reader: EventReader<'a>,
    own: Pid,
    /// Those of other programs.
    queue: VecDeque<Event<'a>>,
    /// Why an event could not be read.
    failure: Option<String>,
}

impl<'a> Receiver<'a> {
    /// Receives an event, and waits for it if there is none.
    fn receive(&mut self) {
        match self.reader.receive() {
            Ok(Some(event)) if event.pid() == self.own => event.allow(),
            Ok(event) => self.queue.extend(event),
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
                Err(TryLockError::WouldBlock) if self.has_event() => self.receive(),
                Err(TryLockError::WouldBlock) => {}
            }
        }
    }

    /// Whether there is an event; waits for one for a short time.
    fn has_event(&self) -> bool {
        let mut events = [PollFd::from_borrowed_fd(self.shared.events.as_fd(), PollFlags::IN)];
        // A wait that fails has found nothing.
        self.reader.has_read() || poll(&mut events, Some(&LOCK_POLL)).is_ok_and(|ready| ready > 0)
    }
}
