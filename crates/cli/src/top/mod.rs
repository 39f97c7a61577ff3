//! The command `undying top`: a live view of subjects (protected process trees).
//!
//! Owns: the choice between the live view and a single table.
//! Invariants: the view only reads files, and contacts no guardian.
//! Does not: parse arguments; `verb::top` does.

mod model;
mod rows;
mod sampler;
mod screen;
mod series;
mod sparkline;
mod view;

use std::time::Duration;

use guardian::StoreLocation;

use self::sampler::Sampler;
use crate::failure::{Failure, report_left_out};
use crate::{print, shown};

/// Shows the live view until the user or a signal ends the view.
pub(crate) fn live(location: StoreLocation, name: Option<&str>, interval: Duration) -> Result<u8, Failure> {
    screen::show(Sampler::new(location, name)?, interval)?;
    Ok(0)
}

const HEAD: [&str; 12] = [
    "NAME",
    "PID",
    "STATE",
    "RATE",
    "PAUSE P50",
    "P99",
    "MAX",
    "DIRTY/S",
    "WRITTEN/S",
    "STORE",
    "AGE",
    "DEATHS",
];

/// Prints a single table.
pub(crate) fn once(location: StoreLocation, name: Option<&str>) -> Result<u8, Failure> {
    let sample = Sampler::new(location, name)?.sample()?;
    let rows: Vec<Vec<String>> = sample.subjects.iter().map(row).collect();
    print::table(&HEAD, &rows)?;
    let reports: Vec<_> = sample.subjects.into_iter().map(|subject| subject.report).collect();
    shown::tell_unprotected(&reports)?;
    Ok(report_left_out(&sample.failed))
}

fn row(subject: &rows::Subject) -> Vec<String> {
    use rows::Column;
    let figures = &subject.figures;
    let time = |us: Option<u64>| us.map_or("-".to_owned(), |us| print::duration(Duration::from_micros(us)));
    vec![
        subject.name().to_owned(),
        subject.report.pid.to_string(),
        subject.text(Column::State),
        shown::rate(&subject.report),
        time(figures.p50_us),
        time(figures.p99_us),
        time(figures.longest_us),
        format!("{:.0} pages", figures.dirty_pages_each_s),
        print::bytes(figures.written_bytes_each_s as u64),
        print::bytes(subject.report.store_bytes),
        time(subject.report.checkpoint_age_us),
        subject.report.facts.restarts.to_string(),
    ]
}

#[cfg(test)]
mod tests;
