//! Tests the cache of the results of remote system calls, which a stopped thread of the subject executes for
//! `undying`. If a thread has not changed, the cached result must be equal to the result of a new call.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{Pid, Sequence, Signal, Tid};
use store::{Base, CheckpointSink, LogOptions, LogWriter, Store, SubjectName, Urgency};
use sys::task_reader::{Field, TaskReader};
use undying_engine::{CheckpointOptions, Continuous, checkpoint};

/// The maximum duration of a wait.
const LIMIT: Duration = Duration::from_secs(60);
/// The number of captures during which the waits of the threads are counted.
const CAPTURES: u64 = 20;
/// The number of changes that the subject can make.
const STEPS: u32 = 29;
/// State kinds whose records contain results of remote system calls. The record of interval timers contains the
/// remaining time, so only its existence is compared.
const KINDS: [&str; 6] = ["sigactions", "sigaltstack", "tid_address", "membarrier", "prctl", "credentials"];
const TIMERS: &str = "state/itimers";

struct Subject {
    folder: tempfile::TempDir,
    child: Child,
}

impl Subject {
    fn start() -> Option<Self> {
        // A pipe that this test has inherited must not become a descriptor of the subject.
        sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
        let folder =
            tempfile::TempDir::with_prefix_in("undying-answers-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let program = testkit::compiled(env!("CARGO_MANIFEST_DIR"), "settings", &["-O1"])?;
        let mut command = Command::new(program);
        command.arg(folder.path().join("said"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let subject = Self { folder, child };
        subject.await_step(0);
        Some(subject)
    }

    fn root(&self) -> Pid {
        Pid(self.child.id() as i32)
    }

    fn said(&self) -> PathBuf {
        self.folder.path().join("said")
    }

    fn await_step(&self, step: u32) {
        let begun = Instant::now();
        let said = || std::fs::read_to_string(self.said()).ok()?.trim().parse::<u32>().ok();
        while said() != Some(step) {
            assert!(begun.elapsed() < LIMIT, "it stays at {:?} of {step}", said());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn make_step(&self, step: u32) {
        sys::signal::send(self.root(), Signal(10)).unwrap();
        self.await_step(step);
    }

    /// Returns how often the threads of the subject begin a wait during `what`.
    fn waits_for(&self, what: impl FnOnce() -> Vec<String>) -> u64 {
        let before = self.waits();
        what();
        std::thread::sleep(Duration::from_millis(2));
        self.waits() - before
    }

    /// Returns how often the threads of the subject have given up a processor to wait.
    fn waits(&self) -> u64 {
        let of = |tid: Tid| {
            let status = tracee::procfs::read(format!("/proc/{}/task/{tid}/status", self.root())).unwrap();
            let line = tracee::procfs::status_line(&status, "voluntary_ctxt_switches").unwrap();
            line.parse::<u64>().unwrap()
        };
        tracee::procfs::threads(self.root()).unwrap().into_iter().map(of).sum()
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Repeated captures of one subject into a log.
struct Captures {
    continuous: Continuous,
    store: Store,
    name: SubjectName,
    log: LogWriter,
    sequence: u64,
}

impl Captures {
    fn new(subject: &Subject) -> Self {
        let continuous = Continuous::new(subject.root(), track::choose("full").unwrap().kind);
        let store = Store::open(&subject.folder.path().join("store")).unwrap();
        let name: SubjectName = "settings".parse().unwrap();
        let log = store.open_log(&name, LogOptions::default()).unwrap();
        Self { continuous, store, name, log, sequence: 0 }
    }

    fn options(&mut self) -> CheckpointOptions {
        self.sequence += 1;
        CheckpointOptions { sequence: Sequence(self.sequence), ..CheckpointOptions::default() }
    }

    fn of_known(&mut self) -> Vec<String> {
        let options = self.options();
        let taken = self.continuous.checkpoint(&self.log, &options).unwrap().unwrap();
        taken.ticket.wait().unwrap();
        self.records(options.sequence)
    }

    /// Returns the records of a capture that has no cached results.
    fn of_asked(&mut self, subject: &Subject) -> Vec<String> {
        let options = self.options();
        let epoch = self.log.begin(options.sequence, Base::Nothing, Urgency::Precopy).unwrap().unwrap();
        checkpoint(subject.root(), epoch, &options).unwrap();
        self.records(options.sequence)
    }

    fn records(&self, sequence: Sequence) -> Vec<String> {
        let records = self.store.image(&self.name, sequence).unwrap().take_records();
        let mut found = Vec::new();
        for record in records.iter() {
            if KINDS.iter().any(|kind| record.kind == format!("state/{kind}")) {
                found.push(format!("{} {:?} {:?}", record.kind, record.owner, record.payload));
            } else if record.kind == TIMERS {
                found.push(record.kind.clone());
            }
        }
        found.sort();
        found
    }
}

#[test]
fn every_change_is_in_the_next_checkpoint() {
    let Some(subject) = Subject::start() else { return };
    let mut captures = Captures::new(&subject);
    let mut changes = 0;
    let mut before = captures.of_known();
    for step in 1..=STEPS {
        subject.make_step(step);
        // The first capture makes remote calls. The second capture can use cached results.
        for _ in 0..2 {
            assert_eq!(captures.of_known(), captures.of_asked(&subject), "after step {step}");
        }
        let now = captures.of_known();
        changes += u32::from(now != before);
        before = now;
    }
    println!("{changes} of {STEPS} steps changed a record");
    // Some machines and kernels do not support all of the changes.
    assert!(changes > STEPS / 2);
}

#[test]
fn a_thread_that_has_not_changed_is_not_asked() {
    if let Err(error) = TaskReader::new(&[Field("pdeath_signal")]) {
        return println!("unsupported: {error}");
    }
    let Some(subject) = Subject::start() else { return };
    let mut captures = Captures::new(&subject);
    (0..3).for_each(|_| drop(captures.of_known()));
    let (mut known, mut asked) = (0, 0);
    for _ in 0..CAPTURES {
        known += subject.waits_for(|| captures.of_known());
        asked += subject.waits_for(|| captures.of_asked(&subject));
    }
    println!("in {CAPTURES} captures {known} waits, and {asked} where threads are asked");
    // The subject has two threads, and remote calls make each thread wait again.
    assert!(known + 2 * CAPTURES <= asked);
}
