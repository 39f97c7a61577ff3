//! CRC-32C (Castagnoli), and the combination of page checksums into extent checksums.
//!
//! Owns: the polynomial and the tables that shift a CRC by one page.
//! Invariants: `PageChecksum::join` over pages equals `Checksum::of` over the concatenated pages. An extent can
//! therefore be split at a page boundary without reading its bytes again.
//! Does not: protect against an attacker. A CRC detects damage, not forgery.
//!
//! Source of the join: M. Adler, `crc32_combine` of zlib. The CRC register is linear over GF(2): appending `n` bytes
//! shifts the earlier CRC by a fixed operator. Here `n` is always one page, and the operator is a table of 4 × 256
//! words.

use std::fmt;
use std::sync::LazyLock;

use crc_fast::{CrcAlgorithm, Digest};
use model::PAGE_BYTES;

/// The CRC-32C of a sequence of bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Checksum(pub u32);

/// The CRC-32C of exactly one page.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct PageChecksum(pub u32);

static ZEROS: [u8; PAGE_BYTES as usize] = [0; PAGE_BYTES as usize];

type ShiftTable = [[u32; 256]; 4];

static PAGE_SHIFT: LazyLock<ShiftTable> = LazyLock::new(page_shift_table);

impl Checksum {
    /// Returns the checksum of these bytes.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(crc_fast::crc32_iscsi(bytes))
    }

    /// Returns the checksum of the bytes that `self` covers, followed by these bytes.
    #[must_use]
    pub fn extend(self, bytes: &[u8]) -> Self {
        // The register contains the complement of the checksum.
        let mut register = Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!self.0));
        register.update(bytes);
        Self(register.finalize() as u32)
    }

    /// Returns the checksum as an integer.
    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl PageChecksum {
    /// Returns the checksum of one page.
    #[must_use]
    pub fn of(page: &[u8; PAGE_BYTES as usize]) -> Self {
        Self(crc_fast::crc32_iscsi(page))
    }

    /// Returns the checksum of bytes with the checksum `before`, followed by these pages.
    ///
    /// `Checksum::default()` is the checksum of an empty sequence.
    #[must_use]
    pub fn join(before: Checksum, pages: &[Self]) -> Checksum {
        let table = &*PAGE_SHIFT;
        Checksum(pages.iter().fold(before.0, |joined, page| shift(table, joined) ^ page.0))
    }
}

fn shift(table: &ShiftTable, crc: u32) -> u32 {
    let [a, b, c, d] = crc.to_le_bytes();
    table[0][a as usize] ^ table[1][b as usize] ^ table[2][c as usize] ^ table[3][d as usize]
}

fn page_shift_table() -> ShiftTable {
    let mut table = [[0; 256]; 4];
    for (position, row) in table.iter_mut().enumerate() {
        // The shift is linear: powers of two are computed, and the shift of another value is the XOR of the shifts of
        // its bits. Appending a zero page yields the shifted CRC XOR the CRC of the zero page. A
        // function that combines two checksums needs no zero page, but took half a millisecond for the whole table.
        for value in 1..row.len() {
            let lowest = value & value.wrapping_neg();
            row[value] = if value == lowest {
                Checksum((value as u32) << (8 * position)).extend(&ZEROS).0 ^ Checksum::of(&ZEROS).0
            } else {
                row[lowest] ^ row[value - lowest]
            };
        }
    }
    table
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl fmt::Debug for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Checksum({:08x})", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_polynomial_is_castagnoli() {
        assert_eq!(Checksum::of(b"123456789"), Checksum(0xe306_9283));
        assert_eq!(Checksum::of(b"1234").extend(b"56789"), Checksum(0xe306_9283));
    }

    #[test]
    fn another_implementation_computes_the_same_checksums() {
        let bytes: Vec<u8> = (0..3 * PAGE_BYTES).map(|at| (at * at / 7 + at) as u8).collect();
        for length in (0..700).chain([1024, 4095, 4096, 4097, 8192, bytes.len() - 64]) {
            for start in [0, 1, 7, 64] {
                let part = &bytes[start..start + length];
                assert_eq!(Checksum::of(part).get(), crc32c::crc32c(part), "{length} bytes at {start}");
                let (first, second) = part.split_at(length / 3);
                assert_eq!(
                    Checksum::of(first).extend(second),
                    Checksum::of(part),
                    "{length} bytes in two parts"
                );
            }
        }
    }

    #[test]
    fn joined_pages_have_the_checksum_of_their_concatenation() {
        let bytes: Vec<u8> = (0..5 * PAGE_BYTES).map(|i| (i * i / 7) as u8).collect();
        let pages: Vec<PageChecksum> =
            bytes.as_chunks::<{ PAGE_BYTES as usize }>().0.iter().map(PageChecksum::of).collect();
        for count in 0..=pages.len() {
            let first = PageChecksum::join(Checksum::default(), &pages[..count]);
            assert_eq!(first, Checksum::of(&bytes[..count * PAGE_BYTES as usize]));
            assert_eq!(PageChecksum::join(first, &pages[count..]), Checksum::of(&bytes));
        }
    }
}
