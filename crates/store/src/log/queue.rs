//! The queue between the threads that take checkpoints and the thread that writes the log. An *order* is a message in
//! the queue, for example a buffer of pages.
//!
//! Owns: the queued orders; the eventfd that reports completions.
//! Invariants: queueing an order and taking a buffer do not wait for the device, and queueing allocates only beyond
//! `DROPS_READY` dropped ranges. The writer receives the orders first in, first out. Every ticket is completed, even if
//! the writer fails.
//! Does not: write to the log.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use image::RecordSet;
use model::Sequence;
use rustix::event::EventfdFlags;
use sys::clock::Stopwatch;

use super::ticket::{Completion, LogCommitted, LogStatus, TicketState};
use crate::batch::PageChange;
use crate::error::{Error, Result};
use crate::lock::locked;
use crate::meta::CommitMeta;
use crate::pool::{PagePool, Waits};
use crate::scheduler::{LogIo, Urgent};
use crate::service::StorageService;
use crate::threads::{Task, Threads};

/// The maximum number of epochs whose copying is finished, but whose data is not yet durable. One sync can cover all
/// these epochs, while the pages of the next epoch are copied. With a higher number, the log would use more memory,
/// and a crash would lose more epochs.
pub const EPOCHS_IN_FLIGHT_MAX: usize = 4;

/// The maximum time of `Shared::await_room`. After this time, the caller reports that the store is behind.
const AWAIT_ROOM_MAX: Duration = Duration::from_secs(1);

/// The maximum time of `Shared::await_room` if no checkpoint is in flight. The caller renews its hold when it has received
/// the completion, which takes milliseconds. Without the new hold, old checkpoints are dropped later.
const AWAIT_HOLD_MAX: Duration = Duration::from_millis(100);

/// The time after which `Shared::await_room` checks whether waits were cancelled.
const AWAIT_ROOM_POLL: Duration = Duration::from_millis(20);

/// The maximum number of queued discards. A large program changes far fewer mappings in one epoch.
const DROPS_MAX: usize = 4096;

/// The number of these orders for which memory is allocated in advance.
const DROPS_READY: usize = 1024;

/// The maximum number of completions that the event loop has not yet taken: many times the number of epochs in flight.
/// If this number is reached, the next completion replaces the oldest one.
const COMPLETIONS_MAX: usize = 16 * EPOCHS_IN_FLIGHT_MAX;

#[derive(Debug)]
pub(super) enum Order {
    Begin {
        sequence: Sequence,
        full: bool,
    },
    Change(PageChange),
    Void(Sequence),
    /// Removes old checkpoints that do not fit, without waiting for the next commit.
    Fit,
    Abandon,
    Finish(Box<Finish>),
}

#[derive(Debug)]
pub(super) struct Finish {
    pub(super) records: RecordSet,
    pub(super) meta: CommitMeta,
    pub(super) promise: Promise,
    pub(super) begun: Stopwatch,
}

/// The obligation to complete a ticket. If a panic drops the value before `answer`, the ticket is completed with an
/// error.
#[derive(Debug)]
pub(super) struct Promise {
    pub(super) shared: Arc<Shared>,
    pub(super) ticket: Arc<TicketState>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    /// Notified when a `State` field changes for which `await_room` or `await_rest` waits.
    changed: Condvar,
    /// Runs the writer while orders are queued; empty if the threads of the callers run the writer.
    pub(super) task: OnceLock<(Threads, Weak<dyn Task>)>,
    pub(super) io: Arc<LogIo>,
    pub(super) event: OwnedFd,
    pub(super) pool: PagePool,
    /// Whether the newest checkpoints of the log were invalidated (see `LogWriter::void_above`). If true, the next
    /// epoch must be a full checkpoint.
    pub(super) is_void: AtomicBool,
    /// Whether the pages of an epoch are being copied.
    pub(super) is_open: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) kept: KeptByOrder,
    pub(super) queue: VecDeque<Order>,
    drops: usize,
    /// The number of queued `Order::Finish` orders. While this number is not 0, the writer delays the sync, so that
    /// one sync covers the queued epochs too.
    pub(super) finishes: usize,
    /// The number of epochs whose `Order::Finish` was queued, and whose ticket is not completed.
    pub(super) in_flight: usize,
    completions: VecDeque<Completion>,
    failure: Option<Error>,
    /// Whether a thread runs the writer, or is about to do so.
    is_running: bool,
    /// Makes the writes urgent while `in_flight` is not 0.
    urgent: Option<Urgent>,
    pub(super) status: LogStatus,
    /// `None` without a maximum size.
    pub(super) room: Option<Room>,
}

/// Checkpoints that the owner of the log wants to keep.
#[derive(Debug, Default)]
pub(super) struct KeptByOrder {
    /// Checkpoints that are kept regardless of the retention policy.
    pub(super) held: Vec<Sequence>,
    /// The number of the newest checkpoints that the next commit keeps, beside `held`. `None` without a request.
    pub(super) newest_once: Option<usize>,
    /// Whether a checkpoint was completed after the last call of `LogWriter::hold`. `held` is then out of date.
    is_old: bool,
}

/// Sizes of the log in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Room {
    /// Below this size, the next checkpoints fit beside all kept checkpoints.
    pub(super) fits_below: u64,
    /// Below this size, an epoch can begin while another checkpoint is in flight.
    pub(super) begins_below: u64,
}

impl Shared {
    /// Returns a queue with a pool that uses at most `limit` buffers.
    pub(super) fn new(limit: usize, service: &StorageService) -> Result<Self> {
        let pool = PagePool::new(limit, service.stock.clone(), Waits::Limited);
        let (task, io) = (OnceLock::new(), LogIo::new(service.scheduler.clone()));
        let mut state = State::default();
        let controls = 2 * (EPOCHS_IN_FLIGHT_MAX + 1);
        state.queue.reserve(limit + controls + DROPS_READY);
        let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let event = event.map_err(|errno| sys::Error::new("create an eventfd", errno))?;
        let (state, changed) = (Mutex::new(state), Condvar::new());
        let (is_void, is_open) = (AtomicBool::default(), AtomicBool::default());
        Ok(Self { state, changed, task, io, event, pool, is_void, is_open })
    }

    /// Adds an order to the queue. Returns false, without adding the order, if `DROPS_MAX` discards are
    /// queued already.
    pub(super) fn order(&self, order: Order) -> Result<bool> {
        let mut state = locked(&self.state);
        if let Err(error) = state.check() {
            drop(state);
            if let Order::Finish(finish) = order {
                finish.promise.refuse(error.clone());
            }
            return Err(error);
        }
        match &order {
            Order::Change(PageChange::Discard(..)) if state.drops == DROPS_MAX => {
                return if self.pool.is_called_off() { Err(Error::CalledOff) } else { Ok(false) };
            }
            Order::Change(PageChange::Discard(..)) => state.drops += 1,
            Order::Finish(_) => {
                state.finishes += 1;
                state.in_flight += 1;
                state.urgent.get_or_insert_with(|| self.io.urgent());
            }
            _ => {}
        }
        // Before the first pages come, there is nothing to write.
        let is_work = !matches!(order, Order::Begin { .. });
        state.queue.push_back(order);
        if is_work {
            self.wake(state);
        }
        Ok(true)
    }

    /// Returns the next order.
    pub(super) fn next(&self) -> Option<Order> {
        let mut state = locked(&self.state);
        let order = state.queue.pop_front()?;
        match &order {
            Order::Change(PageChange::Discard(..)) => state.drops -= 1,
            Order::Finish(_) => state.finishes -= 1,
            _ => {}
        }
        Some(order)
    }

    /// Sets the held checkpoints. Returns whether checkpoints that are no longer held should be dropped now.
    pub(super) fn hold(&self, sequences: &[Sequence]) -> bool {
        let mut state = locked(&self.state);
        sequences.clone_into(&mut state.kept.held);
        state.kept.is_old = false;
        self.changed.notify_all();
        let is_large = state.room.is_some_and(|room| state.status.disk.get() > room.fits_below);
        is_large && state.status.kept.iter().any(|kept| !sequences.contains(kept))
    }

    /// Reports whether a next epoch has room beside the kept checkpoints, and beside those that are still held.
    pub(super) fn has_room(&self) -> bool {
        locked(&self.state).has_room()
    }

    /// Waits until a next epoch has room beside the kept checkpoints: until the checkpoints in flight are durable, and
    /// the older ones are no longer held. Returns false if checkpoints are in flight after `AWAIT_ROOM_MAX`.
    pub(super) fn await_room(&self) -> Result<bool> {
        let begun = Stopwatch::start();
        let mut state = locked(&self.state);
        loop {
            state.check()?;
            if state.has_room() {
                return Ok(true);
            }
            if self.pool.is_called_off() {
                return Err(Error::CalledOff);
            }
            let is_behind = state.in_flight > 0;
            let limit = if is_behind { AWAIT_ROOM_MAX } else { AWAIT_HOLD_MAX };
            let Some(left) = limit.checked_sub(begun.elapsed()) else { return Ok(!is_behind) };
            let left = left.min(AWAIT_ROOM_POLL);
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Completes a ticket, and notifies the event loop.
    fn answer(&self, ticket: &TicketState, result: Result<LogCommitted>) {
        let mut state = locked(&self.state);
        state.in_flight = state.in_flight.saturating_sub(1);
        if state.in_flight == 0 {
            state.urgent = None;
        }
        state.kept.is_old = !state.kept.held.is_empty();
        self.changed.notify_all();
        if state.completions.len() == COMPLETIONS_MAX {
            state.completions.pop_front();
        }
        state.completions.push_back((ticket.sequence, result.clone()));
        // First the completion is added, then the event is set, both under one lock. `take_completions` first resets
        // the event, then takes the lock. So a completion is never left behind after the event was reset. The write
        // fails only if the counter of the eventfd is full. A full counter already makes the event readable.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        ticket.set(result);
    }

    /// Makes the log fail: completes all queued tickets with this error, and makes all following requests return the
    /// error.
    pub(super) fn fail(&self, error: &Error) {
        let mut state = locked(&self.state);
        state.failure.get_or_insert_with(|| error.clone());
        let orders = std::mem::take(&mut state.queue);
        drop(state);
        self.pool.fail(error);
        for order in orders {
            if let Order::Finish(finish) = order {
                finish.promise.answer(Err(error.clone()));
            }
        }
    }

    /// Discards all queued orders, and queues the invalidation of the checkpoints with sequence numbers above
    /// `newest`.
    pub(super) fn void_above(&self, newest: Sequence) -> Result<()> {
        let mut state = locked(&self.state);
        state.check()?;
        let orders = std::mem::take(&mut state.queue);
        (state.drops, state.finishes) = (0, 0);
        state.queue.reserve(orders.capacity());
        state.queue.extend([Order::Abandon, Order::Void(newest)]);
        self.wake(state);
        for order in orders {
            match order {
                Order::Change(PageChange::Pages(batch)) => self.pool.put_back(batch),
                Order::Finish(finish) => finish.promise.answer(Err(Error::CalledOff)),
                _ => {}
            }
        }
        Ok(())
    }

    /// Returns the first failure, if there is one.
    pub(super) fn check(&self) -> Result<()> {
        locked(&self.state).check()
    }

    /// Makes a thread run the writer, if no thread runs it.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let Some((threads, task)) = self.task.get() else { return };
        if !state.is_running
            && let Some(task) = task.upgrade()
        {
            state.is_running = true;
            drop(state);
            threads.run(task);
        }
    }

    /// Ends the work of the writer. Returns false, and the writer must continue, if an order was queued meanwhile.
    pub(super) fn rest(&self) -> bool {
        let mut state = locked(&self.state);
        state.is_running = !state.queue.is_empty();
        self.changed.notify_all();
        !state.is_running
    }

    /// Ends the work of a writer that has panicked.
    pub(super) fn stop(&self) {
        locked(&self.state).is_running = false;
        self.changed.notify_all();
    }

    /// Waits until the writer rests.
    pub(super) fn await_rest(&self) {
        let waited = self.changed.wait_while(locked(&self.state), |state| state.is_running);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the completions since the previous call, and resets the event.
    pub(super) fn take_completions(&self) -> Vec<Completion> {
        let mut count = [0; 8];
        // The read fails if nothing has completed.
        let _ = rustix::io::read(&self.event, &mut count);
        locked(&self.state).completions.drain(..).collect()
    }
}

impl State {
    fn has_room(&self) -> bool {
        let is_near = self.room.is_some_and(|room| self.status.disk.get() > room.begins_below);
        !is_near || self.in_flight == 0 && !self.kept.is_old
    }

    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }
}

impl Promise {
    /// Completes the ticket of an epoch that could not be queued. `order` returns the error to the caller. Therefore
    /// the error is not reported as a completion too.
    fn refuse(self, error: Error) {
        self.ticket.set(Err(error));
    }

    /// Completes the ticket with this result.
    pub(super) fn answer(self, result: Result<LogCommitted>) {
        self.shared.answer(&self.ticket, result);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.ticket.get().is_none() {
            self.shared.answer(&self.ticket, Err(Error::panicked()));
        }
    }
}

#[cfg(test)]
mod tests {
    use model::PageCount;

    use super::*;
    use crate::stock::BufferStock;

    fn failed() -> Arc<Shared> {
        let shared = Arc::new(Shared::new(1, &StorageService::new(BufferStock::new(PageCount(1)))).unwrap());
        shared.fail(&Error::Full(sys::Error::new("write", sys::Errno::ENOSPC)));
        shared
    }

    fn finish(shared: &Arc<Shared>, ticket: &Arc<TicketState>) -> Order {
        let meta = CommitMeta {
            sequence: ticket.sequence,
            time: std::time::SystemTime::UNIX_EPOCH,
            subject: String::new(),
            pids: Vec::new(),
            kernel_release: String::new(),
            tool_version: String::new(),
            timings: image::Timings::default(),
        };
        let promise = Promise { shared: Arc::clone(shared), ticket: Arc::clone(ticket) };
        Order::Finish(Box::new(Finish {
            records: RecordSet::default(),
            meta,
            promise,
            begun: Stopwatch::start(),
        }))
    }

    #[test]
    fn an_order_refused_after_a_failure_has_its_reason_and_is_reported_once() {
        let shared = failed();
        let ticket = TicketState::new(Sequence(1));
        let refused = shared.order(finish(&shared, &ticket));
        assert!(matches!(refused, Err(Error::Full(_))), "{refused:?}");
        assert!(matches!(ticket.get(), Some(Err(Error::Full(_)))), "{:?}", ticket.get());
        assert!(shared.take_completions().is_empty());
    }

    /// Below the maximum size of the log, a checkpoint does not wait for the one before. Near it, checkpoints are taken as
    /// often as the earlier ones become durable and are removed.
    #[test]
    fn near_its_maximum_size_a_log_makes_checkpoints_wait_for_each_other() {
        let shared = Arc::new(Shared::new(1, &StorageService::new(BufferStock::new(PageCount(1)))).unwrap());
        let set = |disk: u64, in_flight: usize| {
            let mut state = locked(&shared.state);
            state.room = Some(Room { fits_below: 50, begins_below: 80 });
            (state.status.disk, state.in_flight) = (model::ByteCount(disk), in_flight);
        };
        set(80, 1);
        assert!(shared.await_room().unwrap());
        set(81, 1);
        assert!(!shared.has_room());
        let begun = Stopwatch::start();
        assert!(!shared.await_room().unwrap(), "the caller tries again later");
        assert!(begun.elapsed() >= AWAIT_ROOM_MAX);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| shared.await_room().unwrap());
            set(81, 0);
            assert!(waiting.join().unwrap());
        });
    }

    #[test]
    fn an_order_that_is_dropped_is_answered() {
        let shared = Arc::new(Shared::new(1, &StorageService::new(BufferStock::new(PageCount(1)))).unwrap());
        let ticket = TicketState::new(Sequence(1));
        drop(finish(&shared, &ticket));
        assert_eq!(shared.take_completions().len(), 1);
        assert!(ticket.get().is_some());
    }
}
