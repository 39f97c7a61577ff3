//! Sets of addresses, stored as sorted ranges.
//!
//! Owns: insertion, removal, intersection and difference of address sets.
//! Invariants: the ranges are in rising order, are not empty and do not touch, so that equal sets have equal ranges. A
//! method allocates only when the list of ranges exceeds its capacity.
//! Does not: attach values to ranges.

use crate::address::{AddressRange, PageCount};

/// A set of addresses.
///
/// To find a range takes O(log n) steps. To insert or remove a range also moves all later ranges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RangeSet {
    ranges: Vec<AddressRange>,
}

impl RangeSet {
    /// Returns the empty set, without allocation.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// Returns the ranges, sorted and disjoint. No two ranges touch.
    #[must_use]
    pub fn as_slice(&self) -> &[AddressRange] {
        &self.ranges
    }

    /// Reports whether the set contains no address.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the number of pages, for ranges of whole pages. O(n).
    #[must_use]
    pub fn pages(&self) -> PageCount {
        self.ranges.iter().fold(PageCount(0), |sum, range| sum + range.pages())
    }

    /// Adds the addresses of a range.
    pub fn insert(&mut self, range: AddressRange) {
        if range.is_empty() {
            return;
        }
        let first = self.ranges.partition_point(|known| known.end < range.start);
        let last = self.ranges.partition_point(|known| known.start <= range.end);
        let Some(touched) = self.ranges.get_mut(first..last).filter(|touched| !touched.is_empty()) else {
            self.ranges.insert(first, range);
            return;
        };
        let end = touched[touched.len() - 1].end.max(range.end);
        touched[0] = AddressRange::new(touched[0].start.min(range.start), end);
        self.ranges.drain(first + 1..last);
    }

    /// Removes the addresses of a range.
    pub fn remove(&mut self, range: AddressRange) {
        let first = self.first_behind(range);
        let last = self.ranges.partition_point(|known| known.start < range.end);
        if range.is_empty() || first >= last {
            return;
        }
        let [head, _] = self.ranges[first].without(range);
        let [_, tail] = self.ranges[last - 1].without(range);
        let rest = [head, tail];
        let rest = &rest[usize::from(head.is_empty())..2 - usize::from(tail.is_empty())];
        // The length of a slice iterator is known. For an iterator of unknown length, `splice` would first collect the
        // items.
        self.ranges.splice(first..last, rest.iter().copied());
    }

    /// Returns the parts of the set that lie inside a range.
    pub fn within(&self, range: AddressRange) -> impl Iterator<Item = AddressRange> {
        self.ranges[self.first_behind(range)..].iter().map_while(move |known| known.intersection(range))
    }

    /// Returns the parts of a range that are not in the set.
    pub fn gaps(&self, range: AddressRange) -> impl Iterator<Item = AddressRange> {
        difference(std::iter::once(range), &self.ranges[self.first_behind(range)..])
    }

    /// Returns the parts of the set that are not in `other`. A complete iteration takes O(n + m).
    pub fn difference(&self, other: &Self) -> impl Iterator<Item = AddressRange> {
        difference(self.ranges.iter().copied(), &other.ranges)
    }

    /// Returns the index of the first range that ends behind the start of `range`.
    fn first_behind(&self, range: AddressRange) -> usize {
        self.ranges.partition_point(|known| known.end <= range.start)
    }

    /// Restores the invariants of an unsorted list, in place.
    fn normalize(&mut self) {
        self.ranges.retain(|range| !range.is_empty());
        self.ranges.sort_unstable_by_key(|range| range.start);
        self.ranges.dedup_by(|next, range| {
            let touches = next.start <= range.end;
            if touches {
                range.end = range.end.max(next.end);
            }
            touches
        });
    }
}

/// Returns the parts of the sorted ranges `from` that are not in the sorted ranges `taken`.
fn difference(
    mut from: impl Iterator<Item = AddressRange>,
    taken: &[AddressRange],
) -> impl Iterator<Item = AddressRange> {
    let mut taken = taken.iter().peekable();
    let mut rest = AddressRange::default();
    std::iter::from_fn(move || {
        loop {
            while rest.is_empty() {
                rest = from.next()?;
            }
            while taken.next_if(|range| range.end <= rest.start).is_some() {}
            let Some(hole) = taken.peek().filter(|range| range.start < rest.end) else {
                return Some(std::mem::take(&mut rest));
            };
            let part = AddressRange::new(rest.start, hole.start);
            rest.start = hole.end;
            if !part.is_empty() {
                return Some(part);
            }
        }
    })
}

/// Converts ranges in any order, and reuses the memory of the list. O(n log n); O(n) for sorted ranges.
impl From<Vec<AddressRange>> for RangeSet {
    fn from(ranges: Vec<AddressRange>) -> Self {
        let mut set = Self { ranges };
        set.normalize();
        set
    }
}

/// Returns the sorted ranges, and reuses the memory of the set.
impl From<RangeSet> for Vec<AddressRange> {
    fn from(set: RangeSet) -> Self {
        set.ranges
    }
}

impl FromIterator<AddressRange> for RangeSet {
    fn from_iter<I: IntoIterator<Item = AddressRange>>(ranges: I) -> Self {
        Self::from(Vec::from_iter(ranges))
    }
}

/// Adds many ranges, in any order. One call takes O(n log n), instead of O(n) for each range.
impl Extend<AddressRange> for RangeSet {
    fn extend<I: IntoIterator<Item = AddressRange>>(&mut self, ranges: I) {
        self.ranges.extend(ranges);
        self.normalize();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Address;

    /// The number of different addresses in these tests: each address is one bit of a `u64`.
    const ADDRESSES: u64 = 64;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start), Address(end))
    }

    /// Returns the addresses of the ranges as bits. Panics when an address occurs twice.
    fn bits(ranges: impl IntoIterator<Item = AddressRange>) -> u64 {
        ranges.into_iter().fold(0, |bits, range| {
            assert!(range.start < range.end, "{range} is empty");
            let own = bits_of(range);
            assert_eq!(bits & own, 0, "{range} comes twice");
            bits | own
        })
    }

    fn bits_of(range: AddressRange) -> u64 {
        (range.start.get()..range.end.get()).fold(0, |bits, address| bits | 1 << address)
    }

    /// Returns one range for each address.
    fn singles(bits: u64) -> impl Iterator<Item = AddressRange> {
        (0..ADDRESSES).filter(move |address| bits >> address & 1 == 1).map(|at| range(at, at + 1))
    }

    fn set(bits: u64) -> RangeSet {
        singles(bits).collect()
    }

    fn check(set: &RangeSet, expected: u64) {
        assert_eq!(bits(set.as_slice().iter().copied()), expected);
        assert!(set.as_slice().windows(2).all(|pair| pair[0].end < pair[1].start), "{set:?}");
        assert_eq!(set.is_empty(), expected == 0);
    }

    /// Returns the addresses of an operation's results as bits. Panics when the results are not in rising order.
    fn parts(found: impl Iterator<Item = AddressRange>) -> u64 {
        let found: Vec<AddressRange> = found.collect();
        assert!(found.windows(2).all(|pair| pair[0].end <= pair[1].start), "{found:?}");
        bits(found)
    }

    fn any_range() -> impl Strategy<Value = AddressRange> {
        // The strategy also generates empty and reversed ranges.
        (0..=ADDRESSES, 0..=ADDRESSES).prop_map(|(start, end)| range(start, end))
    }

    proptest! {
        #[test]
        fn a_set_holds_what_it_was_made_of(ranges in prop::collection::vec(any_range(), 0..20)) {
            let expected = ranges.iter().fold(0, |bits, range| bits | bits_of(*range));
            check(&RangeSet::from(ranges.clone()), expected);
            check(&ranges.into_iter().collect(), expected);
        }

        #[test]
        fn a_range_is_inserted_and_removed(bits: u64, range in any_range()) {
            let mut inserted = set(bits);
            inserted.insert(range);
            check(&inserted, bits | bits_of(range));
            let mut removed = set(bits);
            removed.remove(range);
            check(&removed, bits & !bits_of(range));
        }

        #[test]
        fn many_ranges_are_added(bits: u64, ranges in prop::collection::vec(any_range(), 0..20)) {
            let expected = ranges.iter().fold(bits, |bits, range| bits | bits_of(*range));
            let mut extended = set(bits);
            extended.extend(ranges);
            check(&extended, expected);
        }

        #[test]
        fn a_range_is_divided_into_what_the_set_holds_and_lacks(bits: u64, range in any_range()) {
            let set = set(bits);
            prop_assert_eq!(parts(set.within(range)), bits & bits_of(range));
            prop_assert_eq!(parts(set.gaps(range)), !bits & bits_of(range));
        }

        #[test]
        fn the_difference_of_two_sets_is_that_of_their_bits(first: u64, second: u64) {
            prop_assert_eq!(parts(set(first).difference(&set(second))), first & !second);
        }

        #[test]
        fn pages_are_counted(bits: u64) {
            let pages = singles(bits).map(|page| {
                AddressRange::new(Address(page.start.get() << 12), Address(page.end.get() << 12))
            });
            prop_assert_eq!(pages.collect::<RangeSet>().pages(), PageCount(u64::from(bits.count_ones())));
        }
    }

    #[test]
    fn the_memory_of_a_list_is_kept() {
        let list = vec![range(8, 9), range(1, 2), range(2, 3)];
        let (at, room) = (list.as_ptr(), list.capacity());
        let back = Vec::from(RangeSet::from(list));
        assert_eq!(back, [range(1, 3), range(8, 9)]);
        assert_eq!((back.as_ptr(), back.capacity()), (at, room));
    }
}
