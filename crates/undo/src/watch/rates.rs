//! Measured costs of recording old content.
//!
//! Owns: moving averages of the measured costs.
//! Does not: measure; the callers do.

use std::time::Duration;

const PAGE: u64 = 4096;
/// The newest measurement has a weight of one eighth.
const WEIGHT: u32 = 8;

/// Measured costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// Cost of one event without recording: waking the watch, and then waking the subject. Measured: 8.6 µs on one
    /// processor, 48 µs across two processors (see `docs/design/0022-watching-files.md`).
    pub(super) event: Duration,
    /// Time to copy a page into the log, in nanoseconds.
    page_ns: u32,
    /// Time to clone a file.
    pub(super) clone: Duration,
}

impl Default for Rates {
    fn default() -> Self {
        Self { event: Duration::from_micros(20), page_ns: 3_000, clone: Duration::from_millis(1) }
    }
}

impl Rates {
    /// Returns the expected time to copy `bytes` bytes.
    pub(super) fn copy_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes.div_ceil(PAGE) * u64::from(self.page_ns))
    }

    pub(super) fn note_copy(&mut self, bytes: u64, took: Duration) {
        // A short copy measures the overhead of the calls, and not the rate.
        const SHORT: u64 = 1 << 18;
        if bytes >= SHORT {
            let page = (took.as_nanos() as u64 * PAGE / bytes).min(u64::from(u32::MAX)) as u32;
            self.page_ns = self.page_ns - self.page_ns / WEIGHT + page / WEIGHT;
        }
    }

    pub(super) fn note_clone(&mut self, took: Duration) {
        self.clone = self.clone - self.clone / WEIGHT + took / WEIGHT;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_follow_what_is_measured() {
        let mut rates = Rates::default();
        let before = rates.copy_of(1 << 20);
        for _ in 0..100 {
            rates.note_copy(1 << 20, Duration::from_micros(100));
        }
        let after = rates.copy_of(1 << 20);
        assert!(after < before / 4 && after >= Duration::from_micros(90), "{after:?}");
        rates.note_copy(1, Duration::from_secs(1));
        assert_eq!(rates.copy_of(1 << 20), after);
    }
}
