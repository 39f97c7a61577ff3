//! Every check that a commit must pass.
//!
//! Owns: the registry of steps, their order, their times, the summary.
//! Invariants: a step that fails does not keep the later ones from running; the result is the worst of all.
//! Does not: check anything itself.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::test_output::Summary;
use crate::tidy;

/// One check.
struct Step {
    name: &'static str,
    what: &'static str,
    run: fn() -> Result<Outcome, Failure>,
}

/// How a check ended.
struct Outcome {
    good: bool,
    detail: Option<String>,
}

/// The checks in the order in which they run: cheap and telling ones first.
const STEPS: &[Step] = &[
    Step { name: "fmt", what: "the formatting is rustfmt's", run: fmt },
    Step { name: "clippy", what: "no lint speaks up", run: clippy },
    Step { name: "tidy", what: "the house rules hold", run: house_rules },
    Step { name: "test", what: "every test passes", run: test },
    Step { name: "doc", what: "the documentation builds, and its links lead somewhere", run: doc },
];

/// The names `--only` takes.
pub(crate) fn step_names() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|step| step.name)
}

/// Runs the named steps, or all when none is named; whether all of them are good.
pub(crate) fn run(only: &[String]) -> Result<bool, Failure> {
    let mut lines = Vec::new();
    let mut good = true;
    for step in STEPS.iter().filter(|step| only.is_empty() || only.iter().any(|name| name == step.name)) {
        println!("==> {}: {}", step.name, step.what);
        let start = Instant::now();
        let outcome = (step.run)()?;
        let line = describe(step.name, &outcome, start.elapsed());
        println!("<== {line}\n");
        good &= outcome.good;
        lines.push(line);
    }
    println!("summary:");
    for line in lines {
        println!("{line}");
    }
    Ok(good)
}

fn describe(name: &str, outcome: &Outcome, time: Duration) -> String {
    let verdict = if outcome.good { "ok" } else { "FAILED" };
    let detail = outcome.detail.as_deref().map(|detail| format!(": {detail}")).unwrap_or_default();
    format!("{name} {verdict} ({:.1} s){detail}", time.as_secs_f64())
}

fn fmt() -> Result<Outcome, Failure> {
    succeeds(cargo(&["fmt", "--all", "--check"]))
}

fn clippy() -> Result<Outcome, Failure> {
    succeeds(cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

fn house_rules() -> Result<Outcome, Failure> {
    Ok(Outcome { good: tidy::run(&[])?, detail: None })
}

fn doc() -> Result<Outcome, Failure> {
    let mut command = cargo(&["doc", "--no-deps", "--workspace"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    succeeds(command)
}

/// Runs every test; `--show-output` because a passing test says in its output what it lacked.
fn test() -> Result<Outcome, Failure> {
    let mut command = cargo(&["test", "--workspace", "--no-fail-fast", "--", "--show-output"]);
    let describe = |source| Failure::Command { command: "cargo test".to_owned(), source };
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(describe)?;
    let output = child.stdout.take().expect("the pipe was asked for one line above");
    let mut summary = Summary::default();
    for line in BufReader::new(output).split(b'\n') {
        let line = line.map_err(describe)?;
        let line = String::from_utf8_lossy(&line);
        if summary.line(&line) {
            println!("{line}");
        }
    }
    let ended_well = child.wait().map_err(describe)?.success();
    let good = ended_well && summary.ignored == 0;
    Ok(Outcome { good, detail: Some(summary.to_string()) })
}

fn succeeds(mut command: Command) -> Result<Outcome, Failure> {
    let status =
        command.status().map_err(|source| Failure::Command { command: format!("{command:?}"), source })?;
    Ok(Outcome { good: status.success(), detail: None })
}

/// The cargo that started us, on the workspace we were built from.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_described_with_its_verdict_its_time_and_its_detail() {
        let outcome = Outcome { good: false, detail: Some("1 passed, 1 failed".to_owned()) };
        let line = describe("test", &outcome, Duration::from_millis(1250));
        assert_eq!(line, "test FAILED (1.2 s): 1 passed, 1 failed");
    }

    #[test]
    fn steps_have_their_own_names() {
        let names: std::collections::BTreeSet<_> = step_names().collect();
        assert_eq!(names.len(), STEPS.len());
    }
}
