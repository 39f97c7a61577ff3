//! A victim (test program) under `undying run`, with a guardian (supervising process), periodic checkpoints and
//! restarts.
//!
//! Owns: the guardian process, its store, and the search for the current incarnation (run of the victim).
//! Invariants: the invariants of `Victim` hold. The subject (the victim's process tree) is found by its program and its
//! mark, never by a pid alone.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::command::{self, line_of, process_of, read_lossy, tail};
use crate::compile::{compile, declares};
use crate::dump;
use crate::error::HarnessError;
use crate::guard::Guard;
use crate::limits;
use crate::process::{ProcessId, descendants};
use crate::undying::Undying;
use crate::victim::{Verdict, image_folder, unsupported, victim_folder};

/// The beginning of a comment line in the source of a victim whose state is not complete after a crash. Files keep data
/// that was written after the checkpoint, so the victim checks only *file >= memory*. Connections are lost, and the
/// victim is informed about the crash.
const AFTER_CRASH: &str = "After a crash:";

/// Messages of the guardian at the beginning of an incarnation.
const BEGINNINGS: [&str; 2] = [" is back at checkpoint ", "started from the beginning"];

/// The exit code of `undying` if the kernel lacks a requested feature (`MISSING_STATUS`), and the beginning of a
/// message about a tracker (`TRACKER_MISSING`). A tracker finds changed pages.
const MISSING_STATUS: i32 = 4;
const TRACKER_MISSING: &str = "tracker ";

/// Maximum number of rounds that stop the processes of a tree. A round without a new process ends the loop. A victim
/// needs only a few rounds.
const STOP_ROUNDS_MAX: u32 = 100;

/// Options for a victim under a guardian.
#[derive(Clone, Debug)]
pub struct SupervisedOptions {
    /// The time between two checkpoints.
    pub every: Duration,
    /// The restart policy, in the form of the command line.
    pub restart: String,
    /// Additional arguments for `undying run`.
    pub arguments: Vec<String>,
    /// Whether the victim must report that it cannot run on this machine.
    pub lacking: bool,
}

impl Default for SupervisedOptions {
    fn default() -> Self {
        Self {
            every: Duration::from_millis(100),
            restart: "on-failure".to_owned(),
            arguments: Vec::new(),
            lacking: false,
        }
    }
}

/// A victim with its guardian.
#[derive(Debug)]
pub struct Supervised {
    name: String,
    program: PathBuf,
    guardian: Child,
    line: String,
    undying: Undying,
    guard: Guard,
    folder: TempDir,
    store: TempDir,
}

impl Supervised {
    /// Starts `undying run … -- VICTIM`, and waits until the victim is ready.
    ///
    /// # Errors
    /// An error if the guardian cannot be started, if the guardian ends, or if the victim does not become ready.
    pub fn start(undying: &Undying, victim: &str, options: &SupervisedOptions) -> Result<Self, HarnessError> {
        let (folder, store, guard) = (victim_folder()?, image_folder()?, Guard::new());
        let program = compile(victim)?;
        let mut command = run_command(undying, victim, options, store.path());
        if declares(victim, AFTER_CRASH)? {
            command.env("VICTIM_CRASHED", "1");
        }
        if options.lacking {
            command.env("VICTIM_LACKING", "1");
        }
        command.arg("--").arg(&program).arg(folder.path().join("verdict")).current_dir(folder.path());
        let guardian = command::spawn(&mut command, &guard, folder.path(), "run")?;
        let line = line_of(&command);
        let undying = undying.clone();
        let mut supervised =
            Self { name: victim.to_owned(), program, guardian, line, undying, guard, folder, store };
        supervised.wait_ready()?;
        Ok(supervised)
    }

    /// Returns the directory with the checkpoints.
    #[must_use]
    pub fn store(&self) -> &Path {
        self.store.path()
    }

    /// Returns the process of the guardian.
    #[must_use]
    pub fn guardian(&self) -> Option<ProcessId> {
        process_of(&self.guardian)
    }

    /// Returns the current root of the subject. The root is a marked process that runs the victim's program, and its
    /// parent does not run this program.
    #[must_use]
    pub fn subject(&self) -> Option<ProcessId> {
        let running: Vec<ProcessId> =
            self.guard.marked().into_iter().filter(|process| self.runs_victim(*process)).collect();
        let is_inner =
            |process: &ProcessId| running.iter().any(|other| process.parent() == Some(other.pid()));
        running.iter().copied().find(|process| !is_inner(process))
    }

    /// Returns the checkpoints of the subject: the output of `undying ls NAME --json`.
    ///
    /// # Errors
    /// An error if the command fails or its output is not a JSON array.
    pub fn checkpoints(&self) -> Result<Vec<Value>, HarnessError> {
        if !self.store.path().join(&self.name).is_dir() {
            // The guardian has not claimed the name yet, so `ls` would report an unknown subject.
            return Ok(Vec::new());
        }
        let arguments =
            [OsStr::new("ls"), OsStr::new(&self.name), OsStr::new("--store"), self.store.path().as_os_str()];
        let value = self.undying.json(&self.guard, self.folder.path(), &arguments)?;
        value.as_array().cloned().ok_or_else(|| HarnessError::Output {
            command: "undying ls".to_owned(),
            detail: format!("not an array: {value}"),
        })
    }

    /// Waits until at least `count` checkpoints are committed.
    ///
    /// # Errors
    /// An error if the checkpoints are not committed in time.
    pub fn wait_checkpoints(&self, count: usize) -> Result<(), HarnessError> {
        let committed = |one: &Value| one.get("committed").and_then(Value::as_bool).unwrap_or(false);
        self.wait_until("checkpoints", limits::first_checkpoint(), limits::POLL_BY_COMMAND, || {
            Ok(self.checkpoints()?.iter().filter(|one| committed(one)).count() >= count)
        })
    }

    /// Kills the subject's root with SIGKILL, and waits until the guardian has restarted the subject.
    ///
    /// The other processes of the tree are stopped in the meantime. Otherwise a process could detect the death of its
    /// parent and report a failure. The guardian is also stopped, so that no checkpoint contains the stopped processes.
    ///
    /// # Errors
    /// An error if there is no subject, or if the subject is not restarted in time.
    pub fn kill_and_wait_restart(&self) -> Result<(), HarnessError> {
        let killed = self.subject().ok_or_else(|| self.output_error("there is no subject"))?;
        let guardian = self.guardian().ok_or_else(|| self.output_error("there is no guardian"))?;
        let signal = |process: ProcessId, signal: Signal| {
            process.signal(signal).map_err(|source| HarnessError::Process {
                operation: "signal",
                process,
                source,
            })
        };
        signal(guardian, Signal::STOP)?;
        self.wait_until("the guardian to stand", limits::restart(), limits::POLL, || {
            Ok(guardian.is_stopped())
        })?;
        let (old, lives) = (stop_tree(killed), self.lives());
        signal(killed, Signal::KILL)?;
        signal(guardian, Signal::CONT)?;
        self.wait_until("restart", limits::restart(), limits::POLL, || {
            // A child of the killed root looks like a root until the guardian has ended the child. A process under
            // construction looks like a running process.
            Ok(self.lives() > lives && self.subject().is_some_and(|now| !old.contains(&now)))
        })
    }

    /// Returns the number of incarnations that the guardian has reported, without the first incarnation.
    fn lives(&self) -> usize {
        let said = read_lossy(&self.folder.path().join("run.stderr"));
        BEGINNINGS.iter().map(|words| said.matches(words).count()).sum()
    }

    /// Requests the verdict of the subject. The guardian must end with the exit status of the subject.
    ///
    /// # Errors
    /// An error if the subject or the guardian does not end in time, or if there is no verdict.
    pub fn judge(&mut self) -> Result<Verdict, HarnessError> {
        let process = self.subject().ok_or_else(|| self.output_error("there is no subject"))?;
        let lives = self.lives();
        process.signal(Signal::TERM).map_err(|source| HarnessError::Process {
            operation: "signal",
            process,
            source,
        })?;
        let deadline = Instant::now() + limits::judge();
        loop {
            let text = read_lossy(&self.folder.path().join("verdict"));
            // A subject with the verdict FAIL exits with a failure, and the guardian restarts it. The loop therefore
            // does not wait for the end of the guardian.
            if let Some(reason) = text.strip_prefix("FAIL: ") {
                return Ok(Verdict::Fail(reason.trim_end().to_owned()));
            }
            if let Some(status) = self.guardian_status()? {
                return self.verdict_with(&text, status);
            }
            // The restarted subject would wait for another signal until the limit.
            if text == "PASS\n" && self.lives() > lives {
                return Err(self.output_error("it ended well, and was restarted"));
            }
            if Instant::now() >= deadline {
                return Err(self.timeout("verdict", limits::judge()));
            }
            thread::sleep(limits::POLL);
        }
    }

    fn guardian_status(&mut self) -> Result<Option<ExitStatus>, HarnessError> {
        let line = &self.line;
        self.guardian.try_wait().map_err(|source| HarnessError::Spawn { program: line.clone(), source })
    }

    /// Returns the verdict after the end of the guardian. The guardian must have ended with the exit status of the
    /// subject.
    fn verdict_with(&self, text: &str, status: ExitStatus) -> Result<Verdict, HarnessError> {
        match (text, status.code()) {
            ("PASS\n", Some(0)) => Ok(Verdict::Pass),
            ("PASS\n", _) => {
                Err(self.output_error(&format!("the subject exited 0, the guardian with {status}")))
            }
            _ => Err(self.output_error(&format!("no verdict, the guardian ended with {status}"))),
        }
    }

    fn runs_victim(&self, process: ProcessId) -> bool {
        fs::read_link(format!("/proc/{}/exe", process.pid())).is_ok_and(|target| target == self.program)
    }

    fn wait_ready(&mut self) -> Result<(), HarnessError> {
        let deadline = Instant::now() + limits::ready();
        while !read_lossy(&self.folder.path().join("run.stdout")).contains("ready\n") {
            // The guardian may restart the subject repeatedly in the meantime.
            if let Some(error) = unsupported(&self.name, &read_lossy(&self.folder.path().join("verdict"))) {
                return Err(error);
            }
            if let Ok(Some(status)) = self.guardian.try_wait() {
                return Err(self.ended_before_ready(status));
            }
            if Instant::now() >= deadline {
                return Err(self.timeout("readiness", limits::ready()));
            }
            thread::sleep(limits::POLL);
        }
        Ok(())
    }

    fn ended_before_ready(&self, status: ExitStatus) -> HarnessError {
        let said = read_lossy(&self.folder.path().join("run.stderr"));
        let lacks = said.lines().next().and_then(|line| line.strip_prefix("undying: "));
        match lacks.filter(|line| line.starts_with(TRACKER_MISSING)) {
            Some(reason) if status.code() == Some(MISSING_STATUS) => {
                HarnessError::Unsupported { victim: self.name.clone(), reason: reason.to_owned() }
            }
            _ => self.output_error(&format!("ended with {status} before the subject was ready")),
        }
    }

    fn wait_until(
        &self,
        what: &str,
        limit: Duration,
        pause: Duration,
        mut condition: impl FnMut() -> Result<bool, HarnessError>,
    ) -> Result<(), HarnessError> {
        let deadline = Instant::now() + limit;
        while !condition()? {
            if !self.guardian().is_some_and(ProcessId::is_alive) {
                return Err(self.output_error(&format!("the guardian ended while waiting for {what}")));
            }
            if Instant::now() >= deadline {
                return Err(self.timeout(what, limit));
            }
            thread::sleep(pause);
        }
        Ok(())
    }

    fn output_error(&self, detail: &str) -> HarnessError {
        let said = read_lossy(&self.folder.path().join("run.stderr"));
        HarnessError::Output {
            command: self.line.clone(),
            detail: format!("{detail}; it said [{}]", tail(&said)),
        }
    }

    fn timeout(&self, what: &str, limit: Duration) -> HarnessError {
        let output = ["run.stdout", "run.stderr", "verdict"].map(|name| self.folder.path().join(name));
        let files = output.each_ref().map(|path| path.as_path());
        dump::timeout(&format!("{what} of {}", self.name), limit, &self.guard.marked(), &files)
    }
}

/// Stops every process of a tree, parents first, until no new process is found. Returns all stopped processes.
fn stop_tree(root: ProcessId) -> HashSet<ProcessId> {
    let mut stopped = HashSet::new();
    for _round in 0..STOP_ROUNDS_MAX {
        let mut fresh = vec![root];
        fresh.extend(descendants(root));
        fresh.retain(|process| stopped.insert(*process));
        if fresh.is_empty() {
            break;
        }
        for process in fresh {
            let _gone_already = process.signal(Signal::STOP);
        }
    }
    stopped
}

fn run_command(undying: &Undying, victim: &str, options: &SupervisedOptions, store: &Path) -> Command {
    let every = format!("{}ms", options.every.as_millis());
    let mut command =
        undying.command(["run", "--name", victim, "--every", &every, "--restart", &options.restart]);
    // Victims record their results in files in place, so a restart must keep the files. Ordinary programs that depend
    // on their files do not write like this.
    command.args(["--files", "keep", "--store"]).arg(store).args(&options.arguments);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_that_cannot_run_here_says_so_under_a_guardian_too() {
        let Ok(undying) = Undying::find() else { return crate::unsupported("no undying binary was built") };
        let options = SupervisedOptions { lacking: true, ..SupervisedOptions::default() };
        let error = Supervised::start(&undying, "state_umask", &options).unwrap_err();
        assert!(matches!(error, HarnessError::Unsupported { .. }), "{error}");
    }

    #[test]
    fn only_a_tracker_that_the_kernel_lacks_is_a_reason_not_to_run() {
        let Ok(mut undying) = Undying::find() else {
            return crate::unsupported("no undying binary was built");
        };
        let start = |undying: &Undying, tracker: &str| {
            let arguments = vec![format!("--tracker={tracker}")];
            let options = SupervisedOptions { arguments, ..SupervisedOptions::default() };
            Supervised::start(undying, "state_umask", &options).unwrap_err()
        };
        let error = start(&undying, "guessing");
        assert!(matches!(error, HarnessError::Output { .. }), "{error}");
        undying = undying.without("pagemap-scan");
        let error = start(&undying, "pagemap-scan");
        assert!(matches!(&error, HarnessError::Unsupported { reason, .. } if reason.contains("forced off")));
    }
}
