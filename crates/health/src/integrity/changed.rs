//! The reports of a sweep. A sweep compares executable pages with their earlier content.
//!
//! Owns: the description of a page that has changed.
//! Does not: find changed pages; `sweep` does.

use std::path::PathBuf;

use model::{Address, Pid};

/// The location of a page that differs from its earlier content.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// A private copy, which only this process maps.
    Process,
    /// The page cache. Every process that maps or reads the file sees the page. A new incarnation also sees the page.
    PageCache,
}

/// The most likely cause of a changed page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// At most three bits differ. For [`Place::Process`], no other page of the process has changed in the pass.
    Flip,
    /// A byte has become the breakpoint instruction. A debugger or a uprobe sets such a breakpoint.
    Breakpoint,
    /// Another program traces the process, and may have changed the page.
    Traced,
    /// More than three bits, or several pages, differ. The program itself or another program has replaced code.
    Patched,
    /// The file on the device has the same bytes as the page. The file was changed without a change of its timestamps.
    FileChanged,
    /// The earlier bytes of the page are not known.
    Unknown,
}

/// An executable page that has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// The process in which the page was found.
    pub pid: Pid,
    /// The address of the first byte that differs, or of the page if the earlier bytes are not known.
    pub address: Address,
    /// The path of the mapped file in `/proc/PID/maps`.
    pub file: PathBuf,
    /// The offset of the byte at `address` in the file.
    pub offset: u64,
    /// The number of bits that differ. `None` if the earlier bytes are not known.
    pub bits: Option<u32>,
    /// The location of the page.
    pub place: Place,
    /// The most likely cause of the change.
    pub kind: Kind,
}

impl Changed {
    /// Reports whether a memory error is the cause, with high probability.
    #[must_use]
    pub fn is_flip(&self) -> bool {
        self.kind == Kind::Flip
    }
}
