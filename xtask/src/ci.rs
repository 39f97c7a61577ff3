//! The command `cargo xtask ci`: all checks that a commit must pass.
//!
//! Owns: the registry of steps, their order, their durations, and the summary.
//! Invariants: after a failed step, the later steps still run. The result is good only if all steps are good.
//! Does not: check anything itself, or wait without a time limit.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::{test_run, tidy};

/// One check.
struct Step {
    name: &'static str,
    what: &'static str,
    run: fn() -> Result<Outcome, Failure>,
}

/// The result of a check.
struct Outcome {
    good: bool,
    detail: Option<String>,
}

/// The checks in the order of their execution. Cheap checks that often find errors are first.
const STEPS: &[Step] = &[
    Step { name: "fmt", what: "the code is formatted by rustfmt", run: fmt },
    Step { name: "clippy", what: "clippy reports nothing", run: clippy },
    Step { name: "tidy", what: "the house rules hold", run: house_rules },
    Step { name: "test", what: "every test passes", run: test },
    Step { name: "doc", what: "the documentation builds, and its links are valid", run: doc },
];

/// Returns the names that `--only` accepts.
pub(crate) fn step_names() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|step| step.name)
}

/// Runs the named steps, or all steps if `only` is empty. Returns whether all of them are good.
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

/// Runs all tests, and then the examples in the documentation.
fn test() -> Result<Outcome, Failure> {
    let Some(binaries) = test_run::build(cargo(&[]))? else {
        return Ok(Outcome { good: false, detail: Some("the build failed".to_owned()) });
    };
    let results = test_run::run(&binaries)?;
    let examples = succeeds(cargo(&["test", "--quiet", "--workspace", "--doc"]))?;
    let mut detail = format!("{}{}", results.summary, results.times);
    if results.hung > 0 {
        detail.push_str(&format!("\n  {} tests hung and were killed", results.hung));
    }
    let good = results.summary.failed == 0 && results.summary.ignored == 0 && examples.good;
    Ok(Outcome { good, detail: Some(detail) })
}

fn succeeds(mut command: Command) -> Result<Outcome, Failure> {
    let status =
        command.status().map_err(|source| Failure::Command { command: format!("{command:?}"), source })?;
    Ok(Outcome { good: status.success(), detail: None })
}

/// Creates a command of the cargo that has started this program, for the same workspace.
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
