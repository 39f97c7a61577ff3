//! One process with areas of some kinds, tracked.

use model::{AddressRange, Pid};
use tracee::procfs;
use undying_track::{Content, Tracker, Unwatched};

use super::{Subject, attach, part, scan_area};

/// What madvise(2) gives pages back with.
pub(crate) const DONTNEED: u64 = 4;
/// Trackers that watch.
pub(crate) const WATCHING: [&str; 2] = ["pagemap-scan", "write-protect"];

/// A subject with one area of each of some kinds, tracked, and scanned once.
pub(crate) struct Case {
    pub(crate) subject: Subject,
    pub(crate) tracker: Box<dyn Tracker>,
    pub(crate) areas: Vec<AddressRange>,
}

impl Case {
    /// Kinds with their pages; all pages are written once.
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
        scan_area(&mut *self.tracker, area)
    }

    pub(crate) fn cover(&mut self) -> (Vec<AddressRange>, Vec<Unwatched>) {
        let areas = procfs::areas(self.subject.pid()).unwrap();
        let coverage = self.tracker.cover(&areas).unwrap();
        (coverage.fresh.clone(), coverage.unwatched.clone())
    }

    /// Does something to pages of the first area and scans it: pages that must be read, and those that hold nothing.
    pub(crate) fn after(&mut self, word: &str, first: u64, end: u64, argument: u64) -> (Vec<u64>, Vec<u64>) {
        let area = self.areas[0];
        self.subject.act(word, part(area, first, end), argument);
        split(&self.scan(area))
    }
}

/// Pages that must be read, and pages that hold nothing; of two reports of a page the later one holds.
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

/// Nothing to read, and nothing gone.
pub(crate) const NONE: (Vec<u64>, Vec<u64>) = (Vec::new(), Vec::new());
