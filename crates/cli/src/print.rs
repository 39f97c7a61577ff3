//! How values are shown to people.
//!
//! Owns: durations, sizes and tables as text, JSON as one line after another; talk on stderr.
//! Invariants: a terminal or a reader that is gone ends nothing.
//! Does not: decide what is shown.

use std::io::Write;
use std::time::Duration;

use crate::failure::Failure;

/// A duration with three figures or so: `843 µs`, `12.3 ms`, `4.56 s`.
pub(crate) fn duration(duration: Duration) -> String {
    let microseconds = duration.as_secs_f64() * 1e6;
    if microseconds < 1000.0 {
        format!("{microseconds:.0} µs")
    } else if microseconds < 1e6 {
        format!("{:.1} ms", microseconds / 1e3)
    } else {
        format!("{:.2} s", microseconds / 1e6)
    }
}

/// A size in binary units: `712 B`, `4.0 KiB`, `1.2 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 4] = ["KiB", "MiB", "GiB", "TiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Says something to the operator, on stderr. Where nobody listens any more, the work goes on.
pub(crate) fn say(what: std::fmt::Arguments<'_>) {
    // With one write: standard error has no buffer, and lines of two programs may meet there.
    let _ = std::io::stderr().write_all(format!("{what}\n").as_bytes());
}

/// Prints a value as JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// Prints rows with their columns below each other; the last column is not padded.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> Result<(), Failure> {
    let mut widths: Vec<usize> = head.iter().map(|name| name.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = std::io::stdout().lock();
    let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(&format!("{cell:width$}  "));
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        assert_eq!(duration(Duration::from_micros(843)), "843 µs");
        assert_eq!(duration(Duration::from_micros(12_345)), "12.3 ms");
        assert_eq!(duration(Duration::from_millis(4560)), "4.56 s");
        assert_eq!(bytes(712), "712 B");
        assert_eq!(bytes(4096), "4.0 KiB");
        assert_eq!(bytes(5 << 30), "5.0 GiB");
    }
}
