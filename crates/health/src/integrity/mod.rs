//! Whether the executable pages of a process tree are still those of its files.
//!
//! Owns: the sweep over all pages, and what a page that differs means.
//! Invariants: only pages of private, readable, executable and not writable file mappings are compared, and only those
//! that are in the page tables: a page that is not cannot be executed before it is read again. No page is brought in.
//! Does not: repair. A restart maps clean pages again; a damaged page of the page cache has to leave the cache first
//! ([`Changed::drop_from_cache`]).
//!
//! **What is compared.** A mapped page that was not written is the page of the page cache itself. pread(2) gives the
//! bytes of the same page, so a comparison with it cannot find that memory has changed. Each page is therefore compared
//! with the CRC-32C that it had when its file (device, inode, size, times) was met for the first time. CRC-32C
//! finds every change of at most three bits in a page, and misses others once in 2^32 (Koopman, "32-Bit Cyclic
//! Redundancy Codes for Internet Applications", 2002). A page of the page cache is read once a pass, however many
//! processes map it. A private copy (a page that was written through a debugger's interface, or by the program) is read
//! in each process.
//!
//! It also costs less: the checksum is faster than pread(2) and a comparison.
//!
//! **What it costs.** `tests::the_cost_is_bounded` prints the CPU time of a pass over 64 MiB of text, and fails above
//! 0.5 % of a core for a pass a minute.

mod cache;
mod changed;
mod memory;
mod page;
mod pass;
mod process;
mod sweep;
mod verdict;

pub use changed::{Changed, Kind, Place};
pub use pass::Extent;
pub use sweep::Sweep;

#[cfg(test)]
mod tests;
