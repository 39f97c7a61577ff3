//! The parts of a run that are protected, and the bare rest, which is watched but not protected.
//!
//! Owns: the choice of parts. The protection of missing pages needs page tables: 2 MiB per GiB. For a
//! reservation of terabytes, this is more memory than the machine has.
//! Invariants: parts are sorted, do not touch, and never shrink. Every page that a scan has found lies in a
//! part.
//! Does not: query which pages are present.

use model::{Address, AddressRange, ByteCount};
use sys::scratch::HUGE_PAGE_BYTES;

/// Runs up to this size are protected completely. Their page tables take at most 256 KiB.
pub(crate) const WHOLE_MAX: ByteCount = ByteCount(128 << 20);
/// Maximum number of parts of a run. Each part costs a request of about one microsecond at every scan.
const PARTS_MAX: usize = 256;

/// The protected parts of one run.
#[derive(Clone, Debug)]
pub(crate) struct Spans {
    bounds: AddressRange,
    pub(crate) parts: Vec<AddressRange>,
    /// Parts with a smaller distance are merged.
    gap: ByteCount,
}

impl Spans {
    /// Creates one part for a small run, and no part for a large run.
    pub(crate) fn new(bounds: AddressRange) -> Self {
        if bounds.len() <= WHOLE_MAX {
            return Self::whole(bounds);
        }
        Self { bounds, parts: Vec::new(), gap: ByteCount(0) }
    }

    /// Creates one part for the whole run, whatever its size.
    pub(crate) fn whole(bounds: AddressRange) -> Self {
        Self { bounds, parts: vec![bounds], gap: ByteCount(0) }
    }

    /// Returns the bare range before part `index`. If `index` is the number of parts, the range after the
    /// last part is returned. The range can be empty.
    pub(crate) fn bare(&self, index: usize) -> AddressRange {
        let start = index.checked_sub(1).map_or(self.bounds.start, |before| self.parts[before].end);
        let end = self.parts.get(index).map_or(self.bounds.end, |part| part.start);
        AddressRange::new(start, end)
    }

    /// Extends a range to whole page tables, and clips it to `bounds`.
    pub(crate) fn around(range: AddressRange, bounds: AddressRange) -> AddressRange {
        let start = Address(range.start.get() & !(HUGE_PAGE_BYTES - 1)).max(bounds.start);
        let end = Address(range.end.get().next_multiple_of(HUGE_PAGE_BYTES)).min(bounds.end);
        AddressRange::new(start, end)
    }

    /// Adds a range to the protected parts. The range is clipped to the run.
    pub(crate) fn add(&mut self, range: AddressRange) {
        let start = range.start.max(self.bounds.start);
        let end = range.end.min(self.bounds.end);
        if start >= end {
            return;
        }
        let first = self.parts.partition_point(|part| part.end + self.gap < start);
        let last = self.parts.partition_point(|part| part.start <= end + self.gap);
        let joined = self.parts[first..last].iter().fold(AddressRange::new(start, end), |all, part| {
            AddressRange::new(all.start.min(part.start), all.end.max(part.end))
        });
        self.parts.splice(first..last, [joined]);
        while self.parts.len() > PARTS_MAX {
            self.gap = ByteCount((2 * self.gap.get()).max(HUGE_PAGE_BYTES));
            self.join_close();
        }
    }

    fn join_close(&mut self) {
        let gap = self.gap;
        self.parts.dedup_by(|next, part| {
            let close = next.start <= part.end + gap;
            if close {
                part.end = next.end;
            }
            close
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mib(start: u64, end: u64) -> AddressRange {
        AddressRange::new(Address(start << 20), Address(end << 20))
    }

    #[test]
    fn a_small_mapping_is_watched_whole_and_a_large_one_where_it_has_pages() {
        assert_eq!(Spans::new(mib(0, 128)).parts, [mib(0, 128)]);
        let mut spans = Spans::new(mib(0, 1000));
        assert_eq!(spans.bare(0), mib(0, 1000));
        spans.add(mib(10, 12));
        spans.add(mib(20, 22));
        spans.add(mib(12, 14));
        assert_eq!(spans.parts, [mib(10, 14), mib(20, 22)]);
        assert_eq!([0, 1, 2].map(|index| spans.bare(index)), [mib(0, 10), mib(14, 20), mib(22, 1000)]);
        spans.add(mib(11, 21));
        assert_eq!(spans.parts, [mib(10, 22)]);
        spans.add(mib(990, 2000));
        assert_eq!(spans.parts.last(), Some(&mib(990, 1000)));
    }

    #[test]
    fn the_number_of_parts_is_bounded_and_nothing_gets_lost() {
        let mut spans = Spans::new(mib(0, 1 << 20));
        let places: Vec<u64> = (0..5000).map(|index| index * 7919 % 100_000 * 4).collect();
        for place in &places {
            spans.add(mib(*place, *place + 2));
        }
        assert!(spans.parts.len() <= PARTS_MAX);
        assert!(spans.parts.windows(2).all(|pair| pair[0].end < pair[1].start));
        for place in places {
            let address = Address(place << 20);
            assert!(spans.parts.iter().any(|part| part.contains(address)), "{place}");
        }
    }
}
