//! The stock of free page buffers, which all logs of a process share. A log takes buffers from the stock for a checkpoint,
//! and gives them back when they are written. The buffers stay populated: the kernel clears newly allocated memory, which
//! takes as long as filling a buffer with pages. A log without a checkpoint in progress holds no buffer.
//!
//! Owns: the free buffers, and the decision when to free their memory.
//! Invariants: the last returned buffer is taken first, because its memory is still in the caches. The kernel can take the
//! memory of all free buffers but the next `ready` ones at any time. A buffer beyond these that was not needed for `UNUSED`,
//! and by `LOOKS` checkpoints, is freed.
//! Does not: limit the number of buffers in use; `pool` does.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use model::{ByteCount, PAGE_BYTES, PageCount};
use sys::clock::Stopwatch;
use sys::page_buffer::PageBuffer;

use crate::batch::Piece;
use crate::error::Result;
use crate::lock::locked;

/// The maximum memory that the copies of one checkpoint hold. Beyond it, they pass their pages to the sink, and wait for
/// buffers. A program that rewrites its memory in milliseconds rewrites copied pages during each such wait: with 128 MiB,
/// a writer of 256 MiB needed four copies of each page, and with 512 MiB less than two.
const HELD_MAX: ByteCount = ByteCount(512 << 20);
/// At most one of this many parts of the memory of the machine is held.
const HELD_SHARE: u64 = 32;
/// This much may be held on a machine with little memory.
const HELD_LEAST: ByteCount = ByteCount(128 << 20);

/// Returns the maximum memory that slices, or the pause, of one checkpoint hold in page buffers. As much is kept for the
/// next checkpoints.
#[must_use]
pub fn held_memory_max() -> ByteCount {
    static HELD: OnceLock<ByteCount> = OnceLock::new();
    *HELD.get_or_init(|| {
        let machine = rustix::system::sysinfo();
        let share = machine.totalram.saturating_mul(machine.mem_unit.into()) / HELD_SHARE;
        ByteCount(share.clamp(HELD_LEAST.get(), HELD_MAX.get()))
    })
}

/// A checkpoint of a program that rewrites its memory faster than the store accepts pages can hold one of this many parts of
/// the memory that is still free.
const FREE_SHARE: u64 = 4;

/// Returns the maximum memory that one checkpoint holds in page buffers if less is not enough: at least
/// `held_memory_max`.
#[must_use]
pub fn held_memory_most() -> ByteCount {
    ByteCount(sys::free_memory::available().get() / FREE_SHARE).max(held_memory_max())
}

/// The number of checkpoints after which unneeded buffers are freed.
const LOOKS: u32 = 16;
/// The time after which unneeded buffers are freed. A program has bursts of writes some seconds apart. New memory for the
/// next burst costs 0.2 to 3.5 ms per MiB, and kept memory nothing: the kernel takes it where it is scarce.
const UNUSED: Duration = Duration::from_secs(30);
/// The number of buffers that are freed before one checkpoint. Freeing many buffers at once would take too long.
const FREED_MAX: usize = 2;

/// A stock of buffers of one size. Clones share the buffers.
#[derive(Clone, Debug)]
pub struct BufferStock {
    size: ByteCount,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    /// Oldest first.
    free: Vec<Free>,
    /// Empty lists for the pieces of batches, with capacity for one piece for each page of a buffer.
    pieces: Vec<Vec<Piece>>,
    /// The number of buffers that are kept ready for the next checkpoint.
    ready: usize,
    /// The number of buffers that were never taken since the last decision.
    unused: usize,
    /// The number of checkpoints since the last decision, and the time since then.
    looks: u32,
    since: Stopwatch,
    /// The number of buffers that will be freed.
    freed: usize,
}

#[derive(Debug)]
struct Free {
    buffer: PageBuffer,
    /// Whether the kernel may take the memory.
    is_lent: bool,
}

impl BufferStock {
    /// Creates an empty stock of buffers of `buffer_pages` pages, at least one.
    #[must_use]
    pub fn new(buffer_pages: PageCount) -> Self {
        let state = State {
            free: Vec::new(),
            pieces: Vec::new(),
            ready: 0,
            unused: 0,
            looks: 0,
            since: Stopwatch::start(),
            freed: 0,
        };
        Self { size: buffer_pages.max(PageCount(1)).bytes(), state: Arc::new(Mutex::new(state)) }
    }

    /// Returns the size of a buffer.
    pub(crate) const fn size(&self) -> ByteCount {
        self.size
    }

    /// Keeps at least `count` buffers ready for the next checkpoint, and frees some buffers that were not needed lately.
    /// Gives huge pages to one buffer that is used often.
    pub(crate) fn prepare(&self, count: usize) -> Result<()> {
        let mut state = locked(&self.state);
        state.ready = state.ready.max(count);
        let since = state.since.elapsed();
        let surplus = state.tidy(since);
        let missing = count.saturating_sub(state.free.len());
        let deserving = state.take_deserving();
        // Memory is allocated and freed without the lock, for which a stopped subject may wait.
        drop(state);
        drop(surplus);
        if let Some(mut buffer) = deserving {
            buffer.take_huge_pages();
            locked(&self.state).free.push(Free { buffer, is_lent: false });
        }
        for _ in 0..missing {
            self.keep(PageBuffer::new(self.size)?);
        }
        Ok(())
    }

    /// Takes a free buffer.
    pub(crate) fn take(&self) -> Option<PageBuffer> {
        locked(&self.state).take()
    }

    /// Takes a free buffer, or allocates one. Waits for no lock. If another thread held the lock, that thread might get no
    /// processor until the caller is finished.
    pub(crate) fn take_or_make(&self) -> Result<PageBuffer> {
        let taken = self.state.try_lock().ok().and_then(|mut state| state.take());
        Ok(taken.map_or_else(|| PageBuffer::new(self.size), Ok)?)
    }

    /// Keeps a buffer, or frees it if too many buffers are kept. The content of a kept buffer may be lost. A buffer of
    /// another size is freed.
    pub(crate) fn keep(&self, buffer: PageBuffer) {
        if buffer.size() != self.size {
            return;
        }
        let mut state = locked(&self.state);
        if (state.free.len() as u64 + 1) * self.size.get() > held_memory_max().get() {
            drop(state);
            return drop(buffer);
        }
        state.free.push(Free { buffer, is_lent: false });
        let beyond = state.take_beyond_ready();
        // A stopped subject may wait for the lock, and this advice takes as long as copying some pages.
        drop(state);
        if let Some(mut buffer) = beyond {
            buffer.lend();
            locked(&self.state).free.insert(0, Free { buffer, is_lent: true });
        }
    }

    /// Returns an empty list with capacity for one piece for each page of a buffer.
    pub(crate) fn pieces(&self) -> Vec<Piece> {
        let kept = self.state.try_lock().ok().and_then(|mut state| state.pieces.pop());
        kept.unwrap_or_else(|| Vec::with_capacity((self.size.get() / PAGE_BYTES) as usize))
    }

    /// Takes back the memory of a list of pieces.
    pub(crate) fn keep_pieces(&self, mut pieces: Vec<Piece>) {
        pieces.clear();
        let mut state = locked(&self.state);
        if pieces.capacity() > 0 && state.pieces.len() <= state.ready {
            state.pieces.push(pieces);
        }
    }

    /// Returns the number of free buffers.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        locked(&self.state).free.len()
    }
}

impl Default for BufferStock {
    /// Creates an empty stock of buffers of 2 MiB.
    fn default() -> Self {
        Self::new(PageCount(512))
    }
}

impl State {
    fn take(&mut self) -> Option<PageBuffer> {
        let taken = self.free.pop();
        self.unused = self.unused.min(self.free.len());
        taken.map(|free| free.buffer)
    }

    /// Removes and returns the newest buffer that is not ready for the next checkpoint, unless it is lent already. All
    /// older ones are lent.
    fn take_beyond_ready(&mut self) -> Option<PageBuffer> {
        let place = self.free.len().checked_sub(self.ready + 1)?;
        let is_lent = self.free.get(place)?.is_lent;
        (!is_lent).then(|| self.free.remove(place).buffer)
    }

    /// Removes and returns the newest buffer that is used often, and has no huge pages yet.
    fn take_deserving(&mut self) -> Option<PageBuffer> {
        let place = self.free.iter().rposition(|free| !free.is_lent && free.buffer.deserves_huge_pages())?;
        Some(self.free.remove(place).buffer)
    }

    /// Removes and returns some buffers that were not needed lately. The last decision was made `since` ago.
    fn tidy(&mut self, since: Duration) -> Vec<Free> {
        self.looks += 1;
        if self.looks >= LOOKS && since >= UNUSED {
            (self.looks, self.freed, self.since) = (0, self.unused, Stopwatch::start());
            self.unused = self.free.len();
        }
        let beyond = self.free.len().saturating_sub(self.ready);
        let now = self.freed.min(FREED_MAX).min(beyond);
        self.freed -= now;
        self.unused = self.unused.min(self.free.len() - now);
        // The oldest buffers are lent, and their memory may be gone.
        self.free.drain(..now).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: PageCount = PageCount(512);

    fn stock(buffers: usize) -> BufferStock {
        let stock = BufferStock::new(PAGES);
        (0..buffers).for_each(|_| stock.keep(PageBuffer::new(PAGES.bytes()).unwrap()));
        stock
    }

    fn tidy(stock: &BufferStock, since: Duration) {
        drop(locked(&stock.state).tidy(since));
    }

    #[test]
    fn unused_buffers_are_freed_except_the_ready_ones() {
        let stock = stock(10);
        stock.prepare(2).unwrap();
        (0..10 * LOOKS).for_each(|_| tidy(&stock, Duration::ZERO));
        assert_eq!(stock.len(), 10, "a short time is no reason");
        for _ in 0..10 * LOOKS {
            tidy(&stock, UNUSED);
            let taken: Vec<_> = (0..4).map(|_| stock.take().unwrap()).collect();
            taken.into_iter().for_each(|buffer| stock.keep(buffer));
        }
        assert_eq!(stock.len(), 4);
        (0..3 * LOOKS).for_each(|_| tidy(&stock, UNUSED));
        assert_eq!(stock.len(), 2);
    }

    #[test]
    fn kept_memory_is_limited() {
        let most = (held_memory_max().get() / PAGES.bytes().get()) as usize;
        assert!(most >= 64);
        assert_eq!(stock(most + 10).len(), most);
    }

    #[test]
    fn ready_buffers_keep_their_content_and_their_memory() {
        let stock = BufferStock::new(PAGES);
        stock.prepare(2).unwrap();
        assert_eq!(stock.len(), 2);
        let mut buffers: Vec<_> = (0..4).map(|_| stock.take_or_make().unwrap()).collect();
        buffers.iter_mut().for_each(|buffer| buffer[0] = 7);
        buffers.into_iter().for_each(|buffer| stock.keep(buffer));
        let is_lent: Vec<bool> = locked(&stock.state).free.iter().map(|free| free.is_lent).collect();
        assert_eq!(is_lent, [true, true, false, false]);
        assert_eq!(stock.take().unwrap()[0], 7);
        stock.prepare(2).unwrap();
        assert_eq!(stock.len(), 3);
    }

    #[test]
    fn buffers_that_are_used_often_get_huge_pages_one_for_each_checkpoint() {
        let stock = stock(2);
        let deserving =
            || locked(&stock.state).free.iter().filter(|free| free.buffer.deserves_huge_pages()).count();
        stock.prepare(2).unwrap();
        for _ in 0..40 {
            let mut buffers: Vec<_> = (0..2).map(|_| stock.take().unwrap()).collect();
            buffers.iter_mut().for_each(PageBuffer::count_use);
            buffers.into_iter().for_each(|buffer| stock.keep(buffer));
        }
        let left: Vec<usize> = (0..3).map(|_| (deserving(), stock.prepare(2).unwrap()).0).collect();
        assert_eq!((left, stock.len()), (vec![2, 1, 0], 2));
    }

    #[test]
    fn clones_share_their_buffers() {
        let stock = stock(1);
        let other = stock.clone();
        let buffer = other.take().unwrap();
        assert!(stock.take().is_none());
        other.keep(buffer);
        assert!(stock.take().is_some());
    }

    #[test]
    fn buffers_of_another_size_are_not_kept() {
        let stock = BufferStock::new(PageCount(2));
        stock.keep(PageBuffer::new(PAGES.bytes()).unwrap());
        assert_eq!(stock.len(), 0);
    }
}
