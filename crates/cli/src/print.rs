//! How values are shown to people.
//!
//! Owns: durations, sizes and tables as text, JSON as one line after another; talk on stderr.
//! Invariants: a terminal or a reader that is gone ends nothing; what a subject or an image says cannot begin a line or
//! a control sequence of the terminal (`model::Escaped`).
//! Does not: decide what is shown.

use std::io::Write;
use std::time::Duration;

use model::{Escaped, EscapedLines};

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

/// A size in binary units: `712 B`, `4.00 KiB`, `1.25 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

/// Reports something to the operator, on stderr, with control characters escaped. Where stderr has no reader, the
/// work goes on. Line breaks stay: a message has several lines, and escapes what it quotes itself.
pub(crate) fn say(what: std::fmt::Arguments<'_>) {
    // With one write: standard error has no buffer, and lines of two programs may meet there.
    let text = what.to_string();
    let _ = std::io::stderr().write_all(format!("{}\n", EscapedLines(&text)).as_bytes());
}

/// Reports a path without a store: the option may be wrong, or nothing has been run yet.
pub(crate) fn say_if_missing(store: &guardian::StoreLocation) {
    if !store.is_there() {
        say(format_args!("there is no store at {}", store.path().display()));
    }
}

/// Prints text of several lines that escapes what it quotes itself.
pub(crate) fn lines(text: &str) -> std::io::Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{}", EscapedLines(text))?)
}

/// Prints one line of an answer, with control characters escaped, line breaks included.
pub(crate) fn line(what: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    let text = what.to_string();
    Ok(writeln!(std::io::stdout().lock(), "{}", Escaped(&text))?)
}

/// Prints a value as JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// Prints rows with their columns below each other; the last column is not padded. Control characters are escaped.
pub(crate) fn table(head: &[&str], rows: &[Vec<String>]) -> std::io::Result<()> {
    let escaped = |row: &Vec<String>| row.iter().map(|cell| Escaped(cell).to_string()).collect();
    let rows: Vec<Vec<String>> = rows.iter().map(escaped).collect();
    let mut widths: Vec<usize> = head.iter().map(|name| name.chars().count()).collect();
    for row in &rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = std::io::stdout().lock();
    let head: Vec<String> = head.iter().map(|name| (*name).to_owned()).collect();
    for row in std::iter::once(&head).chain(&rows) {
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
        assert_eq!(bytes(4096), "4.00 KiB");
        assert_eq!(bytes(5 << 30), "5.00 GiB");
    }
}
