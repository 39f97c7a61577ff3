//! Pre-copy: pages are copied while the subject runs, so that its last stop copies few.
//!
//! Owns: the rounds, and the decision whether one more is worth it.
//! Invariants: a round copies all that its scan has found.
//! Does not: stop the subject.

use model::PageCount;

use super::super::before::Before;
use super::super::copier::PageSink;
use super::spaces::Spaces;
use super::taken::Counts;
use crate::error::Result;

/// A residual that is small enough: some 30 microseconds of copying.
pub(super) const RESIDUAL_GOAL: PageCount = PageCount(32);
/// Pages that one more round may have to copy while descriptors are held, which the subject may want closed: some 5 ms.
pub(super) const LAST_ROUND_MAX: PageCount = PageCount(4096);

/// Whether one more round, after one of so many pages and one of so many before it, leaves less to the pause. Where the
/// processor or the store is busy, rounds get less only slowly, and a pause that copies thousands of pages is long.
fn is_worth_another(round: PageCount, before: PageCount) -> bool {
    let shrinks_to = if round > LAST_ROUND_MAX { before.get() - before.get() / 8 } else { before.get() / 2 };
    round.get() <= shrinks_to
}

impl Spaces {
    /// Whether the subject has probably dirtied more than some pages by now, and at most others.
    pub(super) fn has_dirtied(&self, least: PageCount, most: PageCount) -> bool {
        let dirtied = self.pace.since(self.clock.now());
        least < dirtied && dirtied <= most
    }

    /// Copies what is dirty while the subject runs, until little is left or it does not get less.
    pub(super) fn precopy(&mut self, before: &Before, sink: &dyn PageSink, is_new: bool) -> Result<Counts> {
        let mut counts = Counts::default();
        if !self.kind.properties().rearms_running {
            return Ok(counts);
        }
        // A page that such a read has pinned changes without a fault.
        if self.bypasses_cache {
            return Ok(counts);
        }
        // Of a process that was never copied, all is.
        let dirty = if is_new { PageCount(u64::MAX) } else { self.pace.since(self.clock.now()) };
        let mut last = PageCount(u64::MAX);
        while counts.rounds < self.tuning.prefer.rounds_max(dirty) {
            let round = self.round(before, sink, &mut counts)?;
            if round <= RESIDUAL_GOAL || !is_worth_another(round, last) {
                break;
            }
            last = round;
        }
        Ok(counts)
    }

    /// Copies what is dirty now; how many pages that were.
    pub(super) fn round(
        &mut self,
        before: &Before,
        sink: &dyn PageSink,
        counts: &mut Counts,
    ) -> Result<PageCount> {
        let pages = self.scan_running(before, sink, true)?;
        counts.rounds += 1;
        counts.precopied += pages;
        Ok(pages)
    }
}
