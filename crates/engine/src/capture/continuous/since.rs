//! The changes of a subject since its last checkpoint, for an operation on the stopped subject.
//!
//! Owns: the decision whether the trackers know all changes since a checkpoint.
//! Invariants: the trackers begin no new round, so that the next checkpoint contains the same pages and the pages that
//! the operation writes.
//! Does not: stop the subject, or read pages.

use std::collections::HashSet;

use image::Commit;
use model::{PageCount, Pid, RangeSet};
use sys::pagemap::PageRegions;

use super::Continuous;
use super::tracked::Tracked;

impl Continuous {
    pub(crate) fn tracked_pids(&self) -> HashSet<Pid> {
        self.spaces.tracked.keys().copied().collect()
    }

    /// Returns the pages that a stopped process has written since a checkpoint. Absent pages may be missing. Returns
    /// `None` if the trackers do not know all these pages. Then every page may have changed.
    pub(crate) fn written_since(&self, checkpoint: &Commit, pid: Pid) -> Option<RangeSet> {
        // A scan by `track` begins a new round of the trackers.
        let is_last = self.last == Some((checkpoint.sequence, checkpoint.time)) && self.scans == 0;
        self.spaces.tracked.get(&pid).filter(|_| is_last)?.written()
    }
}

impl Tracked {
    /// Returns the pages that the process has written since the last scan. `None`: the tracker cannot tell without a
    /// scan.
    fn written(&self) -> Option<RangeSet> {
        let loosener = self.tracker.loosener().filter(|_| self.deferred.pages == PageCount(0))?;
        let (mut written, mut regions) = (Vec::new(), PageRegions::new());
        for range in self.covered.as_slice() {
            loosener.written(*range, &mut regions, |found| written.push(found)).ok()?;
        }
        Some(written.into_iter().collect())
    }
}
