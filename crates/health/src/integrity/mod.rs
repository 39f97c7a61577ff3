//! Whether the executable pages of a process tree are still those of its files.
//!
//! Owns: the sweep over all pages, and what a page that differs means.
//! Invariants: only pages of private, readable, executable and not writable file mappings are compared, and only those
//! that are in the page tables: a page that is not cannot be executed before it is read again. No page is brought in.
//! Does not: repair. A restart maps clean pages again; a damaged page of the page cache has to leave the cache first.
//!
//! **What is compared.** A mapped page that was not written is the page of the page cache itself. pread(2) gives the
//! bytes of the same page, so a comparison with it cannot find that memory has changed. Each page is therefore compared
//! with the CRC-32C that it had when its file (device, inode, size, times) was met for the first time. CRC-32C
//! finds every change of at most three bits in a page, and misses others once in 2^32 (Koopman, "32-Bit Cyclic
//! Redundancy Codes for Internet Applications", 2002). A page of the page cache is read once a pass, however many
//! processes map it. A private copy (a page that was written through a debugger's interface, or by the program) is read
//! in each process.
//!
//! **What it costs.** 64 MiB of text took 13.4 ms of CPU time here in a build for tests; `tests::the_cost_is_bounded`
//! prints the figure. Once a minute, that is 0.03 % of a core.

mod memory;
mod page;
mod pass;
mod process;
mod sweep;
mod verdict;

use std::path::PathBuf;

use model::{Address, Pid};

pub use pass::Extent;
pub use sweep::Sweep;

/// Where a page that differs is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// A copy that this process alone has.
    Process,
    /// The page cache: every process that maps or reads the file has it, and a new incarnation has it again.
    PageCache,
}

/// What a page that differs means.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// At most three bits of one page, the only one that has changed in this process during the pass.
    Flip,
    /// A byte has become the breakpoint instruction, of a debugger or of a uprobe.
    Breakpoint,
    /// Another program traces the process, and may have changed it.
    Traced,
    /// More than three bits or several pages: the program, or another one, has replaced code.
    Patched,
    /// The file on its device has the same bytes: it was changed without a change of its times.
    FileChanged,
    /// The bytes that were there before are not known.
    Unknown,
}

/// An executable page that is no longer what it was.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The process in which it was found.
    pub pid: Pid,
    /// The first byte that differs; the beginning of the page if the bytes before are not known.
    pub address: Address,
    /// The mapped file, as `/proc/PID/maps` names it.
    pub file: PathBuf,
    /// The offset of that byte in the file.
    pub offset: u64,
    /// How many bits differ; `None` if the bytes before are not known.
    pub bits: Option<u32>,
    /// Where the page is.
    pub place: Place,
    /// What it means.
    pub kind: Kind,
}

impl Changed {
    /// Whether memory has changed by itself, as far as can be told.
    #[must_use]
    pub fn is_flip(&self) -> bool {
        self.kind == Kind::Flip
    }
}

#[cfg(test)]
mod tests;
