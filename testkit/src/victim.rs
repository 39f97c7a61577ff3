//! A running victim (test program), which can be checkpointed, killed, restored, and asked for its verdict.
//!
//! Owns: the directory of the victim, its verdict, and the processes with its mark.
//! Invariants: each victim has its own directory with a short path, because socket paths are limited. The verdict must
//! be exactly as the victim writes it. A verdict with a second word is a failure.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use model::Pid;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::command::{self, Finished, process_of, read_lossy, tail};
use crate::compile::{Library, compile_with};
use crate::dump;
use crate::error::HarnessError;
use crate::guard::Guard;
use crate::limits;
use crate::process::{ProcessId, descendants, own_pid};
use crate::undying::Undying;

/// The exit status of a victim that cannot run on this machine.
const UNSUPPORTED_STATUS: i32 = 77;

/// The result of a victim's check of its own state.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The whole state is as before.
    Pass,
    /// A part of the state has changed. The text is the reason, as written by the victim.
    Fail(String),
}

/// Options for the start of a victim.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// Whether the victim damages its own state before the check. The victim must detect the damage.
    pub sabotage: bool,
    /// The C library that the victim is linked to.
    pub c_library: Library,
}

/// A victim that has reported "ready".
#[derive(Debug)]
pub struct Victim {
    name: String,
    process: ProcessId,
    child: Option<Child>,
    // The fields are dropped in this order: first all processes, and then the directories.
    guard: Guard,
    folder: TempDir,
    images: TempDir,
}

impl Victim {
    /// Starts a victim, and waits until it is ready.
    ///
    /// # Errors
    /// `Unsupported` if the victim cannot run on this machine. Other errors if it does not compile, start or become
    /// ready.
    pub fn start(name: &str) -> Result<Self, HarnessError> {
        Self::start_with(name, Options::default())
    }

    /// Starts a victim with options.
    ///
    /// # Errors
    /// The errors of [`Victim::start`].
    pub fn start_with(name: &str, options: Options) -> Result<Self, HarnessError> {
        let (folder, images) = (victim_folder()?, image_folder()?);
        let guard = Guard::new();
        let mut command = Command::new(compile_with(name, options.c_library)?);
        command.arg(folder.path().join("verdict")).current_dir(folder.path());
        if options.sabotage {
            command.env("VICTIM_SABOTAGE", "1");
        }
        let child = command::spawn(&mut command, &guard, folder.path(), "victim")?;
        let process = process_of(&child).ok_or_else(|| HarnessError::Spawn {
            program: name.to_owned(),
            source: std::io::Error::other("it is gone at once"),
        })?;
        let mut victim = Self { name: name.to_owned(), process, child: Some(child), guard, folder, images };
        victim.wait_ready()?;
        Ok(victim)
    }

    /// Returns the name of the victim.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the root of the victim's tree. After a restore, this is the restored root.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// Returns the pid of the root.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Returns the working directory of the victim.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the path of the image that [`Victim::checkpoint`] writes.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.images.path().join("image")
    }

    /// Returns the guard whose mark all processes of this victim have.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Takes a checkpoint, after which the victim continues.
    ///
    /// # Errors
    /// An error if the command cannot be started or does not end in time. The exit status is not checked.
    pub fn checkpoint(&self, undying: &Undying) -> Result<Finished, HarnessError> {
        undying.checkpoint(&self.guard, self.images.path(), self.pid(), &self.image(), false)
    }

    /// Takes a checkpoint with `--kill`, and reaps the dead root, so that its pid is free.
    ///
    /// # Errors
    /// An error if the command fails, or if a process of the victim is still alive afterwards.
    pub fn checkpoint_and_kill(&mut self, undying: &Undying) -> Result<Finished, HarnessError> {
        let tree = self.tree();
        let finished = undying
            .checkpoint(&self.guard, self.images.path(), self.pid(), &self.image(), true)?
            .expect_status(0)?;
        self.wait_gone(&tree)?;
        Ok(finished)
    }

    /// Restores the image. The restored root becomes the victim's process.
    ///
    /// # Errors
    /// An error if the command fails, or if the process with the returned pid does not exist.
    pub fn restore(&mut self, undying: &Undying) -> Result<(), HarnessError> {
        let pid = undying.restore(&self.guard, self.images.path(), &self.image())?;
        self.process = ProcessId::of(pid).map_err(|source| HarnessError::Output {
            command: "restore".to_owned(),
            detail: format!(
                "{}: pid {pid}: {source}; verdict so far: [{}]",
                self.name,
                self.verdict_text().trim()
            ),
        })?;
        Ok(())
    }

    /// Requests the verdict of the victim, and waits for the verdict.
    ///
    /// # Errors
    /// An error if the victim cannot be signalled, does not end in time, or dies without a verdict.
    pub fn judge(&mut self) -> Result<Verdict, HarnessError> {
        self.judge_within(limits::judge())
    }

    /// Requests the verdict of the victim with another time limit.
    ///
    /// # Errors
    /// The errors of [`Victim::judge`].
    pub fn judge_within(&mut self, limit: Duration) -> Result<Verdict, HarnessError> {
        let process = self.process;
        match process.signal(Signal::TERM) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            other => {
                other.map_err(|source| HarnessError::Process { operation: "signal", process, source })?
            }
        }
        if !wait_end(process, limit)? {
            let what = format!("verdict of {}", self.name);
            return Err(self.timeout(&what, limit));
        }
        let status = self.collect();
        let text = self.verdict_text();
        match (text.as_str(), text.strip_prefix("FAIL: ")) {
            ("PASS\n", _) => Ok(Verdict::Pass),
            (_, Some(reason)) => Ok(Verdict::Fail(reason.trim_end().to_owned())),
            _ => Err(self.died(&status)),
        }
    }

    /// Returns the living processes of this victim. Processes of `undying` are included.
    #[must_use]
    pub fn survivors(&self) -> Vec<ProcessId> {
        self.guard.marked()
    }

    fn wait_ready(&mut self) -> Result<(), HarnessError> {
        let deadline = Instant::now() + limits::ready();
        loop {
            if read_lossy(&self.folder.path().join("victim.stdout")).starts_with("ready\n") {
                return Ok(());
            }
            if !self.process.is_alive() {
                return Err(self.ended_before_ready());
            }
            if Instant::now() >= deadline {
                let what = format!("readiness of {}", self.name);
                return Err(self.timeout(&what, limits::ready()));
            }
            thread::sleep(limits::POLL);
        }
    }

    fn ended_before_ready(&mut self) -> HarnessError {
        let code = self.child.as_mut().and_then(|child| child.wait().ok()).and_then(|status| status.code());
        let text = self.verdict_text();
        match unsupported(&self.name, &text) {
            Some(error) if code == Some(UNSUPPORTED_STATUS) => error,
            _ => self.died(&format!("status {code:?}")),
        }
    }

    /// Returns all processes of the victim, including zombies, which no longer have a mark.
    fn tree(&self) -> Vec<ProcessId> {
        let mut tree = self.guard.marked();
        let below: Vec<ProcessId> = tree.iter().flat_map(|process| descendants(*process)).collect();
        tree.extend(below.into_iter().filter(|process| process.parent() != Some(own_pid())));
        tree.push(self.process);
        tree
    }

    /// Waits for the end of a killed tree, and reaps the orphans, which are now children of the harness. A pid is free
    /// for the restore only after the process was reaped.
    fn wait_gone(&mut self, tree: &[ProcessId]) -> Result<(), HarnessError> {
        let deadline = Instant::now() + limits::gone();
        if !wait_end(self.process, limits::gone())? {
            return Err(self.survivor_error(tree));
        }
        self.collect();
        loop {
            let _how_they_ended = tree.iter().filter_map(|process| process.reap()).count();
            if tree.iter().all(|process| process.parent().is_none()) && self.survivors().is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(self.survivor_error(tree));
            }
            thread::sleep(limits::POLL);
        }
    }

    fn survivor_error(&self, tree: &[ProcessId]) -> HarnessError {
        let left = tree.iter().copied().filter(|process| process.parent().is_some()).chain(self.survivors());
        let survivors = left.map(|process| process.to_string()).collect::<Vec<_>>().join(", ");
        HarnessError::Survivors { what: format!("checkpoint --kill of {}", self.name), survivors }
    }

    /// Reaps the ended root, which is a child or an orphan of the harness. Returns how the root ended.
    fn collect(&mut self) -> String {
        let own = self.child.take().and_then(|mut child| child.wait().ok()).map(|status| status.to_string());
        own.or_else(|| self.process.reap()).unwrap_or_else(|| "collected by somebody else".to_owned())
    }

    fn verdict_text(&self) -> String {
        read_lossy(&self.folder.path().join("verdict"))
    }

    fn died(&self, status: &str) -> HarnessError {
        let stderr = read_lossy(&self.folder.path().join("victim.stderr"));
        HarnessError::Died {
            victim: self.name.clone(),
            status: status.to_owned(),
            verdict: self.verdict_text(),
            output: tail(&stderr).to_owned(),
        }
    }

    fn timeout(&self, what: &str, limit: Duration) -> HarnessError {
        let output = ["victim.stdout", "victim.stderr", "verdict"].map(|name| self.folder.path().join(name));
        let files = output.each_ref().map(|path| path.as_path());
        dump::timeout(what, limit, &self.guard.marked(), &files)
    }
}

/// Parses a verdict that reports a lack of support. Returns `None` for any other verdict.
pub(crate) fn unsupported(victim: &str, verdict: &str) -> Option<HarnessError> {
    let reason = verdict.strip_prefix("UNSUPPORTED: ")?.strip_suffix('\n')?.to_owned();
    Some(HarnessError::Unsupported { victim: victim.to_owned(), reason })
}

fn wait_end(process: ProcessId, limit: Duration) -> Result<bool, HarnessError> {
    process.wait_end(limit).map_err(|source| HarnessError::Process { operation: "wait for", process, source })
}

/// Creates a directory with a short path that every user may use, because some victims change their user id.
pub(crate) fn victim_folder() -> Result<TempDir, HarnessError> {
    temporary("undying-v-", 0o777)
}

/// Creates a directory that only the owner may read, because images contain secrets.
pub(crate) fn image_folder() -> Result<TempDir, HarnessError> {
    temporary("undying-i-", 0o700)
}

fn temporary(prefix: &str, mode: u32) -> Result<TempDir, HarnessError> {
    let failed =
        |source| HarnessError::File { operation: "create a folder in", path: std::env::temp_dir(), source };
    let folder = tempfile::Builder::new().prefix(prefix).tempdir().map_err(failed)?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).map_err(failed)?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_victim_that_does_not_answer_is_dumped() {
        let mut victim = Victim::start("state_umask").unwrap();
        victim.process().signal(Signal::STOP).unwrap();
        let error = victim.judge_within(Duration::from_millis(300)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, HarnessError::Timeout { .. }), "{text}");
        assert!(text.contains("state_umask") && text.contains("T (stopped)"), "{text}");
    }

    #[test]
    fn a_victim_that_dies_is_no_pass() {
        let mut victim = Victim::start("state_umask").unwrap();
        victim.process().signal(Signal::KILL).unwrap();
        assert!(matches!(victim.judge().unwrap_err(), HarnessError::Died { .. }));
    }

    #[test]
    fn nothing_of_a_victim_is_left() {
        let victim = Victim::start("state_tree").unwrap();
        let (folder, processes) = (victim.folder().to_path_buf(), victim.survivors());
        assert!(processes.len() >= 6, "{processes:?}");
        drop(victim);
        assert!(processes.iter().all(|process| !process.is_alive()));
        assert!(!folder.exists());
    }
}
