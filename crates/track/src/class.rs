//! The class of a mapping, for tracking.
//!
//! Owns: the classes, and the condition under which two mappings show the same object.
//! Does not: make system calls.

use model::{AddressRange, Inode};
use tracee::procfs::{Backing, Mapping};

/// The class of a mapping. It determines how the content changes, and how a tracker finds the changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Class {
    /// Private memory without a file. Missing pages read as zero. Discarding a page removes its protection.
    Anonymous,
    /// Private mapping of a file. Only the private pages of the process are of interest. Discarding such a
    /// page leaves its protection in place.
    PrivateFile,
    /// Shared memory. Other mappings and file descriptors can change it too.
    Shared,
}

/// Identity of the content of a mapping. If two mappings have the same class and object, they show the same
/// bytes where they overlap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Known {
    pub(crate) range: AddressRange,
    pub(crate) class: Class,
    pub(crate) is_hugetlb: bool,
    /// Device, inode, and the file offset minus the start address of the mapping.
    object: Option<((u32, u32), Inode, u64)>,
}

impl Known {
    /// Returns `None` for mappings of the kernel, such as the vDSO.
    pub(crate) fn of(mapping: &Mapping) -> Option<Self> {
        let object = match &mapping.backing {
            Backing::Kernel(_) => return None,
            Backing::Anonymous => None,
            Backing::File { device, inode, .. } => {
                Some((*device, *inode, mapping.offset.wrapping_sub(mapping.range.start.get())))
            }
        };
        let class = match (mapping.protection.shared, object) {
            (true, _) => Class::Shared,
            (false, Some(_)) => Class::PrivateFile,
            (false, None) => Class::Anonymous,
        };
        // If the mapping was listed without flags, only anonymous huge pages are recognised, by their name. A
        // file of hugetlbfs then looks like any other file.
        let is_hugetlb = mapping.flags.has("ht") || mapping.name.starts_with("/anon_hugepage");
        Some(Self { range: mapping.range, class, is_hugetlb, object })
    }

    fn shows_the_same(&self, other: &Self) -> bool {
        self.class == other.class && self.object == other.object
    }

    /// Adds those parts of the mapping that no mapping of `before` showed with the same identity. `before`
    /// must be sorted.
    pub(crate) fn fresh_parts(&self, before: &[Self], into: &mut Vec<AddressRange>) {
        let mut start = self.range.start;
        let first = before.partition_point(|known| known.range.end <= start);
        for known in &before[first..] {
            if known.range.start >= self.range.end {
                break;
            }
            if self.shows_the_same(known) {
                if known.range.start > start {
                    into.push(AddressRange::new(start, known.range.start));
                }
                start = known.range.end;
            }
        }
        if start < self.range.end {
            into.push(AddressRange::new(start, self.range.end));
        }
    }
}

#[cfg(test)]
mod tests {
    use model::Address;

    use super::*;

    fn known(first: u64, end: u64, class: Class) -> Known {
        Known {
            range: AddressRange::new(Address(first << 12), Address(end << 12)),
            class,
            is_hugetlb: false,
            object: None,
        }
    }

    #[test]
    fn what_grew_and_what_became_another_kind_is_fresh() {
        let before =
            [known(1, 4, Class::Anonymous), known(4, 6, Class::Shared), known(8, 9, Class::Anonymous)];
        let mut fresh = Vec::new();
        known(2, 10, Class::Anonymous).fresh_parts(&before, &mut fresh);
        let expected = [(4, 8), (9, 10)].map(|(first, end)| known(first, end, Class::Shared).range);
        assert_eq!(fresh, expected);
        fresh.clear();
        known(1, 3, Class::Anonymous).fresh_parts(&before, &mut fresh);
        assert!(fresh.is_empty());
    }
}
