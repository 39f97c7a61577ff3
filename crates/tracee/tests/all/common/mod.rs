//! Helpers for the tests of this crate: subjects that are compiled from C, and helper processes that are
//! killed.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use model::{Pid, Signal, Tid};
use sys::Errno;
use undying_tracee::remote::{Query, SignalSets};
use undying_tracee::{RemoteSession, procfs};

/// Maximum time for an answer or the end of a subject.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(20);

/// Compiles the subject with this name, and returns its path. Without a C compiler, prints the reason and
/// returns `None`.
pub(crate) fn compile(name: &str) -> Option<PathBuf> {
    testkit::compiled(env!("CARGO_MANIFEST_DIR"), name, &["-O1"])
}

/// A running subject that receives commands and answers in lines.
pub(crate) struct Subject {
    pub(crate) child: Child,
    answers: BufReader<ChildStdout>,
}

impl Subject {
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Option<Self> {
        let program = compile(name)?;
        Some(Self::begin(Command::new(program).args(arguments)))
    }

    /// Starts a subject with lower priority than its tracer. Its busy threads would otherwise delay the
    /// tracer for far longer than the tracer works.
    pub(crate) fn start_nice(name: &str, arguments: &[&str]) -> Option<Self> {
        let program = compile(name)?;
        Some(Self::begin(Command::new("nice").args(["-n", "10"]).arg(program).args(arguments)))
    }

    fn begin(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut subject = Self { child, answers };
        assert_eq!(subject.line(), "ready");
        subject
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(crate) fn tell(&mut self, command: &str) {
        let told = self.child.stdin.as_mut().unwrap().write_all(command.as_bytes());
        if let Err(error) = told {
            let last = self.line();
            panic!("{error}; the subject ended with {:?} and said: {last}", self.child.wait());
        }
    }

    /// Returns the number of rounds of each thread of the subject.
    pub(crate) fn rounds(&mut self) -> Vec<u64> {
        self.tell("c");
        let line = self.line();
        line.split_whitespace()
            .map(|word| word.parse().unwrap_or_else(|_| panic!("the subject says: {line}")))
            .collect()
    }

    /// Waits until every thread that counts rounds has finished one more round.
    pub(crate) fn goes_on(&mut self) {
        let started = Instant::now();
        let before = self.rounds();
        loop {
            let now = self.rounds();
            let Some(place) =
                (0..now.len()).find(|place| before[*place] > 1 && now[*place] == before[*place])
            else {
                return;
            };
            if started.elapsed() > TIMEOUT {
                describe(self.pid());
                panic!("the thread in place {place} does not go on: {now:?}");
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Requests the subject to check itself and end, and returns the number after `ok`.
    pub(crate) fn finish(mut self) -> u64 {
        self.tell("q");
        let line = self.line();
        let status = wait_limited(&mut self.child);
        let interrupted = line.strip_prefix("ok").unwrap_or_else(|| panic!("the subject says: {line}"));
        assert!(status.success(), "the subject ended with {status}");
        interrupted.trim().parse().unwrap_or(0)
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Prints the state of every thread of a tree.
fn describe(root: Pid) {
    for pid in undying_tracee::tree::descendants(root).unwrap_or_default() {
        for tid in procfs::threads(pid).unwrap_or_default() {
            let file = |name: &str| procfs::read_text(format!("/proc/{pid}/task/{tid}/{name}"));
            let status = procfs::thread_status(pid, tid).map(|status| (status.state, status.tracer));
            println!("{pid} {tid}: {status:?} {:?} {:?}", file("wchan"), file("syscall"));
            let pending = file("status").unwrap_or_default();
            let pending: Vec<&str> =
                pending.lines().filter(|line| line.contains("Pnd") || line.contains("Blk")).collect();
            println!("  {pending:?} {:?}", file("stack"));
        }
    }
}

fn wait_limited(child: &mut Child) -> ExitStatus {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(started.elapsed() < TIMEOUT, "the subject does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Returns a command that starts this test program as a helper process for one task. The helper may be
/// killed.
pub(crate) fn helper(test: &str, role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]).env("UNDYING_TEST_ROLE", role);
    command.stdout(Stdio::null());
    command
}

/// Binds this thread, and processes that it starts, to one of the available processors. Stopping a thread on
/// another processor takes ten times as long.
pub(crate) fn stay_on_one_processor(number: usize) {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    let all = sched_getaffinity(None).unwrap();
    let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
    let mut one = CpuSet::new();
    one.set(usable[number % usable.len()]);
    sched_setaffinity(None, &one).unwrap();
}

/// Returns the task of this process if it is a helper.
pub(crate) fn role() -> Option<String> {
    std::env::var("UNDYING_TEST_ROLE").ok()
}

static STEPS: AtomicU64 = AtomicU64::new(0);
static LAST_STEP: AtomicU64 = AtomicU64::new(u64::MAX);

/// Whether the steps of stopping and resuming the tree are counted, too. They are the same for each thread
/// that makes calls.
static COUNTS_STOPS: AtomicBool = AtomicBool::new(true);

/// Makes this process die at the step with this number.
pub(crate) fn die_at(step: u64, counts_stops: bool) {
    LAST_STEP.store(step, Ordering::Relaxed);
    COUNTS_STOPS.store(counts_stops, Ordering::Relaxed);
    undying_tracee::steps::observe(die_at_last_step);
}

fn die_at_last_step(step: &'static str) {
    if step.starts_with("stop ") && !COUNTS_STOPS.load(Ordering::Relaxed) {
        return;
    }
    if STEPS.fetch_add(1, Ordering::Relaxed) == LAST_STEP.load(Ordering::Relaxed) {
        die();
    }
}

/// Kills this process immediately with SIGKILL.
pub(crate) fn die() {
    sys::signal::send(Pid(std::process::id() as i32), Signal(9)).unwrap();
    std::thread::sleep(Duration::from_secs(60));
}

/// Reports whether a helper has killed itself with SIGKILL. Otherwise it must have succeeded.
pub(crate) fn has_died(status: ExitStatus) -> bool {
    let died = std::os::unix::process::ExitStatusExt::signal(&status) == Some(9);
    assert!(died || status.success(), "{status}");
    died
}

/// Waits until a condition holds.
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < TIMEOUT, "{what}: it never holds");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Waits until no thread of a process has a tracer.
pub(crate) fn wait_untraced(pid: Pid) {
    let traced = |tid: &Tid| procfs::thread_status(pid, *tid).is_ok_and(|status| status.tracer != Pid(0));
    let is_traced = || procfs::threads(pid).is_ok_and(|threads| threads.iter().any(traced));
    eventually(&format!("pid {pid} is left"), || !is_traced());
}

/// Makes several calls in a stopped thread, and returns their results.
pub(crate) fn batch(
    session: &mut RemoteSession<'_>,
    queries: &[Query],
    signals: SignalSets,
) -> Vec<Result<u64, Errno>> {
    let batch = session.begin_batch(queries, signals).unwrap();
    session.finish_batch(batch).unwrap()
}
