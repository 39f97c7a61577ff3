//! Tests subjects that are captured and held (kept stopped), and then resumed, or killed and restored. No message
//! between their processes is lost or duplicated.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{Pid, Sequence, Signal};
use store::{LogOptions, LogWriter, Store, SubjectName};
use tracee::Roots;
use undying_engine::{
    CheckpointOptions, Continuous, FilePolicy, Files, Held, RestoreOptions, Taken, restore,
};

/// The time for which a subject is held. With `UNDYING_LONG_TESTS`, `HELD_LONG` is used instead.
const HELD: Duration = Duration::from_millis(300);
const HELD_LONG: Duration = Duration::from_secs(5);
/// The maximum duration of a wait.
const LIMIT: Duration = Duration::from_secs(30);

/// Three connected processes, which pass numbers on in a ring.
struct Ring {
    store: Store,
    name: SubjectName,
    said: PathBuf,
    child: Child,
    roots: Roots,
    _folder: tempfile::TempDir,
}

impl Ring {
    fn start() -> Option<Self> {
        Self::start_with(|_| None)
    }

    /// Starts three processes that are children of this process.
    fn start_apart() -> Option<Self> {
        let mut ring = Self::start_with(|folder| Some(folder.join("pids")))?;
        assert!(ring.child.wait().unwrap().success());
        let pids = std::fs::read_to_string(ring.said.with_file_name("pids")).unwrap();
        let mut pids = pids.split_whitespace().map(|pid| Pid(pid.parse().unwrap()));
        ring.roots = Roots::new(pids.next().unwrap(), pids);
        Some(ring)
    }

    fn start_with(pids: impl FnOnce(&Path) -> Option<PathBuf>) -> Option<Self> {
        let folder = tempfile::TempDir::with_prefix_in("undying-hold-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let program = testkit::compiled(env!("CARGO_MANIFEST_DIR"), "ring", &["-O1"])?;
        // A pipe that this test has inherited must not become a descriptor of the subject.
        sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
        let said = folder.path().join("said");
        let mut command = Command::new(program);
        command
            .arg(&said)
            .args(pids(folder.path()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        let roots = Roots::from(Pid(child.id() as i32));
        let ring = Self { store, name: "ring".parse().unwrap(), said, child, roots, _folder: folder };
        ring.await_more_than(0);
        Some(ring)
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    fn subject(&self) -> Continuous {
        Continuous::new(&self.roots, track::choose("auto").unwrap().kind)
    }

    fn log(&self) -> LogWriter {
        self.store.open_log(&self.name, LogOptions::default()).unwrap()
    }

    fn options(&self, number: u64) -> CheckpointOptions {
        CheckpointOptions {
            sequence: Sequence(number),
            name: self.name.to_string(),
            ..CheckpointOptions::default()
        }
    }

    /// Returns the last number that has passed through the whole ring.
    fn number(&self) -> u64 {
        let text = std::fs::read_to_string(&self.said).unwrap_or_default();
        let mut words = text.split_whitespace();
        assert_ne!(words.next(), Some("broken"), "a message is lost or doubled: {text}");
        words.next().and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    fn await_more_than(&self, number: u64) {
        let begun = Instant::now();
        while self.number() <= number {
            assert!(begun.elapsed() < LIMIT, "nothing comes round after {number}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Waits until all pids of a killed subject are free.
    fn await_end(&self, processes: &[Pid]) {
        // Another test may have made this process the parent of orphans.
        processes.iter().for_each(|pid| reap(*pid));
        let begun = Instant::now();
        while processes.iter().any(|pid| tracee::procfs::stat(*pid).is_ok()) {
            assert!(begun.elapsed() < LIMIT, "processes are left");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Restores a checkpoint, waits until the subject has continued for a while, and kills the subject.
    fn restore(&self, sequence: Sequence) {
        let reader = self.store.image(&self.name, sequence).unwrap();
        let files = Files { policy: FilePolicy::Keep, ..Files::default() };
        let options = RestoreOptions { files, ..RestoreOptions::default() };
        let roots = restore(reader, options).unwrap().roots;
        assert_eq!(roots, self.roots);
        let number = self.number();
        self.await_more_than(number + 10_000);
        roots.iter().for_each(|root| sys::signal::send(root, Signal(9)).unwrap());
        roots.iter().for_each(reap);
    }
}

fn reap(child: Pid) {
    let raw = rustix::process::Pid::from_raw(child.get()).unwrap();
    // The tracer is a thread of this process, and may already have reaped the child.
    let _ = rustix::process::waitpid(Some(raw), rustix::process::WaitOptions::empty());
}

fn is_supported() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("unsupported: root");
    }
    is_root
}

fn held_for() -> Duration {
    testkit::rounds(HELD, HELD_LONG)
}

/// Asserts that no number moves while the subject is held.
fn assert_held(ring: &Ring) {
    let before = ring.number();
    std::thread::sleep(held_for());
    assert_eq!(ring.number(), before, "a held subject runs");
}

fn hold(ring: &Ring, subject: &mut Continuous, log: &LogWriter, number: u64) -> (Taken, Held) {
    subject.checkpoint_and_hold(log, &ring.options(number)).unwrap().expect("the log is not far behind")
}

#[test]
fn connected_processes_are_held_and_resumed_or_killed_and_restored() {
    if !is_supported() {
        return;
    }
    let Some(ring) = Ring::start() else { return };
    let log = ring.log();
    let mut subject = ring.subject();
    subject.checkpoint(&log, &ring.options(1)).unwrap();
    for number in [2, 3] {
        let (taken, held) = hold(&ring, &mut subject, &log, number);
        assert_held(&ring);
        // The checkpoint becomes durable while the subject is held.
        assert_eq!(taken.ticket.wait().unwrap().sequence, Sequence(number));
        let number = ring.number();
        held.resume().unwrap();
        ring.await_more_than(number + 10_000);
    }
    // Dropping `held` resumes the subject.
    let (_, held) = hold(&ring, &mut subject, &log, 4);
    let number = ring.number();
    drop(held);
    ring.await_more_than(number);

    let (taken, held) = hold(&ring, &mut subject, &log, 5);
    let committed = taken.ticket.wait().unwrap();
    let processes = tracee::tree::descendants(ring.pid()).unwrap();
    assert_eq!(processes.len(), 3);
    held.kill().unwrap();
    ring.await_end(&processes);
    drop(subject);
    log.close().unwrap();
    ring.restore(committed.sequence);
}

#[test]
fn processes_without_a_common_parent_are_captured_at_one_moment_and_restored_together() {
    if !is_supported() {
        return;
    }
    // The processes of the ring become children of this process.
    rustix::process::set_child_subreaper(rustix::process::Pid::from_raw(1)).unwrap();
    let Some(ring) = Ring::start_apart() else { return };
    let log = ring.log();
    let mut subject = ring.subject();
    for number in [1, 2] {
        subject.checkpoint(&log, &ring.options(number)).unwrap();
        let number = ring.number();
        ring.await_more_than(number + 1_000);
    }
    let (taken, held) = hold(&ring, &mut subject, &log, 3);
    assert_held(&ring);
    let committed = taken.ticket.wait().unwrap();
    held.kill().unwrap();
    let roots: Vec<Pid> = ring.roots.iter().collect();
    assert_eq!(roots.len(), 3);
    ring.await_end(&roots);
    drop(subject);
    log.close().unwrap();
    ring.restore(committed.sequence);
}
