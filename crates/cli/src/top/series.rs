//! Values of the checkpoints of the last minutes, for each second.
//!
//! Owns: the series of each subject, and the figures over the last seconds.
//! Invariants: a second without a checkpoint counts as zero. Each subject has at most [`LENGTH`] seconds.
//! Does not: read events; the caller does.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use guardian::CheckpointEvent;

/// Maximum number of stored seconds.
pub(super) const LENGTH: usize = 300;
/// The time over which rates and percentiles are computed. With a hundred checkpoints a second, this time is long
/// enough for a 99th percentile.
pub(super) const WINDOW: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Second {
    pub(super) checkpoints: u64,
    /// The longest pause, in microseconds.
    pub(super) pause_us: u64,
    /// Number of pages that were copied before the pause and in the pause.
    pub(super) dirty_pages: u64,
}

#[derive(Debug, Default)]
pub(super) struct Series {
    /// The seconds in ascending order. The last element is the current second.
    seconds: VecDeque<Second>,
    /// The number of the last second, counted from the origin of all series.
    newest: u64,
    /// The checkpoints within [`WINDOW`].
    recent: VecDeque<(Instant, CheckpointEvent)>,
}

/// Figures over the last seconds.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(super) struct Figures {
    /// The median of the pauses in microseconds; `None` without a checkpoint. The next two fields are the 99th
    /// percentile and the maximum.
    pub(super) p50_us: Option<u64>,
    pub(super) p99_us: Option<u64>,
    pub(super) longest_us: Option<u64>,
    pub(super) dirty_pages_each_s: f64,
    pub(super) written_bytes_each_s: f64,
}

/// The series of all subjects, on one time axis.
#[derive(Debug)]
pub(super) struct AllSeries {
    /// The time [`LENGTH`] seconds before the first sample.
    origin: Option<Instant>,
    by_name: BTreeMap<String, Series>,
}

impl AllSeries {
    /// Creates a time axis that begins [`LENGTH`] seconds before `now`.
    pub(super) fn new(now: Instant) -> Self {
        Self { origin: now.checked_sub(Duration::from_secs(LENGTH as u64)), by_name: BTreeMap::new() }
    }

    fn second_of(&self, at: Instant) -> u64 {
        self.origin.and_then(|origin| at.checked_duration_since(origin)).map_or(0, |age| age.as_secs())
    }

    /// Adds a checkpoint that was taken at the time `at`.
    pub(super) fn add(&mut self, name: &str, at: Instant, checkpoint: CheckpointEvent) {
        let number = self.second_of(at);
        let series = self.by_name.entry(name.to_owned()).or_default();
        series.advance(number);
        let back = usize::try_from(series.newest - number.min(series.newest)).unwrap_or(usize::MAX);
        if let Some(place) = series.seconds.len().checked_sub(back + 1) {
            let second = &mut series.seconds[place];
            second.checkpoints += 1;
            second.pause_us = second.pause_us.max(checkpoint.pause_us);
            second.dirty_pages += checkpoint.precopied_pages + checkpoint.residual_pages;
        }
        series.recent.push_back((at, checkpoint));
    }

    /// Advances all series to the current second, and removes old values.
    pub(super) fn advance(&mut self, now: Instant) {
        let number = self.second_of(now);
        for series in self.by_name.values_mut() {
            series.advance(number);
            series.recent.retain(|(at, _)| now.saturating_duration_since(*at) < WINDOW);
        }
    }

    /// Returns the values of one subject for each second. The last value is that of the current second.
    pub(super) fn values(&self, name: &str, of: fn(&Second) -> u64) -> Vec<u64> {
        self.by_name.get(name).map(|series| series.seconds.iter().map(of).collect()).unwrap_or_default()
    }

    pub(super) fn figures(&self, name: &str, now: Instant) -> Figures {
        let Some(series) = self.by_name.get(name) else { return Figures::default() };
        let mut pauses: Vec<u64> = series.recent.iter().map(|(_, one)| one.pause_us).collect();
        pauses.sort_unstable();
        let at = |share: usize| pauses.get(pauses.len().saturating_sub(1) * share / 100).copied();
        // For a subject that has just begun, the span is the time since its first checkpoint.
        let span = series.recent.front().map_or(WINDOW, |(at, _)| now.saturating_duration_since(*at));
        let each_s = |total: u64| total as f64 / span.max(Duration::from_secs(1)).as_secs_f64();
        let total = |of: fn(&CheckpointEvent) -> u64| series.recent.iter().map(|(_, one)| of(one)).sum();
        Figures {
            p50_us: at(50),
            p99_us: at(99),
            longest_us: at(100),
            dirty_pages_each_s: each_s(total(|one| one.precopied_pages + one.residual_pages)),
            written_bytes_each_s: each_s(total(|one| one.bytes)),
        }
    }
}

impl Series {
    fn advance(&mut self, number: u64) {
        if self.seconds.is_empty() {
            self.newest = number;
            self.seconds.push_back(Second::default());
        }
        let missing = usize::try_from(number.saturating_sub(self.newest)).unwrap_or(LENGTH).min(LENGTH);
        for _ in 0..missing {
            self.seconds.push_back(Second::default());
        }
        self.newest = self.newest.max(number);
        while self.seconds.len() > LENGTH {
            self.seconds.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkpoint(pause_us: u64, pages: u64) -> CheckpointEvent {
        CheckpointEvent { pause_us, residual_pages: pages, bytes: pages * 4096, ..CheckpointEvent::default() }
    }

    #[test]
    fn seconds_have_their_checkpoints_and_gaps_are_zero() {
        let start = Instant::now();
        let mut all = AllSeries::new(start);
        let second = |count: u64| start + Duration::from_secs(count);
        all.add("a", second(0), checkpoint(500, 3));
        all.add("a", second(0), checkpoint(900, 4));
        all.add("a", second(3), checkpoint(100, 1));
        all.advance(second(4));
        assert_eq!(all.values("a", |one| one.checkpoints), [2, 0, 0, 1, 0]);
        assert_eq!(all.values("a", |one| one.pause_us), [900, 0, 0, 100, 0]);
        assert_eq!(all.values("a", |one| one.dirty_pages), [7, 0, 0, 1, 0]);
        assert_eq!(all.values("b", |one| one.checkpoints), [0; 0]);
        let figures = all.figures("a", second(4));
        assert_eq!((figures.p50_us, figures.longest_us), (Some(500), Some(900)));
        assert_eq!(figures.dirty_pages_each_s, 2.0);
        all.advance(second(60));
        assert_eq!(all.figures("a", second(60)).p50_us, None);
        all.advance(second(1000));
        assert_eq!(all.values("a", |one| one.checkpoints), vec![0; LENGTH]);
    }

    #[test]
    fn events_of_before_the_first_sample_have_their_place() {
        let now = Instant::now() + Duration::from_secs(1000);
        let mut all = AllSeries::new(now);
        all.add("a", now - Duration::from_secs(2), checkpoint(1, 1));
        all.add("a", now - Duration::from_secs(1), checkpoint(2, 1));
        all.add("a", now - Duration::from_secs(2), checkpoint(5, 1));
        all.advance(now);
        assert_eq!(all.values("a", |one| one.pause_us), [5, 2, 0]);
    }
}
