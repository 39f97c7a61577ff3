//! The mappings of a process, in the order in which a tracker scans them.
//!
//! Owns: joining adjacent mappings into runs, and the state of each run.
//! Invariants: runs are sorted and do not overlap. When the runs are built again, each address keeps its
//! state.
//! Does not: make system calls. The tracker decides whether a mapping can be watched.

use model::AddressRange;
use tracee::procfs::Mapping;

use crate::class::{Class, Known};
use crate::populated::Populated;
use crate::spans::Spans;
use crate::tracker::{Coverage, Unwatched, UnwatchedReason};

/// Adjacent watched mappings of one class, or one unwatched mapping. A tracker scans a run as one range.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) range: AddressRange,
    pub(crate) class: Class,
    /// Writes to the run are watched. Otherwise every scan reports all its content.
    pub(crate) watched: bool,
    /// Some memory of the run is no longer watched. The next scan of the stopped process registers it again.
    pub(crate) lost: bool,
    /// No scan has reported the run yet, or `watched` has changed since the last scan.
    pub(crate) new: bool,
    pub(crate) spans: Spans,
    /// Pages with content at the last scan, for scans that inspect every page. A scan for written pages does
    /// not set it.
    pub(crate) held: Populated,
    /// Ranges in which a scan of the running process could not distinguish empty pages from swapped-out
    /// pages.
    pub(crate) uncertain: Vec<AddressRange>,
}

/// The decision how a tracker treats a mapping.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    /// Watch its writes.
    Watched,
    /// Report all its content at every scan.
    Unwatched(UnwatchedReason),
    /// Ignore it: this mapping can never be written.
    Constant,
}

#[derive(Debug, Default)]
pub(crate) struct Runs {
    pub(crate) list: Vec<Run>,
    known: Vec<Known>,
    pub(crate) coverage: Coverage,
}

impl Runs {
    /// Replaces the list of mappings. Calls `judge` for every mapping, except hugetlb mappings and mappings
    /// that are watched and unchanged since the last list.
    pub(crate) fn renew(
        &mut self,
        mappings: &[Mapping],
        mut judge: impl FnMut(AddressRange, Class) -> Verdict,
    ) {
        let known: Vec<Known> = mappings.iter().filter_map(Known::of).collect();
        let before = std::mem::take(&mut self.list);
        self.coverage.fresh.clear();
        self.coverage.unwatched.clear();
        for mapping in &known {
            let count = self.coverage.fresh.len();
            mapping.fresh_parts(&self.known, &mut self.coverage.fresh);
            let fresh = self.coverage.fresh.len() > count;
            let verdict = if mapping.is_hugetlb {
                Verdict::Unwatched(UnwatchedReason::Hugetlb)
            } else if !fresh && is_watched(&before, mapping.range) && self.had(mapping.range) {
                Verdict::Watched
            } else {
                judge(mapping.range, mapping.class)
            };
            self.add(mapping, verdict, fresh);
        }
        self.known = known;
        for run in &mut self.list {
            run.inherit(&before);
        }
    }

    /// Reports whether the last list contains a mapping with exactly this range. If the kernel has merged
    /// mappings, the range differs, and the merged mapping may have lost its watch.
    fn had(&self, range: AddressRange) -> bool {
        let at = self.known.partition_point(|known| known.range.start < range.start);
        self.known.get(at).is_some_and(|known| known.range == range)
    }

    fn add(&mut self, mapping: &Known, verdict: Verdict, fresh: bool) {
        let watched = match verdict {
            Verdict::Constant => return,
            Verdict::Watched => true,
            Verdict::Unwatched(reason) => {
                self.coverage.unwatched.push(Unwatched { range: mapping.range, reason });
                false
            }
        };
        match self.list.last_mut() {
            Some(last)
                if watched
                    && last.watched
                    && last.class == mapping.class
                    && last.range.end == mapping.range.start =>
            {
                last.range.end = mapping.range.end;
                last.new |= fresh;
            }
            _ => self.list.push(Run {
                range: mapping.range,
                class: mapping.class,
                watched,
                lost: false,
                new: fresh,
                spans: Spans::whole(mapping.range),
                held: Populated::default(),
                uncertain: Vec::new(),
            }),
        }
    }
}

impl Run {
    fn inherit(&mut self, before: &[Self]) {
        // Another mapping can create pages of shared memory without a page table entry in this process. A
        // scan for present pages misses them, so the whole run is protected.
        self.spans = match self.class {
            Class::Shared => Spans::whole(self.range),
            Class::Anonymous | Class::PrivateFile => Spans::new(self.range),
        };
        let first = before.partition_point(|run| run.range.end <= self.range.start);
        for run in before[first..].iter().take_while(|run| run.range.start < self.range.end) {
            // An unwatched run does not maintain its parts. Its pages are in `held`.
            let parts = if run.watched { run.spans.parts.as_slice() } else { &[] };
            for part in parts.iter().chain(run.held.before()) {
                self.spans.add(Spans::around(*part, self.range));
            }
            self.held.take_over(&run.held, self.range);
            self.uncertain.extend(run.uncertain.iter().filter(|range| self.range.overlaps(**range)));
            // The content of a watched run is not known. If the run becomes unwatched, a scan could not find
            // the pages that were discarded since. The run therefore counts as new. A run also stays new if
            // the mappings are listed again before its first scan.
            self.new |= run.new || run.watched != self.watched;
            self.lost |= run.lost;
        }
    }
}

fn is_watched(runs: &[Run], range: AddressRange) -> bool {
    let first = runs.partition_point(|run| run.range.end <= range.start);
    runs.get(first)
        .is_some_and(|run| run.watched && run.range.start <= range.start && range.end <= run.range.end)
}

#[cfg(test)]
mod tests {
    use model::Address;
    use tracee::procfs::{Backing, MappingFlags, Protection};

    use super::*;

    fn mapping(first: u64, end: u64) -> Mapping {
        Mapping {
            range: AddressRange::new(Address(first << 12), Address(end << 12)),
            protection: Protection { read: true, write: true, execute: false, shared: false },
            offset: 0,
            backing: Backing::Anonymous,
            name: String::new(),
            flags: MappingFlags::default(),
        }
    }

    #[test]
    fn what_no_scan_has_seen_stays_new_when_mappings_are_listed_again() {
        let mut runs = Runs::default();
        runs.renew(&[mapping(1, 4)], |_, _| Verdict::Watched);
        runs.renew(&[mapping(1, 4), mapping(8, 9)], |_, _| Verdict::Watched);
        assert!(runs.list.iter().all(|run| run.new));
        runs.list.iter_mut().for_each(|run| run.new = false);
        runs.renew(&[mapping(1, 4), mapping(8, 10)], |_, _| Verdict::Watched);
        assert_eq!(runs.list.iter().map(|run| run.new).collect::<Vec<_>>(), [false, true]);
    }
}
