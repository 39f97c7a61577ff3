//! How often pages are copied in one checkpoint, and the limit. A page that the subject writes again after its copy
//! must be copied again. Copies that a later copy replaces are wasted.
//!
//! Owns: the counts of one checkpoint; whether pre-copy was worth its cost in recent checkpoints.
//! Invariants: while the subject runs, pages are copied only as long as few copies of the checkpoint were wasted. In
//! stops, pages are copied without a limit.
//! Does not: copy pages, or stop the subject.

use model::PageCount;

use super::pace::Pace;

/// While the subject runs, copies are wasted up to one of this many pages of the checkpoint. A wasted copy costs a page
/// fault, and copying a page in a stop takes less than half of this time (docs/design/0055).
const WASTED_SHARE: u64 = 8;
/// A checkpoint of few pages may waste this many copies, but at most one for each page. Their cost is small, and a short
/// last stop is worth more.
const WASTED_FEW: u64 = 1024;
/// After this many checkpoints without pre-copy, one checkpoint tries pre-copy again.
const LEFT_OUT_MAX: u32 = 15;

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
        let pages = self.pages.get();
        let wasted = (pages / WASTED_SHARE).max(pages.min(WASTED_FEW));
        PageCount((pages + wasted).saturating_sub(self.done.get()))
    }

    /// Reports whether each page was copied more than twice, on average.
    pub(super) fn are_excessive(self) -> bool {
        self.done.get() > 2 * self.pages.get() + WASTED_FEW
    }

    /// Reports whether this many pages may be copied while the subject runs.
    pub(super) fn allow(self, pages: PageCount) -> bool {
        pages <= self.left()
    }
}

/// Reports whether it is worth its cost to copy pages while the subject runs, if it has rewritten `again` of `copied` pages
/// meanwhile.
pub(super) fn are_worth_it(copied: PageCount, again: PageCount) -> bool {
    WASTED_SHARE * again.get() <= copied.get()
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
        self.is_wasted = !are_worth_it(copied, again);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_copies_may_be_wasted() {
        let of = |pages, done| Copies { pages: PageCount(pages), done: PageCount(done) };
        assert!(of(16_000, 0).allow(PageCount(16_000)));
        assert!(of(16_000, 16_000).allow(PageCount(2000)) && !of(16_000, 16_000).allow(PageCount(2001)));
        assert_eq!(of(16_000, 19_000).left(), PageCount(0));
        assert_eq!(of(2000, 2000).left(), PageCount(1024));
        assert_eq!(of(500, 500).left(), PageCount(500), "one wasted copy of each page");
        assert!(of(500, 2025).are_excessive() && !of(500, 2024).are_excessive());
    }

    #[test]
    fn wasted_precopy_is_tried_again_now_and_then() {
        let mut precopies = Precopies::default();
        assert!(precopies.begin());
        precopies.note(PageCount(1000), PageCount(125));
        assert!(precopies.begin(), "seven eighths were not rewritten");
        precopies.note(PageCount(1000), PageCount(126));
        assert_eq!((0..2 * LEFT_OUT_MAX + 2).filter(|_| precopies.begin()).count(), 2);
        precopies.note(PageCount(1000), PageCount(10));
        assert!(precopies.begin());
    }
}
