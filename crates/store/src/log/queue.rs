//! What passes between those who take checkpoints and the thread that writes them.
//!
//! Owns: the orders, the pool of buffers, the event that tells of completions.
//! Invariants: giving an order and taking a buffer neither allocate nor wait for the device; orders are
//! carried out as they were given; every ticket is answered, also when the writer fails. There are no more buffers
//! than the pool's limit, those in reserve, and those that one pause had to make; the last are the first to go, and
//! nobody gets a reserve before they are gone.
//! Does not: write.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use image::{RecordSet, SpaceId};
use model::{AddressRange, ByteCount, PAGE_BYTES, PageCount, Sequence};
use rustix::event::EventfdFlags;
use sys::clock::Stopwatch;
use sys::page_buffer::PageBuffer;

use super::status::LogStatus;
use super::ticket::{Completion, LogCommitted, TicketState};
use crate::batch::{Lent, PageBatch, Piece};
use crate::error::{Error, Result};
use crate::meta::CommitMeta;

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
    shared: Arc<Shared>,
    ticket: Arc<TicketState>,
}

#[derive(Debug)]
pub(super) struct Shared {
    state: Mutex<State>,
    orders: Condvar,
    buffers: Condvar,
    event: OwnedFd,
    limit: usize,
    size: ByteCount,
    /// Buffers that there are, wherever they are.
    made: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    /// See `hold`.
    held: Vec<Sequence>,
    queue: VecDeque<Order>,
    drops: usize,
    finishes: usize,
    pool: Pool,
    in_flight: usize,
    completions: VecDeque<Completion>,
    failure: Option<Error>,
    /// Nobody is to wait for buffers or room.
    called_off: bool,
    /// How long anybody may wait for one buffer.
    wait_max: Option<Duration>,
    closed: bool,
    status: LogStatus,
}

/// Buffers that are free.
#[derive(Debug, Default)]
struct Pool {
    free: Vec<PageBuffer>,
    pieces: Vec<Vec<Piece>>,
    /// Buffers asked for last beside those of the pool, for a pause.
    reserved: usize,
}

/// What the writer's thread does next.
#[derive(Debug)]
pub(super) enum Next {
    Order(Order),
    /// Nothing to do now, or, when it was asked to wait, ever.
    Nothing,
}

impl Shared {
    /// With so many buffers of so many pages, all of them in memory from now on.
    pub(super) fn new(limit: usize, buffer_pages: PageCount) -> Result<Self> {
        let size = buffer_pages.bytes();
        let mut state = State::default();
        for _ in 0..limit {
            state.pool.free.push(PageBuffer::new(size)?);
            state.pool.pieces.push(Vec::with_capacity(buffer_pages.get() as usize));
        }
        let controls = 2 * (EPOCHS_IN_FLIGHT_MAX + 1);
        state.queue.reserve(limit + controls + DROPS_MAX);
        let event = rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC);
        let event = event.map_err(|errno| sys::Error::new("create an eventfd", errno))?;
        let (orders, buffers) = (Condvar::new(), Condvar::new());
        let made = Arc::new(AtomicUsize::new(limit));
        Ok(Self { state: Mutex::new(state), orders, buffers, event, limit, size, made })
    }

    /// Pages that a buffer holds.
    pub(super) fn buffer_pages(&self) -> PageCount {
        PageCount(self.size.get() / PAGE_BYTES)
    }

    /// An empty buffer, if there is one now.
    pub(super) fn try_buffer(&self) -> Result<Option<PageBatch>> {
        let mut state = self.state();
        state.check()?;
        self.take_buffer(&mut state)
    }

    /// An empty buffer of the pool, if there is one. Makes none, which takes long.
    pub(super) fn free_buffer(&self) -> Result<Option<PageBatch>> {
        let mut state = self.state();
        state.check()?;
        Ok(self.take_free(&mut state))
    }

    /// An empty buffer. Calls `drive` before it waits for one.
    pub(super) fn wait_buffer(&self, drive: impl FnOnce() -> Result<()>) -> Result<PageBatch> {
        self.wait_for(drive, |state| self.take_buffer(state))
    }

    /// So many buffers beside those of the pool, as `wait_buffer` gives one.
    pub(super) fn wait_reserve(
        &self,
        drive: impl FnOnce() -> Result<()>,
        count: usize,
    ) -> Result<Vec<PageBatch>> {
        self.wait_for(drive, |state| self.take_reserve(state, count))
    }

    /// A buffer beyond all limits, made now. Takes no lock: whoever holds one may not run before the caller has ended.
    pub(super) fn spare_buffer(&self) -> Result<PageBatch> {
        let buffer = PageBuffer::new(self.size)?;
        let pieces = Vec::with_capacity(self.buffer_pages().get() as usize);
        Ok(PageBatch::lent(buffer, pieces, Lent::count(&self.made)))
    }

    /// Waits until buffers that came back make `take` give something.
    fn wait_for<T>(
        &self,
        drive: impl FnOnce() -> Result<()>,
        take: impl Fn(&mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        let (begun, mut drive) = (Stopwatch::start(), Some(drive));
        let mut state = self.state();
        loop {
            state.check()?;
            if let Some(taken) = take(&mut state)? {
                return Ok(taken);
            }
            if let Some(drive) = drive.take() {
                drop(state);
                drive()?;
                state = self.state();
                continue;
            }
            if state.called_off {
                return Err(Error::CalledOff);
            }
            state = match state.wait_max {
                None => self.buffers.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(limit) => match limit.checked_sub(begun.elapsed()) {
                    None => return Err(Error::Slow { waited: limit }),
                    Some(left) => {
                        self.buffers.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                },
            };
        }
    }

    /// From now on nobody waits for buffers or room, or everybody may again.
    pub(super) fn call_off_waits(&self, called_off: bool) {
        self.state().called_off = called_off;
        self.buffers.notify_all();
    }

    /// Checkpoints that stay whatever the policy says.
    pub(super) fn hold(&self, sequences: &[Sequence]) {
        sequences.clone_into(&mut self.state().held);
    }

    pub(super) fn held(&self) -> Vec<Sequence> {
        self.state().held.clone()
    }

    /// How long anybody may wait for one buffer from now on.
    pub(super) fn limit_waits(&self, wait_max: Option<Duration>) {
        self.state().wait_max = wait_max;
    }

    /// Brings a buffer back.
    pub(super) fn give_buffer(&self, buffer: PageBuffer) {
        let mut state = self.state();
        let limit = self.limit + state.pool.reserved;
        if buffer.size() != self.size {
            return;
        }
        if self.made.load(Ordering::Relaxed) > limit {
            self.made.fetch_sub(1, Ordering::Relaxed);
        } else if state.pool.free.len() < limit {
            state.pool.free.push(buffer);
        }
        drop(state);
        // One who waits for a reserve may need more than this one.
        self.buffers.notify_all();
    }

    /// Brings a batch back as it is, its pages unused.
    pub(super) fn give_batch(&self, batch: PageBatch) {
        let (buffer, pieces) = batch.into_parts();
        self.give_buffer(buffer);
        self.give_pieces(pieces);
    }

    /// Brings the list of a batch's pieces back.
    pub(super) fn give_pieces(&self, mut pieces: Vec<Piece>) {
        pieces.clear();
        let mut state = self.state();
        if state.pool.pieces.len() < self.limit + state.pool.reserved {
            state.pool.pieces.push(pieces);
        }
    }

    /// Adds an order; false when there is no room for another dropped range now.
    pub(super) fn order(&self, order: Order) -> Result<bool> {
        let mut state = self.state();
        if let Err(error) = state.check() {
            drop(state);
            if let Order::Finish(finish) = order {
                finish.promise.refuse(error.clone());
            }
            return Err(error);
        }
        match &order {
            Order::Drop(..) if state.drops == DROPS_MAX && state.called_off => return Err(Error::CalledOff),
            Order::Drop(..) if state.drops == DROPS_MAX => return Ok(false),
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

    /// The next order. While `wait` and there is none, waits until there is, or the queue is closed.
    pub(super) fn next(&self, wait: bool) -> Next {
        let mut state = self.state();
        loop {
            if let Some(order) = state.queue.pop_front() {
                match &order {
                    Order::Drop(..) => state.drops -= 1,
                    Order::Finish(_) => state.finishes -= 1,
                    _ => {}
                }
                return Next::Order(order);
            }
            if !wait || state.closed {
                return Next::Nothing;
            }
            state = self.orders.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether a further epoch waits whole, so that one sync can cover it too.
    pub(super) fn another_waits(&self) -> bool {
        self.state().finishes > 0
    }

    /// Whether nothing waits.
    pub(super) fn is_idle(&self) -> bool {
        self.state().queue.is_empty()
    }

    /// Answers a ticket, and tells the event loop.
    fn answer(&self, ticket: &TicketState, result: Result<LogCommitted>) {
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(1);
        if state.completions.len() == COMPLETIONS_MAX {
            state.completions.pop_front();
        }
        state.completions.push_back((ticket.sequence, result.clone()));
        drop(state);
        ticket.set(result);
        // A counter that is full has told the loop already.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// Nothing is written any more: answers all that wait, and whatever is asked from now on, with this.
    pub(super) fn fail(&self, error: &Error) {
        let mut state = self.state();
        state.failure.get_or_insert_with(|| error.clone());
        let orders = std::mem::take(&mut state.queue);
        drop(state);
        for order in orders {
            if let Order::Finish(finish) = order {
                finish.promise.answer(Err(error.clone()));
            }
        }
        self.buffers.notify_all();
    }

    /// Forgets all that was ordered and not begun, and has the checkpoints above one left behind.
    pub(super) fn void_above(&self, newest: Sequence) -> Result<()> {
        let mut state = self.state();
        state.check()?;
        let orders = std::mem::take(&mut state.queue);
        (state.drops, state.finishes) = (0, 0);
        state.queue.reserve(orders.capacity());
        state.queue.extend([Order::Abandon, Order::Void(newest)]);
        drop(state);
        for order in orders {
            match order {
                Order::Pages(batch) => self.give_batch(batch),
                Order::Finish(finish) => finish.promise.answer(Err(Error::CalledOff)),
                _ => {}
            }
        }
        self.orders.notify_one();
        Ok(())
    }

    /// The first failure.
    pub(super) fn check(&self) -> Result<()> {
        self.state().check()
    }

    /// No more orders come.
    pub(super) fn close(&self) {
        self.state().closed = true;
        self.orders.notify_all();
    }

    /// Epochs finished and not yet durable.
    pub(super) fn in_flight(&self) -> usize {
        self.state().in_flight
    }

    /// Takes what has completed since the last call, and makes the event quiet again.
    pub(super) fn take_completions(&self) -> Vec<Completion> {
        let mut count = [0; 8];
        // Nothing to read means that nothing has completed.
        let _ = rustix::io::read(&self.event, &mut count);
        self.state().completions.drain(..).collect()
    }

    pub(super) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    pub(super) fn status(&self) -> LogStatus {
        self.state().status.clone()
    }

    pub(super) fn set_status(&self, status: LogStatus) {
        self.state().status = status;
    }

    /// A buffer that is free, or one in place of one that was lost or went into the reserve.
    fn take_buffer(&self, state: &mut State) -> Result<Option<PageBatch>> {
        if let Some(free) = self.take_free(state) {
            return Ok(Some(free));
        }
        let may_make = self.made.load(Ordering::Relaxed) < self.limit + state.pool.reserved;
        if may_make { self.spare_buffer().map(Some) } else { Ok(None) }
    }

    fn take_free(&self, state: &mut State) -> Option<PageBatch> {
        let buffer = state.pool.free.pop()?;
        let lent = Lent::again(&self.made);
        Some(PageBatch::lent(buffer, state.pool.pieces.pop().unwrap_or_default(), lent))
    }

    fn take_reserve(&self, state: &mut State, count: usize) -> Result<Option<Vec<PageBatch>>> {
        state.pool.reserved = count;
        // One at a time of those that are too many now: to give memory back takes its time, too.
        if state.pool.free.len() > count && self.made.load(Ordering::Relaxed) > self.limit + count {
            self.made.fetch_sub(1, Ordering::Relaxed);
            state.pool.free.pop();
        }
        let missing = count.saturating_sub(state.pool.free.len());
        if missing > 0 && self.made.load(Ordering::Relaxed) + missing > self.limit + count {
            return Ok(None);
        }
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            let free = if state.pool.free.is_empty() { None } else { self.take_buffer(state)? };
            taken.push(free.map_or_else(|| self.spare_buffer(), Ok)?);
        }
        Ok(Some(taken))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }
}

impl Promise {
    pub(super) const fn new(shared: Arc<Shared>, ticket: Arc<TicketState>) -> Self {
        Self { shared, ticket }
    }

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
        let promise = Promise::new(Arc::clone(shared), Arc::clone(ticket));
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
