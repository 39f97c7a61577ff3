//! The subjects (protected process trees) as rows, and the order of the rows.
//!
//! Owns: the columns, their text, and sorting.
//! Does not: draw.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use guardian::SubjectReport;

use super::series::{AllSeries, Figures};
use crate::{print, shown};

/// A column, by which the rows can be sorted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Column {
    #[default]
    Name,
    State,
    Rate,
    P50,
    P99,
    Dirty,
    Store,
    Age,
    Deaths,
}

impl Column {
    /// All columns in the order on the screen: the column, its heading and its width in characters.
    pub(super) const ALL: [(Self, &'static str, usize); 9] = [
        (Self::Name, "NAME", 10),
        (Self::State, "STATE", 11),
        (Self::Rate, "RATE", 11),
        (Self::P50, "P50", 7),
        (Self::P99, "P99", 7),
        (Self::Dirty, "DIRTY/S", 7),
        (Self::Store, "STORE", 10),
        (Self::Age, "AGE", 7),
        (Self::Deaths, "D", 2),
    ];

    /// Returns the next column. The first column follows the last column.
    pub(super) fn next(self) -> Self {
        let place = Self::ALL.iter().position(|(column, ..)| *column == self).unwrap_or(0);
        Self::ALL[(place + 1) % Self::ALL.len()].0
    }
}

#[derive(Clone, Debug)]
pub(super) struct Subject {
    pub(super) report: SubjectReport,
    pub(super) figures: Figures,
}

impl Subject {
    pub(super) fn all(reports: Vec<SubjectReport>, series: &AllSeries, now: Instant) -> Vec<Self> {
        let of = |report: SubjectReport| Self { figures: series.figures(&report.facts.name, now), report };
        reports.into_iter().map(of).collect()
    }

    pub(super) fn name(&self) -> &str {
        &self.report.facts.name
    }

    pub(super) fn text(&self, column: Column) -> String {
        let time = |us: Option<u64>| us.map_or("-".to_owned(), |us| short(Duration::from_micros(us)));
        match column {
            Column::Name => self.name().to_owned(),
            Column::State => shown::state(&self.report),
            Column::Rate => shown::rate(&self.report).trim_end_matches(" Hz").to_owned(),
            Column::P50 => time(self.figures.p50_us),
            Column::P99 => time(self.figures.p99_us),
            Column::Dirty => count(self.figures.dirty_pages_each_s),
            Column::Store => print::bytes(self.report.store_bytes),
            Column::Age => time(self.report.checkpoint_age_us),
            Column::Deaths => self.report.facts.restarts.to_string(),
        }
    }

    fn compare(&self, other: &Self, column: Column) -> Ordering {
        let number = |one: f64, two: f64| two.total_cmp(&one);
        let (own, others) = (&self.report, &other.report);
        let order = match column {
            Column::Name => Ordering::Equal,
            Column::State => shown::state(own).cmp(&shown::state(others)),
            Column::Rate => number(own.facts.achieved_hz, others.facts.achieved_hz),
            Column::P50 => other.figures.p50_us.cmp(&self.figures.p50_us),
            Column::P99 => other.figures.p99_us.cmp(&self.figures.p99_us),
            Column::Dirty => number(self.figures.dirty_pages_each_s, other.figures.dirty_pages_each_s),
            Column::Store => others.store_bytes.cmp(&own.store_bytes),
            Column::Age => others.checkpoint_age_us.cmp(&own.checkpoint_age_us),
            Column::Deaths => others.facts.restarts.cmp(&own.facts.restarts),
        };
        order.then_with(|| self.name().cmp(other.name()))
    }
}

/// Formats a duration in at most six characters: `843 µs`, `3.8 ms`, `159 ms`, `4.2 s`, `12 min`, `30 h`.
fn short(duration: Duration) -> String {
    let seconds = duration.as_secs_f64();
    match seconds {
        s if s < 1e-3 => format!("{:.0} µs", s * 1e6),
        s if s < 0.01 => format!("{:.1} ms", s * 1e3),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 10.0 => format!("{s:.1} s"),
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3600.0),
    }
}

/// Formats a number of pages in few characters.
fn count(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{:.1}M", n / 1e6),
        n if n >= 1e4 => format!("{:.0}k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

/// Sorts subjects: numbers in descending order, names and states in alphabetical order. With `is_reversed`, the order
/// is reversed.
pub(super) fn sort(subjects: &mut [Subject], column: Column, is_reversed: bool) {
    subjects.sort_by(|one, two| {
        let order = one.compare(two, column);
        if is_reversed { order.reverse() } else { order }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_and_counts_fit_their_columns() {
        let texts = [(843, "843 µs"), (3_812, "3.8 ms"), (158_800, "159 ms"), (4_200_000, "4.2 s")];
        for (us, text) in texts {
            assert_eq!(short(Duration::from_micros(us)), text);
        }
        assert_eq!([700, 100_000].map(|seconds| short(Duration::from_secs(seconds))), ["12 min", "28 h"]);
        assert_eq!([12.0, 12_345.0, 3.2e6].map(count), ["12", "12k", "3.2M"]);
    }
}
