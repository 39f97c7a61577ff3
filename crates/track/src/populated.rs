//! Pages with content, and the pages that have lost their content between two scans.
//!
//! Owns: the pages of the last scan, and the pages of the scan in progress.
//! Invariants: two lists are used alternately. A scan allocates memory only when it finds more ranges than
//! all scans before.
//! Does not: know why a page has lost its content.

use model::{AddressRange, RangeSet};

/// The pages of a run that have content.
#[derive(Clone, Debug, Default)]
pub(crate) struct Populated {
    before: RangeSet,
    /// In the order of the calls of [`Self::note`].
    pub(crate) now: Vec<AddressRange>,
}

impl Populated {
    /// Returns the pages that had content at the last scan.
    pub(crate) fn before(&self) -> &[AddressRange] {
        self.before.as_slice()
    }

    /// Notes pages with content. Ranges can be noted in any order.
    pub(crate) fn note(&mut self, range: AddressRange) {
        match self.now.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.now.push(range),
        }
    }

    /// Ends a scan, and calls `gone` for the pages that had content at the last scan and have none now.
    pub(crate) fn finish(&mut self, gone: impl FnMut(AddressRange)) {
        let now = RangeSet::from(std::mem::take(&mut self.now));
        self.before.difference(&now).for_each(gone);
        self.now = Vec::from(std::mem::replace(&mut self.before, now));
        self.now.clear();
    }

    /// Adds the pages inside of `bounds` that had content at the last scan of another run.
    pub(crate) fn take_over(&mut self, other: &Self, bounds: AddressRange) {
        self.before.extend(other.before.within(bounds));
    }
}

#[cfg(test)]
mod tests {
    use model::Address;
    use proptest::prelude::*;

    use super::*;

    const PAGES: u64 = 64;

    fn set(bits: u64) -> Vec<AddressRange> {
        let mut found = Populated::default();
        for page in (0..PAGES).filter(|page| bits >> page & 1 == 1) {
            found.note(AddressRange::new(Address(page), Address(page + 1)));
        }
        found.now
    }

    proptest! {
        #[test]
        fn what_left_is_exactly_the_difference(first: u64, second: u64) {
            let mut populated = Populated { before: set(first).into(), now: set(second) };
            let mut gone = 0_u64;
            populated.finish(|range| {
                for page in range.start.get()..range.end.get() {
                    assert_eq!(gone >> page & 1, 0, "reported twice");
                    gone |= 1 << page;
                }
            });
            prop_assert_eq!(gone, first & !second);
            prop_assert_eq!(populated.before(), &set(second)[..]);
        }

        #[test]
        fn notes_may_come_in_any_order(first: u64, second: u64) {
            let mut populated = Populated::default();
            for range in set(first).into_iter().chain(set(second)) {
                populated.note(range);
            }
            populated.finish(|_| {});
            prop_assert_eq!(populated.before(), &set(first | second)[..]);
        }
    }
}
