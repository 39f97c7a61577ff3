//! The allowed dependencies between the crates of the workspace.
//!
//! Owns: the levels and the edges (allowed dependencies) as data, and their table for ARCHITECTURE.md.
//! Invariants: an edge points to a lower level. An edge between crates of one level needs an explicit entry.
//! Does not: read the real dependencies; `tidy::edges` compares.

use std::fmt::Write as _;

/// The crates of this workspace on which a crate may depend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Allowed {
    /// Only these crates.
    Only(&'static [&'static str]),
    /// Any crate, because the test kit tests all crates together.
    Anything,
}

/// A crate and its edges.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    /// The level of the crate. A crate may depend on crates of lower levels.
    pub level: &'static str,
    /// The name of the crate's directory. The name of the package is `undying-` followed by this name.
    pub name: &'static str,
    /// The allowed dependencies.
    pub allowed: Allowed,
}

/// The crate that other crates may use only in their tests.
pub(crate) const TESTS_ONLY: &str = "testkit";

/// All crates of the workspace, in ascending order of their levels.
pub(crate) const ROWS: &[Row] = &[
    row("L0", "model", &[]),
    row("L0", "sys", &["model"]),
    row("L1", "image", &["model"]),
    row("L1", "tracee", &["sys", "model"]),
    row("L2", "store", &["image", "sys", "model"]),
    row("L2", "track", &["tracee", "sys", "model"]),
    row("L2", "undo", &["store", "image", "sys", "model"]),
    row("L2", "channel", &["tracee", "sys", "model"]),
    row("L2", "resource", &["tracee", "image", "sys", "model"]),
    row("L2", "health", &["tracee", "sys", "model"]),
    row("L3", "engine", &["undo", "store", "track", "resource", "tracee", "image", "sys", "model"]),
    row("L3", "replica", &["engine", "track", "resource", "tracee", "sys", "model"]),
    row("L4", "supervise", &["replica", "engine", "undo", "store", "resource", "tracee", "sys", "model"]),
    row("L4", "power", &["engine", "undo", "store", "resource", "tracee", "sys", "model"]),
    row(
        "L5",
        "guardian",
        &[
            "supervise",
            "power",
            "engine",
            "replica",
            "channel",
            "undo",
            "store",
            "track",
            "resource",
            "health",
            "tracee",
            "image",
            "sys",
            "model",
        ],
    ),
    row("L6", "cli", &["guardian", "model"]),
    Row { level: "–", name: TESTS_ONLY, allowed: Allowed::Anything },
    row("–", "fuzz", &["engine", "store", "resource", "image", "sys", "model"]),
    row("–", "end-to-end", &["testkit", "model"]),
    row("–", "world", &["guardian", "supervise", "undo", "store", "image", "sys", "model"]),
    row("–", "xtask", &[]),
];

const fn row(level: &'static str, name: &'static str, allowed: &'static [&'static str]) -> Row {
    Row { level, name, allowed: Allowed::Only(allowed) }
}

/// Returns the row of a crate, if it has a row.
pub(crate) fn find(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.name == name)
}

/// Returns the table in Markdown, in descending order of the levels.
pub(crate) fn table() -> String {
    let mut text = String::from("| level | crate | may depend on |\n|---|---|---|\n");
    let (crates, tools): (Vec<&Row>, Vec<&Row>) = ROWS.iter().partition(|row| row.level.starts_with('L'));
    for row in crates.into_iter().rev().chain(tools) {
        let allowed = match row.allowed {
            Allowed::Only([]) => "no crate of this workspace".to_owned(),
            Allowed::Only(names) => names.join(", "),
            Allowed::Anything => "any crate; other crates may use it only in tests".to_owned(),
        };
        writeln!(text, "| {} | {} | {allowed} |", row.level, row.name)
            .expect("writing into a String cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_point_to_crates_that_have_a_row_above_their_own() {
        for (index, row) in ROWS.iter().enumerate() {
            let Allowed::Only(names) = row.allowed else { continue };
            for name in names {
                let target = ROWS.iter().position(|other| other.name == *name);
                assert!(target.is_some_and(|target| target < index), "{} -> {name}", row.name);
            }
        }
    }

    #[test]
    fn the_table_starts_at_the_top() {
        let table = table();
        assert!(table.lines().nth(2).is_some_and(|line| line == "| L6 | cli | guardian, model |"), "{table}");
        assert!(table.contains("| L0 | model | no crate of this workspace |"));
    }
}
