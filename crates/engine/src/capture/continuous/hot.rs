//! The writable working set of a process. Pre-copy skips the pages of this set, and the pause of each epoch
//! copies each skipped page once. Here, an epoch is a checkpoint in progress.
//!
//! Owns: the set of hot pages (the pages to skip), and the skipped pages that the next pause must copy.
//! Invariants: a skipped page is copied once in the next pause, unless the page no longer exists. At most
//! `KNOWN_MAX` pages are hot. No memory is allocated inside the pause.
//! Does not: copy pages.
//!
//! If the subject writes to a page between its pre-copy and the pause, the copy is wasted. A page with
//! several wasted copies becomes *hot*: pre-copy skips the page. Before pre-copy skips a page, the tracker
//! has reported the page. The tracker may not report the page a second time. So this module records that the
//! pause must copy the page: the copy is *deferred*.

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};
use track::DirtyPages;

const PAGE: ByteCount = ByteCount(PAGE_BYTES);
/// Maximum number of pages with a score. A pause copies 256 pages in about a tenth of a millisecond.
const KNOWN_MAX: usize = 256;
/// Minimum score of a hot page. The score rises by one in each epoch with a wasted copy.
const HOT_FROM: u8 = 3;
/// Maximum score. The score falls in each epoch without a wasted copy, so after `SCORE_MAX` of these epochs a
/// page is forgotten.
const SCORE_MAX: u8 = 8;
/// Decrement of the score if the page was deferred, and the subject did not write to the page again. For this
/// page, the deferral has saved no copy.
const IDLE: u8 = 2;
/// Maximum number of ranges that are recorded in the pre-copy of an epoch. If an epoch has more ranges, no
/// score changes in this epoch.
const COPIED_MAX: usize = 65_536;
/// Maximum number of ranges that the pause finds, and maximum number of their pages. If a pause finds more,
/// no score changes in the epoch. The pause is then long for another reason than hot pages.
const AGAIN_MAX: usize = 1024;
const AGAIN_PAGES_MAX: PageCount = PageCount(4096);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    page: Address,
    score: u8,
}

#[derive(Debug)]
pub(super) struct HotPages {
    /// Sorted by address.
    known: Vec<Known>,
    /// The hot pages among `known`, sorted by address.
    hot: Vec<Address>,
    /// The deferred pages, sorted by address. The flag is set while the page must still be copied.
    deferred: Vec<(Address, bool)>,
    /// Ranges that pre-copy has copied in this epoch. Each round has a list of its own, sorted by address.
    copied: Vec<Vec<AddressRange>>,
    copied_count: usize,
    /// Ranges that the scan in the pause has found.
    again: Vec<AddressRange>,
    /// Whether a limit was exceeded, so that the records of this epoch are incomplete.
    is_lost: bool,
}

impl HotPages {
    pub(super) fn new() -> Self {
        Self {
            known: Vec::new(),
            hot: Vec::new(),
            deferred: Vec::with_capacity(KNOWN_MAX),
            copied: Vec::new(),
            copied_count: 0,
            again: Vec::with_capacity(AGAIN_MAX),
            is_lost: false,
        }
    }

    /// Removes the hot pages from `dirty`, the pages that pre-copy will copy. Defers the hot pages to the
    /// pause, and records the remaining ranges of `dirty`.
    pub(super) fn defer_hot(&mut self, dirty: &mut DirtyPages) {
        let Self { hot, deferred, .. } = self;
        // If the program has discarded a deferred page, the page must not be copied. The copy would put the
        // page back into the checkpoint.
        for found in dirty.ranges().iter().filter(|found| !found.content.must_read()) {
            cancel(deferred, found.range);
        }
        dirty.take_out(hot, |page| mark_due(deferred, page));
        let round = dirty.ranges().iter().filter(|found| found.content.must_read());
        let mut round: Vec<AddressRange> = round.map(|found| found.range).collect();
        round.sort_unstable_by_key(|range| range.start);
        self.copied_count += round.len();
        if self.copied_count > COPIED_MAX {
            self.is_lost = true;
            self.copied.clear();
        } else if !round.is_empty() {
            self.copied.push(round);
        }
    }

    /// Returns how many pages of the first round the second round has found again. `None`: the records are incomplete.
    pub(super) fn rewritten(&self) -> Option<PageCount> {
        let again = match self.copied.as_slice() {
            [first, second, ..] => overlap(first, second),
            _ => PageCount(0),
        };
        (!self.is_lost).then_some(again)
    }

    /// Records the result of the scan in the pause. The pause copies the found pages in any case, so their
    /// deferral is cancelled.
    pub(super) fn note_pause(&mut self, dirty: &DirtyPages) {
        for found in dirty.ranges() {
            cancel(&mut self.deferred, found.range);
            if !found.content.must_read() {
                continue;
            }
            if self.again.len() == AGAIN_MAX {
                self.is_lost = true;
            } else {
                self.again.push(found.range);
            }
        }
        self.is_lost |= dirty.pages() > AGAIN_PAGES_MAX;
    }

    /// Returns the deferred pages that must still be copied, sorted by address.
    pub(super) fn due(&self) -> impl Iterator<Item = AddressRange> {
        self.deferred
            .iter()
            .filter(|(_, is_due)| *is_due)
            .map(|(page, _)| AddressRange::new(*page, *page + PAGE))
    }

    /// Marks all deferred pages as no longer due. Called when the caller has taken over the copying of the
    /// pages.
    pub(super) fn mark_taken(&mut self) {
        self.deferred.iter_mut().for_each(|(_, is_due)| *is_due = false);
    }

    /// Cancels the deferral of all pages in a range that was unmapped or mapped again.
    pub(super) fn forget(&mut self, range: AddressRange) {
        cancel(&mut self.deferred, range);
    }

    /// Updates the scores at the end of an epoch. Must not be called inside the pause.
    pub(super) fn learn(&mut self) {
        if !self.is_lost {
            let twice = self.copied_twice();
            self.rate(&twice);
        }
        // Deferred pages that no pause has copied stay deferred.
        self.deferred.retain(|(_, is_due)| *is_due);
        self.copied.clear();
        self.again.clear();
        (self.copied_count, self.is_lost) = (0, false);
        self.hot.clear();
        self.hot.extend(self.known.iter().filter(|known| known.score >= HOT_FROM).map(|known| known.page));
    }

    /// Returns the pages with two reports: pre-copy had copied or deferred the page, and the pause has found
    /// the page. The pages are sorted by address.
    fn copied_twice(&self) -> Vec<Address> {
        let pages = self.again.iter().flat_map(|range| range.pieces(PAGE)).map(|piece| piece.start);
        let mut twice: Vec<Address> = pages
            .filter(|page| {
                self.deferred.binary_search_by_key(page, |(page, _)| *page).is_ok()
                    || self.copied.iter().any(|round| holds(round, *page))
            })
            .take(2 * KNOWN_MAX)
            .collect();
        twice.sort_unstable();
        twice.dedup();
        twice
    }

    fn rate(&mut self, twice: &[Address]) {
        for known in &mut self.known {
            known.score = if twice.binary_search(&known.page).is_ok() {
                (known.score + 1).min(SCORE_MAX)
            } else {
                let was_deferred = self.deferred.binary_search_by_key(&known.page, |(page, _)| *page).is_ok();
                known.score.saturating_sub(if was_deferred { IDLE } else { 1 })
            };
        }
        self.known.retain(|known| known.score > 0);
        for page in twice {
            if let Err(place) = self.known.binary_search_by_key(page, |known| known.page)
                && self.known.len() < KNOWN_MAX
            {
                self.known.insert(place, Known { page: *page, score: 1 });
            }
        }
    }
}

/// Returns the number of pages that are in both lists of disjoint ranges, sorted by address.
fn overlap(one: &[AddressRange], other: &[AddressRange]) -> PageCount {
    let (mut one, mut other) = (one.iter().peekable(), other.iter().peekable());
    let mut pages = PageCount(0);
    while let (Some(a), Some(b)) = (one.peek(), other.peek()) {
        let (start, end) = (a.start.max(b.start), a.end.min(b.end));
        if start < end {
            pages += AddressRange::new(start, end).pages();
        }
        if a.end < b.end {
            one.next()
        } else {
            other.next()
        };
    }
    pages
}

fn mark_due(deferred: &mut Vec<(Address, bool)>, page: Address) {
    match deferred.binary_search_by_key(&page, |(page, _)| *page) {
        Ok(place) => deferred[place].1 = true,
        Err(place) => deferred.insert(place, (page, true)),
    }
}

/// Marks the deferred pages of a range as no longer due.
fn cancel(deferred: &mut [(Address, bool)], range: AddressRange) {
    let first = deferred.partition_point(|(page, _)| *page < range.start);
    deferred[first..]
        .iter_mut()
        .take_while(|(page, _)| *page < range.end)
        .for_each(|(_, is_due)| *is_due = false);
}

fn holds(rising: &[AddressRange], page: Address) -> bool {
    let first = rising.partition_point(|range| range.end <= page);
    rising.get(first).is_some_and(|range| range.start <= page)
}

#[cfg(test)]
mod tests {
    use track::Content;

    use super::*;

    fn pages(first: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(first << 12), Address(end << 12))
    }

    fn found(ranges: &[(AddressRange, Content)]) -> DirtyPages {
        ranges.iter().copied().collect()
    }

    /// Simulates one epoch in which a pre-copy round and a pause find these ranges. Returns the number of
    /// pages that the round copies, and the ranges that are due in the pause.
    fn epoch(hot: &mut HotPages, round: &[AddressRange], pause: &[AddressRange]) -> (u64, Vec<AddressRange>) {
        let with = |ranges: &[AddressRange]| -> Vec<_> {
            ranges.iter().map(|range| (*range, Content::Present)).collect()
        };
        let mut dirty = found(&with(round));
        hot.defer_hot(&mut dirty);
        let copied = dirty.pages().get();
        hot.note_pause(&found(&with(pause)));
        let due = hot.due().collect();
        hot.mark_taken();
        hot.learn();
        (copied, due)
    }

    #[test]
    fn a_page_with_repeated_wasted_copies_is_deferred() {
        let mut hot = HotPages::new();
        for _ in 0..HOT_FROM {
            assert_eq!(epoch(&mut hot, &[pages(1, 9), pages(20, 21)], &[pages(4, 6)]), (9, vec![]));
        }
        // The pause finds both hot pages again, and copies each page once.
        assert_eq!(epoch(&mut hot, &[pages(1, 9)], &[pages(4, 6)]), (6, vec![]));
        // The pause does not find page 4 again, so its deferred copy is due.
        assert_eq!(epoch(&mut hot, &[pages(1, 9)], &[pages(5, 6)]), (6, vec![pages(4, 5)]));
        assert_eq!(epoch(&mut hot, &[pages(1, 9)], &[]).1, vec![pages(4, 5), pages(5, 6)][1..]);
    }

    #[test]
    fn pages_of_two_rounds_are_rewritten() {
        let mut hot = HotPages::new();
        for round in [&[pages(1, 9), pages(20, 24)][..], &[pages(0, 3), pages(5, 6), pages(8, 22)]] {
            hot.defer_hot(&mut found(
                &round.iter().map(|range| (*range, Content::Present)).collect::<Vec<_>>(),
            ));
        }
        assert_eq!(hot.rewritten(), Some(PageCount(2 + 1 + 1 + 2)));
        let many: Vec<_> = (0..COPIED_MAX as u64).map(|page| pages(2 * page, 2 * page + 1)).collect();
        hot.defer_hot(&mut found(&many.iter().map(|range| (*range, Content::Present)).collect::<Vec<_>>()));
        assert_eq!(hot.rewritten(), None, "the records are incomplete");
        hot.learn();
        assert_eq!(hot.rewritten(), Some(PageCount(0)));
    }

    #[test]
    fn a_page_that_is_not_written_again_is_forgotten() {
        let mut hot = HotPages::new();
        for _ in 0..50 {
            epoch(&mut hot, &[pages(1, 2)], &[pages(1, 2)]);
        }
        let deferred = (0..20).filter(|_| !epoch(&mut hot, &[pages(1, 2)], &[]).1.is_empty()).count();
        assert_eq!(deferred, usize::from((SCORE_MAX - HOT_FROM) / IDLE) + 1);
        assert!(hot.known.is_empty());
    }

    #[test]
    fn pages_that_were_discarded_or_are_gone_are_not_due() {
        let mut hot = HotPages::new();
        for _ in 0..=HOT_FROM {
            epoch(&mut hot, &[pages(1, 5)], &[pages(1, 5)]);
        }
        let mut round = found(&[(pages(1, 5), Content::Unknown)]);
        hot.defer_hot(&mut round);
        assert!(round.ranges().is_empty());
        assert_eq!(hot.due().count(), 4);
        let mut round = found(&[(pages(1, 2), Content::Absent), (pages(8, 9), Content::Present)]);
        hot.defer_hot(&mut round);
        assert_eq!(round.pages().get(), 2);
        hot.forget(pages(2, 3));
        hot.note_pause(&found(&[(pages(3, 4), Content::Guard)]));
        assert_eq!(hot.due().collect::<Vec<_>>(), [pages(4, 5)]);
    }

    #[test]
    fn at_most_known_max_pages_are_hot() {
        let mut hot = HotPages::new();
        let many = pages(0, 10 * KNOWN_MAX as u64);
        for _ in 0..10 {
            let (copied, due) = epoch(&mut hot, &[many], &[many]);
            assert!(copied >= many.pages().get() - KNOWN_MAX as u64 && due.is_empty());
        }
        assert_eq!(hot.hot.len(), KNOWN_MAX);
        let scattered: Vec<_> = (0..2 * AGAIN_MAX as u64).map(|page| pages(2 * page, 2 * page + 1)).collect();
        let capacities = (hot.again.capacity(), hot.deferred.capacity());
        epoch(&mut hot, &scattered, &scattered);
        assert_eq!((hot.again.capacity(), hot.deferred.capacity()), capacities);
    }
}
