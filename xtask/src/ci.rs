//! The command `cargo xtask ci`: all checks that a commit must pass.
//!
//! Owns: the registry of steps, their order, their durations, and the summary.
//! Invariants: after a failed step, the later steps still run. The result is good only if all steps are good.
//! Does not: check anything itself, or wait without a time limit.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::failure::Failure;
use crate::hung;
use crate::test_output::Summary;
use crate::tidy;

/// The variable with the number of tests that a test binary runs in parallel.
const TEST_THREADS: &str = "RUST_TEST_THREADS";

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

/// Maximum time without output of a running test binary.
const SILENCE: Duration = Duration::from_secs(300);
/// Poll interval while a run produces no output. The last lines of an ended run must also arrive within this time.
const LOOK: Duration = Duration::from_secs(1);

/// Runs all tests. `--show-output` is needed because a passing test prints the missing features in its output.
fn test() -> Result<Outcome, Failure> {
    let mut command = cargo(&["test", "--workspace", "--no-fail-fast", "--", "--show-output"]);
    let describe = |source| Failure::Command { command: "cargo test".to_owned(), source };
    // Tests wait for about half of their time. With one thread more than there are CPUs, the run is a fifth shorter.
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

/// Passes each line of output to `take` until the run has ended. The output may end later, because processes that a
/// faulty test has left hold the pipe open. Kills test binaries that hang, and returns their number.
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
                    println!(
                        "{} has printed nothing for {} s and was killed",
                        binary.display(),
                        SILENCE.as_secs()
                    );
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
