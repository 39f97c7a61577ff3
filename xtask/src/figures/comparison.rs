//! The table that compares the checkpoint and restore commands of `undying` and of CRIU, for the same programs.
//!
//! Owns: the choice of figures, and their names.
//! Does not: measure; `benches/checkpoint_restore.py` does.

use std::fmt::Write as _;
use std::path::Path;

use super::rows::{Table, figure};
use crate::failure::Failure;

const FILE: &str = "benches/results/checkpoint-restore.csv";

const SUBJECTS: [(&str, &str); 3] =
    [("tiny", "a small process"), ("gib", "1 GiB of touched memory"), ("redis", "redis with a million keys")];

const FIGURES: [(&str, &str); 4] = [
    ("pause_ms", "pause of the program for a checkpoint"),
    ("checkpoint_ms", "duration of the checkpoint command"),
    ("restore_ms", "restore from an image in the page cache"),
    ("lazy_first_ms", "lazy restore until the first instruction"),
];

pub(super) fn short(root: &Path) -> Result<String, Failure> {
    table(root, &FIGURES)
}

pub(super) fn whole(root: &Path) -> Result<String, Failure> {
    let mut figures = FIGURES.to_vec();
    figures.insert(2, ("restore_cold_ms", "first restore after the checkpoint"));
    let text = table(root, &figures)?;
    let rows = Table::read(&root.join(FILE))?;
    Ok(format!("{text}\n{}", rows.source("checkpoint-restore.csv")))
}

fn table(root: &Path, figures: &[(&str, &str)]) -> Result<String, Failure> {
    let rows = Table::read(&root.join(FILE))?;
    let mut text = "| median duration, ms | program | undying | CRIU 4.2 |\n|---|---|---|---|\n".to_owned();
    for (column, what) in figures {
        for (subject, name) in SUBJECTS {
            let of = |tool| rows.median(&[("subject", subject), ("tool", tool)], column).map(figure);
            let Some(own) = of("undying") else { continue };
            // Writing to a string never fails.
            let _ = writeln!(
                text,
                "| {what} | {name} | {own} | {} |",
                of("criu").unwrap_or_else(|| "–".to_owned())
            );
        }
    }
    Ok(text)
}
