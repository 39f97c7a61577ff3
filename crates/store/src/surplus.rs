//! Surplus buffers: page buffers that a pool does not need between two checkpoints. The next checkpoint uses them again,
//! because the kernel clears newly allocated memory, which takes as long as filling the buffer with pages.
//!
//! Owns: the surplus buffers, and the decision when to free them.
//! Invariants: the kernel can take the memory of a surplus buffer at any time. A buffer that was not needed for `UNUSED`,
//! and by `LOOKS` checkpoints, is freed.
//! Does not: limit the number of buffers in use; `pool` does.

use std::sync::OnceLock;
use std::time::Duration;

use model::ByteCount;
use sys::clock::Stopwatch;
use sys::page_buffer::PageBuffer;

/// The maximum memory that the copies of one checkpoint hold. Beyond it, they pass their pages to the sink, and wait for
/// buffers. A program that rewrites its memory in milliseconds rewrites copied pages during each such wait: with 128 MiB,
/// a writer of 256 MiB needed four copies of each page, and with 512 MiB less than two.
const HELD_MAX: ByteCount = ByteCount(512 << 20);
/// At most one of this many parts of the memory of the machine is held.
const HELD_SHARE: u64 = 32;
/// This much may be held on a machine with little memory.
const HELD_LEAST: ByteCount = ByteCount(128 << 20);

/// Returns the maximum memory that slices, or the pause, of one checkpoint hold in page buffers. As much is kept for the
/// next checkpoint.
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

/// The surplus buffers of a pool.
#[derive(Debug)]
pub(crate) struct Surplus {
    buffers: Vec<PageBuffer>,
    /// The number of buffers that were never taken since the last decision.
    unused: usize,
    /// The number of checkpoints since the last decision, and the time since then.
    looks: u32,
    since: Stopwatch,
    /// The number of buffers that will be freed.
    freed: usize,
}

impl Default for Surplus {
    fn default() -> Self {
        Self { buffers: Vec::new(), unused: 0, looks: 0, since: Stopwatch::start(), freed: 0 }
    }
}

impl Surplus {
    /// Keeps a buffer, or frees it if too many buffers are kept. The content of a kept buffer is lost.
    pub(crate) fn keep(&mut self, mut buffer: PageBuffer) {
        if (self.buffers.len() as u64 + 1) * buffer.size().get() <= held_memory_max().get() {
            buffer.lend();
            self.buffers.push(buffer);
        }
    }

    /// Takes a buffer.
    pub(crate) fn take(&mut self) -> Option<PageBuffer> {
        let taken = self.buffers.pop();
        self.unused = self.unused.min(self.buffers.len());
        taken
    }

    /// Frees some buffers that were not needed lately. Called once before each checkpoint.
    pub(crate) fn tidy(&mut self) {
        self.tidy_after(self.since.elapsed());
    }

    /// Does the same. The last decision was made `since` ago.
    fn tidy_after(&mut self, since: Duration) {
        self.looks += 1;
        if self.looks >= LOOKS && since >= UNUSED {
            (self.looks, self.freed, self.since) = (0, self.unused, Stopwatch::start());
            self.unused = self.buffers.len();
        }
        let now = self.freed.min(FREED_MAX);
        self.freed -= now;
        self.buffers.truncate(self.buffers.len().saturating_sub(now));
        self.unused = self.unused.min(self.buffers.len());
    }

    /// Returns the number of buffers.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.buffers.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer() -> PageBuffer {
        PageBuffer::new(ByteCount(2 << 20)).unwrap()
    }

    #[test]
    fn buffers_that_are_not_needed_are_freed() {
        let mut surplus = Surplus::default();
        (0..10).for_each(|_| surplus.keep(buffer()));
        (0..10 * LOOKS).for_each(|_| surplus.tidy());
        assert_eq!(surplus.len(), 10, "a short time is no reason");
        for _ in 0..10 * LOOKS {
            surplus.tidy_after(UNUSED);
            let taken: Vec<_> = (0..4).map(|_| surplus.take().unwrap()).collect();
            taken.into_iter().for_each(|buffer| surplus.keep(buffer));
        }
        assert_eq!(surplus.len(), 4);
        (0..3 * LOOKS).for_each(|_| surplus.tidy_after(UNUSED));
        assert_eq!(surplus.len(), 0);
    }

    #[test]
    fn the_memory_is_limited() {
        let mut surplus = Surplus::default();
        let most = (held_memory_max().get() / buffer().size().get()) as usize;
        assert!(most >= 64);
        (0..most + 10).for_each(|_| surplus.keep(buffer()));
        assert_eq!(surplus.len(), most);
    }
}
