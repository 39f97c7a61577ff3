//! Copies pages of a stopped process with several threads: the tracer and the worker threads. The processors of the
//! subject are idle while the subject is stopped.
//!
//! Owns: the buffers that wait for a thread, the buffers that are being filled, and the filled buffers.
//! Invariants: one thread fills a whole buffer. The tracer collects every buffer.
//! Does not: choose pages, or pass buffers to a sink.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use image::SpaceId;
use model::{Address, AddressRange, ByteCount, PageCount, Pid};
use store::PageBatch;
use sys::clock::Stopwatch;
use sys::process_memory::{self, RANGES_PER_CALL};
use tracee::{Work, WorkerPool};

use super::super::copier::read_one_by_one;
use crate::error::Result;

/// The error number of EIO.
const EIO: i32 = 5;

/// The pages of one process for one buffer.
pub(super) struct Filling {
    pid: Pid,
    pub(super) batch: PageBatch,
    /// The number of bytes in the batch before the pages of `ranges`.
    filled: usize,
    ranges: Vec<(Address, ByteCount)>,
    /// Ranges that could not be read. They are not in the batch.
    pub(super) failed: Vec<AddressRange>,
}

impl Filling {
    /// Creates a filling. The batch may already contain pages.
    pub(super) fn new(pid: Pid, batch: PageBatch) -> Self {
        let filled = batch.filled().bytes().get() as usize;
        Self { pid, batch, filled, ranges: Vec::with_capacity(RANGES_PER_CALL), failed: Vec::new() }
    }

    /// Returns how many pages can be added.
    pub(super) fn room(&self) -> PageCount {
        self.batch.room().min(PageCount((RANGES_PER_CALL - self.ranges.len()) as u64))
    }

    /// Adds a range. `room` must allow its pages.
    pub(super) fn add(&mut self, space: SpaceId, range: AddressRange) {
        let pushed = self.batch.push(space, range.start, range.pages());
        debug_assert!(pushed.is_some(), "the range was cut to fit");
        self.ranges.push((range.start, range.len()));
    }

    fn read(&mut self) {
        let Self { pid, batch, filled, ranges, .. } = self;
        if process_memory::read_scattered(*pid, ranges, &mut batch.bytes_mut()[*filled..]).is_err() {
            self.failed = read_one_by_one(*pid, ranges, batch, *filled);
        }
    }
}

/// The fillings of one stop.
pub(super) struct Together<'a> {
    worker_pool: &'a WorkerPool,
    shared: Arc<Shared>,
    /// How long one thread needs for one buffer.
    each: Duration,
}

#[derive(Default)]
struct Shared {
    fillings: Mutex<Fillings>,
    has_read: Condvar,
    /// A worker has found no filling and does not look for one again.
    is_idle: AtomicBool,
}

#[derive(Default)]
struct Fillings {
    waiting: VecDeque<Filling>,
    /// The number of fillings that threads are reading.
    reading: usize,
    read: Vec<Filling>,
    /// A thread has panicked while it was reading. Its pages are lost.
    is_broken: bool,
}

/// Ends the reading of a filling, also after a panic: the tracer waits for the end while the subject is stopped.
struct Reading<'a> {
    shared: &'a Shared,
    read: Option<Filling>,
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        let mut fillings = self.shared.lock();
        fillings.reading -= 1;
        fillings.is_broken |= self.read.is_none();
        fillings.read.extend(self.read.take());
        drop(fillings);
        self.shared.has_read.notify_one();
    }
}

impl<'a> Together<'a> {
    pub(super) fn new(worker_pool: &'a WorkerPool) -> Self {
        let shared = Arc::<Shared>::default();
        // Nothing else is left to do in this part of the pause, so no thread of the subject needs the processors.
        worker_pool.raise_priority();
        worker_pool.post(Arc::clone(&shared) as Arc<dyn Work>);
        shared.is_idle.store(true, Ordering::SeqCst);
        Self { worker_pool, shared, each: Duration::ZERO }
    }

    /// Returns about how long all threads will need for the fillings so far, and for one more.
    pub(super) fn needed(&self) -> Duration {
        let fillings = self.shared.lock();
        let turns = (fillings.waiting.len() + fillings.reading) / self.threads() + 1;
        self.each * turns as u32
    }

    /// Adds a filling. If each worker has enough fillings, reads one.
    pub(super) fn add(&mut self, filling: Filling) {
        let mut fillings = self.shared.lock();
        fillings.waiting.push_back(filling);
        let is_enough = fillings.waiting.len() > self.threads();
        drop(fillings);
        if self.shared.is_idle.swap(false, Ordering::SeqCst) {
            self.worker_pool.begin();
        }
        if is_enough {
            self.read_one();
        }
    }

    /// Returns the fillings that were read since the last call of this function.
    pub(super) fn take(&self) -> Vec<Filling> {
        std::mem::take(&mut self.shared.lock().read)
    }

    /// Reads all fillings that wait. Waits for the workers. Returns the fillings that were read since the last call of
    /// `take`.
    ///
    /// # Errors
    ///
    /// EIO if a worker has panicked. Pages of the checkpoint are then missing.
    pub(super) fn finish(mut self) -> Result<Vec<Filling>> {
        while self.read_one() {}
        let mut fillings = self.shared.lock();
        while fillings.reading > 0 {
            fillings = self.shared.has_read.wait(fillings).unwrap_or_else(PoisonError::into_inner);
        }
        if fillings.is_broken {
            return Err(sys::Error::new("copy pages with worker threads", sys::Errno(EIO)).into());
        }
        Ok(std::mem::take(&mut fillings.read))
    }

    fn threads(&self) -> usize {
        self.worker_pool.workers() + 1
    }

    fn read_one(&mut self) -> bool {
        let reading = Stopwatch::start();
        let has_read = self.shared.read_one();
        if has_read {
            self.each = reading.elapsed();
        }
        has_read
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Fillings> {
        self.fillings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the filling that waits longest. Returns `false` if none waits.
    fn read_one(&self) -> bool {
        let mut fillings = self.lock();
        let Some(mut filling) = fillings.waiting.pop_front() else { return false };
        fillings.reading += 1;
        drop(fillings);
        let mut reading = Reading { shared: self, read: None };
        filling.read();
        reading.read = Some(filling);
        true
    }
}

impl Work for Shared {
    fn step(&self) -> bool {
        let has_read = self.read_one();
        if !has_read {
            self.is_idle.store(true, Ordering::SeqCst);
        }
        has_read
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use model::PAGE_BYTES;
    use sys::page_buffer::PageBuffer;

    use super::*;

    const PAGE: usize = PAGE_BYTES as usize;
    const PAGES: usize = 8;
    const FILLINGS: usize = 40;

    /// Reads `FILLINGS` times `PAGES` pages of this process. One page of each filling does not exist.
    fn read_all(together: &mut Together<'_>, memory: &[u8]) -> Vec<Filling> {
        let mut read = Vec::new();
        for pages in memory.chunks(PAGES * PAGE) {
            let buffer = PageBuffer::new(ByteCount(2 * (PAGES * PAGE) as u64)).unwrap();
            let mut filling = Filling::new(Pid(std::process::id() as i32), PageBatch::over(buffer));
            for page in pages.chunks(PAGE) {
                let start = Address(page.as_ptr() as u64);
                filling.add(SpaceId(1), AddressRange::new(start, start + ByteCount(PAGE_BYTES)));
            }
            filling.add(SpaceId(1), AddressRange::new(Address(PAGE_BYTES), Address(2 * PAGE_BYTES)));
            together.add(filling);
            read.extend(together.take());
        }
        read
    }

    #[test]
    fn every_page_is_read_once_and_missing_pages_are_named() {
        // Real-time priority needs rights that the user of this test may not have.
        let Ok(worker_pool) = WorkerPool::new(NonZeroUsize::new(2).unwrap(), &[]) else { return };
        let memory: Vec<u8> = (0..FILLINGS * PAGES * PAGE).map(|at| (at / PAGE) as u8).collect();
        for _ in 0..20 {
            let mut together = Together::new(&worker_pool);
            let mut read = read_all(&mut together, &memory);
            read.extend(together.finish().unwrap());
            assert_eq!(read.len(), FILLINGS);
            let mut seen = Vec::new();
            for mut filling in read {
                assert_eq!(filling.failed, [AddressRange::new(Address(PAGE_BYTES), Address(2 * PAGE_BYTES))]);
                let pieces = filling.batch.pieces().to_vec();
                assert_eq!(pieces.len(), PAGES);
                for piece in pieces {
                    let at = piece.at.bytes().get() as usize;
                    let page = &filling.batch.bytes_mut()[at..at + PAGE];
                    let number = (piece.start.get() as usize - memory.as_ptr() as usize) / PAGE;
                    assert!(page.iter().all(|byte| *byte == number as u8));
                    seen.push(number);
                }
            }
            seen.sort_unstable();
            assert_eq!(seen, (0..FILLINGS * PAGES).collect::<Vec<_>>());
        }
    }
    #[test]
    fn a_panic_during_a_copy_fails_the_copy_without_a_wait() {
        let Ok(worker_pool) = WorkerPool::new(NonZeroUsize::MIN, &[]) else { return };
        let mut together = Together::new(&worker_pool);
        let buffer = PageBuffer::new(ByteCount(PAGE_BYTES)).unwrap();
        let mut filling = Filling::new(Pid(std::process::id() as i32), PageBatch::over(buffer));
        // The pages of this filling would begin beyond the end of its buffer.
        filling.filled = usize::MAX;
        together.add(filling);
        // Only the worker reads: a panic of this thread would end the test.
        while !together.shared.lock().waiting.is_empty() {
            std::thread::yield_now();
        }
        assert!(together.finish().is_err());
    }
}
