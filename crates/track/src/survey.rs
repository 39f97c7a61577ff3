//! A scan for protected pages before a tracker is attached, while the process runs. Otherwise this scan would
//! take time inside the pause.
//!
//! Owns: the list of mappings without a protected page.
//! Invariants: a mapping is on the list only if the kernel has reported that none of its pages is protected.
//! Does not: watch memory. Only a tracker protects pages, and only one tracker is attached at a time, so the
//! result stays valid.

use model::{AddressRange, Pid};
use sys::pagemap::Pagemap;
use tracee::procfs::Mapping;

/// The mappings in which no page was protected.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// In rising order.
    unprotected: Vec<AddressRange>,
}

impl Survey {
    /// Inspects mappings of a process, which must be in rising order. If a query fails, the tracker inspects
    /// the mapping itself.
    pub(crate) fn of(pid: Pid, mappings: &[Mapping]) -> Self {
        let Ok(map) = Pagemap::open(pid) else { return Self::default() };
        let is_unprotected = |range: &AddressRange| map.has_protected(*range).is_ok_and(|has_some| !has_some);
        Self { unprotected: mappings.iter().map(|mapping| mapping.range).filter(is_unprotected).collect() }
    }

    /// Reports whether the survey found no protected page in the whole range.
    pub(crate) fn is_unprotected(&self, range: AddressRange) -> bool {
        let first = self.unprotected.partition_point(|found| found.end <= range.start);
        let unprotected = &self.unprotected[first..];
        let end = unprotected.iter().try_fold(range.start, |end, found| {
            if end >= range.end || found.start > end { Err(end) } else { Ok(found.end) }
        });
        end.unwrap_or_else(|end| end) >= range.end
    }
}

#[cfg(test)]
mod tests {
    use model::Address;

    use super::*;

    #[test]
    fn a_range_is_unprotected_if_all_of_it_is() {
        let range = |start: u64, end: u64| AddressRange::new(Address(start << 12), Address(end << 12));
        let survey = Survey { unprotected: vec![range(1, 4), range(4, 6), range(8, 9)] };
        assert!(
            survey.is_unprotected(range(1, 6))
                && survey.is_unprotected(range(2, 5))
                && survey.is_unprotected(range(8, 9))
        );
        assert!(
            !survey.is_unprotected(range(0, 2))
                && !survey.is_unprotected(range(5, 9))
                && !survey.is_unprotected(range(8, 10))
        );
        assert!(!Survey::default().is_unprotected(range(1, 2)));
    }
}
