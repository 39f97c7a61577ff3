//! The pool of page buffers. A copier (a thread that copies pages of a subject) takes an empty buffer from the pool and
//! fills the buffer. A writer writes the buffer to the device, and returns the buffer to the pool. For a pause, copiers
//! take additional buffers: the *reserve*. If the reserve is too small, copiers allocate *spare* buffers.
//!
//! Owns: the number of buffers; the wait for a buffer, and its time limit; the failure of all waits after a writer has
//! failed.
//! Invariants: the number of buffers is at most the sum of the pool's limit, the reserve and the spare buffers of the
//! last pause. While more buffers exist than the limit plus the reserve, each returned buffer becomes a surplus
//! buffer, which does not count. A new reserve is granted only when all spare buffers are returned. After a failure,
//! no caller waits.
//! Does not: clear a buffer between two uses.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use model::{ByteCount, PAGE_BYTES, PageCount};
use sys::Errno;
use sys::clock::Stopwatch;
use sys::page_buffer::PageBuffer;

use crate::batch::{Lent, PageBatch, Piece};
use crate::error::{Error, Result};
use crate::surplus::Surplus;

#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
    /// The size of a buffer in bytes.
    pub(crate) size: ByteCount,
    /// The number of existing buffers, both free and in use.
    made: Arc<AtomicUsize>,
    surplus: Mutex<Surplus>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<PageBuffer>,
    pieces: Vec<Vec<Piece>>,
    /// The size of the reserve: the count of the last `reserve`, plus the buffers that `extend_reserve` has allocated
    /// since.
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
    /// Returns a pool of at most `limit` buffers. A buffer is allocated when it is first needed.
    pub(crate) fn new(limit: usize, buffer_pages: PageCount) -> Self {
        let (state, changed, size) = (Mutex::default(), Condvar::new(), buffer_pages.bytes());
        Self { state, changed, limit, size, made: Arc::default(), surplus: Mutex::default() }
    }

    /// Allocates all buffers now.
    pub(crate) fn fill(&self) -> Result<()> {
        let mut state = locked(&self.state);
        while state.free.len() < self.limit {
            state.free.push(PageBuffer::new(self.size)?);
            state.pieces.push(self.no_pieces());
            self.made.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Returns the number of pages in a buffer.
    pub(crate) fn buffer_pages(&self) -> PageCount {
        PageCount(self.size.get() / PAGE_BYTES)
    }

    /// Returns the memory of all buffers, including free buffers, and without surplus buffers.
    pub(crate) fn total(&self) -> ByteCount {
        ByteCount(self.made.load(Ordering::Relaxed) as u64 * self.size.get())
    }

    /// Returns an empty buffer if a buffer is free, or if the limits allow the allocation of a buffer.
    pub(crate) fn take_now(&self) -> Result<Option<PageBatch>> {
        let mut state = locked(&self.state);
        state.check()?;
        self.take_one(&mut state)
    }

    /// Returns an empty buffer if a buffer is free. Does not allocate, because an allocation takes long.
    pub(crate) fn take_free(&self) -> Result<Option<PageBatch>> {
        let mut state = locked(&self.state);
        state.check()?;
        Ok(self.pop(&mut state))
    }

    /// Waits for an empty buffer. Calls `drive` once before the first wait. A writer without a thread returns buffers
    /// during this call.
    pub(crate) fn take(&self, drive: impl FnOnce() -> Result<()>) -> Result<PageBatch> {
        self.wait_for(drive, |state| self.take_one(state))
    }

    /// Waits for a reserve of `count` buffers, beyond the limit of the pool. Calls `drive` once before the first wait.
    pub(crate) fn reserve(&self, drive: impl FnOnce() -> Result<()>, count: usize) -> Result<Vec<PageBatch>> {
        locked(&self.surplus).tidy();
        self.wait_for(drive, |state| self.take_reserve(state, count))
    }

    /// Returns a surplus buffer, or allocates a buffer, regardless of all limits. Waits for no lock. If another thread held
    /// the lock, that thread might get no processor until the caller is finished.
    pub(crate) fn spare(&self) -> Result<PageBatch> {
        let kept = self.surplus.try_lock().ok().and_then(|mut surplus| surplus.take());
        let buffer = kept.map_or_else(|| PageBuffer::new(self.size), Ok)?;
        Ok(PageBatch::lent(buffer, self.no_pieces(), Lent::count(&self.made)))
    }

    /// Returns one more buffer of the reserve. If more than `limit` buffers are free, returns a free buffer. Otherwise,
    /// allocates a buffer and increases the reserve.
    pub(crate) fn extend_reserve(&self) -> Result<PageBatch> {
        let mut state = locked(&self.state);
        state.check()?;
        if state.free.len() > self.limit
            && let Some(free) = self.pop(&mut state)
        {
            return Ok(free);
        }
        state.reserved += 1;
        drop(state);
        self.spare()
    }

    /// Waits until no spare buffers are lent, except `here` buffers of the caller. Calls `drive` once before the first wait.
    pub(crate) fn settle(&self, drive: impl FnOnce() -> Result<()>, here: usize) -> Result<()> {
        self.wait_for(drive, |state| {
            // Free buffers of an earlier, larger reserve are not lent.
            while state.free.len() > self.limit + state.reserved
                && let Some(free) = state.free.pop()
            {
                self.give_up(free);
            }
            Ok((self.made.load(Ordering::Relaxed) <= self.limit + state.reserved + here).then_some(()))
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

    /// Takes back a buffer. The buffer becomes a surplus buffer if more buffers exist than the limit plus the reserve, and no
    /// stopped subject waits for a buffer. The pool also accepts a buffer of the same size that the pool has not allocated.
    pub(crate) fn give(&self, buffer: PageBuffer) {
        let mut state = locked(&self.state);
        let limit = self.limit + state.reserved;
        if buffer.size() != self.size {
            return;
        }
        let mut surplus = None;
        if self.made.load(Ordering::Relaxed) > limit && state.hurried == 0 {
            self.made.fetch_sub(1, Ordering::Relaxed);
            surplus = Some(buffer);
        } else if state.hurried > 0 || state.free.len() < limit {
            state.free.push(buffer);
        }
        drop(state);
        if let Some(buffer) = surplus {
            locked(&self.surplus).keep(buffer);
        }
        // Wakes all waiting threads, because a thread that waits for a reserve may need several buffers.
        self.changed.notify_all();
    }

    /// Makes a buffer a surplus buffer.
    fn give_up(&self, buffer: PageBuffer) {
        self.made.fetch_sub(1, Ordering::Relaxed);
        locked(&self.surplus).keep(buffer);
    }

    /// Takes back the buffer of a batch. The pages in the buffer are discarded.
    pub(crate) fn give_batch(&self, batch: PageBatch) {
        let (buffer, pieces) = batch.into_parts();
        self.give(buffer);
        self.give_pieces(pieces);
    }

    /// Takes back the memory of a list of pieces, for use by a later batch.
    pub(crate) fn give_pieces(&self, mut pieces: Vec<Piece>) {
        pieces.clear();
        let mut state = locked(&self.state);
        if state.pieces.len() < self.limit + state.reserved {
            state.pieces.push(pieces);
        }
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

    /// Returns a free buffer, or a new buffer if the limit and the reserve allow one more buffer.
    fn take_one(&self, state: &mut State) -> Result<Option<PageBatch>> {
        if let Some(free) = self.pop(state) {
            return Ok(Some(free));
        }
        let may_make = self.made.load(Ordering::Relaxed) < self.limit + state.reserved;
        if may_make { self.spare().map(Some) } else { Ok(None) }
    }

    fn pop(&self, state: &mut State) -> Option<PageBatch> {
        let (buffer, lent) = (state.free.pop()?, Lent::again(&self.made));
        let pieces = state.pieces.pop().unwrap_or_else(|| self.no_pieces());
        Some(PageBatch::lent(buffer, pieces, lent))
    }

    fn take_reserve(&self, state: &mut State, count: usize) -> Result<Option<Vec<PageBatch>>> {
        state.reserved = count;
        // Each call gives up at most one buffer, so that the number of buffers falls slowly.
        if state.free.len() > count
            && self.made.load(Ordering::Relaxed) > self.limit + count
            && let Some(buffer) = state.free.pop()
        {
            self.give_up(buffer);
        }
        let missing = count.saturating_sub(state.free.len());
        if missing > 0 && self.made.load(Ordering::Relaxed) + missing > self.limit + count {
            return Ok(None);
        }
        let mut taken = Vec::with_capacity(count);
        while taken.len() < count {
            taken.push(self.pop(state).map_or_else(|| self.spare(), Ok)?);
        }
        Ok(Some(taken))
    }

    /// Returns an empty list with capacity for the maximum number of pieces: one piece for each page of a buffer.
    fn no_pieces(&self) -> Vec<Piece> {
        Vec::with_capacity(self.buffer_pages().get() as usize)
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

/// Locks a mutex. A panic of another thread does not make the protected state invalid.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: PageCount = PageCount(4);

    fn nothing() -> Result<()> {
        Ok(())
    }

    #[test]
    fn spare_buffers_are_returned_before_a_checkpoint_lends_more() {
        let pool = Pool::new(1, PAGES);
        pool.fill().unwrap();
        let mut spares: Vec<PageBatch> = (0..3).map(|_| pool.spare().unwrap()).collect();
        pool.limit_waits(Some(Duration::ZERO));
        assert!(matches!(pool.settle(nothing, 2), Err(Error::Slow(_))));
        pool.settle(nothing, 3).unwrap();
        pool.give_batch(spares.pop().unwrap());
        pool.settle(nothing, 2).unwrap();
        spares.into_iter().for_each(|batch| pool.give_batch(batch));
        pool.settle(nothing, 0).unwrap();
        assert_eq!(pool.total(), PAGES.bytes());
    }

    /// A smaller reserve leaves free buffers beyond the limits. They are never returned, so a wait for them would not end.
    #[test]
    fn free_buffers_of_a_larger_reserve_are_not_waited_for() {
        let pool = Pool::new(1, PAGES);
        pool.fill().unwrap();
        pool.limit_waits(Some(Duration::ZERO));
        pool.reserve(nothing, 9).unwrap().into_iter().for_each(|batch| pool.give_batch(batch));
        let here = pool.reserve(nothing, 2).unwrap();
        assert!(pool.total() > ByteCount(5 * PAGES.bytes().get()));
        pool.settle(nothing, here.len()).unwrap();
        assert_eq!(pool.total(), ByteCount(5 * PAGES.bytes().get()));
        here.into_iter().for_each(|batch| pool.give_batch(batch));
        assert_eq!(pool.total(), ByteCount(3 * PAGES.bytes().get()));
    }

    /// A stopped subject waits for one buffer, and not until the store has written all spare buffers.
    #[test]
    fn a_hurried_caller_gets_the_next_returned_buffer() {
        let pool = Pool::new(1, PAGES);
        pool.fill().unwrap();
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
        assert_eq!(pool.total(), PAGES.bytes(), "without a wait, spare buffers are surplus");
    }

    /// While a thread holds a reserve for a long time, the pool must still lend its own buffers. Returned buffers are
    /// lent again.
    #[test]
    fn a_reserve_that_is_held_takes_nothing_from_the_pool() {
        let pool = Pool::new(1, PAGES);
        pool.fill().unwrap();
        let held: Vec<PageBatch> = (0..5).map(|_| pool.extend_reserve().unwrap()).collect();
        pool.limit_waits(Some(Duration::ZERO));
        for _ in 0..10 {
            let batch = pool.take(nothing).unwrap();
            assert!(pool.take_free().unwrap().is_none());
            pool.give_batch(batch);
        }
        held.into_iter().for_each(|batch| pool.give_batch(batch));
        assert_eq!(pool.total(), ByteCount(6 * PAGES.bytes().get()));
        // The next pause needs only one buffer in the reserve, so the surplus buffers are freed.
        for _ in 0..6 {
            pool.reserve(nothing, 1).unwrap().into_iter().for_each(|batch| pool.give_batch(batch));
        }
        assert_eq!(pool.total(), ByteCount(2 * PAGES.bytes().get()));
    }
}
