//! Execution of a program with a time limit, with its output in files.
//!
//! Owns: `Finished`, the wait for the end, and the dump at the time limit.
//! Invariants: the output goes to files. A program with much output therefore never blocks, and the output of a killed
//! program is preserved.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use model::Pid;

use crate::dump;
use crate::error::HarnessError;
use crate::guard::Guard;
use crate::limits::{OUTPUT_TAIL_BYTES_MAX, POLL};
use crate::process::{ProcessId, descendants};

/// The result of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The command line.
    pub command: String,
    /// The exit status.
    pub status: ExitStatus,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
    /// The duration of the execution.
    pub took: Duration,
}

impl Finished {
    /// Checks the exit status.
    ///
    /// # Errors
    /// An error if the program ended with another status, or was killed by a signal.
    pub fn expect_status(self, expected: i32) -> Result<Self, HarnessError> {
        if self.status.code() == Some(expected) {
            return Ok(self);
        }
        Err(HarnessError::Status {
            command: self.command,
            status: self.status.to_string(),
            expected,
            stdout: tail(&self.stdout).to_owned(),
            stderr: tail(&self.stderr).to_owned(),
        })
    }
}

/// Starts a program. Its output goes to `NAME.stdout` and `NAME.stderr` below `folder`.
pub(crate) fn spawn(
    command: &mut Command,
    guard: &Guard,
    folder: &Path,
    name: &str,
) -> Result<Child, HarnessError> {
    let create = |suffix: &str| {
        let path = folder.join(format!("{name}.{suffix}"));
        let _old = fs::remove_file(&path);
        // The files are opened for appending, like logs. A restored program then writes after the output of other
        // programs.
        let opened = OpenOptions::new().create(true).append(true).open(&path);
        opened.map_err(|source| HarnessError::File { operation: "create", path, source })
    };
    command.stdin(Stdio::null()).stdout(create("stdout")?).stderr(create("stderr")?);
    guard.mark(command);
    command.spawn().map_err(|source| HarnessError::Spawn { program: line_of(command), source })
}

/// Runs a program to its end.
pub(crate) fn run(
    command: &mut Command,
    guard: &Guard,
    folder: &Path,
    name: &str,
    limit: Duration,
) -> Result<Finished, HarnessError> {
    let began = Instant::now();
    let mut child = spawn(command, guard, folder, name)?;
    let line = line_of(command);
    let status = wait(&mut child, &line, guard, folder, name, limit)?;
    let read = |suffix: &str| read_lossy(&folder.join(format!("{name}.{suffix}")));
    Ok(Finished {
        command: line,
        status,
        stdout: read("stdout"),
        stderr: read("stderr"),
        took: began.elapsed(),
    })
}

/// Waits for a child that was started by [`spawn`]. At the limit, writes a dump and kills the child and its
/// descendants.
pub(crate) fn wait(
    child: &mut Child,
    line: &str,
    guard: &Guard,
    folder: &Path,
    name: &str,
    limit: Duration,
) -> Result<ExitStatus, HarnessError> {
    let deadline = Instant::now() + limit;
    loop {
        let ended =
            child.try_wait().map_err(|source| HarnessError::Spawn { program: line.to_owned(), source })?;
        if let Some(status) = ended {
            return Ok(status);
        }
        if Instant::now() >= deadline {
            let outputs = ["stdout", "stderr"].map(|suffix| folder.join(format!("{name}.{suffix}")));
            let files = outputs.each_ref().map(|path| path.as_path());
            let error = dump::timeout(line, limit, &guard.marked(), &files);
            kill_tree(child);
            return Err(error);
        }
        thread::sleep(POLL);
    }
}

fn kill_tree(child: &mut Child) {
    let below = process_of(child).map(descendants).unwrap_or_default();
    let _gone_already = child.kill();
    for process in below {
        let _gone_already = process.signal(rustix::process::Signal::KILL);
    }
    let _reaped = child.wait();
}

/// Returns the identity of a child that was not reaped yet.
pub(crate) fn process_of(child: &Child) -> Option<ProcessId> {
    ProcessId::of(Pid(i32::try_from(child.id()).ok()?)).ok()
}

/// Returns the end of a text, with a length that fits into a message.
pub(crate) fn tail(text: &str) -> &str {
    let start = text.ceil_char_boundary(text.len().saturating_sub(OUTPUT_TAIL_BYTES_MAX));
    &text[start..]
}

/// Returns the content of a file, or an empty text if the file cannot be read.
pub(crate) fn read_lossy(path: &Path) -> String {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// Returns the command line as text for messages.
pub(crate) fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hang_is_dumped_and_killed() {
        let folder = tempfile::tempdir().unwrap();
        let guard = Guard::new();
        let limit = Duration::from_millis(200);
        let mut command = Command::new("sh");
        command.args(["-c", "echo before; sleep 1000"]);
        let error = run(&mut command, &guard, folder.path(), "hang", limit).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("syscall") && text.contains("(sleep)"), "{text}");
        let HarnessError::Timeout { dump, .. } = error else { panic!("not a timeout: {text}") };
        let dumped = fs::read_to_string(dump).unwrap();
        assert!(dumped.contains("before") && dumped.contains("wchan") && dumped.contains("/maps"));
        // A killed process vanishes with a short delay.
        let begun = std::time::Instant::now();
        while !guard.marked().is_empty() {
            assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", guard.marked());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_wrong_status_shows_what_was_said() {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo told >&2; exit 3"]);
        let finished =
            run(&mut command, &Guard::new(), folder.path(), "fails", Duration::from_secs(10)).unwrap();
        let text = finished.expect_status(0).unwrap_err().to_string();
        assert!(text.contains("told") && text.contains("expected 0"), "{text}");
    }
}
