//! One real program: started, killed by a checkpoint and restored many times, ended.
//!
//! Owns: the program's folder, its images, everything in its process group, the figures of its rounds.
//! Invariants: the program has no descriptor of ours but its three standard ones, which are files; nothing of it
//! is left when the test ends, however it ends; every dead process is collected, so that its number is free.
//! Does not: know what the program does; the tests judge that.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use model::Pid;
use rustix::process::{Signal, WaitOptions, WaitStatus, waitpid};
use tempfile::TempDir;
use testkit::{Finished, Guard, ProcessId, Undying, descendants};

use super::figures::Figures;
use super::load::Load;
use super::problem::{Context, Outcome, Problem, check};
use super::{LIMIT, POLL, group};

/// The latest moment of a death after everything works again.
const LIFE_MAX: Duration = Duration::from_millis(120);
/// Rounds when `UNDYING_ROUNDS` does not say.
const ROUNDS_DEFAULT: u32 = 3;
/// Closes what the test runner's own parents left open, then becomes the program.
const LAUNCHER: &str = r#"for fd in /proc/$$/fd/*; do fd=${fd##*/}
[ "$fd" -gt 2 ] && [ "$fd" -ne 255 ] && eval "exec $fd>&-"; done 2>/dev/null; exec "$@""#;

/// A running program.
pub(crate) struct Subject {
    name: &'static str,
    undying: Undying,
    process: ProcessId,
    child: Option<Child>,
    random: fastrand::Rng,
    figures: Figures,
    guard: Guard,
    folder: TempDir,
    images: TempDir,
}

/// How often each program dies.
pub(crate) fn rounds() -> u32 {
    std::env::var("UNDYING_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(ROUNDS_DEFAULT)
}

impl Subject {
    /// Starts a program in a folder of its own; `words` makes its command line from that folder.
    pub(crate) fn start(
        name: &'static str,
        words: impl FnOnce(&Path) -> Outcome<Vec<OsString>>,
    ) -> Outcome<Self> {
        let undying = Undying::find()?;
        let (folder, images, guard) = (temporary(0o777)?, temporary(0o700)?, Guard::new());
        let output = |suffix: &str| File::create(folder.path().join(format!("{name}.{suffix}")));
        let mut command = Command::new("bash");
        command.args(["-c", LAUNCHER, name]).args(words(folder.path())?).current_dir(folder.path());
        command.stdin(Stdio::null()).stdout(output("stdout")?).stderr(output("stderr")?).process_group(0);
        let child = guard.mark(&mut command).spawn().context(name)?;
        let process = ProcessId::of(Pid(i32::try_from(child.id())?))?;
        let (random, figures) = (testkit::seeded(name), Figures::default());
        Ok(Self { name, undying, process, child: Some(child), random, figures, guard, folder, images })
    }

    /// The folder the program works in.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The root of its tree, as it is now.
    pub(crate) fn process(&self) -> ProcessId {
        self.process
    }

    /// All the rounds: load, death at a random moment, restore, load again.
    pub(crate) fn live_through_deaths(&mut self, load: &mut Load) -> Outcome {
        self.live(load).map_err(|problem| Problem::new(format!("{problem:?}\n{}", self.said())))
    }

    fn live(&mut self, load: &mut Load) -> Outcome {
        for round in 1..=rounds() {
            load.wait_progress().context(format!("before death {round}"))?;
            thread::sleep(testkit::moment(&mut self.random, LIFE_MAX));
            self.die_and_come_back().context(format!("death {round}"))?;
        }
        load.wait_progress().context("after the last death")?;
        check(self.process.is_alive(), || "the program ended after the last death".to_owned())
    }

    fn die_and_come_back(&mut self) -> Outcome {
        let image = self.images.path().join("image");
        let dumped = self.checkpoint(&image)?;
        self.wait_gone()?;
        let began = Instant::now();
        let pid = self.undying.restore(&self.guard, self.images.path(), &image)?;
        self.figures.add(dumped.took, began.elapsed());
        let process = ProcessId::of(pid).context("the restored program")?;
        check(process.pid() == self.process.pid(), || {
            format!("it was pid {}, and came back as {}", self.process.pid(), process.pid())
        })?;
        self.process = process;
        Ok(fs::remove_dir_all(&image)?)
    }

    fn checkpoint(&self, image: &Path) -> Outcome<Finished> {
        let pid = self.process.pid();
        let finished = self.undying.checkpoint(&self.guard, self.images.path(), pid, image, true)?;
        Ok(finished.expect_status(0)?)
    }

    /// Signals the root, waits for the end of the whole tree and prints the figures.
    pub(crate) fn end(self, signal: Option<Signal>, expected: End) -> Outcome {
        self.end_and(signal, expected, || Ok(()))
    }

    /// The same, and then looks at what the program left in its folder.
    pub(crate) fn end_and(
        mut self,
        signal: Option<Signal>,
        expected: End,
        verify: impl FnOnce() -> Outcome,
    ) -> Outcome {
        let ended = self.wait_end(signal, expected).and_then(|()| verify());
        ended.map_err(|problem| Problem::new(format!("{problem:?}\n{}", self.said())))?;
        if let Some(line) = self.figures.line(self.name) {
            println!("{line}");
        }
        Ok(())
    }

    fn wait_end(&mut self, signal: Option<Signal>, expected: End) -> Outcome {
        if let Some(signal) = signal {
            self.process.signal(signal).context("ask the program to end")?;
        }
        let ended = self.process.wait_end(LIMIT)?;
        check(ended, || format!("it does not end; {}", group::describe(self.process)))?;
        let end = self.collect_root();
        check(end == Some(expected), || format!("it ended with {end:?}, expected {expected:?}"))?;
        self.wait_gone()
    }

    /// What the program and the last commands said, for a failure's message.
    pub(crate) fn said(&self) -> String {
        let mut text = String::new();
        for suffix in ["stdout", "stderr"] {
            let path = self.folder.path().join(format!("{}.{suffix}", self.name));
            let said = fs::read(path).unwrap_or_default();
            let said = String::from_utf8_lossy(&said[said.len().saturating_sub(2000)..]).into_owned();
            text.push_str(&format!("{} {suffix}: [{}]\n", self.name, said.trim_end()));
        }
        text
    }

    /// Waits for the end of everything in the tree, and collects what is ours to collect.
    fn wait_gone(&mut self) -> Outcome {
        let deadline = Instant::now() + LIMIT;
        check(self.process.wait_end(LIMIT)?, || "the root outlives `checkpoint --kill`".to_owned())?;
        self.collect_root();
        loop {
            let left = group::members(self.process.pid());
            left.iter().for_each(|process| reap(*process));
            if left.is_empty() {
                return Ok(());
            }
            check(Instant::now() < deadline, || format!("left behind: {left:?}"))?;
            thread::sleep(POLL);
        }
    }

    fn collect_root(&mut self) -> Option<End> {
        match self.child.take() {
            Some(mut child) => child.wait().ok().map(End::of_child),
            None => {
                let pid = rustix::process::Pid::from_raw(self.process.pid().get());
                waitpid(pid, WaitOptions::NOHANG).ok().flatten().map(|(_, status)| End::of(status))
            }
        }
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let began = Instant::now();
        loop {
            let mut left = group::members(self.process.pid());
            left.extend(descendants(self.process));
            left.extend(self.process.is_alive().then_some(self.process));
            if left.is_empty() || began.elapsed() > LIMIT {
                return;
            }
            for process in left {
                let _gone_already = process.signal(Signal::KILL);
                reap(process);
            }
            thread::sleep(POLL);
        }
    }
}

/// How a program ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// With this exit status.
    Exit(i32),
    /// By this signal.
    Signal(i32),
}

impl End {
    fn of(status: WaitStatus) -> Self {
        match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Self::Exit(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }

    fn of_child(status: std::process::ExitStatus) -> Self {
        use std::os::unix::process::ExitStatusExt as _;
        match (status.code(), status.signal()) {
            (Some(code), _) => Self::Exit(code),
            (None, signal) => Self::Signal(signal.unwrap_or(0)),
        }
    }
}

/// Collects a dead child; orphans of the tree are our children.
fn reap(process: ProcessId) {
    let ours = i32::try_from(std::process::id()).ok().map(Pid);
    if process.is_zombie() && process.parent() == ours {
        let _collected = waitpid(rustix::process::Pid::from_raw(process.pid().get()), WaitOptions::NOHANG);
    }
}

fn temporary(mode: u32) -> Outcome<TempDir> {
    let folder = tempfile::Builder::new().prefix("undying-e-").tempdir()?;
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode))?;
    Ok(folder)
}
