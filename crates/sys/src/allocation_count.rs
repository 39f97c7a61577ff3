//! How often this program asks for memory.
//!
//! Owns: an allocator that counts, for tests and examples of code that must not allocate.
//! Invariants: hands every request on to the system's allocator as it came.
//! Does not: belong into what is shipped.
//!
//! Man page: malloc(3)
//! Since: Linux 2.6
//! Probe: none needed
//! Fallback: none needed

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
}

/// The system's allocator, counted.
#[derive(Debug)]
pub struct Counting;

/// Requests of the calling thread so far, where [`Counting`] is the allocator.
#[must_use]
pub fn requests() -> u64 {
    REQUESTS.with(Cell::get)
}

fn count() {
    // A thread that is ending has no counter any more.
    let _ = REQUESTS.try_with(|requests| requests.set(requests.get() + 1));
}

// SAFETY: every method hands its arguments on to `System`, which fulfils the contract; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: the contract is that of `System`, which gets the same arguments; the caller upholds it.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: the contract is that of `System`, which gets the same arguments; the caller upholds it.
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract, which is the same; the block came from `System`.
        unsafe { System.dealloc(block, layout) }
    }

    // SAFETY: the contract is that of `System`, which gets the same arguments; the caller upholds it.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract, which is the same; the block came from `System`.
        unsafe { System.realloc(block, layout, size) }
    }
}
