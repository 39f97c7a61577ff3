//! Builds and runs the test binaries of the workspace.
//!
//! Owns: the list of test binaries, the lanes in which they run, and the time limit for a silent binary.
//! Invariants: the output of a binary is printed as one block after its end. A binary that prints nothing for
//! [`SILENCE`] is killed, and counts as failed.
//! Does not: judge single tests; `test_output` counts them.
//!
//! Tests wait for about half of their time, and many binaries end with one long test. Therefore two binaries run at the
//! same time. cargo runs only one.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, PipeReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use cargo_metadata::Message;

use crate::failure::Failure;
use crate::test_output::Summary;

/// The variable with the number of tests that a test binary runs in parallel.
const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// Number of binaries that run at the same time.
const LANES: usize = 2;
/// Maximum time without output of a test binary.
const SILENCE: Duration = Duration::from_secs(300);
/// Poll interval while a binary produces no output. The last lines of an ended binary must also arrive within this time.
const LOOK: Duration = Duration::from_secs(1);
/// The packages with the longest tests. They begin first, so that no lane waits for them at the end.
const LONGEST: [&str; 3] = ["cli", "end_to_end", "guardian"];

/// A built test binary.
#[derive(Debug)]
pub(crate) struct TestBinary {
    program: PathBuf,
    /// The directory of the package, in which cargo runs its tests.
    package: PathBuf,
}

/// The results of all test binaries.
#[derive(Default, Debug)]
pub(crate) struct Results {
    pub(crate) summary: Summary,
    /// The names of binaries that did not end with success.
    pub(crate) failed: Vec<String>,
    /// Number of binaries that were killed because they printed nothing.
    pub(crate) hung: usize,
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
        if let Message::CompilerArtifact(artifact) = message.map_err(describe)?
            && artifact.profile.test
            && let (Some(program), Some(package)) = (artifact.executable, artifact.manifest_path.parent())
        {
            binaries.push(TestBinary { program: program.into(), package: package.into() });
        }
    }
    if !child.wait().map_err(describe)?.success() {
        return Ok(None);
    }
    binaries.sort_by_key(|binary| {
        (!LONGEST.iter().any(|name| binary.package.ends_with(name)), binary.program.clone())
    });
    Ok(Some(binaries))
}

/// Runs test binaries in lanes. `--show-output` is needed because a passing test prints the missing features in its
/// output.
pub(crate) fn run(binaries: Vec<TestBinary>) -> Result<Results, Failure> {
    let threads = std::env::var(TEST_THREADS).ok().unwrap_or_else(|| {
        std::thread::available_parallelism().map_or(1, std::num::NonZero::get).to_string()
    });
    let queue = Mutex::new(VecDeque::from(binaries));
    let results = Mutex::new(Results::default());
    let lane = || -> Result<(), Failure> {
        loop {
            let next = queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
            let Some(binary) = next else { return Ok(()) };
            let ended = run_one(&binary, &threads).map_err(|source| Failure::Command {
                command: binary.program.display().to_string(),
                source,
            })?;
            results.lock().unwrap_or_else(PoisonError::into_inner).add(&binary, &ended);
        }
    };
    std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|_| scope.spawn(lane)).collect();
        lanes.into_iter().try_for_each(|lane| lane.join().expect("a lane does not panic"))
    })?;
    Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner))
}

impl Results {
    fn add(&mut self, binary: &TestBinary, ended: &Ended) {
        let name = binary.program.file_name().unwrap_or_default().to_string_lossy().into_owned();
        println!("     Running {name} ({:.1} s)", ended.took.as_secs_f64());
        for line in &ended.lines {
            if self.summary.line(line) {
                println!("{line}");
            }
        }
        self.summary.end_of_binary();
        if ended.is_hung {
            println!("{name} has printed nothing for {} s and was killed", SILENCE.as_secs());
            self.hung += 1;
        }
        if !ended.is_good {
            println!("error: {name} has failed");
            self.failed.push(name);
        }
    }
}

/// A test binary that has ended.
struct Ended {
    lines: Vec<String>,
    is_good: bool,
    is_hung: bool,
    took: Duration,
}

fn run_one(binary: &TestBinary, threads: &str) -> std::io::Result<Ended> {
    let mut command = Command::new(&binary.program);
    command.arg("--show-output").current_dir(&binary.package);
    command.env("CARGO_MANIFEST_DIR", &binary.package).env(TEST_THREADS, threads);
    run_command(command, SILENCE)
}

/// Runs a command, and collects the lines that it prints. Kills the command if it prints nothing for `silence`.
fn run_command(mut command: Command, silence: Duration) -> std::io::Result<Ended> {
    let (output, written) = std::io::pipe()?;
    let begun = Instant::now();
    let mut child = command.stdout(written.try_clone()?).stderr(written).spawn()?;
    // The command keeps the write ends of the pipe open.
    drop(command);
    let (lines, is_hung) = follow(&mut child, output, silence)?;
    let is_good = child.wait()?.success() && !is_hung;
    Ok(Ended { lines, is_good, is_hung, took: begun.elapsed() })
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
    let (mut lines, mut heard, mut is_hung) = (Vec::new(), Instant::now(), false);
    loop {
        match received.recv_timeout(LOOK.min(silence)) {
            Ok(line) => {
                lines.push(String::from_utf8_lossy(&line?).into_owned());
                heard = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => return Ok((lines, is_hung)),
            Err(RecvTimeoutError::Timeout) if child.try_wait()?.is_some() => return Ok((lines, is_hung)),
            Err(RecvTimeoutError::Timeout) if heard.elapsed() >= silence => {
                child.kill()?;
                is_hung = true;
            }
            Err(RecvTimeoutError::Timeout) => {}
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
        assert!(!ended.is_good && !ended.is_hung);
        assert!(shell("true", SILENCE).is_good);
    }

    #[test]
    fn a_binary_that_prints_nothing_is_killed() {
        let ended = shell("echo begun; exec sleep 60", Duration::from_millis(200));
        assert_eq!(ended.lines, ["begun"]);
        assert!(ended.is_hung && !ended.is_good);
    }

    #[test]
    fn a_process_that_keeps_the_output_open_delays_nothing() {
        let begun = Instant::now();
        let ended = shell("sleep 20 & echo over", SILENCE);
        assert_eq!(ended.lines, ["over"]);
        assert!(ended.is_good && begun.elapsed() < Duration::from_secs(15));
    }
}
