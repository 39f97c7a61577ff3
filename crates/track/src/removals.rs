//! The ranges of pages that the process discards.
//!
//! Owns: the list of ranges. A range stays on the list from the message of the kernel until a scan of the
//! stopped process has reported it.
//! Invariants: a range is on the list before the kernel discards its pages.
//! Does not: know the content of the pages after the discard; the scan reads it.

use model::AddressRange;

/// Maximum number of separate ranges; they take 64 KiB. If a process discards more ranges between two stops,
/// all its file mappings and shared memory are reported.
const RANGES_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Removals {
    ranges: Vec<AddressRange>,
    /// There were too many ranges, so every page counts as discarded.
    everything: bool,
}

impl Removals {
    pub(crate) fn note(&mut self, range: AddressRange) {
        if self.ranges.len() < RANGES_MAX {
            self.ranges.push(range);
        } else {
            self.everything = true;
        }
    }

    /// Calls `found` for each discarded range inside of `bounds`, clipped to `bounds`.
    pub(crate) fn within(&self, bounds: AddressRange, mut found: impl FnMut(AddressRange)) {
        if self.everything {
            return found(bounds);
        }
        for range in self.ranges.iter().filter(|range| range.overlaps(bounds)) {
            found(AddressRange::new(range.start.max(bounds.start), range.end.min(bounds.end)));
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.ranges.clear();
        self.everything = false;
    }
}

#[cfg(test)]
mod tests {
    use model::Address;

    use super::*;

    fn range(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start), Address(end))
    }

    fn found(removals: &Removals, bounds: AddressRange) -> Vec<AddressRange> {
        let mut found = Vec::new();
        removals.within(bounds, |range| found.push(range));
        found
    }

    #[test]
    fn removals_are_reported_by_range_until_there_are_too_many() {
        let mut removals = Removals::default();
        removals.note(range(10, 20));
        removals.note(range(40, 50));
        assert_eq!(found(&removals, range(15, 45)), [range(15, 20), range(40, 45)]);
        assert_eq!(found(&removals, range(20, 40)), []);
        for _ in 0..RANGES_MAX {
            removals.note(range(60, 70));
        }
        assert_eq!(found(&removals, range(20, 40)), [range(20, 40)]);
        removals.clear();
        assert!(removals.is_empty() && found(&removals, range(0, 100)).is_empty());
    }
}
