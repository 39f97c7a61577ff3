//! Surplus buffers: page buffers that a pool does not need between two checkpoints. The next checkpoint uses them again,
//! because the kernel clears newly allocated memory, which takes as long as filling the buffer with pages.
//!
//! Owns: the surplus buffers, and the decision when to free them.
//! Invariants: the kernel can take the memory of a surplus buffer at any time. A buffer that the last `LOOKS`
//! checkpoints have not needed is freed.
//! Does not: limit the number of buffers in use; `pool` does.

use model::ByteCount;
use sys::page_buffer::PageBuffer;

/// The maximum memory of all surplus buffers. Slices and the pause of one checkpoint hold at most this much memory.
const KEPT_MAX: ByteCount = ByteCount(128 << 20);
/// The number of checkpoints after which unneeded buffers are freed.
const LOOKS: u32 = 16;
/// The number of buffers that are freed before one checkpoint. Freeing many buffers at once would take too long.
const FREED_MAX: usize = 2;

/// The surplus buffers of a pool.
#[derive(Debug, Default)]
pub(crate) struct Surplus {
    buffers: Vec<PageBuffer>,
    /// The number of buffers that were never taken since the last decision.
    unused: usize,
    looks: u32,
    /// The number of buffers that will be freed.
    freed: usize,
}

impl Surplus {
    /// Keeps a buffer, or frees it if too many buffers are kept. The content of a kept buffer is lost.
    pub(crate) fn keep(&mut self, mut buffer: PageBuffer) {
        if (self.buffers.len() as u64 + 1) * buffer.size().get() <= KEPT_MAX.get() {
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
        self.looks += 1;
        if self.looks == LOOKS {
            (self.looks, self.freed) = (0, self.unused);
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
        for _ in 0..10 * LOOKS {
            surplus.tidy();
            let taken: Vec<_> = (0..4).map(|_| surplus.take().unwrap()).collect();
            taken.into_iter().for_each(|buffer| surplus.keep(buffer));
        }
        assert_eq!(surplus.len(), 4);
        (0..3 * LOOKS).for_each(|_| surplus.tidy());
        assert_eq!(surplus.len(), 0);
    }

    #[test]
    fn the_memory_is_limited() {
        let mut surplus = Surplus::default();
        (0..140).for_each(|_| surplus.keep(buffer()));
        assert_eq!(surplus.len(), 64);
    }
}
