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

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use model::{ByteCount, PAGE_BYTES, PageCount};
use sys::Errno;
use sys::clock::Stopwatch;
use sys::page_buffer::PageBuffer;

use crate::batch::{Lent, PageBatch, Piece};
use crate::error::{Error, Result};
use crate::lock::locked;
use crate::stock::BufferStock;

#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
    stock: BufferStock,
    /// The number of buffers in use: with a copier, with the writer, or waiting for a hurried caller.
    used: Arc<AtomicUsize>,
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

impl Pool {
    /// Returns a pool that uses at most `limit` buffers of a stock.
    pub(crate) fn new(limit: usize, stock: BufferStock) -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), limit, stock, used: Arc::default() }
    }

    /// Makes the stock keep as many buffers ready as the pool lends without a wait. Called before each checkpoint.
    pub(crate) fn prepare(&self) -> Result<()> {
        self.stock.prepare(self.limit)
    }

    /// Returns the size of a buffer.
    pub(crate) const fn size(&self) -> ByteCount {
        self.stock.size()
    }

    /// Returns the number of pages in a buffer.
    pub(crate) const fn buffer_pages(&self) -> PageCount {
        PageCount(self.size().get() / PAGE_BYTES)
    }

    /// Returns the memory of the buffers in use.
    pub(crate) fn in_use(&self) -> ByteCount {
        ByteCount(self.used.load(Ordering::Relaxed) as u64 * self.size().get())
    }

    /// Returns an empty buffer if the limits allow one more buffer.
    pub(crate) fn take_now(&self) -> Result<Option<PageBatch>> {
        let mut state = locked(&self.state);
        state.check()?;
        self.take_one(&mut state)
    }

    /// Returns an empty buffer if the limits allow one more buffer, and a buffer is free. Does not allocate, because an
    /// allocation takes long.
    pub(crate) fn take_free(&self) -> Result<Option<PageBatch>> {
        let mut state = locked(&self.state);
        state.check()?;
        if let Some(handed) = self.take_handed(&mut state) {
            return Ok(Some(handed));
        }
        let free = if self.may_use(&state) { self.stock.take() } else { None };
        Ok(free.map(|buffer| self.lend(buffer)))
    }

    /// Waits for an empty buffer. Calls `drive` once before the first wait. A writer without a thread returns buffers
    /// during this call.
    pub(crate) fn take(&self, drive: impl FnOnce() -> Result<()>) -> Result<PageBatch> {
        self.wait_for(drive, |state| self.take_one(state))
    }

    /// Waits for a reserve of `count` buffers, beyond the limit of the pool. Calls `drive` once before the first wait.
    pub(crate) fn reserve(&self, drive: impl FnOnce() -> Result<()>, count: usize) -> Result<Vec<PageBatch>> {
        self.wait_for(drive, |state| {
            state.reserved = count;
            self.recall(state);
            if self.used.load(Ordering::Relaxed) > self.limit {
                return Ok(None);
            }
            (0..count).map(|_| self.spare()).collect::<Result<_>>().map(Some)
        })
    }

    /// Returns a free buffer, or allocates a buffer, regardless of all limits. Waits for no lock.
    pub(crate) fn spare(&self) -> Result<PageBatch> {
        Ok(self.lend(self.stock.take_or_make()?))
    }

    /// Returns one more buffer of the reserve. If more than `limit` buffers are not in use, the reserve stays as it is.
    /// Otherwise, the reserve is increased.
    pub(crate) fn extend_reserve(&self) -> Result<PageBatch> {
        let mut state = locked(&self.state);
        state.check()?;
        if self.used.load(Ordering::Relaxed) >= state.reserved {
            state.reserved += 1;
        }
        drop(state);
        self.spare()
    }

    /// Waits until at most `here` buffers are in use beyond the limit and the reserve. Calls `drive` once before the first
    /// wait.
    pub(crate) fn settle(&self, drive: impl FnOnce() -> Result<()>, here: usize) -> Result<()> {
        self.wait_for(drive, |state| {
            self.recall(state);
            Ok((self.used.load(Ordering::Relaxed) <= self.limit + state.reserved + here).then_some(()))
        })
    }

    /// Calls `take` until `take` returns a value. Waits for a returned buffer before each new call. Calls `drive` once
    /// before the first wait.
    fn wait_for<T>(
        &self,
        drive: impl FnOnce() -> Result<()>,
        take: impl Fn(&mut State) -> Result<Option<T>>,
    ) -> Result<T> {
        let (begun, mut drive) = (Stopwatch::start(), Some(drive));
        let mut state = locked(&self.state);
        loop {
            state.check()?;
            if let Some(taken) = take(&mut state)? {
                state.waited += begun.elapsed();
                return Ok(taken);
            }
            if let Some(drive) = drive.take() {
                drop(state);
                drive()?;
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

    /// Sets the maximum time of all following waits together; `None` removes the limit.
    pub(crate) fn limit_waits(&self, wait_max: Option<Duration>) {
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
        batch.into_parts()
    }

    /// Takes back the buffer of a batch. The pages in the buffer are discarded.
    pub(crate) fn give_batch(&self, batch: PageBatch) {
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
    pub(crate) fn fail(&self, error: &Error) {
        locked(&self.state).failure.get_or_insert_with(|| error.clone());
        self.changed.notify_all();
    }

    /// Returns the first error that was passed to `fail`.
    pub(crate) fn failure(&self) -> Option<Error> {
        locked(&self.state).failure.clone()
    }

    fn may_use(&self, state: &State) -> bool {
        self.used.load(Ordering::Relaxed) < self.limit + state.reserved
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

impl State {
    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }
}

/// Calls the function with an error if this value is dropped during a panic. The function can end the waits of threads
/// that wait for the panicking thread.
pub(crate) struct OnPanic<T: Fn(&Error)>(pub(crate) T);

impl<T: Fn(&Error)> Drop for OnPanic<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)(&Error::Io(sys::Error::new("continue after a panic", Errno::SHORT)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: PageCount = PageCount(4);

    fn nothing() -> Result<()> {
        Ok(())
    }

    fn pool() -> (Pool, BufferStock) {
        let stock = BufferStock::new(PAGES);
        let pool = Pool::new(1, stock.clone());
        pool.prepare().unwrap();
        (pool, stock)
    }

    fn used(pool: &Pool) -> usize {
        pool.used.load(Ordering::Relaxed)
    }

    #[test]
    fn spare_buffers_are_returned_before_a_checkpoint_lends_more() {
        let (pool, stock) = pool();
        let mut spares: Vec<PageBatch> = (0..4).map(|_| pool.spare().unwrap()).collect();
        pool.limit_waits(Some(Duration::ZERO));
        assert!(matches!(pool.settle(nothing, 2), Err(Error::Slow(_))));
        pool.settle(nothing, 3).unwrap();
        pool.give_batch(spares.pop().unwrap());
        pool.settle(nothing, 2).unwrap();
        spares.into_iter().for_each(|batch| pool.give_batch(batch));
        pool.settle(nothing, 0).unwrap();
        assert_eq!((used(&pool), stock.len()), (0, 4));
    }

    #[test]
    fn a_pool_without_a_checkpoint_holds_no_buffer_and_another_uses_it() {
        let stock = BufferStock::new(PAGES);
        let pools = [Pool::new(2, stock.clone()), Pool::new(2, stock.clone())];
        for pool in pools.iter().chain(&pools) {
            pool.prepare().unwrap();
            let batches = [pool.take(nothing).unwrap(), pool.take_free().unwrap().unwrap()];
            assert_eq!(pool.in_use(), ByteCount(2 * PAGES.bytes().get()));
            batches.into_iter().for_each(|batch| pool.give_batch(batch));
            assert_eq!((pool.in_use(), stock.len()), (ByteCount(0), 2));
        }
    }

    /// A stopped subject waits for one buffer, and not until the store has written all spare buffers.
    #[test]
    fn a_hurried_caller_gets_the_next_returned_buffer() {
        let (pool, stock) = pool();
        let mut lent: Vec<PageBatch> = vec![pool.take(nothing).unwrap()];
        lent.extend((0..3).map(|_| pool.spare().unwrap()));
        pool.limit_waits(Some(Duration::from_secs(20)));
        std::thread::scope(|scope| {
            let hurried = scope.spawn(|| pool.take(nothing).map(|batch| pool.give_batch(batch)));
            while !pool.is_hurried() {
                std::thread::yield_now();
            }
            pool.give_batch(lent.pop().unwrap());
            hurried.join().unwrap().unwrap();
        });
        lent.into_iter().for_each(|batch| pool.give_batch(batch));
        assert_eq!((used(&pool), stock.len()), (0, 4));
    }

    #[test]
    fn a_buffer_for_a_caller_that_has_stopped_waiting_returns_to_the_stock() {
        let (pool, stock) = pool();
        let lent = pool.take(nothing).unwrap();
        locked(&pool.state).hurried = 1;
        pool.give_batch(lent);
        assert_eq!((used(&pool), stock.len()), (1, 0));
        locked(&pool.state).hurried = 0;
        pool.settle(nothing, 0).unwrap();
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
            let batch = pool.take(nothing).unwrap();
            assert!(pool.take_free().unwrap().is_none());
            pool.give_batch(batch);
        }
        held.into_iter().for_each(|batch| pool.give_batch(batch));
        assert_eq!(stock.len(), 6);
        assert_eq!(pool.reserve(nothing, 3).unwrap().len(), 3);
    }

    /// The buffers of a reserve are lent while at most `limit` other buffers are in use.
    #[test]
    fn a_new_reserve_waits_for_the_buffers_of_the_last_one() {
        let (pool, _) = pool();
        pool.limit_waits(Some(Duration::ZERO));
        let mut last = pool.reserve(nothing, 3).unwrap();
        assert!(matches!(pool.reserve(nothing, 1), Err(Error::Slow(_))));
        last.drain(1..).for_each(|batch| pool.give_batch(batch));
        assert_eq!(pool.reserve(nothing, 2).unwrap().len(), 2);
    }

    #[test]
    fn a_foreign_buffer_is_counted_only_while_it_is_written() {
        let (pool, stock) = pool();
        pool.give_batch(PageBatch::over(PageBuffer::new(PAGES.bytes()).unwrap()));
        assert_eq!((used(&pool), stock.len()), (0, 2));
        pool.give_batch(PageBatch::over(PageBuffer::new(PageCount(1).bytes()).unwrap()));
        assert_eq!((used(&pool), stock.len()), (0, 2));
    }
}
