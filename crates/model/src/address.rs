//! Addresses, ranges and sizes of a subject's memory.
//!
//! Owns: arithmetic on addresses, ranges and sizes, and rounding to pages.
//! Does not: check whether an address is mapped.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};

/// The size of a base page on x86-64 in bytes.
pub const PAGE_BYTES: u64 = 4096;

/// An address in a subject's memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Address(pub u64);

/// A number of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ByteCount(pub u64);

/// A number of base pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PageCount(pub u64);

/// The addresses from `start` (inclusive) to `end` (exclusive).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AddressRange {
    /// The first address in the range.
    pub start: Address,
    /// The first address behind the range.
    pub end: Address,
}

impl Address {
    /// Returns the address as an integer.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the start of the page that contains this address.
    #[must_use]
    pub const fn page_floor(self) -> Self {
        Self(self.0 & !(PAGE_BYTES - 1))
    }
}

impl ByteCount {
    /// Returns the number of bytes as an integer.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl PageCount {
    /// Returns the number of pages as an integer.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Returns the size of these pages in bytes.
    #[must_use]
    pub const fn bytes(self) -> ByteCount {
        ByteCount(self.0 * PAGE_BYTES)
    }
}

impl AddressRange {
    /// Creates a range from its start and end.
    #[must_use]
    pub const fn new(start: Address, end: Address) -> Self {
        Self { start, end }
    }

    /// Returns the number of bytes in the range.
    #[must_use]
    pub const fn len(self) -> ByteCount {
        ByteCount(self.end.0 - self.start.0)
    }

    /// Reports whether the range contains no address.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.end.0 <= self.start.0
    }

    /// Returns the number of pages in a range of whole pages.
    #[must_use]
    pub const fn pages(self) -> PageCount {
        PageCount((self.end.0 - self.start.0) / PAGE_BYTES)
    }

    /// Reports whether the range contains an address.
    #[must_use]
    pub const fn contains(self, address: Address) -> bool {
        self.start.0 <= address.0 && address.0 < self.end.0
    }

    /// Reports whether the two ranges have a common address.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start.0 < other.end.0 && other.start.0 < self.end.0
    }

    /// Returns the common addresses of the two ranges; `None` when there are none.
    #[must_use]
    pub fn intersection(self, other: Self) -> Option<Self> {
        let both = Self { start: self.start.max(other.start), end: self.end.min(other.end) };
        (!both.is_empty()).then_some(both)
    }

    /// Removes `other`, a non-empty range. Returns the remaining parts before and behind `other`; each part may be
    /// empty.
    #[must_use]
    pub fn without(self, other: Self) -> [Self; 2] {
        [
            Self { start: self.start, end: other.start.min(self.end) },
            Self { start: other.end.max(self.start), end: self.end },
        ]
    }

    /// Splits the range at multiples of `size`.
    pub fn pieces(self, size: ByteCount) -> impl Iterator<Item = Self> {
        let mut start = self.start;
        std::iter::from_fn(move || {
            let end = Address((start.0 / size.0).saturating_add(1).saturating_mul(size.0)).min(self.end);
            let piece = Self { start, end };
            start = end;
            (!piece.is_empty()).then_some(piece)
        })
    }
}

impl Add<ByteCount> for Address {
    type Output = Self;
    fn add(self, bytes: ByteCount) -> Self {
        Self(self.0 + bytes.0)
    }
}

impl Sub<ByteCount> for Address {
    type Output = Self;
    fn sub(self, bytes: ByteCount) -> Self {
        Self(self.0 - bytes.0)
    }
}

impl Sub for Address {
    type Output = ByteCount;
    fn sub(self, other: Self) -> ByteCount {
        ByteCount(self.0 - other.0)
    }
}

impl Add for ByteCount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for ByteCount {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Add for PageCount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for PageCount {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start.0, self.end.0)
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}-{:#x}", self.start.0, self.end.0)
    }
}

impl fmt::Display for ByteCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for PageCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_cut_at_multiples_and_miss_nothing() {
        let range = AddressRange::new(Address(0x3000), Address(0x9000));
        let pieces: Vec<_> =
            range.pieces(ByteCount(0x4000)).map(|piece| (piece.start.0, piece.end.0)).collect();
        assert_eq!(pieces, [(0x3000, 0x4000), (0x4000, 0x8000), (0x8000, 0x9000)]);
        assert_eq!(AddressRange::new(range.end, range.end).pieces(ByteCount(0x4000)).count(), 0);
    }

    #[test]
    fn a_range_counts_its_pages_and_knows_its_neighbours() {
        let range = AddressRange::new(Address(0x1000), Address(0x4000));
        assert_eq!(range.pages(), PageCount(3));
        assert!(range.contains(Address(0x3fff)));
        assert!(!range.contains(Address(0x4000)));
        assert!(!range.overlaps(AddressRange::new(Address(0x4000), Address(0x5000))));
        assert_eq!(Address(0x1fff).page_floor(), Address(0x1000));
    }
}
