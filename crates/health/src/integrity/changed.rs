//! What a sweep reports.
//!
//! Owns: the description of a page that has changed.
//! Does not: find one.

use std::path::PathBuf;

use model::{Address, Pid};

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

/// An executable page that has changed.
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
    /// Whether the memory itself has changed, with high probability.
    #[must_use]
    pub fn is_flip(&self) -> bool {
        self.kind == Kind::Flip
    }
}
