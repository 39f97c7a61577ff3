//! One running victim: started, checkpointed, killed, restored, judged.
//!
//! Owns: the victim's folder, its verdict, the processes that carry its mark.
//! Invariants: the folder is its own and short (socket paths); the verdict counts
//! only as the victim wrote it, and a second word in it makes it a failure.

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

/// The exit status with which a victim says that it cannot run here.
const UNSUPPORTED_STATUS: i32 = 77;

/// What a victim says about itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Everything is as it was.
    Pass,
    /// Something is not; the victim's own words.
    Fail(String),
}

/// How to start a victim.
#[derive(Clone, Copy, Default, Debug)]
pub struct Options {
    /// The victim damages its own state before it judges itself: it must find out.
    pub sabotage: bool,
    /// What it is linked to.
    pub c_library: Library,
}

/// A victim that has said "ready".
#[derive(Debug)]
pub struct Victim {
    name: String,
    process: ProcessId,
    child: Option<Child>,
    // Dropped in this order: first everything that runs, then its folders.
    guard: Guard,
    folder: TempDir,
    images: TempDir,
}

impl Victim {
    /// Starts a victim and waits until it is ready.
    ///
    /// # Errors
    /// `Unsupported` when it cannot run here; else when it does not compile, start or get ready.
    pub fn start(name: &str) -> Result<Self, HarnessError> {
        Self::start_with(name, Options::default())
    }

    /// The same with options.
    ///
    /// # Errors
    /// As for [`Victim::start`].
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

    /// The victim's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The root of the victim's tree, the restored one after a restore.
    #[must_use]
    pub fn process(&self) -> ProcessId {
        self.process
    }

    /// The number of that root.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// The folder in which the victim works.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where [`Victim::checkpoint`] puts the image.
    #[must_use]
    pub fn image(&self) -> PathBuf {
        self.images.path().join("image")
    }

    /// The guard with whose mark everything for this victim runs.
    #[must_use]
    pub fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Takes a checkpoint; the victim goes on.
    ///
    /// # Errors
    /// When the command cannot be started or does not end in time; its status is not looked at.
    pub fn checkpoint(&self, undying: &Undying) -> Result<Finished, HarnessError> {
        undying.checkpoint(&self.guard, self.images.path(), self.pid(), &self.image(), false)
    }

    /// Takes a checkpoint with `--kill`, and collects the dead root, so that its number is free.
    ///
    /// # Errors
    /// When the command fails or a process of the victim outlives it.
    pub fn checkpoint_and_kill(&mut self, undying: &Undying) -> Result<Finished, HarnessError> {
        let tree = self.tree();
        let finished = undying
            .checkpoint(&self.guard, self.images.path(), self.pid(), &self.image(), true)?
            .expect_status(0)?;
        self.wait_gone(&tree)?;
        Ok(finished)
    }

    /// Restores the image; from now on the restored root is the victim's process.
    ///
    /// # Errors
    /// When the command fails or names a pid that is not there.
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

    /// Asks the victim for its verdict and waits for it.
    ///
    /// # Errors
    /// When it cannot be asked, does not answer in time, or dies without a verdict.
    pub fn judge(&mut self) -> Result<Verdict, HarnessError> {
        self.judge_within(limits::judge())
    }

    /// The same with another limit.
    ///
    /// # Errors
    /// As for [`Victim::judge`].
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

    /// The processes of this victim that are alive, `undying` itself not counted out.
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

    /// Everything that belongs to the victim, zombies too (they carry no mark any more).
    fn tree(&self) -> Vec<ProcessId> {
        let mut tree = self.guard.marked();
        let below: Vec<ProcessId> = tree.iter().flat_map(|process| descendants(*process)).collect();
        tree.extend(below.into_iter().filter(|process| process.parent() != Some(own_pid())));
        tree.push(self.process);
        tree
    }

    /// Waits for the end of a tree that was killed and collects the orphans, which are ours now:
    /// a pid is free for the restore only when it is reaped.
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

    /// Collects the ended root, whether it is our child or was given to us, and tells how it ended.
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

/// Whether a victim says, in its whole verdict, that it cannot run here.
pub(crate) fn unsupported(victim: &str, verdict: &str) -> Option<HarnessError> {
    let reason = verdict.strip_prefix("UNSUPPORTED: ")?.strip_suffix('\n')?.to_owned();
    Some(HarnessError::Unsupported { victim: victim.to_owned(), reason })
}

fn wait_end(process: ProcessId, limit: Duration) -> Result<bool, HarnessError> {
    process.wait_end(limit).map_err(|source| HarnessError::Process { operation: "wait for", process, source })
}

/// A short path that every user may use: some victims give up their user id.
pub(crate) fn victim_folder() -> Result<TempDir, HarnessError> {
    temporary("undying-v-", 0o777)
}

/// Images hold secrets: only the owner may look.
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
