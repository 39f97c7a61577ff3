//! What keeping has cost.
//!
//! Owns: moving averages of measured costs.
//! Does not: measure.

use std::time::Duration;

const PAGE: u64 = 4096;
/// Weight of the newest measurement: one in eight.
const WEIGHT: u32 = 8;

/// Measured costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rates {
    /// What one event costs beside keeping: waking the watch and the subject again. Measured here: 8.6 microseconds on
    /// one processor, 48 across (see `docs/design/0022-watching-files.md`).
    pub(super) event: Duration,
    /// Nanoseconds to copy a page into the log.
    page_ns: u32,
    /// Cloning a file.
    pub(super) clone: Duration,
}

impl Default for Rates {
    fn default() -> Self {
        Self { event: Duration::from_micros(20), page_ns: 3_000, clone: Duration::from_millis(1) }
    }
}

impl Rates {
    /// What it costs to copy so many bytes.
    pub(super) fn copy_of(&self, bytes: u64) -> Duration {
        Duration::from_nanos(bytes.div_ceil(PAGE) * u64::from(self.page_ns))
    }

    pub(super) fn note_copy(&mut self, bytes: u64, took: Duration) {
        // Short copies measure the call and not the rate.
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
