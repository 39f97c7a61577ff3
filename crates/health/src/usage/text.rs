//! Amounts in files of `/proc` that have a name and a number on each line.
//!
//! Owns: finding one of them.
//! Does not: read the files.

/// The first number behind `name:`.
pub(super) fn amount(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}
