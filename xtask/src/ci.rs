//! The command `cargo xtask ci`: all checks that a commit must pass.
//!
//! Owns: the registry of steps, their order, their durations, and the summary. Steps that do not measure time run beside
//! the tests, with a lower priority: tests wait for a part of their time, and leave processors idle.
//! Invariants: after a failed step, the later steps still run. The result is good only if all steps are good.
//! Does not: check anything itself, or wait without a time limit.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::test_run;
use crate::test_run::Ended;

/// Maximum time without output of a command that compiles. Beside the tests, it may get little of the processors.
const COMPILING_MAX: Duration = Duration::from_secs(1800);

/// One check.
struct Step {
    name: &'static str,
    what: &'static str,
    run: Run,
}

/// How a step runs.
#[derive(Clone, Copy)]
enum Run {
    /// Before the next step.
    Alone(fn() -> Result<Outcome, Failure>),
    /// The tests. The commands of the other steps run beside them.
    Tests,
    /// A command that can run beside the tests.
    Beside(fn() -> Command),
}

/// The result of a check.
struct Outcome {
    good: bool,
    detail: Option<String>,
}

/// The checks in the order of their reports.
const STEPS: &[Step] = &[
    Step { name: "fmt", what: "the code is formatted by rustfmt", run: Run::Alone(fmt) },
    Step { name: "test", what: "every test passes", run: Run::Tests },
    Step { name: "tidy", what: "the house rules hold", run: Run::Beside(house_rules) },
    Step { name: "clippy", what: "clippy reports nothing", run: Run::Beside(clippy) },
    Step { name: "doc", what: "the documentation builds, and its links are valid", run: Run::Beside(doc) },
];

/// Returns the names that `--only` accepts.
pub(crate) fn step_names() -> impl Iterator<Item = &'static str> {
    STEPS.iter().map(|step| step.name)
}

/// Runs the named steps, or all steps if `only` is empty. Returns whether all of them are good.
pub(crate) fn run(only: &[String]) -> Result<bool, Failure> {
    let mut lines = Vec::new();
    let mut good = true;
    let wanted = STEPS.iter().filter(|step| only.is_empty() || only.iter().any(|name| name == step.name));
    let (beside, steps): (Vec<_>, Vec<_>) = wanted.partition(|step| matches!(step.run, Run::Beside(_)));
    let mut end = |name, outcome: &Outcome, took| {
        let line = describe(name, outcome, took);
        println!("<== {line}\n");
        good &= outcome.good;
        lines.push(line);
    };
    let mut compiled = None;
    for step in steps {
        println!("==> {}: {}", step.name, step.what);
        let start = Instant::now();
        let outcome = match step.run {
            Run::Alone(run) => run()?,
            Run::Tests | Run::Beside(_) => test(|| compile(&beside), &mut compiled)?,
        };
        end(step.name, &outcome, start.elapsed());
    }
    let compiled = compiled.map_or_else(|| compile(&beside), Ok)?;
    for (step, done) in beside.iter().zip(compiled) {
        println!("==> {}: {}", step.name, step.what);
        if !done.status.success() {
            done.lines.iter().for_each(|line| println!("{line}"));
        }
        end(step.name, &Outcome { good: done.status.success(), detail: None }, done.took);
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

/// Runs the commands of these steps one after the other, with a lower priority. With the lowest one, they would hardly run
/// while the tests do, and tests would wait for locks of the kernel that they hold.
fn compile(steps: &[&Step]) -> Result<Vec<Ended>, Failure> {
    let run = |command: Command| {
        let mut nice = Command::new("nice");
        nice.args(["-n", "5"]).arg(command.get_program()).args(command.get_args());
        nice.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let describe = |source| Failure::Command { command: format!("{command:?}"), source };
        test_run::run_command(nice, COMPILING_MAX).map_err(describe)
    };
    let commands = steps.iter().filter_map(|step| match step.run {
        Run::Beside(command) => Some(command()),
        Run::Alone(_) | Run::Tests => None,
    });
    commands.map(run).collect()
}

fn clippy() -> Command {
    cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])
}

fn house_rules() -> Command {
    cargo(&["xtask", "tidy"])
}

fn doc() -> Command {
    let mut command = cargo(&["doc", "--no-deps", "--workspace"]);
    command.env("RUSTDOCFLAGS", "-D warnings");
    command
}

/// Runs all tests, and beside them `beside`, whose result is stored in `done`. Then runs the examples in the
/// documentation.
fn test<T: Send>(
    beside: impl FnOnce() -> Result<T, Failure> + Send,
    done: &mut Option<T>,
) -> Result<Outcome, Failure> {
    let Some(binaries) = test_run::build(cargo(&[]))? else {
        return Ok(Outcome { good: false, detail: Some("the build failed".to_owned()) });
    };
    let results = std::thread::scope(|scope| {
        let beside = scope.spawn(beside);
        let results = test_run::run(&binaries)?;
        *done = Some(beside.join().expect("the thread does not panic")?);
        Ok::<_, Failure>(results)
    })?;
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
