//! The writable working set: pages that are skipped in pre-copy and copied once an epoch, in the pause.
//!
//! Owns: which pages these are; which of them the next pause must copy.
//! Invariants: a skipped page is copied in the next pause, unless that finds it changed again, or gone. At most
//! `KNOWN_MAX` pages are skipped. Inside the pause nothing is allocated.
//! Does not: copy.
//!
//! Pre-copying a page that is dirtied again before the end of the pause is wasted. A page with several wasted copies is
//! skipped in pre-copy. The tracker has reported it already, so that its copy is deferred to the pause.

use model::{Address, AddressRange, ByteCount, PAGE_BYTES, PageCount};
use track::DirtyPages;

const PAGE: ByteCount = ByteCount(PAGE_BYTES);
/// Pages that are known at most: what a pause copies in a tenth of a millisecond.
const KNOWN_MAX: usize = 256;
/// Wasted copies, one an epoch, from which on a page is skipped in pre-copy.
const HOT_FROM: u8 = 3;
/// So many epochs without a second copy are forgiven at most.
const SCORE_MAX: u8 = 8;
/// Decrement for a page that was deferred and not written to again: the deferral saved nothing.
const IDLE: u8 = 2;
/// Ranges of an epoch that are kept to be compared; of one that has more nothing is learnt.
const COPIED_MAX: usize = 65_536;
/// The same of a pause, and of their pages: one with more has other worries.
const AGAIN_MAX: usize = 1024;
const AGAIN_PAGES_MAX: PageCount = PageCount(4096);

/// One page of which something is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Known {
    page: Address,
    score: u8,
}

#[derive(Debug)]
pub(super) struct HotPages {
    /// Rising.
    known: Vec<Known>,
    /// Those of them that are hot, rising.
    hot: Vec<Address>,
    /// Pages deferred in this epoch, rising, and whether they still have to be copied.
    deferred: Vec<(Address, bool)>,
    /// Copied before the pause of this epoch, round by round; each rises.
    copied: Vec<Vec<AddressRange>>,
    copied_count: usize,
    /// Copied in the pause.
    again: Vec<AddressRange>,
    /// There was more than is kept.
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

    /// Takes hot pages out of what is to be copied while the subject runs.
    pub(super) fn put_off(&mut self, dirty: &mut DirtyPages) {
        let Self { hot, deferred, .. } = self;
        // A page that was discarded after its deferral is taken out, so that the discard is not copied over.
        for found in dirty.ranges().iter().filter(|found| !found.content.must_read()) {
            forgive(deferred, found.range);
        }
        dirty.take_out(hot, |page| owe(deferred, page));
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

    /// Takes in what a pause found: it copies that in any case.
    pub(super) fn meet(&mut self, dirty: &DirtyPages) {
        for found in dirty.ranges() {
            forgive(&mut self.deferred, found.range);
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

    /// Pages that were deferred and are still to be copied, rising.
    pub(super) fn due(&self) -> impl Iterator<Item = AddressRange> {
        self.deferred
            .iter()
            .filter(|(_, is_due)| *is_due)
            .map(|(page, _)| AddressRange::new(*page, *page + PAGE))
    }

    /// All of that has been copied.
    pub(super) fn paid(&mut self) {
        self.deferred.iter_mut().for_each(|(_, is_due)| *is_due = false);
    }

    /// A range shows something else now, or nothing.
    pub(super) fn forget(&mut self, range: AddressRange) {
        forgive(&mut self.deferred, range);
    }

    /// Learns from an epoch that is over. Not inside the pause.
    pub(super) fn learn(&mut self) {
        if !self.is_lost {
            let twice = self.copied_twice();
            self.rate(&twice);
        }
        // What no pause has copied stays deferred.
        self.deferred.retain(|(_, is_due)| *is_due);
        self.copied.clear();
        self.again.clear();
        (self.copied_count, self.is_lost) = (0, false);
        self.hot.clear();
        self.hot.extend(self.known.iter().filter(|known| known.score >= HOT_FROM).map(|known| known.page));
    }

    /// Pages that the pause copied, and a round before it had, or would have; rising.
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
                let was_put_off = self.deferred.binary_search_by_key(&known.page, |(page, _)| *page).is_ok();
                known.score.saturating_sub(if was_put_off { IDLE } else { 1 })
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

fn owe(deferred: &mut Vec<(Address, bool)>, page: Address) {
    match deferred.binary_search_by_key(&page, |(page, _)| *page) {
        Ok(place) => deferred[place].1 = true,
        Err(place) => deferred.insert(place, (page, true)),
    }
}

/// Nothing is deferred of a range any more.
fn forgive(deferred: &mut [(Address, bool)], range: AddressRange) {
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

    /// One epoch: a round and a pause find these; what the round copies, and what is due in the pause.
    fn epoch(hot: &mut HotPages, round: &[AddressRange], pause: &[AddressRange]) -> (u64, Vec<AddressRange>) {
        let with = |ranges: &[AddressRange]| -> Vec<_> {
            ranges.iter().map(|range| (*range, Content::Present)).collect()
        };
        let mut dirty = found(&with(round));
        hot.put_off(&mut dirty);
        let copied = dirty.pages().get();
        hot.meet(&found(&with(pause)));
        let due = hot.due().collect();
        hot.paid();
        hot.learn();
        (copied, due)
    }

    #[test]
    fn a_page_that_is_copied_twice_again_and_again_is_put_off() {
        let mut hot = HotPages::new();
        for _ in 0..HOT_FROM {
            assert_eq!(epoch(&mut hot, &[pages(1, 9), pages(20, 21)], &[pages(4, 6)]), (9, vec![]));
        }
        // Found again by the pause, it is copied there once.
        assert_eq!(epoch(&mut hot, &[pages(1, 9)], &[pages(4, 6)]), (6, vec![]));
        // Else it is deferred.
        assert_eq!(epoch(&mut hot, &[pages(1, 9)], &[pages(5, 6)]), (6, vec![pages(4, 5)]));
        assert_eq!(epoch(&mut hot, &[pages(1, 9)], &[]).1, vec![pages(4, 5), pages(5, 6)][1..]);
    }

    #[test]
    fn what_is_not_written_again_is_forgotten() {
        let mut hot = HotPages::new();
        for _ in 0..50 {
            epoch(&mut hot, &[pages(1, 2)], &[pages(1, 2)]);
        }
        let put_off = (0..20).filter(|_| !epoch(&mut hot, &[pages(1, 2)], &[]).1.is_empty()).count();
        assert_eq!(put_off, usize::from((SCORE_MAX - HOT_FROM) / IDLE) + 1);
        assert!(hot.known.is_empty());
    }

    #[test]
    fn what_was_discarded_or_is_gone_is_not_owed() {
        let mut hot = HotPages::new();
        for _ in 0..=HOT_FROM {
            epoch(&mut hot, &[pages(1, 5)], &[pages(1, 5)]);
        }
        let mut round = found(&[(pages(1, 5), Content::Unknown)]);
        hot.put_off(&mut round);
        assert!(round.ranges().is_empty());
        assert_eq!(hot.due().count(), 4);
        let mut round = found(&[(pages(1, 2), Content::Absent), (pages(8, 9), Content::Present)]);
        hot.put_off(&mut round);
        assert_eq!(round.pages().get(), 2);
        hot.forget(pages(2, 3));
        hot.meet(&found(&[(pages(3, 4), Content::Guard)]));
        assert_eq!(hot.due().collect::<Vec<_>>(), [pages(4, 5)]);
    }

    #[test]
    fn no_more_are_known_than_a_pause_copies_quickly() {
        let mut hot = HotPages::new();
        let many = pages(0, 10 * KNOWN_MAX as u64);
        for _ in 0..10 {
            let (copied, due) = epoch(&mut hot, &[many], &[many]);
            assert!(copied >= many.pages().get() - KNOWN_MAX as u64 && due.is_empty());
        }
        assert_eq!(hot.hot.len(), KNOWN_MAX);
        let scattered: Vec<_> = (0..2 * AGAIN_MAX as u64).map(|page| pages(2 * page, 2 * page + 1)).collect();
        let room = (hot.again.capacity(), hot.deferred.capacity());
        epoch(&mut hot, &scattered, &scattered);
        assert_eq!((hot.again.capacity(), hot.deferred.capacity()), room);
    }
}
