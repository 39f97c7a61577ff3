//! Numbers in files of `/proc` whose lines have the form `name: number`.
//!
//! Owns: the search for a number.
//! Does not: read the files.

/// Returns the first number after `name:`.
pub(super) fn amount(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse().ok()
}
