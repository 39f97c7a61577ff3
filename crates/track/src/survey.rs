//! A scan of a running process before a tracker is attached to it. Otherwise this scan would be made inside the pause.
//!
//! Owns: the list of mappings without a protected page.
//! Invariants: a mapping is on it only if the kernel has reported that for the whole mapping.
//! Does not: watch. Only a tracker protects pages, and one is attached at a time, so the result stays valid.

use model::{AddressRange, Pid};
use sys::pagemap::Pagemap;
use tracee::procfs::Area;

/// What was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Survey {
    /// Rising.
    open: Vec<AddressRange>,
}

impl Survey {
    /// Looks at areas of a process, rising. What cannot be told is left to the tracker.
    pub(crate) fn of(pid: Pid, areas: &[Area]) -> Self {
        let Ok(map) = Pagemap::open(pid) else { return Self::default() };
        let is_open = |range: &AddressRange| map.has_protected(*range).is_ok_and(|has_some| !has_some);
        Self { open: areas.iter().map(|area| area.range).filter(is_open).collect() }
    }

    /// Whether no page of a range was protected.
    pub(crate) fn is_open(&self, range: AddressRange) -> bool {
        let first = self.open.partition_point(|open| open.end <= range.start);
        let open = &self.open[first..];
        let end = open.iter().try_fold(range.start, |end, open| {
            if end >= range.end || open.start > end { Err(end) } else { Ok(open.end) }
        });
        end.unwrap_or_else(|end| end) >= range.end
    }
}

#[cfg(test)]
mod tests {
    use model::Address;

    use super::*;

    #[test]
    fn a_range_is_open_if_all_of_it_is() {
        let range = |start: u64, end: u64| AddressRange::new(Address(start << 12), Address(end << 12));
        let survey = Survey { open: vec![range(1, 4), range(4, 6), range(8, 9)] };
        assert!(survey.is_open(range(1, 6)) && survey.is_open(range(2, 5)) && survey.is_open(range(8, 9)));
        assert!(
            !survey.is_open(range(0, 2)) && !survey.is_open(range(5, 9)) && !survey.is_open(range(8, 10))
        );
        assert!(!Survey::default().is_open(range(1, 2)));
    }
}
