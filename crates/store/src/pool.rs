//! The page buffers that circulate between copiers, writers and the device.
//!
//! Owns: how many there are, who waits for one and how long; failing those that wait for a thread that is gone.
//! Invariants: there are no more buffers than the pool's limit, those in reserve, and those that one pause had to make;
//! the last are the first to go, and no reserve is made before they are gone. After a failure no caller waits.
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

#[derive(Debug)]
pub(crate) struct Pool {
    state: Mutex<State>,
    changed: Condvar,
    limit: usize,
    /// The size of a buffer.
    pub(crate) size: ByteCount,
    /// Buffers that there are, wherever they are.
    made: Arc<AtomicUsize>,
}

#[derive(Debug, Default)]
struct State {
    free: Vec<PageBuffer>,
    pieces: Vec<Vec<Piece>>,
    /// Buffers asked for last beside those of the pool, for a pause.
    reserved: usize,
    failure: Option<Error>,
    /// Callers do not wait for buffers.
    called_off: bool,
    /// How long a caller may wait for one buffer.
    wait_max: Option<Duration>,
}

impl Pool {
    /// With at most so many buffers of so many pages; each is made when it is needed first.
    pub(crate) fn new(limit: usize, buffer_pages: PageCount) -> Self {
        let (state, changed, size) = (Mutex::default(), Condvar::new(), buffer_pages.bytes());
        Self { state, changed, limit, size, made: Arc::default() }
    }

    /// Makes all buffers now.
    pub(crate) fn fill(&self) -> Result<()> {
        let mut state = locked(&self.state);
        while state.free.len() < self.limit {
            state.free.push(PageBuffer::new(self.size)?);
            state.pieces.push(self.no_pieces());
            self.made.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Pages that a buffer holds.
    pub(crate) fn buffer_pages(&self) -> PageCount {
        PageCount(self.size.get() / PAGE_BYTES)
    }

    /// Memory that all buffers take, free ones included.
    pub(crate) fn total(&self) -> ByteCount {
        ByteCount(self.made.load(Ordering::Relaxed) as u64 * self.size.get())
    }

    /// An empty buffer, if there is one now or one can be made.
    pub(crate) fn take_now(&self) -> Result<Option<PageBatch>> {
        let mut state = locked(&self.state);
        state.check()?;
        self.take_one(&mut state)
    }

    /// An empty buffer, if there is one. Makes none, which takes long.
    pub(crate) fn take_free(&self) -> Result<Option<PageBatch>> {
        let mut state = locked(&self.state);
        state.check()?;
        Ok(self.pop(&mut state))
    }

    /// An empty buffer. Calls `drive` before it waits for one.
    pub(crate) fn take(&self, drive: impl FnOnce() -> Result<()>) -> Result<PageBatch> {
        self.wait_for(drive, |state| self.take_one(state))
    }

    /// So many buffers beside those of the pool, as `take` gives one.
    pub(crate) fn reserve(&self, drive: impl FnOnce() -> Result<()>, count: usize) -> Result<Vec<PageBatch>> {
        self.wait_for(drive, |state| self.take_reserve(state, count))
    }

    /// A buffer beyond all limits, made now. Takes no lock: its holder may get no processor before the caller has ended.
    pub(crate) fn spare(&self) -> Result<PageBatch> {
        let buffer = PageBuffer::new(self.size)?;
        Ok(PageBatch::lent(buffer, self.no_pieces(), Lent::count(&self.made)))
    }

    /// One more for the reserve: one that has come back from it, or one made now.
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

    /// Waits until buffers that came back make `take` give something.
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
                Some(limit) => match limit.checked_sub(begun.elapsed()) {
                    None => return Err(Error::Slow(limit)),
                    Some(left) => {
                        self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                    }
                },
            };
        }
    }

    /// From now on no caller waits for buffers, or all may wait again.
    pub(crate) fn call_off_waits(&self, called_off: bool) {
        locked(&self.state).called_off = called_off;
        self.changed.notify_all();
    }

    /// Whether no caller may wait.
    pub(crate) fn is_called_off(&self) -> bool {
        locked(&self.state).called_off
    }

    /// How long a caller may wait for one buffer from now on.
    pub(crate) fn limit_waits(&self, wait_max: Option<Duration>) {
        locked(&self.state).wait_max = wait_max;
    }

    /// Brings a buffer back. One that is not the pool's own is kept in place of one that is missing.
    pub(crate) fn give(&self, buffer: PageBuffer) {
        let mut state = locked(&self.state);
        let limit = self.limit + state.reserved;
        if buffer.size() != self.size {
            return;
        }
        if self.made.load(Ordering::Relaxed) > limit {
            self.made.fetch_sub(1, Ordering::Relaxed);
        } else if state.free.len() < limit {
            state.free.push(buffer);
        }
        drop(state);
        // One who waits for a reserve may need more than this one.
        self.changed.notify_all();
    }

    /// Brings a batch back as it is, its pages unused.
    pub(crate) fn give_batch(&self, batch: PageBatch) {
        let (buffer, pieces) = batch.into_parts();
        self.give(buffer);
        self.give_pieces(pieces);
    }

    /// Brings the list of a batch's pieces back.
    pub(crate) fn give_pieces(&self, mut pieces: Vec<Piece>) {
        pieces.clear();
        let mut state = locked(&self.state);
        if state.pieces.len() < self.limit + state.reserved {
            state.pieces.push(pieces);
        }
    }

    /// From now on, taking a buffer gives this error.
    pub(crate) fn fail(&self, error: &Error) {
        locked(&self.state).failure.get_or_insert_with(|| error.clone());
        self.changed.notify_all();
    }

    /// The error that `fail` was given first.
    pub(crate) fn failure(&self) -> Option<Error> {
        locked(&self.state).failure.clone()
    }

    /// A buffer that is free, or one in place of one that was lost or went into the reserve.
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
        // One at a time of those that are too many now: to give memory back takes its time, too.
        if state.free.len() > count && self.made.load(Ordering::Relaxed) > self.limit + count {
            self.made.fetch_sub(1, Ordering::Relaxed);
            state.free.pop();
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

    /// A list with room for a piece of each page.
    fn no_pieces(&self) -> Vec<Piece> {
        Vec::with_capacity(self.buffer_pages().get() as usize)
    }
}

impl State {
    fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }
}

/// Ends all waits for a thread that has panicked, with an error.
pub(crate) struct OnPanic<T: Fn(&Error)>(pub(crate) T);

impl<T: Fn(&Error)> Drop for OnPanic<T> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            (self.0)(&Error::Io(sys::Error::new("go on after a panic", Errno::SHORT)));
        }
    }
}

/// Locks; what a thread that panicked has left is as good as any other state here.
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

    /// One who holds a reserve for long must not leave the pool without buffers: those that come back stay in use.
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
        // The next pause needs fewer, and the others go.
        for _ in 0..6 {
            pool.reserve(nothing, 1).unwrap().into_iter().for_each(|batch| pool.give_batch(batch));
        }
        assert_eq!(pool.total(), ByteCount(2 * PAGES.bytes().get()));
    }
}
