//! The table of failures that clients of killed servers have seen, copied from a document.
//!
//! Owns: the choice of rows and columns.
//! Does not: measure; `tests/campaigns/channels.py` does.

use std::fmt::Write as _;
use std::path::Path;

use super::rows::read;
use crate::failure::Failure;

const FILE: &str = "docs/operating/channels.md";
/// The columns of the table in the document, and their headings in the output.
const COLUMNS: [(&str, &str); 6] = [
    ("server", "server"),
    ("kills", "kills"),
    ("failed", "requests refused or failed"),
    ("answers lost", "replies lost"),
    ("done twice", "requests executed twice"),
    ("back after, ms", "time until ready, ms, median (longest)"),
];

/// Returns the rows of servers with the policy `committed`, whose output is held until a checkpoint contains it.
pub(super) fn committed(root: &Path) -> Result<String, Failure> {
    let path = root.join(FILE);
    let text = read(&path)?;
    let lines = text.lines().filter(|line| line.starts_with('|'));
    let cells = lines.map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let mut cells = cells.skip_while(|row| row.first() != Some(&"server"));
    let failed = |what: &str| Failure::Rows { path: path.clone(), what: what.to_owned() };
    let head = cells.next().ok_or_else(|| failed("no table of servers"))?;
    let place = |name: &str| head.iter().position(|own| *own == name).ok_or_else(|| failed(name));
    let places = COLUMNS.map(|(name, _)| place(name));
    let policy = place("policy")?;
    let mut out =
        format!("| {} |\n|{}\n", COLUMNS.map(|(_, name)| name).join(" | "), "---|".repeat(COLUMNS.len()));
    for row in cells.filter(|row| row.get(policy) == Some(&"committed")) {
        let mut shown = Vec::new();
        for place in &places {
            let place = place.as_ref().map_err(|_| failed("a column is missing"))?;
            let cell = row.get(*place).copied().unwrap_or_default();
            // The cell has the form `100 (again 7, root 93)`. Only the total is shown, without the killed processes.
            let cell = if shown.len() == 1 { cell.split(' ').next().unwrap_or(cell) } else { cell };
            shown.push(if cell.is_empty() { "not counted" } else { cell });
        }
        let _ = writeln!(out, "| {} |", shown.join(" | "));
    }
    Ok(out)
}
