//! Tests subjects that are captured and held (kept stopped), and then resumed, or killed and restored. No message
//! between their processes is lost or duplicated.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use model::{Pid, Sequence, Signal};
use store::{LogOptions, LogWriter, Store, SubjectName};
use undying_engine::{
    CheckpointOptions, Continuous, FilePolicy, Files, GroupMember, Held, Phase, PidPolicy, RestoreOptions,
    Taken, restore,
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
    _folder: tempfile::TempDir,
}

impl Ring {
    fn start() -> Option<Self> {
        let folder = tempfile::TempDir::with_prefix_in("undying-hold-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let program = folder.path().join("ring");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/subjects/ring.c");
        let outcome = Command::new("cc").args(["-O1", "-Wall", "-o"]).arg(&program).arg(source).status();
        if !outcome.is_ok_and(|status| status.success()) {
            println!("unsupported: a C compiler");
            return None;
        }
        // A pipe that this test has inherited must not become a descriptor of the subject.
        sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
        let said = folder.path().join("said");
        let mut command = Command::new(program);
        command.arg(&said).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        let ring = Self { store, name: "ring".parse().unwrap(), said, child, _folder: folder };
        ring.await_more_than(0);
        Some(ring)
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    fn subject(&self) -> Continuous {
        Continuous::new(self.pid(), track::choose("auto").unwrap().kind)
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
    fn await_end(&mut self, processes: &[Pid]) {
        // The tracer is a thread of this process, and may already have reaped the subject.
        let _ = self.child.wait();
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
        let options = RestoreOptions { pid: PidPolicy::Same, files, ..RestoreOptions::default() };
        let root = restore(reader, options).unwrap().root;
        let number = self.number();
        self.await_more_than(number + 10_000);
        sys::signal::send(root, Signal(9)).unwrap();
        let raw = rustix::process::Pid::from_raw(root.get()).unwrap();
        rustix::process::waitpid(Some(raw), rustix::process::WaitOptions::empty()).unwrap();
    }
}

fn is_supported() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        println!("unsupported: root");
    }
    is_root
}

fn held_for() -> Duration {
    if std::env::var_os("UNDYING_LONG_TESTS").is_some() { HELD_LONG } else { HELD }
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
    let Some(mut ring) = Ring::start() else { return };
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

/// Captures subjects as a group, with one thread for each subject. Holds the subjects, then kills or resumes them.
fn capture_group(rings: &[&Ring], logs: &[LogWriter], number: u64, is_killed: bool) {
    let all_captured = Barrier::new(rings.len());
    let moments = Mutex::new(Vec::new());
    let (all_captured, moments) = (&all_captured, &moments);
    std::thread::scope(|scope| {
        for ((member, ring), log) in GroupMember::of_group(rings.len()).into_iter().zip(rings).zip(logs) {
            scope.spawn(move || {
                let mut subject = ring.subject();
                let captured = subject.checkpoint_of_group(log, &ring.options(number), member);
                let (taken, held) = captured.unwrap().expect("the log is not far behind");
                let began = taken.phases.began;
                moments
                    .lock()
                    .unwrap()
                    .push((began + taken.phases[Phase::Stop], began + taken.phases.pause()));
                all_captured.wait();
                assert_held(ring);
                assert_eq!(taken.ticket.wait().unwrap().sequence, Sequence(number));
                all_captured.wait();
                if is_killed { held.kill().unwrap() } else { held.resume().unwrap() }
            });
        }
    });
    let moments = moments.lock().unwrap();
    let (stopped, captured) = (moments.iter().map(|one| one.0), moments.iter().map(|one| one.1));
    // The last subject was stopped before the first subject was captured.
    assert!(stopped.max() <= captured.min(), "{moments:?}");
}

#[test]
fn a_group_is_stopped_before_any_of_it_is_captured() {
    if !is_supported() {
        return;
    }
    let (Some(mut one), Some(mut other)) = (Ring::start(), Ring::start()) else { return };
    let logs = [one.log(), other.log()];
    capture_group(&[&one, &other], &logs, 1, false);
    for ring in [&one, &other] {
        ring.await_more_than(ring.number() + 1_000);
    }
    let processes = [&one, &other].map(|ring| tracee::tree::descendants(ring.pid()).unwrap());
    capture_group(&[&one, &other], &logs, 2, true);
    logs.into_iter().for_each(|log| log.close().unwrap());
    for (ring, processes) in [&mut one, &mut other].into_iter().zip(processes) {
        ring.await_end(&processes);
        ring.restore(Sequence(2));
    }
}
