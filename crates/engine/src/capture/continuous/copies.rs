//! How often pages are copied in one checkpoint, and the limit. A page that the subject (a protected process tree)
//! writes again after its copy must be copied again. Copies that a later copy replaces are wasted.
//!
//! Owns: the counts of one checkpoint; whether pre-copy was worth its cost in recent checkpoints.
//! Invariants: while the subject runs, pages are copied only as long as the checkpoint will probably copy no page more
//! than `COPIES_MAX` times on average. In stops, pages are copied without a limit.
//! Does not: copy pages, or stop the subject.

use model::PageCount;

use super::budget::Pace;

/// Maximum number of copies of a page in one checkpoint, as an average over all its pages.
const COPIES_MAX: u64 = 2;
/// Pre-copy is left out if the subject rewrites at least this many eighths of the pages meanwhile.
const REWRITTEN_EIGHTHS_MAX: u64 = 6;
/// After this many checkpoints without pre-copy, one checkpoint tries pre-copy again.
const LEFT_OUT_MAX: u32 = 15;

/// The copies of one checkpoint.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copies {
    /// The largest number of dirty pages that one scan has found: a lower limit for the number of different pages.
    pub(super) pages: PageCount,
    /// Number of copies up to now.
    pub(super) done: PageCount,
}

impl Copies {
    /// Returns how many pages the checkpoint may still copy.
    pub(super) fn left(self) -> PageCount {
        PageCount((COPIES_MAX * self.pages.get()).saturating_sub(self.done.get()))
    }

    /// Reports whether this many pages may be copied while the subject runs. In the worst case, the subject writes all
    /// of them again.
    pub(super) fn allow(self, pages: PageCount) -> bool {
        COPIES_MAX * pages.get() <= self.left().get()
    }
}

/// What recent scans and checkpoints show about the subject.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Habits {
    pub(super) pace: Pace,
    pub(super) precopies: Precopies,
}

/// Whether pre-copy is worth its cost, as the recent checkpoints show.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Precopies {
    is_wasted: bool,
    /// Number of checkpoints without pre-copy since the last one with it.
    left_out: u32,
}

impl Precopies {
    /// Reports whether the next checkpoint should copy pages while the subject runs.
    pub(super) fn begin(&mut self) -> bool {
        let copies = !self.is_wasted || self.left_out >= LEFT_OUT_MAX;
        self.left_out = if copies { 0 } else { self.left_out + 1 };
        copies
    }

    /// Records that the subject has rewritten `again` pages while `copied` pages were copied.
    pub(super) fn note(&mut self, copied: PageCount, again: PageCount) {
        self.is_wasted = 8 * again.get() >= REWRITTEN_EIGHTHS_MAX * copied.get();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_round_must_leave_room_for_its_own_repetition() {
        let of = |pages, done| Copies { pages: PageCount(pages), done: PageCount(done) };
        assert!(of(1000, 0).allow(PageCount(1000)));
        assert!(!of(1000, 1000).allow(PageCount(600)));
        assert!(of(1000, 1000).allow(PageCount(500)));
        assert_eq!(of(1000, 1500).left(), PageCount(500));
        assert_eq!(of(1000, 2100).left(), PageCount(0));
    }

    #[test]
    fn wasted_precopy_is_tried_again_now_and_then() {
        let mut precopies = Precopies::default();
        assert!(precopies.begin());
        precopies.note(PageCount(1000), PageCount(700));
        assert!(precopies.begin(), "three eighths were not rewritten");
        precopies.note(PageCount(1000), PageCount(800));
        assert_eq!((0..2 * LEFT_OUT_MAX + 2).filter(|_| precopies.begin()).count(), 2);
        precopies.note(PageCount(1000), PageCount(10));
        assert!(precopies.begin());
    }
}
