//! Helpers that the tests of the command line share: a directory, a store, subjects (protected process trees), and
//! calls with a time limit.
//!
//! Owns: every process that a test starts. Drop of the `Lab` kills these processes.
//! Invariants: every wait has a time limit. A process is identified by its pid and start time before it is killed.
//! Does not: assert properties of the program under test.

pub(crate) mod system;
pub(crate) mod terminal;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use model::Pid;
use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;
use testkit::{Guard, ProcessId, within_limit};

pub(crate) use testkit::until;

/// Maximum time for a single call or condition on a loaded machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);

/// The directory of a test, with all processes that the test has started.
pub(crate) struct Lab {
    pub(crate) guard: Guard,
    folder: TempDir,
}

/// A shell program under `undying run`, with the name `job`. The program ends when a file `stop` appears.
pub(crate) struct Guarded<'a> {
    pub(crate) lab: &'a Lab,
    pub(crate) guardian: Child,
}

impl<'a> Guarded<'a> {
    pub(crate) fn run(lab: &'a Lab, options: &[&str], script: &str) -> Self {
        let mut words: Vec<&str> = vec!["run", "--name", "job"];
        words.extend(options);
        if !options.contains(&"--every") {
            words.extend(["--every", "50ms"]);
        }
        if !options.contains(&"--files") {
            // A script records its progress in files, and a restart must not roll back these files.
            words.extend(["--files", "keep"]);
        }
        words.extend(["--", "sh", "-c", script]);
        Self { lab, guardian: lab.undying(words).spawn().unwrap() }
    }

    /// Returns the status. Waits until the guardian (the supervising process) has written its first status.
    pub(crate) fn status(&self) -> Value {
        until("a status", || {
            let said = self.lab.say(["status", "job", "--json"]);
            let status: Value = serde_json::from_str(&said.stdout).ok()?;
            Some(status[0].clone())
        })
    }

    /// Sends a signal to the guardian.
    pub(crate) fn signal(&self, signal: Signal) {
        ProcessId::of(Pid(self.guardian.id() as i32)).unwrap().signal(signal).unwrap();
    }

    pub(crate) fn await_checkpoints(&self, more: u64) {
        let count = || self.status()["checkpoints"].as_u64().unwrap();
        let from = count();
        until("checkpoints", || (count() >= from + more).then_some(()));
    }

    /// Kills the root process, and waits for the next incarnation (restored or restarted program).
    pub(crate) fn kill(&self) {
        let before = self.incarnation();
        self.root().signal(Signal::KILL).unwrap();
        self.await_incarnation(before + 1);
    }

    /// Kills the root process and waits for its death. Until then, a system call that the root has begun still takes
    /// input.
    pub(crate) fn kill_root(&self) {
        let root = self.root();
        root.signal(Signal::KILL).unwrap();
        until("the death", || (!root.is_alive()).then_some(()));
    }

    /// Returns the root process.
    pub(crate) fn root(&self) -> ProcessId {
        ProcessId::of(Pid(self.status()["pid"].as_i64().unwrap() as i32)).unwrap()
    }

    pub(crate) fn incarnation(&self) -> u64 {
        self.status()["incarnation"].as_u64().unwrap()
    }

    /// Waits until the incarnation with this number, or a later incarnation, runs.
    pub(crate) fn await_incarnation(&self, number: u64) {
        until("the next incarnation", || {
            let now = self.status();
            (now["incarnation"].as_u64().unwrap() >= number && now["state"] == "running").then_some(())
        });
    }

    /// Makes the program end, and returns the exit status.
    pub(crate) fn end(mut self) -> i32 {
        std::fs::write(self.lab.path("stop"), "").unwrap();
        wait(&mut self.guardian).code().unwrap()
    }

    pub(crate) fn said(&self) -> String {
        std::fs::read_to_string(self.lab.path("stderr")).unwrap()
    }
}

/// The exit code and the output of a call.
#[derive(Debug)]
pub(crate) struct Said {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Lab {
    pub(crate) fn new() -> Self {
        // The directory is not below /tmp, which may be a tmpfs. Images must be written to an ordinary file system.
        let folder = TempDir::with_prefix_in("undying-cli-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        Self { guard: Guard::new(), folder }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.path("store")
    }

    /// Creates a command that runs `undying` with these arguments and the store of this lab. The output goes to files.
    pub(crate) fn undying<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_undying"));
        command.arg("--store").arg(self.store()).args(arguments);
        self.detached(&mut command);
        command
    }

    /// Disconnects a command from the standard streams of the test, which are pipes of another program.
    pub(crate) fn detached<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        let open = |name| File::options().create(true).append(true).open(self.path(name)).unwrap();
        command.stdin(Stdio::null()).stdout(open("stdout")).stderr(open("stderr"));
        command.current_dir(self.folder.path());
        self.guard.mark(command)
    }

    /// Returns the standard error of all detached commands.
    pub(crate) fn told(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.path("stderr")).unwrap_or_default()).into_owned()
    }

    /// Runs a command to its end.
    pub(crate) fn call(&self, command: &mut Command) -> Said {
        let (out, err) = (self.path("call.out"), self.path("call.err"));
        command.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        let mut child = command.spawn().unwrap();
        let status = wait(&mut child);
        let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned();
        Said { code: status.code(), stdout: read(&out), stderr: read(&err) }
    }

    /// Runs `undying` to its end.
    pub(crate) fn say<I: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = I>) -> Said {
        self.call(&mut self.undying(arguments))
    }

    /// Runs `undying` with `--json`, and parses its output. Returns null if the command fails and prints nothing.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let said = self.say(arguments.iter().copied().chain(["--json"]));
        if said.code != Some(0) && said.stdout.is_empty() {
            return Value::Null;
        }
        serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {said:?}"))
    }

    /// Starts the counter (a test program) without a guardian, in a new session.
    pub(crate) fn counter(&self, arguments: &[&str]) -> Counter {
        self.counter_like(program(), arguments, &mut Command::new("setsid"))
    }

    /// Starts the counter from another program file, through a prepared `setsid` command.
    pub(crate) fn counter_like(&self, program: &Path, arguments: &[&str], setsid: &mut Command) -> Counter {
        setsid.arg("--fork").arg(program).arg(self.path("count")).args(arguments);
        let mut child = self.detached(setsid).spawn().unwrap();
        wait(&mut child);
        let runs_it = |one: &ProcessId| exe_of(*one).is_some_and(|exe| exe == program);
        let process = until("the counter", || self.guard.marked().into_iter().find(runs_it));
        let counter = Counter { process, file: self.path("count") };
        until("the first count", || counter.read());
        counter
    }

    /// Returns the counter that runs below a guardian, with the file of its count.
    pub(crate) fn guarded_counter(&self) -> Option<Counter> {
        let running: Vec<ProcessId> =
            self.guard.marked().into_iter().filter(|process| runs_counter(*process)).collect();
        let inner = |process: &ProcessId| running.iter().any(|one| process.parent() == Some(one.pid()));
        let process = running.iter().find(|process| !inner(process)).copied()?;
        Some(Counter { process, file: self.path("count") })
    }

    /// Returns the command line of the counter: `counter FILE …`.
    pub(crate) fn counter_words(&self, arguments: &[&str]) -> Vec<String> {
        let mut words = vec![program().display().to_string(), self.path("count").display().to_string()];
        words.extend(arguments.iter().map(|word| (*word).to_owned()));
        words
    }
}

/// If the test has failed, drop prints the standard error of the detached commands.
impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("detached commands have said:\n{}", self.told());
        }
    }
}

/// A running counter: a test program that increments a number and checks its own memory.
#[derive(Clone, Debug)]
pub(crate) struct Counter {
    pub(crate) process: ProcessId,
    pub(crate) file: PathBuf,
}

impl Counter {
    pub(crate) fn pid(&self) -> Pid {
        self.process.pid()
    }

    /// Returns the last count. Panics if the counter has found an inconsistency.
    pub(crate) fn read(&self) -> Option<u64> {
        let said = std::fs::read_link(&self.file).ok()?;
        assert!(said != Path::new("corrupt"), "the counter is corrupt");
        said.to_str()?.parse().ok()
    }

    /// Waits until the counter has counted the given number of further rounds.
    pub(crate) fn goes_on(&self, rounds: u64) {
        let from = self.read().unwrap_or(0);
        let went_on = within_limit(|| self.read().filter(|now| *now >= from + rounds || *now < from));
        assert!(went_on.is_some(), "stands still at {from}:\n{}", testkit::describe(&[self.process]));
    }

    /// Returns the value of a line in the counter's `/proc/PID/status`.
    pub(crate) fn status(&self, name: &str) -> String {
        status_of(self.pid(), name)
    }
}

/// Returns the value of a line in `/proc/PID/status`. Returns an empty text if the process does not exist.
pub(crate) fn status_of(pid: Pid, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_default().trim().to_owned()
}

fn runs_counter(process: ProcessId) -> bool {
    exe_of(process).is_some_and(|exe| exe == program())
}

fn exe_of(process: ProcessId) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{}/exe", process.pid())).ok()
}

/// Copies a program with another process. If this process wrote the copy, a child that another test forks could inherit
/// the open descriptor. The execution of the copy would then fail with `ETXTBSY`.
pub(crate) fn copy_program(from: impl AsRef<OsStr>, to: &Path) {
    assert!(Command::new("install").args(["-m", "755"]).arg(from).arg(to).status().unwrap().success());
}

/// Compiles `tests/subjects/NAME.c` once, and returns the path of the program.
pub(crate) fn compiled(name: &'static str) -> &'static Path {
    compiled_from("tests/subjects", name)
}

/// Compiles a program of a folder below the crate, and returns its path.
pub(crate) fn compiled_from(folder: &'static str, name: &'static str) -> &'static Path {
    static PROGRAMS: Mutex<BTreeMap<&str, &'static Path>> = Mutex::new(BTreeMap::new());
    let mut programs = PROGRAMS.lock().unwrap_or_else(PoisonError::into_inner);
    programs.entry(name).or_insert_with(|| {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder).join(name).with_extension("c");
        let program = testkit::compiled_source(&source, &["-O1"]).unwrap();
        Box::leak(program.into_boxed_path())
    })
}

/// Returns the path of the counter.
pub(crate) fn program() -> &'static Path {
    compiled("counter")
}

/// Waits for a child. Kills the child at the time limit.
pub(crate) fn wait(child: &mut Child) -> ExitStatus {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        if Instant::now() > deadline {
            child.kill().unwrap();
            panic!("pid {} did not end", child.id());
        }
        std::thread::sleep(POLL);
    }
}

/// Reaps a dead process if it is a child of this test.
pub(crate) fn reap(pid: Pid) {
    use rustix::process::{WaitOptions, waitpid};
    let _another_ones_child = waitpid(rustix::process::Pid::from_raw(pid.get()), WaitOptions::NOHANG);
}

/// Reports whether this user may run the tests. Otherwise prints the reason.
pub(crate) fn supported() -> bool {
    if !rustix::process::geteuid().is_root() {
        println!("unsupported: root");
        return false;
    }
    true
}

/// Returns the fd holders of a guardian.
pub(crate) fn holders_of(guardian: ProcessId) -> Vec<ProcessId> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", guardian.pid())).unwrap();
    let children = threads.map(|thread| std::fs::read_to_string(thread.unwrap().path().join("children")));
    let children: String = children.map(|children| children.unwrap() + " ").collect();
    let pids = children.split_whitespace().map(|pid| Pid(pid.parse().unwrap()));
    let is_holder = |pid: &Pid| {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| ["undying-holder\n", "undying-spare\n"].contains(&&*name))
    };
    let holders: Vec<ProcessId> = pids.filter(is_holder).map(|pid| ProcessId::of(pid).unwrap()).collect();
    assert_eq!(holders.len(), 2);
    holders
}
