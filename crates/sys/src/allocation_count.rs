//! Counts the memory allocations of each thread, for tests.
//!
//! Owns: a counting allocator, for tests and examples of code that must not allocate.
//! Invariants: the allocator of the system receives every request unchanged.
//! Does not: run in the released program.
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

/// An allocator that counts requests and passes each request to the allocator of the system.
#[derive(Debug)]
pub struct Counting;

/// Returns the number of requests of the calling thread so far. The number is 0 unless [`Counting`] is the global
/// allocator.
#[must_use]
pub fn requests() -> u64 {
    REQUESTS.with(Cell::get)
}

fn count() {
    // The counter of an ending thread may already be destroyed.
    let _ = REQUESTS.try_with(|requests| requests.set(requests.get() + 1));
}

// SAFETY: every method passes its arguments to `System`, and `System` fulfils the contract. Counting does not
// allocate.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: this method has the contract of `System::alloc`. The caller upholds the contract.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `System::alloc`.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: this method has the contract of `System::dealloc`. The caller upholds the contract.
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `System::dealloc`. `System` allocated the block.
        unsafe { System.dealloc(block, layout) }
    }

    // SAFETY: this method has the contract of `System::realloc`. The caller upholds the contract.
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `System::realloc`. `System` allocated the block.
        unsafe { System.realloc(block, layout, size) }
    }
}
