//! The source of content events: reports changes of marked files before the changes happen.
//!
//! Owns: the trait of this source.
//! Does not: receive events; `threads` does.

use std::fmt;
use std::os::fd::BorrowedFd;

/// A source that reports changes of content before the changes happen.
///
/// An open file description can report changes only if its file was marked when the description was opened. The watch
/// therefore marks a file before the watch answers the open. If the open creates a file, the watch enables events on
/// the mount of the directory instead.
pub(super) trait ContentSource: fmt::Debug + Send {
    /// Marks a file, so that every change is reported.
    fn watch(&self, file: BorrowedFd<'_>) -> sys::Result<()>;
    /// Marks a file, so that no change is reported. Descriptions that are opened in the meantime can report later.
    fn silence(&self, file: BorrowedFd<'_>) -> sys::Result<()>;
    /// Removes the mark of a file.
    fn forget(&self, file: BorrowedFd<'_>) -> sys::Result<()>;
    /// Lets files that are opened or created on the mount of `directory` from now on report later.
    fn enable(&self, directory: BorrowedFd<'_>) -> sys::Result<()>;
    /// Ends the effect of [`Self::enable`].
    fn disable(&self, directory: BorrowedFd<'_>) -> sys::Result<()>;
}
