//! Shared code of the tests: subjects compiled from C, a tracked process, and a copy of its memory.

pub(crate) mod case;
pub(crate) mod shadow;

use std::io::{BufRead, BufReader, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use model::{Address, AddressRange, ByteCount, Pid, Tid};
use sys::Errno;
use tracee::remote::RemoteContext;
use tracee::{Gadgets, ProcessMemory, RemoteSession, StoppedTree, WorkerPool, procfs};
use undying_track::{DirtyPages, Moment, TrackError, Tracker, choose};

/// Compiles a subject, and returns the path of its program. Without a C compiler, prints the reason and
/// returns `None`.
fn compile(name: &str) -> Option<PathBuf> {
    testkit::compiled(env!("CARGO_MANIFEST_DIR"), name, &["-O1"])
}

/// Creates a pool of two worker threads. If they cannot have real-time priority, prints the reason and
/// returns `None`.
pub(crate) fn worker_pool() -> Option<Arc<WorkerPool>> {
    let processors = sys::scheduling::affinity(Tid(0)).unwrap();
    match WorkerPool::new(NonZeroUsize::new(2).unwrap(), &processors) {
        Err(error) if error.errno == Errno::EPERM => {
            println!("unsupported: real-time priority");
            None
        }
        worker_pool => Some(Arc::new(worker_pool.unwrap())),
    }
}

/// A running test subject.
pub(crate) struct Subject {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Subject {
    pub(crate) fn start(name: &str, arguments: &[&str]) -> Option<Self> {
        let program = compile(name)?;
        let mut command = Command::new(&program);
        let mut child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        let mut subject = Self { child, answers };
        assert_eq!(subject.line(), "ready");
        Some(subject)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Sends a command and returns the answer.
    pub(crate) fn tell(&mut self, command: &str) -> u64 {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        let line = self.line();
        u64::from_str_radix(&line, 16).unwrap_or_else(|_| panic!("`{command}` was answered by `{line}`"))
    }

    /// Sends a command after which the subject starts again and prints `ready`.
    pub(crate) fn restart(&mut self, command: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{command}").unwrap();
        assert_eq!(self.line(), "ready");
    }

    /// Creates a mapping in the subject and returns its range.
    pub(crate) fn map(&mut self, kind: &str, pages: u64) -> AddressRange {
        let start = Address(self.tell(&format!("map {kind} {pages}")));
        AddressRange::new(start, start + ByteCount(pages << 12))
    }

    /// Executes a command on pages of the subject and returns the answer.
    pub(crate) fn act(&mut self, word: &str, pages: AddressRange, argument: u64) -> u64 {
        let (start, count) = (pages.start.get(), pages.pages());
        self.tell(&format!("{word} {start:x} {count} {argument}"))
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

/// Returns the range of the pages `first` to `end` (exclusive) of a mapping.
pub(crate) fn part(area: AddressRange, first: u64, end: u64) -> AddressRange {
    let at = |page: u64| area.start + ByteCount(page << 12);
    AddressRange::new(at(first), at(end))
}

/// Attaches a tracker to a process, which is stopped meanwhile. If the tracker is unusable, prints the reason
/// and returns `None`.
pub(crate) fn attach(name: &str, pid: Pid) -> Option<Box<dyn Tracker>> {
    let kind = match choose(name) {
        Ok(choice) => choice.kind,
        Err(error @ (TrackError::Missing { .. } | TrackError::ForcedOff { .. })) => {
            println!("unsupported: tracker {name}: {error}");
            return None;
        }
        Err(error) => panic!("{error}"),
    };
    let mut tree = StoppedTree::stop(pid).unwrap();
    let memory = ProcessMemory::open(pid).unwrap();
    let mappings = procfs::mappings(pid).unwrap();
    let gadgets = Gadgets::find(&memory, &mappings).unwrap();
    let context = RemoteContext { memory: &memory, mappings: &mappings, gadgets };
    let process = tree.processes.iter_mut().find(|process| process.pid == pid).unwrap();
    let attach = kind.prepare(pid, &mappings).unwrap();
    let mut session = RemoteSession::begin(&mut process.threads[0], &context).unwrap();
    let mut tracker = attach(&mut session).unwrap();
    session.end().unwrap();
    tracker.cover(&mappings).unwrap();
    tree.resume().unwrap();
    Some(tracker)
}

/// Scans a process whose memory does not change meanwhile. Returns the reported ranges inside of a mapping:
/// first page, end page (exclusive) and content of each.
pub(crate) fn scan_mapping(
    tracker: &mut dyn Tracker,
    area: AddressRange,
) -> Vec<(u64, u64, undying_track::Content)> {
    let mut dirty = DirtyPages::new();
    tracker.scan(Moment::Stopped, &mut dirty).unwrap();
    let page = |address: Address| (address.get() - area.start.get()) >> 12;
    let inside = |dirty: &&undying_track::DirtyRange| dirty.range.overlaps(area);
    dirty
        .ranges()
        .iter()
        .filter(inside)
        .map(|dirty| {
            let start = dirty.range.start.max(area.start);
            (page(start), page(dirty.range.end.min(area.end)), dirty.content)
        })
        .collect()
}

/// Reports whether writes to any mapping of a process are watched.
pub(crate) fn is_watched(pid: Pid) -> bool {
    procfs::mappings_with_flags(pid).unwrap().iter().any(|mapping| mapping.flags.has("uw"))
}

/// Returns the number of open userfaultfds of a process.
pub(crate) fn userfaultfds(pid: Pid) -> usize {
    let numbers = procfs::descriptors(pid).unwrap();
    let target = |fd| procfs::descriptor_info(pid, fd).unwrap().target;
    numbers.into_iter().filter(|fd| target(*fd).to_string_lossy().contains("userfaultfd")).count()
}

/// Maximum time that a test waits for a condition.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Waits until a condition holds.
pub(crate) fn eventually(mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < TIMEOUT, "it never happens");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A second process of this test program. It attaches a tracker and is killed.
pub(crate) struct Helper(Child);

pub(crate) fn helper(test: &str, tracker: &str, pid: Pid) -> Helper {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command.env("UNDYING_TEST_TRACKER", tracker).env("UNDYING_TEST_PID", pid.to_string());
    Helper(command.stdout(Stdio::piped()).spawn().unwrap())
}

/// Returns the tracker and the pid for a helper process, or `None` if this process is not a helper.
pub(crate) fn role() -> Option<(String, Pid)> {
    let pid = std::env::var("UNDYING_TEST_PID").ok()?.parse().ok()?;
    Some((std::env::var("UNDYING_TEST_TRACKER").ok()?, Pid(pid)))
}

pub(crate) fn say_attached() {
    println!("attached");
    std::io::stdout().flush().unwrap();
}

impl Helper {
    /// Waits until the helper has attached its tracker. Returns false if the helper ended before.
    pub(crate) fn attached(&mut self) -> bool {
        let output = BufReader::new(self.0.stdout.as_mut().unwrap());
        output.lines().any(|line| line.unwrap().contains("attached"))
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
