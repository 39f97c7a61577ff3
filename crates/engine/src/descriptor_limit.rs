//! Raises the limit on descriptors of this process while this process holds the descriptors of a whole subject.
//!
//! Owns: RLIMIT_NOFILE of this process.
//! Invariants: a program that this process starts after the drop of [`RaisedLimit`] inherits the original limit.
//! Does not: set the limits of a subject; the state kind `limits` of the crate `resource` does.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// A guard that keeps the soft limit raised to the hard limit. Dropping the guard sets the former soft limit again.
/// Descriptors above the former limit stay open.
#[derive(Debug)]
pub(crate) struct RaisedLimit(Rlimit);

impl RaisedLimit {
    /// Raises the soft limit. If setrlimit(2) fails, the soft limit stays low, and opening too many descriptors
    /// fails with EMFILE.
    pub(crate) fn new() -> Self {
        let before = getrlimit(Resource::Nofile);
        let raised = Rlimit { current: before.maximum, maximum: before.maximum };
        if before != raised {
            let _ = setrlimit(Resource::Nofile, raised);
        }
        Self(before)
    }
}

impl Drop for RaisedLimit {
    fn drop(&mut self) {
        if self.0.current != self.0.maximum {
            let _ = setrlimit(Resource::Nofile, self.0);
        }
    }
}
