//! The text form of values in output.
//!
//! Owns: durations, sizes and tables as text, JSON values, and messages on standard error.
//! Invariants: a message to a closed terminal or reader does not end this program. Text of a subject or an image cannot
//! begin a line or a control sequence of the terminal (`model::Escaped`).
//! Does not: choose the content of output.

use std::io::Write;
use std::time::Duration;

use model::{Escaped, EscapedLines};

use crate::above;

/// Formats a duration with about three digits: `843 µs`, `12.3 ms`, `4.56 s`.
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

/// Formats a size in binary units: `712 B`, `4.00 KiB`, `1.25 GiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    indicatif::HumanBytes(bytes).to_string()
}

/// Prints a message on standard error, with control characters escaped. An error is ignored, because the command must
/// continue without a reader. Line breaks stay, so a message can have several lines. The caller escapes text that a
/// message quotes.
pub(crate) fn say(what: std::fmt::Arguments<'_>) {
    // Standard error has no buffer. A single write prevents a mix with the lines of another program.
    let _ = std::io::stderr().write_all(message(&what.to_string()).as_bytes());
}

/// Prints a message like [`say`]. On a terminal, the message is above the line of the cursor, which a program uses at the
/// same time.
pub(crate) fn say_beside_program(text: &str) {
    let _ = std::io::stderr().write_all(above::shown(message(text)).as_bytes());
}

/// Returns the line, or the lines, that [`say`] prints.
pub(crate) fn message(text: &str) -> String {
    format!("{}\n", EscapedLines(text))
}

/// Prints a message if the store does not exist. The `--store` option may be wrong, or no program was run yet.
pub(crate) fn say_if_missing(store: &guardian::StoreLocation) {
    if !store.is_there() {
        say(format_args!("there is no store at {}", store.path().display()));
    }
}

/// Prints text of several lines. The caller must already have escaped quoted text.
pub(crate) fn lines(text: &str) -> std::io::Result<()> {
    Ok(writeln!(std::io::stdout().lock(), "{}", EscapedLines(text))?)
}

/// Prints one line of output. Control characters and line breaks are escaped.
pub(crate) fn line(what: std::fmt::Arguments<'_>) -> std::io::Result<()> {
    let text = what.to_string();
    Ok(writeln!(std::io::stdout().lock(), "{}", Escaped(&text))?)
}

pub(crate) fn json(value: &impl serde::Serialize) -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, value)?;
    writeln!(out)?;
    Ok(())
}

/// Prints a table with aligned columns. The last column is not padded. Control characters are escaped.
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
