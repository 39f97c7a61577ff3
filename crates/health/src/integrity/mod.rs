//! Detection of changes of the executable pages of a process tree.
//!
//! Owns: the sweep over all executable pages, and the classification of changed pages.
//! Invariants: only private file mappings that are readable, executable and not writable are compared. Only pages in
//! the page tables are compared. Any other page cannot be executed before the kernel reads the page again. A sweep
//! never causes the kernel to load a page.
//! Does not: repair pages. A restart maps clean pages again. A damaged page must first leave the page cache
//! ([`Changed::drop_from_cache`]).
//!
//! **What is compared.** A mapped page that was not written is a page of the page cache. The call pread(2) reads the
//! same page, so a comparison with its result cannot detect a change in memory. Each page is therefore compared with an
//! earlier CRC-32C of the page. The checksum is computed when the file (device, inode, size, times) is first found.
//! CRC-32C detects every change of at most three bits in a page. It misses any other change with a probability of 2^-32
//! (Koopman, "32-Bit Cyclic Redundancy Codes for Internet Applications", 2002). A page of the page cache is read once
//! in a pass, even if many processes map the page. A private copy is read in each process. A page becomes a private
//! copy when a debugger or the program writes to the page.
//!
//! The checksum is also faster than pread(2) and a comparison.
//!
//! **What it costs.** `tests::the_cost_is_bounded` prints the CPU time of a pass over 64 MiB of text. With one pass in
//! a minute, the test fails if passes use more than 0.5 % of a core.

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
