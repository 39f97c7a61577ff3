//! How fast a subject writes to pages, as recent scans show.
//!
//! Owns: the counts of the newest scan, and the highest recent rate.
//! Does not: read a clock, or scan.

use std::time::{Duration, Instant};

use model::PageCount;

/// A former value loses `1 / MEMORY` of its size with each scan or each epoch.
const MEMORY: u32 = 8;

/// The number of pages that the newest scan found, and the time between the previous scan and the newest scan.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    at: Option<Instant>,
    pages: PageCount,
    over: Duration,
    /// The largest number of pages that a scan of the recent epochs has found. The scans of one epoch can follow each other
    /// closely, and then find few of the pages that the subject writes.
    most: PageCount,
    /// The highest rate of recent scans, in pages per second. A scan after a long time shows a low rate, because the
    /// subject has written the same pages many times.
    fastest: f64,
}

impl Pace {
    /// Records a scan: its start time `at`, and the number of pages that it has found.
    pub(super) fn scanned(&mut self, at: Instant, pages: PageCount) {
        self.over = self.at.map_or(Duration::ZERO, |before| at.saturating_duration_since(before));
        (self.at, self.pages) = (Some(at), pages);
        if !self.over.is_zero() {
            let rate = pages.get() as f64 / self.over.as_secs_f64();
            self.fastest = rate.max(self.fastest - self.fastest / f64::from(MEMORY));
        }
        self.most = self.most.max(pages);
    }

    pub(super) fn epoch_ended(&mut self) {
        self.most = PageCount(self.most.get() - self.most.get() / u64::from(MEMORY));
    }

    /// Predicts how many pages the subject has dirtied between the newest scan and `now`, if the subject writes
    /// as before. The prediction grows in proportion to the time, up to the number of pages that the subject has
    /// lately written at all. A page that is written again counts only once.
    pub(super) fn since(&self, now: Instant) -> PageCount {
        self.at.map_or(PageCount(0), |at| self.within(now.saturating_duration_since(at)))
    }

    /// Predicts how many pages the subject dirties in this time after a scan, as [`Self::since`] does.
    pub(super) fn within(&self, time: Duration) -> PageCount {
        let time = time.as_nanos();
        // After a single scan, the time in which the pages were dirtied is unknown.
        let over = if self.over.is_zero() { time } else { self.over.as_nanos() };
        let pages = u128::from(self.pages.get()) * time / over.max(1);
        PageCount(u64::try_from(pages).unwrap_or(u64::MAX)).min(self.most)
    }

    /// Predicts how long the subject will run until it has written this many pages, if it writes as fast as lately.
    pub(super) fn time_for(&self, pages: PageCount) -> Duration {
        if pages >= self.most || self.fastest <= 0.0 {
            return Duration::MAX;
        }
        Duration::try_from_secs_f64(pages.get() as f64 / self.fastest).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subject_goes_on_as_it_did() {
        let begun = Instant::now();
        let after = |millis| begun + Duration::from_millis(millis);
        let mut pace = Pace::default();
        assert_eq!(pace.since(after(5)), PageCount(0));
        pace.scanned(begun, PageCount(300));
        assert_eq!(pace.since(after(2)), PageCount(300));
        pace.scanned(after(10), PageCount(1000));
        assert_eq!(pace.since(after(10)), PageCount(0));
        assert_eq!(pace.since(after(12)), PageCount(200));
        assert_eq!(pace.within(Duration::from_millis(3)), PageCount(300));
        pace.scanned(after(12), PageCount(150));
        assert_eq!(pace.since(after(16)), PageCount(300));
        assert_eq!(pace.since(after(1000)), PageCount(1000), "the subject writes to the same pages again");
        pace.epoch_ended();
        assert_eq!(pace.since(after(1000)), PageCount(875));
        pace.scanned(after(20), PageCount(0));
        assert_eq!(pace.since(after(1000)), PageCount(0));
    }

    #[test]
    fn the_fastest_recent_scan_predicts_how_soon_pages_are_written() {
        let begun = Instant::now();
        let mut pace = Pace::default();
        assert_eq!(pace.time_for(PageCount(10)), Duration::MAX);
        pace.scanned(begun, PageCount(1000));
        pace.scanned(begun + Duration::from_millis(10), PageCount(500));
        // In 5 s, the subject has written the same pages many times.
        pace.scanned(begun + Duration::from_secs(5), PageCount(1000));
        let soon = pace.time_for(PageCount(100));
        assert!((Duration::from_millis(2)..Duration::from_millis(3)).contains(&soon), "{soon:?}");
        assert_eq!(pace.time_for(PageCount(1000)), Duration::MAX, "it never writes more pages");
    }
}
