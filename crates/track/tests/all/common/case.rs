//! A tracked process with mappings of given kinds.

use model::{AddressRange, Pid};
use tracee::procfs;
use undying_track::{Content, Tracker, Unwatched};

use super::{Subject, attach, part, scan_mapping};

/// The advice of madvise(2) that discards pages (MADV_DONTNEED).
pub(crate) const DONTNEED: u64 = 4;
/// The tracker that uses a userfaultfd.
pub(crate) const PAGEMAP_SCAN: &str = "pagemap-scan";

/// A tracked subject with one mapping of each given kind, scanned once.
pub(crate) struct Case {
    pub(crate) subject: Subject,
    pub(crate) tracker: Box<dyn Tracker>,
    pub(crate) areas: Vec<AddressRange>,
}

impl Case {
    /// Creates a case. `kinds` contains the kinds of mappings with their numbers of pages. Each page is
    /// written once before the tracker is attached.
    pub(crate) fn new(tracker: &str, kinds: &[(&str, u64)]) -> Option<Self> {
        let mut subject = Subject::start("obedient", &[])?;
        let areas: Vec<AddressRange> = kinds.iter().map(|(kind, pages)| subject.map(kind, *pages)).collect();
        for (area, (_, pages)) in areas.iter().zip(kinds) {
            subject.act("write", part(*area, 0, *pages), 1);
        }
        let tracker = attach(tracker, subject.pid())?;
        let mut case = Self { subject, tracker, areas };
        for area in case.areas.clone() {
            let found = case.scan(area);
            let all: u64 = found.iter().map(|(first, end, _)| end - first).sum();
            assert!(
                all >= area.pages().get() || area != case.areas[0],
                "at first everything is new: {found:?}"
            );
        }
        Some(case)
    }

    pub(crate) fn pid(&self) -> Pid {
        self.subject.pid()
    }

    pub(crate) fn scan(&mut self, area: AddressRange) -> Vec<(u64, u64, Content)> {
        scan_mapping(&mut *self.tracker, area)
    }

    pub(crate) fn cover(&mut self) -> (Vec<AddressRange>, Vec<Unwatched>) {
        let mappings = procfs::mappings(self.subject.pid()).unwrap();
        let coverage = self.tracker.cover(&mappings).unwrap();
        (coverage.fresh.clone(), coverage.unwatched.clone())
    }

    /// Executes a command on pages of the first mapping, and scans this mapping. Returns the pages that must
    /// be read, and the other reported pages.
    pub(crate) fn after(&mut self, word: &str, first: u64, end: u64, argument: u64) -> (Vec<u64>, Vec<u64>) {
        let area = self.areas[0];
        self.subject.act(word, part(area, first, end), argument);
        split(&self.scan(area))
    }
}

/// Returns the pages that must be read, and the other reported pages. If a page was reported twice, the later
/// report counts.
pub(crate) fn split(found: &[(u64, u64, Content)]) -> (Vec<u64>, Vec<u64>) {
    let mut last = std::collections::BTreeMap::new();
    for (first, end, content) in found {
        last.extend((*first..*end).map(|page| (page, content.must_read())));
    }
    let of = |read: bool| last.iter().filter(|(_, must)| **must == read).map(|(page, _)| *page).collect();
    (of(true), of(false))
}

pub(crate) fn pages(first: u64, end: u64) -> Vec<u64> {
    (first..end).collect()
}

/// No page is reported.
pub(crate) const NONE: (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
