//! Helpers that the tests of several modules share.
//!
//! Owns: a small event loop, and the compilation of C programs that are not among the test programs of `testkit`.
//! Does not: belong to the crate outside tests.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::Pid;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use testkit::Guard;

use crate::interest::{Handle, Interest};

/// A time limit that is longer than any operation takes on a loaded machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// An interval that does not end during a test.
pub(crate) const LONG: Duration = Duration::from_secs(3600);

/// Waits like the event loop: for a handle or until a due time.
///
/// # Panics
///
/// Panics if there is neither a handle nor a due time.
pub(crate) fn wait(handle: Option<Handle<'_>>, due: Option<Instant>) {
    let left = due.map(|due| due.saturating_duration_since(Instant::now()));
    assert!(handle.is_some() || left.is_some(), "nothing would ever wake the loop");
    let timeout = left.map_or(LIMIT, |left| left.min(LIMIT));
    let timeout = Timespec::try_from(timeout).unwrap();
    let flags = |interest| match interest {
        Interest::Readable => PollFlags::IN,
        Interest::Writable => PollFlags::OUT,
    };
    let mut fds: Vec<_> =
        handle.iter().map(|(handle, interest)| PollFd::new(handle, flags(*interest))).collect();
    poll(&mut fds, Some(&timeout)).unwrap();
}

/// A child process. Drop kills and reaps the child and all its descendants.
pub(crate) struct Running {
    child: Child,
    guard: Guard,
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let guard = Guard::new();
        let child = guard.mark(command).stdin(Stdio::null()).spawn().unwrap();
        Self { child, guard }
    }

    /// Starts a shell with this script.
    pub(crate) fn shell(script: &str) -> Self {
        Self::start(Command::new("sh").args(["-c", script]))
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // While the kernel still loads a program, its environment is not visible. The guard finds processes by their
        // environment.
        let _ended_already = self.child.kill();
        self.guard.kill_all();
        let _reaped_already = self.child.wait();
    }
}

/// Compiles a C program.
pub(crate) fn compile(folder: &Path, source: &str) -> PathBuf {
    let (input, output) = (folder.join("program.c"), folder.join("program"));
    std::fs::write(&input, source).unwrap();
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let flags = ["-std=gnu17", "-D_GNU_SOURCE", "-O1", "-Wall", "-Wextra", "-Werror", "-o"];
    let status = Command::new(compiler).args(flags).arg(&output).arg(&input).status().unwrap();
    assert!(status.success());
    output
}
