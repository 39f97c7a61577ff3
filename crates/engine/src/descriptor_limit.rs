//! The limit on descriptors of this process, raised while the descriptors of a whole subject are open in it.
//!
//! Owns: RLIMIT_NOFILE of this process.
//! Invariants: programs that this process starts later get the limit that it was started with.
//! Does not: set limits of a subject; the state kind `limits` does.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The soft limit raised to the hard one; dropping it sets the former soft limit again. Descriptors above it stay open.
#[derive(Debug)]
pub(crate) struct RaisedLimit(Rlimit);

impl RaisedLimit {
    /// Raises the limit. If that fails, opening too many descriptors fails with EMFILE by name.
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
