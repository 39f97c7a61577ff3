//! The page buffers that one writer uses. A copier takes an empty buffer and fills it. A writer writes the buffer to
//! the device, and returns it to the stock of free buffers. For a pause, copiers take additional buffers: the
//! *reserve*. If the reserve is too small, copiers take *spare* buffers.
//!
//! Owns: the number of buffers in use; the wait for a buffer, and its time limit; the failure of all waits after a
//! writer has failed.
//! Invariants: the number of buffers in use is at most the sum of the pool's limit, the reserve and the spare buffers.
//! A new reserve is granted only when at most `limit` buffers are in use. After a failure, no caller waits.
//! Does not: keep free buffers, except those for callers that wait while the subject is stopped; clear a buffer between
//! two uses.

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use model::{ByteCount, PAGE_BYTES, PageCount};
use sys::clock::Stopwatch;
use sys::page_buffer::PageBuffer;

use crate::batch::{Lent, PageBatch, Piece};
use crate::error::{Error, Result};
use crate::lock::locked;
use crate::stock::BufferStock;

/// The buffers that one sink lends to copiers. Copiers and the sink share the pool by reference.
#[derive(Debug)]
pub struct PagePool {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
    waits: Waits,
    stock: BufferStock,
    /// The number of buffers in use: with a copier, with the writer, or waiting for a hurried caller.
    used: Arc<AtomicUsize>,
    /// The writer of a log without its own thread.
    driver: OnceLock<Weak<dyn Drive>>,
}

/// A writer that works when a caller waits for a buffer.
pub(crate) trait Drive: Debug + Send + Sync {
    /// Writes all buffers that the writer has received.
    fn drive(&self) -> Result<()>;
}

/// The behaviour of a pool when all its buffers are in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waits {
    /// Callers wait for a buffer, at most as long as `limit_waits` allows. The reserve and spare buffers are beyond the
    /// limit of the pool.
    Limited,
    /// Callers wait for a buffer, without a limit of time.
    Always,
    /// No caller waits, and there are no buffers beyond the limit. A call fails with `Full` instead.
    Never,
}

#[derive(Debug, Default)]
struct State {
    /// Returned buffers for callers that wait with a limit.
    handed: Vec<PageBuffer>,
    /// The size of the reserve: the count of the last `reserve`, plus the buffers that `extend_reserve` has added since.
    reserved: usize,
    failure: Option<Error>,
    /// Whether waits for buffers are cancelled.
    called_off: bool,
    /// The maximum time of all waits together; `None` means no limit.
    wait_max: Option<Duration>,
    /// The time of all waits since the limit was set.
    waited: Duration,
    /// The number of callers that wait with a limit.
    hurried: usize,
}

impl PagePool {
    /// Returns a pool that uses at most `limit` buffers of a stock, beside the reserve.
    #[must_use]
    pub fn new(limit: usize, stock: BufferStock, waits: Waits) -> Self {
        let (state, changed, used) = (Mutex::default(), Condvar::new(), Arc::default());
        Self { state, changed, limit, waits, stock, used, driver: OnceLock::new() }
    }

    /// Makes the first wait of each caller call `driver`.
    pub(crate) fn set_driver(&self, driver: Weak<dyn Drive>) {
        let _ = self.driver.set(driver);
    }

    /// Makes the stock keep as many buffers ready as the pool lends without a wait. Called before each checkpoint.
    ///
    /// # Errors
    ///
    /// Returns the error of an allocation.
    pub fn prepare(&self) -> Result<()> {
        self.stock.prepare(self.limit)
    }

    /// Returns the size of a buffer.
    pub(crate) const fn size(&self) -> ByteCount {
        self.stock.size()
    }

    /// Returns the number of pages in a buffer.
    #[must_use]
    pub const fn buffer_pages(&self) -> PageCount {
        PageCount(self.size().get() / PAGE_BYTES)
    }

    /// Returns the memory of the buffers in use.
    #[must_use]
    pub fn in_use(&self) -> ByteCount {
        ByteCount(self.used.load(Ordering::Relaxed) as u64 * self.size().get())
    }

    /// Returns an empty buffer if the limits allow one more buffer.
    pub(crate) fn take_now(&self) -> Result<Option<PageBatch>> {
        let mut state = locked(&self.state);
        state.check()?;
        self.take_one(&mut state)
    }

    /// Returns an empty buffer if the limits allow one more buffer, and a buffer is free. Neither waits nor allocates, so
    /// that the method can be called while the subject is stopped.
    ///
    /// # Errors
    ///
    /// Returns the failure of the sink.
    pub fn free_buffer(&self) -> Result<Option<PageBatch>> {
        let mut state = locked(&self.state);
        state.check()?;
        if let Some(handed) = self.take_handed(&mut state) {
            return Ok(Some(handed));
        }
        let free = if self.may_use(&state) { self.stock.take() } else { None };
        Ok(free.map(|buffer| self.lend(buffer)))
    }

    /// Returns an empty buffer. Waits until a buffer is free. A caller waits forever if this caller holds all buffers and
    /// passes none of them to the sink.
    ///
    /// # Errors
    ///
    /// Returns the failure of the sink, `Slow` or `CalledOff` if the wait has ended, or `Full` if the pool never waits.
    pub fn buffer(&self) -> Result<PageBatch> {
        self.wait_for(|state| self.take_one(state))
    }

    /// Returns an empty buffer for this number of pages. For few pages, the buffer is smaller than usual, because the
    /// allocation of a usual buffer would cost more than the copying. Fails as `buffer` does.
    pub fn buffer_for(&self, pages: PageCount) -> Result<PageBatch> {
        if pages >= self.buffer_pages() {
            return self.buffer();
        }
        Ok(PageBatch::over(PageBuffer::new(pages.bytes())?))
    }

    /// Returns a reserve of `count` buffers for a pause, beyond the limit of the pool. Waits until at most `limit` buffers
    /// are in use. Fails as `buffer` does.
    pub fn reserve(&self, count: usize) -> Result<Vec<PageBatch>> {
        self.wait_for(|state| {
            state.reserved = count;
            self.recall(state);
            if self.used.load(Ordering::Relaxed) > self.limit {
                return Ok(None);
            }
            (0..count).map(|_| self.spare()).collect::<Result<_>>().map(Some)
        })
    }

    /// Returns a free buffer, or allocates a buffer, beyond the limit and the reserve. The next `reserve` waits until this
    /// buffer is returned. Waits for no lock.
    ///
    /// # Errors
    ///
    /// Returns `Full` if the pool never waits and has reached its limit, or the error of an allocation.
    pub fn spare(&self) -> Result<PageBatch> {
        if self.waits == Waits::Never && self.used.load(Ordering::Relaxed) >= self.limit {
            return Err(exhausted());
        }
        Ok(self.lend(self.stock.take_or_make()?))
    }

    /// Returns one more buffer of the reserve. If more than `limit` buffers are not in use, the reserve stays as it is.
    /// Otherwise, the reserve is increased. Fails as `spare` does.
    pub fn extend_reserve(&self) -> Result<PageBatch> {
        let mut state = locked(&self.state);
        state.check()?;
        if self.used.load(Ordering::Relaxed) >= state.reserved {
            state.reserved += 1;
        }
        drop(state);
        self.spare()
    }

    /// Waits until at most `here` buffers are in use beyond the limit and the reserve, so that a checkpoint with many pauses
    /// does not allocate more for each of them. The caller has `here` empty buffers. Must not be called while the subject
    /// is stopped. Fails as `buffer` does.
    pub fn settle(&self, here: usize) -> Result<()> {
        self.wait_for(|state| {
            self.recall(state);
            Ok((self.used.load(Ordering::Relaxed) <= self.limit + state.reserved + here).then_some(()))
        })
    }

    /// Calls `take` until `take` returns a value. Waits for a returned buffer before each new call. Calls the driver once
    /// before the first wait.
    fn wait_for<T>(&self, take: impl Fn(&mut State) -> Result<Option<T>>) -> Result<T> {
        let (begun, mut driver) = (Stopwatch::start(), self.driver.get().and_then(Weak::upgrade));
        let mut state = locked(&self.state);
        loop {
            state.check()?;
            if let Some(taken) = take(&mut state)? {
                state.waited += begun.elapsed();
                return Ok(taken);
            }
            if self.waits == Waits::Never {
                return Err(exhausted());
            }
            if let Some(driver) = driver.take() {
                drop(state);
                driver.drive()?;
                state = locked(&self.state);
                continue;
            }
            if state.called_off {
                return Err(Error::CalledOff);
            }
            state = match state.wait_max {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(limit) => match limit.checked_sub(state.waited + begun.elapsed()) {
                    None => {
                        state.waited = limit;
                        return Err(Error::Slow(limit));
                    }
                    Some(left) => {
                        state.hurried += 1;
                        let waited = self.changed.wait_timeout(state, left);
                        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
                        state.hurried -= 1;
                        state
                    }
                },
            };
        }
    }

    /// With `true`, cancels all present and future waits for buffers. With `false`, allows waits again.
    pub(crate) fn call_off_waits(&self, called_off: bool) {
        locked(&self.state).called_off = called_off;
        self.changed.notify_all();
    }

    /// Reports whether waits are cancelled.
    pub(crate) fn is_called_off(&self) -> bool {
        locked(&self.state).called_off
    }

    /// Sets the maximum time of all following waits together, so that a slow store cannot block the caller forever. A
    /// limit means that the subject may be stopped: during such a wait, the store waits for nothing to keep its maximum
    /// size. `None` removes the limit.
    pub fn limit_waits(&self, wait_max: Option<Duration>) {
        let wait_max = wait_max.filter(|_| self.waits == Waits::Limited);
        let mut state = locked(&self.state);
        (state.wait_max, state.waited) = (wait_max, Duration::ZERO);
    }

    /// Reports whether a caller waits for a buffer with a time limit, because the subject is stopped.
    pub(crate) fn is_hurried(&self) -> bool {
        locked(&self.state).hurried > 0
    }

    /// Takes back a buffer that the pool counts. A caller that waits with a limit gets the buffer, regardless of all limits.
    /// Otherwise, the buffer returns to the stock.
    pub(crate) fn give(&self, buffer: PageBuffer) {
        let mut state = locked(&self.state);
        if state.hurried > state.handed.len() {
            state.handed.push(buffer);
            drop(state);
        } else {
            drop(state);
            self.give_up(buffer);
        }
        // Wakes all waiting threads, because a thread that waits for a reserve may need several buffers.
        self.changed.notify_all();
    }

    /// Returns the buffer and the pieces of a batch. The pool counts the buffer until [`Self::give`], also if the buffer does
    /// not come from the pool.
    pub(crate) fn parts_of(&self, batch: PageBatch) -> (PageBuffer, Vec<Piece>) {
        if batch.is_foreign() {
            self.used.fetch_add(1, Ordering::Relaxed);
        }
        let is_used = !batch.is_empty();
        let (mut buffer, pieces) = batch.into_parts();
        if is_used {
            buffer.count_use();
        }
        (buffer, pieces)
    }

    /// Takes back the buffer of a batch. The pages in the buffer are discarded.
    pub fn put_back(&self, batch: PageBatch) {
        let (buffer, pieces) = self.parts_of(batch);
        self.give(buffer);
        self.give_pieces(pieces);
    }

    /// Takes back the memory of a list of pieces, for use by a later batch.
    pub(crate) fn give_pieces(&self, pieces: Vec<Piece>) {
        self.stock.keep_pieces(pieces);
    }

    /// Makes every following request for a buffer fail with this error, and wakes the waiting threads. An earlier error
    /// is not replaced.
    pub fn fail(&self, error: &Error) {
        locked(&self.state).failure.get_or_insert_with(|| error.clone());
        self.changed.notify_all();
    }

    /// Returns the first error that was passed to `fail`.
    pub(crate) fn failure(&self) -> Option<Error> {
        locked(&self.state).failure.clone()
    }

    fn may_use(&self, state: &State) -> bool {
        let reserved = if self.waits == Waits::Never { 0 } else { state.reserved };
        self.used.load(Ordering::Relaxed) < self.limit + reserved
    }

    /// Returns an empty buffer if the limit and the reserve allow one more buffer, or if one was returned for a caller that
    /// waits with a limit.
    fn take_one(&self, state: &mut State) -> Result<Option<PageBatch>> {
        if let Some(handed) = self.take_handed(state) {
            return Ok(Some(handed));
        }
        if self.may_use(state) { self.spare().map(Some) } else { Ok(None) }
    }

    fn take_handed(&self, state: &mut State) -> Option<PageBatch> {
        let buffer = state.handed.pop()?;
        Some(PageBatch::lent(buffer, self.stock.pieces(), Lent::again(&self.used)))
    }

    fn lend(&self, buffer: PageBuffer) -> PageBatch {
        PageBatch::lent(buffer, self.stock.pieces(), Lent::count(&self.used))
    }

    /// Returns the buffers to the stock that were meant for callers that have stopped waiting.
    fn recall(&self, state: &mut State) {
        let wanted = state.hurried.min(state.handed.len());
        state.handed.drain(wanted..).for_each(|buffer| self.give_up(buffer));
    }

    fn give_up(&self, buffer: PageBuffer) {
        self.used.fetch_sub(1, Ordering::Relaxed);
        self.stock.keep(buffer);
    }
}

fn exhausted() -> Error {
    Error::Full(sys::Error::new("get one more page buffer", rustix::io::Errno::NOMEM))
}

impl State {
    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: PageCount = PageCount(4);

    fn pool() -> (PagePool, BufferStock) {
        let stock = BufferStock::new(PAGES);
        let pool = PagePool::new(1, stock.clone(), Waits::Limited);
        pool.prepare().unwrap();
        (pool, stock)
    }

    fn used(pool: &PagePool) -> usize {
        pool.used.load(Ordering::Relaxed)
    }

    #[test]
    fn spare_buffers_are_returned_before_a_checkpoint_lends_more() {
        let (pool, stock) = pool();
        let mut spares: Vec<PageBatch> = (0..4).map(|_| pool.spare().unwrap()).collect();
        pool.limit_waits(Some(Duration::ZERO));
        assert!(matches!(pool.settle(2), Err(Error::Slow(_))));
        pool.settle(3).unwrap();
        pool.put_back(spares.pop().unwrap());
        pool.settle(2).unwrap();
        spares.into_iter().for_each(|batch| pool.put_back(batch));
        pool.settle(0).unwrap();
        assert_eq!((used(&pool), stock.len()), (0, 4));
    }

    #[test]
    fn a_pool_without_a_checkpoint_holds_no_buffer_and_another_uses_it() {
        let stock = BufferStock::new(PAGES);
        let pools = [
            PagePool::new(2, stock.clone(), Waits::Limited),
            PagePool::new(2, stock.clone(), Waits::Limited),
        ];
        for pool in pools.iter().chain(&pools) {
            pool.prepare().unwrap();
            let batches = [pool.buffer().unwrap(), pool.free_buffer().unwrap().unwrap()];
            assert_eq!(pool.in_use(), ByteCount(2 * PAGES.bytes().get()));
            batches.into_iter().for_each(|batch| pool.put_back(batch));
            assert_eq!((pool.in_use(), stock.len()), (ByteCount(0), 2));
        }
    }

    /// A stopped subject waits for one buffer, and not until the store has written all spare buffers.
    #[test]
    fn a_hurried_caller_gets_the_next_returned_buffer() {
        let (pool, stock) = pool();
        let mut lent: Vec<PageBatch> = vec![pool.buffer().unwrap()];
        lent.extend((0..3).map(|_| pool.spare().unwrap()));
        pool.limit_waits(Some(Duration::from_secs(20)));
        std::thread::scope(|scope| {
            let hurried = scope.spawn(|| pool.buffer().map(|batch| pool.put_back(batch)));
            while !pool.is_hurried() {
                std::thread::yield_now();
            }
            pool.put_back(lent.pop().unwrap());
            hurried.join().unwrap().unwrap();
        });
        lent.into_iter().for_each(|batch| pool.put_back(batch));
        assert_eq!((used(&pool), stock.len()), (0, 4));
    }

    #[test]
    fn a_buffer_for_a_caller_that_has_stopped_waiting_returns_to_the_stock() {
        let (pool, stock) = pool();
        let lent = pool.buffer().unwrap();
        locked(&pool.state).hurried = 1;
        pool.put_back(lent);
        assert_eq!((used(&pool), stock.len()), (1, 0));
        locked(&pool.state).hurried = 0;
        pool.settle(0).unwrap();
        assert_eq!((used(&pool), stock.len()), (0, 1));
    }

    /// While a thread holds a reserve for a long time, the pool must still lend its own buffers. Returned buffers are
    /// lent again.
    #[test]
    fn a_reserve_that_is_held_takes_nothing_from_the_pool() {
        let (pool, stock) = pool();
        let held: Vec<PageBatch> = (0..5).map(|_| pool.extend_reserve().unwrap()).collect();
        pool.limit_waits(Some(Duration::ZERO));
        for _ in 0..10 {
            let batch = pool.buffer().unwrap();
            assert!(pool.free_buffer().unwrap().is_none());
            pool.put_back(batch);
        }
        held.into_iter().for_each(|batch| pool.put_back(batch));
        assert_eq!(stock.len(), 6);
        assert_eq!(pool.reserve(3).unwrap().len(), 3);
    }

    /// The buffers of a reserve are lent while at most `limit` other buffers are in use.
    #[test]
    fn a_new_reserve_waits_for_the_buffers_of_the_last_one() {
        let (pool, _) = pool();
        pool.limit_waits(Some(Duration::ZERO));
        let mut last = pool.reserve(3).unwrap();
        assert!(matches!(pool.reserve(1), Err(Error::Slow(_))));
        last.drain(1..).for_each(|batch| pool.put_back(batch));
        assert_eq!(pool.reserve(2).unwrap().len(), 2);
    }

    #[test]
    fn a_foreign_buffer_is_counted_only_while_it_is_written() {
        let (pool, stock) = pool();
        pool.put_back(PageBatch::over(PageBuffer::new(PAGES.bytes()).unwrap()));
        assert_eq!((used(&pool), stock.len()), (0, 2));
        pool.put_back(PageBatch::over(PageBuffer::new(PageCount(1).bytes()).unwrap()));
        assert_eq!((used(&pool), stock.len()), (0, 2));
    }
}
