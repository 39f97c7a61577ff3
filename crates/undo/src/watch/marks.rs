//! The source of events about content: which files report a change before it happens.
//!
//! Owns: the trait of such a source.
//! Does not: receive events; the thread of the source does.

use std::fmt;
use std::os::fd::BorrowedFd;

/// Reports changes of content before they happen.
///
/// A description reports only if its file was marked when it was opened; so a file is marked before its open is
/// answered, and the directory of a file that is about to be made is enabled.
pub(super) trait ContentSource: fmt::Debug + Send {
    /// Every change of the file is reported.
    fn watch(&self, file: BorrowedFd<'_>) -> sys::Result<()>;
    /// No change is reported, and descriptions that are opened meanwhile can report later.
    fn silence(&self, file: BorrowedFd<'_>) -> sys::Result<()>;
    /// The file is not marked any more.
    fn forget(&self, file: BorrowedFd<'_>) -> sys::Result<()>;
    /// What is opened or made on the mount of this directory from now on can report later.
    fn enable(&self, directory: BorrowedFd<'_>) -> sys::Result<()>;
    /// Ends what `enable` began.
    fn disable(&self, directory: BorrowedFd<'_>) -> sys::Result<()>;
}
