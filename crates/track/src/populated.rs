//! Pages with content, and the pages that have left this set between two scans.
//!
//! Owns: the pages of the last scan, and those of the scan under way.
//! Invariants: two lists alternate, so that a scan allocates only when it finds more than all scans before.
//! Does not: know why pages have left.

use model::{AddressRange, RangeSet};

/// Pages of an area that held something at the last look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Populated {
    before: RangeSet,
    /// In the order in which they were noted.
    now: Vec<AddressRange>,
}

impl Populated {
    /// What was there at the last look.
    pub(crate) fn before(&self) -> &[AddressRange] {
        self.before.as_slice()
    }

    /// What has been noted since.
    pub(crate) fn noted(&self) -> &[AddressRange] {
        &self.now
    }

    /// Notes pages that are there now, rising or not.
    pub(crate) fn note(&mut self, range: AddressRange) {
        match self.now.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.now.push(range),
        }
    }

    /// Ends a scan: reports the pages that are gone, and forgets them.
    pub(crate) fn finish(&mut self, gone: impl FnMut(AddressRange)) {
        let now = RangeSet::from(std::mem::take(&mut self.now));
        self.before.difference(&now).for_each(gone);
        self.now = Vec::from(std::mem::replace(&mut self.before, now));
        self.now.clear();
    }

    /// Takes over what another set knows inside of a range.
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
