//! What one checkpoint has done to pages so far.
//!
//! Owns: the counts, and what they decide about the last stop.
//! Does not: copy.

use model::PageCount;

use super::budget::Throttle;
use super::taken::Slices;

/// What one checkpoint has done to pages so far.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) rounds: usize,
    pub(super) precopied: PageCount,
    pub(super) residual: PageCount,
    pub(super) slices: Slices,
    pub(super) throttle: Throttle,
    /// New mappings were left to the running scans once.
    pub(super) has_deferred_fresh: bool,
}

impl Counts {
    pub(super) fn new() -> Self {
        Self {
            rounds: 0,
            precopied: PageCount(0),
            residual: PageCount(0),
            slices: Slices::default(),
            throttle: Throttle::new(),
            has_deferred_fresh: false,
        }
    }
}

impl Counts {
    /// The next stop takes everything, however long that takes.
    pub(super) fn complete(&mut self) {
        self.has_deferred_fresh = true;
        self.throttle.give_up();
    }
}
