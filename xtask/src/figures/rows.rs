//! The rows that benchmarks write: comment lines with `#`, one line of column names, and values without quotes.
//!
//! Owns: reading rows, computing medians, and formatting figures.
//! Does not: interpret columns.

use std::collections::BTreeMap;
use std::path::Path;

use crate::failure::Failure;

/// One row: a value for each column name.
pub(super) type Row = BTreeMap<String, String>;

/// Reads a text file.
pub(super) fn read(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path).map_err(|source| Failure::Read { path: path.to_path_buf(), source })
}

/// Rows with their comment lines: command, commit, kernel, machine.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) head: Vec<String>,
    pub(super) rows: Vec<Row>,
}

impl Table {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        Self::parse(&read(path)?).ok_or_else(|| Failure::Rows {
            path: path.to_path_buf(),
            what: "a row has too few columns".to_owned(),
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let (head, lines): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| line.starts_with('#'));
        let mut lines = lines.into_iter();
        let names: Vec<&str> = lines.next()?.split(',').collect();
        let rows = lines.map(|line| {
            let values: Vec<&str> = line.split(',').collect();
            let is_whole = values.len() == names.len();
            is_whole.then(|| {
                names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), value.to_owned())).collect()
            })
        });
        let head = head.into_iter().map(|line| line.trim_start_matches(['#', ' ']).to_owned()).collect();
        Some(Self { head, rows: rows.collect::<Option<Vec<Row>>>()? })
    }

    /// Returns the numbers of a column, for all rows that have the wanted values.
    pub(super) fn numbers(&self, wanted: &[(&str, &str)], column: &str) -> Vec<f64> {
        let is_wanted =
            |row: &&Row| wanted.iter().all(|(name, value)| row.get(*name).is_some_and(|own| own == value));
        let rows = self.rows.iter().filter(is_wanted);
        rows.filter_map(|row| row.get(column)?.parse().ok())
            .filter(|number: &f64| number.is_finite())
            .collect()
    }

    /// Returns the median of a column for the same rows; `None` if there is no number.
    pub(super) fn median(&self, wanted: &[(&str, &str)], column: &str) -> Option<f64> {
        let mut numbers = self.numbers(wanted, column);
        numbers.sort_by(f64::total_cmp);
        let (low, high) = (numbers.len().checked_sub(1)? / 2, numbers.len() / 2);
        Some((numbers[low] + numbers[high]) / 2.0)
    }

    /// Returns the comment lines as one sentence for the text below a table.
    pub(super) fn source(&self, link: &str) -> String {
        let facts: Vec<&str> = self.head.iter().map(String::as_str).collect();
        format!("[{link}]({link}): {}.", facts.join("; "))
    }
}

/// Formats a number with two significant digits. Numbers from a hundred are formatted as integers.
pub(super) fn figure(number: f64) -> String {
    match number {
        n if n >= 100.0 => format!("{n:.0}"),
        n if n >= 10.0 => format!("{n:.0}"),
        n if n >= 1.0 => format!("{n:.1}"),
        n => format!("{n:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_medians_by_what_they_belong_to() {
        let table = Table::parse("# command: x\n# kernel y\na,b\np,1\np,3\nq,9\np,nan\n").unwrap();
        assert_eq!(table.head, ["command: x", "kernel y"]);
        assert_eq!(table.median(&[("a", "p")], "b"), Some(2.0));
        assert_eq!(table.median(&[("a", "q")], "b"), Some(9.0));
        assert_eq!(table.median(&[("a", "r")], "b"), None);
        assert!(Table::parse("a,b\n1\n").is_none());
    }

    #[test]
    fn figures_have_the_digits_that_count() {
        assert_eq!([0.716, 4.67, 39.69, 729.48].map(figure), ["0.72", "4.7", "40", "729"]);
    }
}
