//! Every check that a commit must pass.
//!
//! Owns: the registry of steps, their order, their times, the summary.
//! Invariants: a step that fails does not keep the later ones from running; the result is the worst of all.
//! Does not: check anything itself, or wait for ever.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::hung;
use crate::test_output::Summary;
use crate::tidy;

/// The number of tests that a test binary runs at a time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

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

/// Longest time without a word from a test binary that is running.
const SILENCE: Duration = Duration::from_secs(300);
/// Time between two looks at a silent run, and for the last lines of one that has ended.
const LOOK: Duration = Duration::from_secs(1);

/// Runs every test; `--show-output` because a passing test says in its output what it lacked.
fn test() -> Result<Outcome, Failure> {
    let mut command = cargo(&["test", "--workspace", "--no-fail-fast", "--", "--show-output"]);
    let describe = |source| Failure::Command { command: "cargo test".to_owned(), source };
    // Tests wait for about half of their time: one more than there are processors shortens the run by a fifth.
    if std::env::var_os(TEST_THREADS).is_none() {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        command.env(TEST_THREADS, (processors + 1).to_string());
    }
    let mut child = command.stdout(Stdio::piped()).spawn().map_err(describe)?;
    let mut summary = Summary::default();
    let hung = follow(&mut child, |line| {
        if summary.line(line) {
            println!("{line}");
        }
    })
    .map_err(describe)?;
    let ended_well = child.wait().map_err(describe)?.success();
    let good = ended_well && hung == 0 && summary.ignored == 0;
    let told =
        if hung == 0 { String::new() } else { format!("\n  {hung} test binaries hung and were killed") };
    Ok(Outcome { good, detail: Some(format!("{summary}{told}")) })
}

/// Gives each line to `take` until the run has ended, which may be before its output has: subjects that a broken test
/// leaves behind hold the pipe. Kills test binaries that have hung, and counts them.
fn follow(child: &mut Child, mut take: impl FnMut(&str)) -> std::io::Result<usize> {
    let output = child.stdout.take().expect("the pipe was asked for with the command");
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n') {
            let last = line.is_err();
            if sender.send(line).is_err() || last {
                return;
            }
        }
    });
    let mut heard = Instant::now();
    let mut hung = 0;
    loop {
        match lines.recv_timeout(LOOK) {
            Ok(line) => {
                take(&String::from_utf8_lossy(&line?));
                heard = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => return Ok(hung),
            Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => return Ok(hung),
            Err(RecvTimeoutError::Timeout) if heard.elapsed() < SILENCE => {}
            Err(RecvTimeoutError::Timeout) => {
                for binary in hung::kill_tests_of(child.id()) {
                    println!("{} has been silent for {} s: killed", binary.display(), SILENCE.as_secs());
                    hung += 1;
                }
                heard = Instant::now();
            }
        }
    }
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
