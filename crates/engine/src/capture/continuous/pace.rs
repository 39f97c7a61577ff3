//! How fast a subject dirties pages.
//!
//! Owns: when it was scanned last, and what that found; the guess what it has dirtied since.
//! Does not: look.

use std::time::{Duration, Instant};

use model::PageCount;

/// What the last scan found, and over how long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pace {
    at: Option<Instant>,
    pages: PageCount,
    over: Duration,
}

impl Pace {
    /// A scan that began then found so many.
    pub(super) fn scanned(&mut self, at: Instant, pages: PageCount) {
        self.over = self.at.map_or(Duration::ZERO, |before| at.saturating_duration_since(before));
        (self.at, self.pages) = (Some(at), pages);
    }

    /// As many as it has dirtied by then if it went on like that: at most what it dirtied before for each time as long,
    /// since pages that are dirtied again count once.
    pub(super) fn since(&self, now: Instant) -> PageCount {
        let Some(at) = self.at else { return PageCount(0) };
        let since = now.saturating_duration_since(at).as_nanos();
        // After one scan alone nobody knows how long it took to dirty them.
        let over = if self.over.is_zero() { since } else { self.over.as_nanos() };
        let pages = u128::from(self.pages.get()) * since / over.max(1);
        PageCount(u64::try_from(pages).unwrap_or(u64::MAX))
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
        pace.scanned(after(12), PageCount(150));
        assert_eq!(pace.since(after(16)), PageCount(300));
        pace.scanned(after(20), PageCount(0));
        assert_eq!(pace.since(after(1000)), PageCount(0));
    }
}
