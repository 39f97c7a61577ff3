//! Calls the `undying` binary.
//!
//! Owns: finding it, the command lines of the verbs that tests use.
//! Invariants: every call has a limit.
//! Does not: interpret images; only exit status, output and JSON.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use model::Pid;
use serde_json::Value;

use crate::command::{self, Finished};
use crate::error::HarnessError;
use crate::guard::Guard;
use crate::limits;
use crate::paths;

/// The `undying` binary.
#[derive(Clone, Debug)]
pub struct Undying {
    binary: PathBuf,
    features_off: Option<String>,
}

impl Undying {
    /// Finds the binary: `UNDYING_BIN`, or `target/{debug,release}/undying`.
    ///
    /// # Errors
    /// When there is none.
    pub fn find() -> Result<Self, HarnessError> {
        paths::undying_binary().map(|binary| Self { binary, features_off: None })
    }

    /// The same with a kernel feature forced off.
    #[must_use]
    pub fn without(self, feature: &str) -> Self {
        Self { features_off: Some(feature.to_owned()), ..self }
    }

    /// The path of the binary.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// A command with some arguments, not yet started.
    #[must_use]
    pub fn command<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments);
        if let Some(features) = &self.features_off {
            command.env("UNDYING_FEATURES_OFF", features);
        }
        command
    }

    /// Runs the binary to its end; its output is kept below `folder`.
    ///
    /// # Errors
    /// When it cannot be started or does not end in time.
    pub fn run<I: AsRef<OsStr>>(
        &self,
        guard: &Guard,
        folder: &Path,
        arguments: impl IntoIterator<Item = I>,
    ) -> Result<Finished, HarnessError> {
        command::run(&mut self.command(arguments), guard, folder, "undying", limits::command())
    }

    /// `undying checkpoint PID --image DIR [--kill]`.
    ///
    /// # Errors
    /// When it cannot be started or does not end in time.
    pub fn checkpoint(
        &self,
        guard: &Guard,
        folder: &Path,
        pid: Pid,
        image: &Path,
        kill: bool,
    ) -> Result<Finished, HarnessError> {
        let pid = pid.to_string();
        let mut command = self.command([OsStr::new("checkpoint"), OsStr::new(&pid), OsStr::new("--image")]);
        command.arg(image);
        if kill {
            command.arg("--kill");
        }
        command::run(&mut command, guard, folder, "checkpoint", limits::command())
    }

    /// `undying restore IMAGE --detach --pidfile FILE`; returns the pid of the restored tree.
    ///
    /// # Errors
    /// When it fails, does not end in time, or writes no pid.
    pub fn restore(&self, guard: &Guard, folder: &Path, image: &Path) -> Result<Pid, HarnessError> {
        self.restore_with(&[], guard, folder, image)
    }

    /// As [`Self::restore`], over files that have changed since the checkpoint.
    ///
    /// # Errors
    /// As there.
    pub fn restore_over_files(
        &self,
        guard: &Guard,
        folder: &Path,
        image: &Path,
    ) -> Result<Pid, HarnessError> {
        self.restore_with(&["--files", "keep"], guard, folder, image)
    }

    fn restore_with(
        &self,
        options: &[&str],
        guard: &Guard,
        folder: &Path,
        image: &Path,
    ) -> Result<Pid, HarnessError> {
        let pidfile = folder.join("restored.pid");
        let mut command = self.command([OsStr::new("restore"), image.as_os_str()]);
        command.args(options).args(["--detach", "--pidfile"]).arg(&pidfile);
        let finished =
            command::run(&mut command, guard, folder, "restore", limits::command())?.expect_status(0)?;
        let text = command::read_lossy(&pidfile);
        text.trim().parse().map(Pid).map_err(|_| HarnessError::Output {
            command: finished.command,
            detail: format!("the pidfile holds [{}]", text.trim()),
        })
    }

    /// Runs a verb with `--json` and parses what it prints.
    ///
    /// # Errors
    /// When it fails, does not end in time, or prints no JSON.
    pub fn json(&self, guard: &Guard, folder: &Path, arguments: &[&OsStr]) -> Result<Value, HarnessError> {
        let all = arguments.iter().copied().chain([OsStr::new("--json")]);
        let finished = self.run(guard, folder, all)?;
        serde_json::from_str(&finished.stdout).map_err(|error| HarnessError::Output {
            command: finished.command,
            detail: format!(
                "{error} in [{}]; it ended with {} and said [{}]",
                finished.stdout, finished.status, finished.stderr
            ),
        })
    }
}
