//! The command `cargo xtask trackers`: tests every tracker on this kernel and on emulated kernels, and prints a table.
//! A tracker is a mechanism that finds changed pages.
//!
//! Owns: the choice of tests for the trackers, the numbers of passed and failed tests, and the table.
//! Invariants: a test run that did not end, or whose tests were not counted, is a failure.
//! Does not: know the trackers of a kernel. The tests themselves print `unsupported`.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use clap::Args;

use crate::failure::Failure;
use crate::vm::{self, Build, Line, at};

/// The trackers, with the names that `--tracker` accepts.
const TRACKERS: &[&str] = &["pagemap-scan", "soft-dirty", "full"];
/// The value of `--on` for the kernel of this machine.
const HERE: &str = "here";
/// The prefix of a line that names the next command, in the output of the emulated machine.
const HEADING: &str = "vm: ";

/// The options of `cargo xtask trackers`.
#[derive(Args)]
pub(crate) struct Options {
    /// A kernel to run on: `here`, or a series of Debian's for an emulated machine; may be given more than once
    #[arg(long = "on", value_name = "KERNEL", default_values = [HERE, "6.1"])]
    kernels: Vec<String>,
    /// Minutes after which an emulated machine is stopped
    #[arg(long, value_name = "MINUTES", default_value_t = 90)]
    limit: u64,
    /// Write all that was said, and the table, to this file
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

/// One row of the table.
struct Row {
    name: String,
    line: String,
}

/// The results of the tests of one command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Tally {
    passed: u64,
    unsupported: u64,
    failed: u64,
    /// Whether the command printed its number of tests and exited with status 0.
    ended_well: bool,
}

/// The results on one kernel.
struct Column {
    kernel: String,
    said: Vec<String>,
    tallies: Vec<Tally>,
}

/// Runs all tests on all kernels. Returns whether no test failed.
pub(crate) fn run(options: &Options) -> Result<bool, Failure> {
    if options.kernels.iter().any(|kernel| kernel != HERE) {
        // The tools are checked first, so that a missing tool is reported before the tests on this kernel.
        vm::require_tools()?;
    }
    let rows = rows();
    let lines = rows.iter().map(|row| Line::parse(&row.line)).collect::<Result<Vec<_>, _>>()?;
    let build = vm::build(&lines)?;
    let limit = Duration::from_secs(60 * options.limit);
    let mut columns = Vec::new();
    for kernel in &options.kernels {
        let column = if kernel == HERE { here(&build)? } else { there(kernel, &build, limit)? };
        columns.push(column);
    }
    let table = table(&rows, &columns);
    print!("\n{table}");
    if let Some(path) = &options.report {
        fs::write(path, report(&rows, &columns, &table, &build.root)).map_err(at(path))?;
    }
    Ok(columns.iter().flat_map(|column| &column.tallies).all(Tally::is_good))
}

fn rows() -> Vec<Row> {
    let row = |name: String, line: String| Row { name, line };
    let restart = TRACKERS.iter().map(|tracker| {
        let test = "testkit/victims restart/ --test-threads=1 --color=never";
        row(format!("restart, {tracker}"), format!("UNDYING_TEST_TRACKER={tracker} {test}"))
    });
    let continuous = TRACKERS.iter().map(|tracker| {
        let test = "engine/all with_the_best_tracker --show-output --color=never";
        row(format!("continuous, {tracker}"), format!("UNDYING_TEST_TRACKER={tracker} {test}"))
    });
    let restore = "testkit/victims restore/ --test-threads=1 --color=never".to_owned();
    restart.chain(continuous).chain([row("restore".to_owned(), restore)]).collect()
}

/// Runs the command lines on the kernel of this machine.
fn here(build: &Build) -> Result<Column, Failure> {
    let release = vm::output(Command::new("uname").arg("-r"))?;
    let mut column = Column { kernel: release.trim().to_owned(), said: Vec::new(), tallies: Vec::new() };
    for line in &build.lines {
        println!("{HEADING}{line}");
        let failed = |source| Failure::Command { command: line.clone(), source };
        let script = format!("exec 2>&1\n{line}");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        let output = child.stdout.take().expect("the pipe was asked for two lines above");
        let mut said = String::new();
        for part in BufReader::new(output).split(b'\n') {
            let part = part.map_err(failed)?;
            let text = String::from_utf8_lossy(&part);
            println!("{text}");
            said.push_str(&text);
            said.push('\n');
        }
        let status = child.wait().map_err(failed)?;
        column.tallies.push(tally(&said, status.code()));
        column.said.push(said);
    }
    Ok(column)
}

/// Runs the command lines on an emulated machine.
fn there(series: &str, build: &Build, limit: Duration) -> Result<Column, Failure> {
    let ran = vm::boot(series, None, build, limit)?;
    let mut said: Vec<String> = split(&ran.said);
    said.resize(build.lines.len(), String::new());
    let status =
        |line| ran.outcomes.iter().find(|outcome| outcome.line == line).map(|outcome| outcome.status);
    let tallies = said.iter().enumerate().map(|(line, said)| tally(said, status(line))).collect();
    Ok(Column { kernel: format!("{} (emulated)", ran.release), said, tallies })
}

/// Splits the output into one part for each heading.
fn split(said: &str) -> Vec<String> {
    let mut parts: Vec<String> = Vec::new();
    for line in said.lines() {
        if line.starts_with(HEADING) {
            parts.push(String::new());
        } else if let Some(part) = parts.last_mut() {
            part.push_str(line.trim_end_matches('\r'));
            part.push('\n');
        }
    }
    parts
}

/// Counts the tests in lines like `test result: ok. 3 passed; 0 failed; 1 ignored; …`. A test that cannot run prints
/// the reason. libtest counts such a test as ignored or as passed.
fn tally(said: &str, status: Option<i32>) -> Tally {
    let mut tally = Tally::default();
    let (mut ignored, mut told, mut results) = (0, 0, 0);
    for line in said.lines() {
        told += u64::from(line.starts_with("unsupported: "));
        let Some(counts) = line.strip_prefix("test result: ") else { continue };
        results += 1;
        for part in counts.split([';', '.']) {
            let mut words = part.split_whitespace();
            let number = words.next().and_then(|word| word.parse::<u64>().ok());
            match (number, words.next()) {
                (Some(number), Some("passed")) => tally.passed += number,
                (Some(number), Some("failed")) => tally.failed += number,
                (Some(number), Some("ignored")) => ignored += number,
                _ => {}
            }
        }
    }
    tally.unsupported = told.max(ignored);
    tally.passed = (tally.passed + ignored).saturating_sub(tally.unsupported);
    tally.ended_well = results == 1 && status == Some(0);
    tally
}

impl Tally {
    fn is_good(&self) -> bool {
        self.ended_well && self.failed == 0 && self.passed + self.unsupported > 0
    }

    fn cell(&self) -> String {
        let counts = format!("{} / {} / {}", self.passed, self.unsupported, self.failed);
        if self.is_good() || self.failed > 0 { counts } else { format!("{counts}, broken off") }
    }
}

/// Formats the table in Markdown, with a row for each test and a column for each kernel.
fn table(rows: &[Row], columns: &[Column]) -> String {
    let mut text = "| passed / unsupported / failed |".to_owned();
    columns.iter().for_each(|column| text.push_str(&format!(" {} |", column.kernel)));
    text.push_str("\n|---|");
    text.push_str(&"---|".repeat(columns.len()));
    text.push('\n');
    for (number, row) in rows.iter().enumerate() {
        text.push_str(&format!("| {} |", row.name));
        for column in columns {
            text.push_str(&format!(" {} |", column.tallies[number].cell()));
        }
        text.push('\n');
    }
    text
}

/// Returns the table and the whole output. The path of the workspace is removed.
fn report(rows: &[Row], columns: &[Column], table: &str, root: &Path) -> String {
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let mut text = format!("cargo xtask trackers, on a machine with {processors} virtual CPUs\n\n{table}");
    for column in columns {
        for (row, said) in rows.iter().zip(&column.said) {
            text.push_str(&format!("\n==== {}: {}\n{}", column.kernel, row.line, said.trim_start()));
        }
    }
    text.replace(&format!("{}/", root.display()), "")
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESULT: &str =
        "test result: ok. 70 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out; finished";

    fn tallied(passed: u64, unsupported: u64, failed: u64, ended_well: bool) -> Tally {
        Tally { passed, unsupported, failed, ended_well }
    }

    #[test]
    fn tests_that_cannot_run_are_counted_however_they_say_it() {
        let matrix = format!("unsupported: a: b\nunsupported: c: d\n{RESULT}\n");
        assert_eq!(tally(&matrix, Some(0)), tallied(70, 2, 0, true));
        let single =
            "unsupported: tracker x: y\ntest result: ok. 1 passed; 0 failed; 0 ignored; 0 measured\n";
        assert_eq!(tally(single, Some(0)), tallied(0, 1, 0, true));
    }

    #[test]
    fn what_was_broken_off_or_ran_nothing_is_not_good() {
        assert!(tally(RESULT, Some(0)).is_good());
        assert!(!tally(RESULT, Some(1)).is_good());
        assert!(!tally(RESULT, None).is_good());
        assert!(!tally("test a ... ok", Some(0)).is_good());
        assert!(!tally("test result: ok. 0 passed; 0 failed; 0 ignored", Some(0)).is_good());
        let failed = tally("test result: FAILED. 2 passed; 1 failed; 0 ignored", Some(101));
        assert_eq!((failed.is_good(), failed.cell()), (false, "2 / 0 / 1".to_owned()));
        assert_eq!(tally("", None).cell(), "0 / 0 / 0, broken off");
    }

    #[test]
    fn what_is_said_belongs_to_the_heading_before_it() {
        assert_eq!(split("noise\nvm: a\none\r\ntwo\nvm: b\n"), ["one\ntwo\n", ""]);
    }

    #[test]
    fn the_table_and_the_report_name_no_place() {
        let rows = [Row { name: "restart, full".to_owned(), line: "a/b".to_owned() }];
        let said = vec!["at /there/target/x\n".to_owned()];
        let column = Column { kernel: "1.2".to_owned(), said, tallies: vec![tallied(3, 1, 0, true)] };
        let columns = [column];
        let table = table(&rows, &columns);
        assert_eq!(
            table,
            "| passed / unsupported / failed | 1.2 |\n|---|---|\n| restart, full | 3 / 1 / 0 |\n"
        );
        let report = report(&rows, &columns, &table, Path::new("/there"));
        assert!(report.contains("==== 1.2: a/b\nat target/x\n"), "{report}");
    }
}
