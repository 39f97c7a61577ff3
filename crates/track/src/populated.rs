//! Sets of pages that hold something, and what left such a set.
//!
//! Owns: the difference between what was there and what is there.
//! Invariants: ranges rise and do not touch.
//! Does not: know why pages went.

use model::{Address, AddressRange};

/// Pages of an area that held something at the last look.
#[derive(Clone, Debug, Default)]
pub(crate) struct Populated {
    before: Vec<AddressRange>,
    now: Vec<AddressRange>,
}

impl Populated {
    /// What was there at the last look.
    pub(crate) fn before(&self) -> &[AddressRange] {
        &self.before
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

    /// Ends a look: what is gone, then forgotten.
    pub(crate) fn finish(&mut self, gone: impl FnMut(AddressRange)) {
        join(&mut self.now);
        difference(&self.before, &self.now, gone);
        self.before.clear();
        std::mem::swap(&mut self.before, &mut self.now);
    }

    /// Takes over what another set knows inside of a range.
    pub(crate) fn take_over(&mut self, other: &Self, bounds: AddressRange) {
        let clipped = |range: &AddressRange| {
            AddressRange::new(range.start.max(bounds.start), range.end.min(bounds.end))
        };
        self.before.extend(other.before.iter().map(clipped).filter(|range| !range.is_empty()));
        join(&mut self.before);
    }
}

/// Sorts ranges and joins those that touch or overlap.
fn join(ranges: &mut Vec<AddressRange>) {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, range| {
        let touches = next.start <= range.end;
        if touches {
            range.end = range.end.max(next.end);
        }
        touches
    });
}

/// What `before` has and `now` has not.
fn difference(before: &[AddressRange], now: &[AddressRange], mut gone: impl FnMut(AddressRange)) {
    let mut rest = now.iter().peekable();
    for range in before {
        let mut start = range.start;
        while rest.peek().is_some_and(|kept| kept.end <= start) {
            rest.next();
        }
        let mut ahead = rest.clone();
        while let Some(kept) = ahead.next_if(|kept| kept.start < range.end) {
            if kept.start > start {
                gone(AddressRange::new(start, kept.start));
            }
            start = Address(start.get().max(kept.end.get()));
        }
        if start < range.end {
            gone(AddressRange::new(start, range.end));
        }
    }
}

#[cfg(test)]
mod tests {
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
            let mut populated = Populated { before: set(first), now: set(second) };
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
