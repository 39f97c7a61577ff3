//! Calls of the `undying` binary.
//!
//! Owns: the search for the binary, and the command lines that tests use.
//! Invariants: every call has a time limit.
//! Does not: read images. It uses only the exit status, the output and JSON.

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
    /// An error if there is no binary.
    pub fn find() -> Result<Self, HarnessError> {
        paths::undying_binary().map(|binary| Self { binary, features_off: None })
    }

    /// Returns the binary with a kernel feature forced off.
    #[must_use]
    pub fn without(self, feature: &str) -> Self {
        Self { features_off: Some(feature.to_owned()), ..self }
    }

    /// Returns the path of the binary.
    #[must_use]
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Creates a command with these arguments. The command is not started.
    #[must_use]
    pub fn command<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments);
        if let Some(features) = &self.features_off {
            command.env("UNDYING_FEATURES_OFF", features);
        }
        command
    }

    /// Runs the binary to its end. The output goes to files below `folder`.
    ///
    /// # Errors
    /// An error if the binary cannot be started or does not end in time.
    pub fn run<I: AsRef<OsStr>>(
        &self,
        guard: &Guard,
        folder: &Path,
        arguments: impl IntoIterator<Item = I>,
    ) -> Result<Finished, HarnessError> {
        command::run(&mut self.command(arguments), guard, folder, "undying", limits::command())
    }

    /// Runs `undying checkpoint PID --image DIR [--kill]`.
    ///
    /// # Errors
    /// An error if the binary cannot be started or does not end in time.
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

    /// Runs `undying restore IMAGE --detach --pidfile FILE`. Returns the pid of the restored root.
    ///
    /// # Errors
    /// An error if the command fails, does not end in time, or writes no pid.
    pub fn restore(&self, guard: &Guard, folder: &Path, image: &Path) -> Result<Pid, HarnessError> {
        self.restore_with(&[], guard, folder, image)
    }

    /// Restores an image like [`Self::restore`], even if files have changed since the checkpoint.
    ///
    /// # Errors
    /// The errors of [`Self::restore`].
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

    /// Runs a verb (subcommand) with `--json`, and parses its output.
    ///
    /// # Errors
    /// An error if the command fails, does not end in time, or prints invalid JSON.
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
