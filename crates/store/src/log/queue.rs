//! The queue between the threads that take checkpoints and the thread that writes them.
//!
//! Owns: the orders, the event that reports completions.
//! Invariants: queueing an order and taking a buffer neither allocate nor wait for the device. Orders are carried out
//! in their order. Every ticket is completed, also when the writer fails.
//! Does not: write.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use image::{RecordSet, SpaceId};
use model::{AddressRange, PageCount, Sequence};
use rustix::event::EventfdFlags;
use sys::clock::Stopwatch;

use super::ticket::{Completion, LogCommitted, LogStatus, TicketState};
use crate::batch::PageBatch;
use crate::error::{Error, Result};
use crate::meta::CommitMeta;
use crate::pool::{Pool, locked};

/// Epochs that may be under way at once, that is, finished and not yet durable: as many as one sync can cover
/// while the next are copied. More would only be memory and lost time after a crash.
pub const EPOCHS_IN_FLIGHT_MAX: usize = 4;

/// Dropped ranges that wait at most, beside the orders of pages: what the areas of a large program change in
/// an epoch, many times over.
const DROPS_MAX: usize = 4096;

/// Completions that wait for an event loop to look at most: many times those in flight; older ones are
/// forgotten.
const COMPLETIONS_MAX: usize = 16 * EPOCHS_IN_FLIGHT_MAX;

#[derive(Debug)]
pub(super) enum Order {
    Begin { sequence: Sequence, full: bool },
    Pages(PageBatch),
    Drop(SpaceId, AddressRange),
    Void(Sequence),
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

/// The duty to answer a ticket; dropped unanswered, as by a panic, it says so.
#[derive(Debug)]
pub(super) struct Promise {
    pub(super) shared: Arc<Shared>,
    pub(super) ticket: Arc<TicketState>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) state: Mutex<State>,
    orders: Condvar,
    pub(super) event: OwnedFd,
    pub(super) pool: Pool,
    /// What the log holds is not this subject's past.
    pub(super) is_void: AtomicBool,
    /// An epoch is being copied.
    pub(super) is_open: AtomicBool,
}

#[derive(Debug, Default)]
pub(super) struct State {
    /// Checkpoints that stay whatever the policy says.
    pub(super) held: Vec<Sequence>,
    pub(super) queue: VecDeque<Order>,
    drops: usize,
    /// Epochs that wait whole, so that one sync can cover them too.
    pub(super) finishes: usize,
    /// Epochs finished and not yet durable.
    pub(super) in_flight: usize,
    completions: VecDeque<Completion>,
    failure: Option<Error>,
    closed: bool,
    pub(super) status: LogStatus,
}

impl Shared {
    /// With so many buffers of so many pages, all of them in memory from now on.
    pub(super) fn new(limit: usize, buffer_pages: PageCount) -> Result<Self> {
        let pool = Pool::new(limit, buffer_pages);
        pool.fill()?;
        let mut state = State::default();
        let controls = 2 * (EPOCHS_IN_FLIGHT_MAX + 1);
        state.queue.reserve(limit + controls + DROPS_MAX);
        let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let event = event.map_err(|errno| sys::Error::new("create an eventfd", errno))?;
        let (state, orders) = (Mutex::new(state), Condvar::new());
        let (is_void, is_open) = (AtomicBool::default(), AtomicBool::default());
        Ok(Self { state, orders, event, pool, is_void, is_open })
    }

    /// Adds an order; false when there is no room for another dropped range now.
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
            Order::Drop(..) if state.drops == DROPS_MAX => {
                return if self.pool.is_called_off() { Err(Error::CalledOff) } else { Ok(false) };
            }
            Order::Drop(..) => state.drops += 1,
            Order::Finish(_) => {
                state.finishes += 1;
                state.in_flight += 1;
            }
            _ => {}
        }
        state.queue.push_back(order);
        drop(state);
        self.orders.notify_one();
        Ok(true)
    }

    /// The next order. While `wait` and there is none, waits until there is, or the queue is closed: then there never
    /// will be one.
    pub(super) fn next(&self, wait: bool) -> Option<Order> {
        let mut state = locked(&self.state);
        loop {
            if let Some(order) = state.queue.pop_front() {
                match &order {
                    Order::Drop(..) => state.drops -= 1,
                    Order::Finish(_) => state.finishes -= 1,
                    _ => {}
                }
                return Some(order);
            }
            if !wait || state.closed {
                return None;
            }
            state = self.orders.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Answers a ticket, and tells the event loop.
    fn answer(&self, ticket: &TicketState, result: Result<LogCommitted>) {
        let mut state = locked(&self.state);
        state.in_flight = state.in_flight.saturating_sub(1);
        if state.completions.len() == COMPLETIONS_MAX {
            state.completions.pop_front();
        }
        state.completions.push_back((ticket.sequence, result.clone()));
        // Both under the lock that `take_completions` takes, so that neither is seen without the other. The counter
        // cannot be full unless the event is readable already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
        ticket.set(result);
    }

    /// Nothing is written any more: answers all that wait, and whatever is asked from now on, with this.
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

    /// Forgets all that was ordered and not begun, and has the checkpoints above one left behind.
    pub(super) fn void_above(&self, newest: Sequence) -> Result<()> {
        let mut state = locked(&self.state);
        state.check()?;
        let orders = std::mem::take(&mut state.queue);
        (state.drops, state.finishes) = (0, 0);
        state.queue.reserve(orders.capacity());
        state.queue.extend([Order::Abandon, Order::Void(newest)]);
        drop(state);
        for order in orders {
            match order {
                Order::Pages(batch) => self.pool.give_batch(batch),
                Order::Finish(finish) => finish.promise.answer(Err(Error::CalledOff)),
                _ => {}
            }
        }
        self.orders.notify_one();
        Ok(())
    }

    /// The first failure.
    pub(super) fn check(&self) -> Result<()> {
        locked(&self.state).check()
    }

    /// No more orders come.
    pub(super) fn close(&self) {
        locked(&self.state).closed = true;
        self.orders.notify_all();
    }

    /// Takes what has completed since the last call, and makes the event quiet again.
    pub(super) fn take_completions(&self) -> Vec<Completion> {
        let mut count = [0; 8];
        // Nothing to read means that nothing has completed.
        let _ = rustix::io::read(&self.event, &mut count);
        locked(&self.state).completions.drain(..).collect()
    }
}

impl State {
    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }
}

impl Promise {
    /// Answers the ticket of an epoch that was not finished. It is no completion: the caller has the error.
    fn refuse(self, error: Error) {
        self.ticket.set(Err(error));
    }

    /// Keeps it.
    pub(super) fn answer(self, result: Result<LogCommitted>) {
        self.shared.answer(&self.ticket, result);
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.ticket.get().is_none() {
            let gone = sys::Error::new("go on after a panic", sys::Errno::SHORT);
            self.shared.answer(&self.ticket, Err(Error::Io(gone)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Arc<Shared> {
        let shared = Arc::new(Shared::new(1, PageCount(1)).unwrap());
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
    fn what_is_refused_after_a_failure_has_its_reason_and_is_told_once() {
        let shared = failed();
        let ticket = Arc::new(TicketState::new(Sequence(1)));
        let refused = shared.order(finish(&shared, &ticket));
        assert!(matches!(refused, Err(Error::Full(_))), "{refused:?}");
        assert!(matches!(ticket.get(), Some(Err(Error::Full(_)))), "{:?}", ticket.get());
        assert!(shared.take_completions().is_empty());
    }

    #[test]
    fn an_order_that_is_dropped_is_answered() {
        let shared = Arc::new(Shared::new(1, PageCount(1)).unwrap());
        let ticket = Arc::new(TicketState::new(Sequence(1)));
        drop(finish(&shared, &ticket));
        assert_eq!(shared.take_completions().len(), 1);
        assert!(ticket.get().is_some());
    }
}
