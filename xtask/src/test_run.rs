//! Builds the test binaries of the workspace, and runs their tests.
//!
//! Owns: the list of tests, the lanes in which they run, and the time limit for a silent test.
//! Invariants: each test has a process of its own, so that no test depends on the limits, signals or descriptors of
//! another test. The output of a test is printed as one block after its end. A test that prints nothing for [`SILENCE`]
//! is killed, and counts as failed. What a failed test leaves running is killed, so that no other test is disturbed.
//! Does not: judge single tests; `test_output` counts them.
//!
//! All tests are in one queue. cargo runs one binary at a time, and many binaries end with one long test.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, PipeReader};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cargo_metadata::{Artifact, Message};

use crate::failure::Failure;
use crate::test_output::Summary;
use crate::test_times::Times;

/// The variable with the number of tests that run at the same time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// Number of lanes for each processor: tests wait for two thirds of their time, and beside a busy processor for more.
const LANES_FOR_EACH_CPU: usize = 4;
/// The environment variable that marks all processes of one test.
const MARK: &str = "UNDYING_TEST_PROCESSES";
/// Maximum time without output of a test.
const SILENCE: Duration = Duration::from_secs(300);
/// Poll interval while a test produces no output. The last lines of an ended test must also arrive within this time.
const LOOK: Duration = Duration::from_secs(1);
/// The beginnings of the titles of the longest tests. These tests begin first, so that no lane waits for them at the end.
const LONGEST: [&str; 12] = [
    "end_to_end/",
    "tracee/all opened::",
    "tracee/all attach::",
    "engine/all killed_in_pause::",
    "undo/all watch::",
    "engine/all passing::",
    "store/all power_cut::",
    "store/all log_",
    "sys/all listener_holder::",
    "guardian/all",
    "cli/all",
    "engine/all",
];

/// A built test binary.
#[derive(Debug)]
pub(crate) struct TestBinary {
    /// `PACKAGE/TARGET`, for example `store/lib`.
    name: String,
    program: PathBuf,
    /// The directory of the package, in which cargo runs its tests.
    package: PathBuf,
}

/// One test of a binary.
struct Test<'a> {
    binary: &'a TestBinary,
    name: String,
}

/// The results of all tests.
#[derive(Default, Debug)]
pub(crate) struct Results {
    pub(crate) summary: Summary,
    /// Number of tests that were killed because they printed nothing.
    pub(crate) hung: usize,
    pub(crate) times: Times,
}

/// Builds all test binaries with the given cargo command. Returns `None` if the build fails.
pub(crate) fn build(mut cargo: Command) -> Result<Option<Vec<TestBinary>>, Failure> {
    let describe = |source| Failure::Command { command: "cargo test --no-run".to_owned(), source };
    // Without the examples, which contain no test.
    cargo.args(["test", "--workspace", "--lib", "--bins", "--tests", "--no-run"]);
    cargo.arg("--message-format=json-render-diagnostics");
    let mut child = cargo.stdout(Stdio::piped()).spawn().map_err(describe)?;
    let output = child.stdout.take().expect("the pipe was requested with the command");
    let mut binaries = Vec::new();
    for message in Message::parse_stream(BufReader::new(output)) {
        if let Message::CompilerArtifact(artifact) = message.map_err(describe)? {
            binaries.extend(TestBinary::of(&artifact));
        }
    }
    Ok(child.wait().map_err(describe)?.success().then_some(binaries))
}

impl TestBinary {
    fn of(artifact: &Artifact) -> Option<Self> {
        let program = artifact.executable.as_ref().filter(|_| artifact.profile.test)?;
        let package = artifact.manifest_path.parent()?;
        let target = if artifact.target.is_lib() { "lib" } else { &artifact.target.name };
        let name = format!("{}/{target}", package.file_name()?);
        Some(Self { name, program: program.into(), package: package.into() })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(&self.package).env("CARGO_MANIFEST_DIR", &self.package);
        command
    }

    /// Returns the names of the tests.
    fn tests(&self) -> Result<Vec<Test<'_>>, Failure> {
        let command = format!("{} --list", self.program.display());
        let describe = |source| Failure::Command { command, source };
        let output = self.command().args(["--list", "--format", "terse"]).output().map_err(describe)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let names = text.lines().filter_map(|line| line.strip_suffix(": test"));
        Ok(names.map(|name| Test { binary: self, name: name.to_owned() }).collect())
    }
}

/// Runs all tests of the binaries.
pub(crate) fn run(binaries: &[TestBinary]) -> Result<Results, Failure> {
    let mut tests = Vec::new();
    for binary in binaries {
        tests.extend(binary.tests()?);
    }
    tests.sort_by_cached_key(|test| (test.rank(), test.title()));
    let queue = Mutex::new(VecDeque::from(tests));
    let results = Mutex::new(Results::default());
    let lane = || -> Result<(), Failure> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(test) = next else { return Ok(()) };
            let ended = test.run().map_err(|source| Failure::Command { command: test.title(), source })?;
            results.lock().unwrap_or_else(PoisonError::into_inner).add(&test, &ended);
        }
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..lanes()).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().expect("a lane does not panic"))
    })?;
    Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner))
}

/// Returns the number of tests that run at the same time.
fn lanes() -> usize {
    let wanted = std::env::var(TEST_THREADS).ok().and_then(|text| text.parse().ok());
    wanted.unwrap_or_else(|| {
        LANES_FOR_EACH_CPU * std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
    })
}

impl Test<'_> {
    fn title(&self) -> String {
        format!("{} {}", self.binary.name, self.name)
    }

    /// Returns the position of the test in the queue.
    fn rank(&self) -> usize {
        let title = self.title();
        LONGEST.iter().position(|beginning| title.starts_with(beginning)).unwrap_or(LONGEST.len())
    }

    /// Runs the test. `--show-output` is needed because a passing test prints the missing features in its output. With one
    /// test thread, libtest would print the name of the test before the test, and the test could add its own output to
    /// the same line.
    fn run(&self) -> std::io::Result<Ended> {
        let mut command = self.binary.command();
        command.args(["--show-output", "--test-threads=2", "--exact", &self.name]);
        run_command(command, SILENCE)
    }
}

impl Results {
    fn add(&mut self, test: &Test<'_>, ended: &Ended) {
        let title = test.title();
        let passes = self.summary.add(&title, &ended.lines, ended.status.success());
        if !passes {
            ended.lines.iter().for_each(|line| println!("{line}"));
        }
        if ended.is_hung {
            println!("{title} has printed nothing for {} s and was killed", SILENCE.as_secs());
            self.hung += 1;
        } else if ended.status.signal().is_some() {
            println!("{title} has died: {}", ended.status);
        }
        let verdict = if passes { "ok" } else { "FAILED" };
        println!("test {title} ... {verdict} ({:.1} s)", ended.took.as_secs_f64());
        self.times.add(&test.binary.name, title, ended.took);
    }
}

/// A process that has ended.
pub(crate) struct Ended {
    pub(crate) lines: Vec<String>,
    pub(crate) status: ExitStatus,
    is_hung: bool,
    pub(crate) took: Duration,
}

/// Runs a command, and collects the lines that it prints. Kills the command if it prints nothing for `silence`.
pub(crate) fn run_command(mut command: Command, silence: Duration) -> std::io::Result<Ended> {
    let (output, written) = std::io::pipe()?;
    let begun = Instant::now();
    let mark = mark();
    command.env(MARK, &mark);
    let mut child = command.stdout(written.try_clone()?).stderr(written).spawn()?;
    // The command keeps the write ends of the pipe open.
    drop(command);
    let (lines, is_hung) = follow(&mut child, output, silence)?;
    let status = child.wait()?;
    if !status.success() {
        kill_marked(&mark);
    }
    Ok(Ended { lines, status, is_hung, took: begun.elapsed() })
}

/// Returns a value of [`MARK`] for one command.
fn mark() -> String {
    static COMMANDS: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), COMMANDS.fetch_add(1, Ordering::Relaxed))
}

/// Kills the processes with this mark in their environment.
fn kill_marked(mark: &str) {
    let marked = format!("{MARK}={mark}");
    let is_marked = |path: &Path| {
        std::fs::read(path.join("environ"))
            .is_ok_and(|text| text.split(|byte| *byte == 0).any(|variable| variable == marked.as_bytes()))
    };
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten().map(|entry| entry.path());
    for process in processes.filter(|path| is_marked(path)) {
        let pid = process.file_name().unwrap_or_default();
        // The process may have ended by itself.
        let _ = Command::new("sh").args(["-c", "kill -9 \"$0\" 2>/dev/null"]).arg(pid).status();
    }
}

/// Collects the output of a child until the child has ended. The output may end later, because processes that a faulty
/// test has left hold the pipe open. Also returns whether the child was killed.
fn follow(child: &mut Child, output: PipeReader, silence: Duration) -> std::io::Result<(Vec<String>, bool)> {
    let (sender, received) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).split(b'\n') {
            let last = line.is_err();
            if sender.send(line).is_err() || last {
                return;
            }
        }
    });
    let (mut lines, mut heard) = (Vec::new(), Instant::now());
    let (mut has_ended, mut is_hung) = (false, false);
    loop {
        match received.recv_timeout(LOOK.min(silence)) {
            Ok(line) => {
                lines.push(String::from_utf8_lossy(&line?).into_owned());
                heard = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => return Ok((lines, is_hung)),
            Err(RecvTimeoutError::Timeout) if has_ended => return Ok((lines, is_hung)),
            Err(RecvTimeoutError::Timeout) => {
                has_ended = child.try_wait()?.is_some();
                if !has_ended && heard.elapsed() >= silence {
                    child.kill()?;
                    is_hung = true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, silence: Duration) -> Ended {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        run_command(command, silence).expect("the shell runs")
    }

    #[test]
    fn both_streams_and_the_status_are_collected() {
        let ended = shell("echo one; echo two >&2; exit 3", SILENCE);
        assert_eq!(ended.lines, ["one", "two"]);
        assert_eq!((ended.status.code(), ended.is_hung), (Some(3), false));
        assert!(shell("true", SILENCE).status.success());
    }

    #[test]
    fn a_test_that_prints_nothing_is_killed() {
        let ended = shell("echo begun; exec sleep 60", Duration::from_millis(200));
        assert_eq!(ended.lines, ["begun"]);
        assert!(ended.is_hung && !ended.status.success());
    }

    #[test]
    fn what_a_failed_command_leaves_is_killed_and_nothing_else() {
        let pid = |ended: Ended| ended.lines[0].clone();
        let failed = pid(shell("sleep 60 >/dev/null 2>&1 & echo $!; exit 1", SILENCE));
        let passed = pid(shell("sleep 5 >/dev/null 2>&1 & echo $!", SILENCE));
        // A process that has ended and that its parent has not waited for has no command line.
        let runs = |pid: &str| {
            std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|command| !command.is_empty())
        };
        assert!(runs(&passed));
        let begun = Instant::now();
        while runs(&failed) {
            assert!(begun.elapsed() < Duration::from_secs(10), "the process still runs");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn lines_that_arrive_soon_after_the_end_are_collected() {
        let ended = shell("(sleep 1.3; echo late) & sleep 0.7", SILENCE);
        assert_eq!(ended.lines, ["late"]);
    }

    #[test]
    fn a_process_that_keeps_the_output_open_delays_nothing() {
        let begun = Instant::now();
        let ended = shell("sleep 20 & echo over", SILENCE);
        assert_eq!(ended.lines, ["over"]);
        assert!(ended.status.success() && begun.elapsed() < Duration::from_secs(15));
    }
}
