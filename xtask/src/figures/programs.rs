//! The table of real programs and their test results, from the report of `make field`.
//!
//! Owns: the verdict for a program over all its trials.
//! Does not: run programs; `tests/field/field.py` does.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::rows::read;
use crate::failure::Failure;

const FILE: &str = "benches/results/field.json";

/// The groups of programs, in the order of the table.
const GROUPS: [(&str, &str); 6] = [
    ("server", "servers"),
    ("database", "databases"),
    ("language", "languages and runtimes"),
    ("science", "science"),
    ("build", "builds"),
    ("desktop", "desktop and media"),
];

struct Program {
    name: String,
    version: String,
    group: String,
    /// The verdict for each trial, by the name of the trial.
    verdicts: BTreeMap<String, String>,
}

/// Describes the result of a trial in a few words.
fn verdict(row: &Value) -> String {
    let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
    let count = |key: &str| row[key].as_u64().unwrap_or_default();
    match (text("verdict").as_str(), count("fresh"), count("restored")) {
        ("works", 0, _) => "works".to_owned(),
        ("works", _, 0) => format!("works; starts again after each kill: {}", text("reason")),
        ("works", fresh, restored) => {
            format!("works; starts again after {fresh} of {} kills", fresh + restored)
        }
        (other, ..) => format!("{other}: {}", text("reason")),
    }
}

fn programs(root: &Path) -> Result<(Value, Vec<Program>), Failure> {
    let path = root.join(FILE);
    let report: Value = serde_json::from_str(&read(&path)?)
        .map_err(|error| Failure::Rows { path: path.clone(), what: error.to_string() })?;
    let mut found: BTreeMap<String, Program> = BTreeMap::new();
    for row in report["rows"].as_array().into_iter().flatten() {
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let program = found.entry(text("program")).or_insert_with(|| Program {
            name: text("program"),
            version: text("version"),
            group: text("group"),
            verdicts: BTreeMap::new(),
        });
        program.verdicts.insert(text("trial"), verdict(row));
    }
    if found.is_empty() {
        return Err(Failure::Rows { path, what: "there are no rows".to_owned() });
    }
    Ok((report, found.into_values().collect()))
}

/// Returns a table with one line for each group: programs that continue, start again or fail.
pub(super) fn by_group(root: &Path) -> Result<String, Failure> {
    let (_, programs) = programs(root)?;
    let mut text = "| kind | programs that continue after a kill | programs that start again after a kill | programs that fail |\n\
                    |---|---|---|---|\n"
        .to_owned();
    for (group, title) in GROUPS {
        let mut columns = [Vec::new(), Vec::new(), Vec::new()];
        for program in programs.iter().filter(|program| program.group == group) {
            let is = |word: &str| program.verdicts.values().all(|verdict| verdict.starts_with(word));
            let place = match (
                is("works"),
                program.verdicts.values().any(|verdict| verdict.contains("starts again")),
            ) {
                (true, false) => 0,
                (true, true) => 1,
                (false, _) => 2,
            };
            columns[place].push(program.name.as_str());
        }
        let [whole, fresh, rest] =
            columns.map(|names| if names.is_empty() { "–".to_owned() } else { names.join(", ") });
        let _ = writeln!(text, "| {title} | {whole} | {fresh} | {rest} |");
    }
    let works = programs
        .iter()
        .filter(|one| one.verdicts.values().all(|verdict| verdict.starts_with("works")))
        .count();
    let _ = write!(text, "\n{works} of {} programs pass both trials.", programs.len());
    Ok(text)
}

/// Returns a table of all programs with their versions and trials.
pub(super) fn all(root: &Path) -> Result<String, Failure> {
    let (report, programs) = programs(root)?;
    let mut text =
        "| program | version | kind | checkpoint and restore | run with three kills |\n|---|---|---|---|---|\n"
            .to_owned();
    for program in &programs {
        let of = |trial: &str| program.verdicts.get(trial).map_or("–", String::as_str);
        let Program { name, version, group, .. } = program;
        let _ = writeln!(text, "| {name} | {version} | {group} | {} | {} |", of("one-shot"), of("run"));
    }
    let fact = |key: &str| report[key].to_string().trim_matches('"').to_owned();
    let facts =
        ["command", "commit", "kernel", "processors", "time"].map(|key| format!("{key}: {}", fact(key)));
    let _ = write!(text, "\n[field.json](field.json): {}.", facts.join("; "));
    Ok(text)
}
