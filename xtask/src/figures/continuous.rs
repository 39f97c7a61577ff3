//! The table of the cost of periodic checkpoints for a program and for its clients.
//!
//! Owns: the choice of figures, and their names.
//! Does not: measure; `benches/continuous_pause.py` and `benches/continuous_redis.py` do.

use std::fmt::Write as _;
use std::path::Path;

use super::rows::{Table, figure};
use crate::failure::Failure;

const PAUSE: &str = "benches/results/continuous-pause.csv";
const REDIS: &str = "benches/results/continuous-redis.csv";
/// Fractions of the peak load, as they appear in the rows and in the table.
const LOADS: [(&str, &str); 2] = [("0.15", "15 %"), ("0.5", "50 %")];
const MODES: [(&str, &str); 4] = [
    ("1", "1 checkpoint a second"),
    ("20", "20 a second"),
    ("100", "100 a second"),
    ("bgsave", "BGSAVE instead"),
];

/// Returns the table of pauses for each rate of checkpoints.
pub(super) fn short(root: &Path) -> Result<String, Failure> {
    let rows = Table::read(&root.join(PAUSE))?;
    let mut text = "| requested checkpoints per second | achieved | median pause, ms | 99th percentile of the pause, ms |\n\
                    |---|---|---|---|\n"
        .to_owned();
    for hz in ["1", "20", "100"] {
        let wanted = [("hz", hz), ("with", "1")];
        let of = |column: &str| rows.median(&wanted, column);
        let Some((achieved, (p50, p99))) = of("achieved_hz").zip(of("pause_us_p50").zip(of("pause_us_p99")))
        else {
            continue;
        };
        let _ =
            writeln!(text, "| {hz} | {} | {} | {} |", figure(achieved), figure(p50 / 1e3), figure(p99 / 1e3));
    }
    Ok(text)
}

/// Returns the table of pauses, and a table of the effects on clients of redis.
pub(super) fn whole(root: &Path) -> Result<String, Failure> {
    let pause = Table::read(&root.join(PAUSE))?;
    let rows = Table::read(&root.join(REDIS))?;
    let mut text = format!(
        "A program of 1 GiB, of which a thread writes 10,000 pages a second:\n\n{}\n{}\n\n\
         Redis with a million keys, SET at a part of its peak load:\n\n",
        short(root)?,
        pause.source("continuous-pause.csv")
    );
    text.push_str(
        "| load | | achieved a second | pause, median, ms | pause, 99th percentile, ms | throughput kept | \
         median time of a request, ratio | 99th percentile, ratio |\n|---|---|---|---|---|---|---|---|\n",
    );
    for (load, part) in LOADS {
        for (mode, name) in MODES {
            let wanted = [("load", load), ("mode", mode)];
            let of = |column: &str, unit: f64| {
                rows.median(&wanted, column).map_or_else(|| "–".to_owned(), |number| figure(number / unit))
            };
            let _ = writeln!(
                text,
                "| {part} | {name} | {} | {} | {} | {} | {} | {} |",
                of("achieved_hz", 1.0),
                of("pause_us_p50", 1e3),
                of("pause_us_p99", 1e3),
                of("kept", 1.0),
                of("p50_ratio", 1.0),
                of("p99_ratio", 1.0),
            );
        }
    }
    let _ = write!(text, "\n{}", rows.source("continuous-redis.csv"));
    Ok(text)
}
