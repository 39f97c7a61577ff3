//! Test of a watch whose calls fail, for example because descriptors or memory are missing for a moment: nothing is left
//! out of the undo log, and no checkpoint is lost. strace makes the calls fail.
//!
//! Owns: the failures of calls.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use model::{Pid, Sequence};
use sys::clock::Deadline;
use testkit::rounds;
use undying_undo::watch::{Boundary, Watch};

use crate::common::{ROOMY, Subject, difference, tree, watch};

/// The threads of a watch that record changes.
const RECORDING: [&str; 2] = ["undying-files", "undying-content"];
/// Calls that record a change, and that can fail because memory or descriptors are missing. Without mmap(2): an
/// allocation that fails ends a program.
const CALLS: [Failing; 14] = [
    Failing { calls: "openat", errnos: &["EMFILE", "ENFILE", "ENOMEM"], each: 20..40 },
    Failing { calls: "fcntl", errnos: &["EMFILE"], each: 20..40 },
    Failing { calls: "pread64", errnos: &["ENOMEM"], each: 5..10 },
    Failing { calls: "pwritev", errnos: &["ENOMEM"], each: 20..40 },
    Failing { calls: "process_vm_readv", errnos: &["ENOMEM"], each: 10..20 },
    Failing { calls: "linkat", errnos: &["ENOMEM"], each: 2..4 },
    // No hard link can be made: the log must contain the content of a removed file.
    Failing { calls: "linkat", errnos: &["EMLINK"], each: 1..2 },
    Failing { calls: "readlink,readlinkat", errnos: &["ENOMEM"], each: 5..10 },
    Failing { calls: "name_to_handle_at", errnos: &["ENOMEM"], each: 20..40 },
    Failing { calls: "fstat,newfstatat,statx", errnos: &["ENOMEM"], each: 60..120 },
    Failing { calls: "listxattr,flistxattr,llistxattr", errnos: &["ENOMEM"], each: 5..10 },
    Failing { calls: "fstatfs", errnos: &["ENOMEM"], each: 3..6 },
    // The file system does not implement the call.
    Failing { calls: "fstatfs", errnos: &["ENOSYS"], each: 1..2 },
    Failing { calls: "fanotify_mark", errnos: &["ENOMEM"], each: 10..20 },
];
const STEPS: usize = 150;
const EPOCHS: u64 = 2;

/// Calls of which each nth fails, with one of some errors. A change needs fewer than `each` calls, so that the second
/// attempt can succeed.
struct Failing {
    calls: &'static str,
    errnos: &'static [&'static str],
    each: Range<u32>,
}

/// Failures that strace causes, until this value is dropped.
struct Failures(Child);

impl Failures {
    /// Makes each nth call of the recording threads fail, and writes all these calls to the file `log`.
    fn begin(log: &Path, calls: &str, errno: &str, first: u32, each: u32) -> Self {
        let mut command = Command::new("strace");
        command.arg("-qq").arg("-o").arg(log).args(["-e", &format!("trace={calls}")]);
        command.args(["-e", &format!("inject={calls}:error={errno}:when={first}+{each}")]);
        let deadline = Deadline::after(Duration::from_secs(10));
        // A thread names itself some time after its start.
        let threads = loop {
            let threads = recording_threads();
            if threads.len() >= RECORDING.len() {
                break threads;
            }
            assert!(!deadline.has_passed(), "{threads:?} record changes");
            std::thread::sleep(Duration::from_millis(1));
        };
        for thread in &threads {
            command.args(["-p", &thread.to_string()]);
        }
        let failures = Self(command.stdin(Stdio::null()).spawn().unwrap());
        while !threads.iter().all(|thread| is_traced(*thread)) {
            assert!(!deadline.has_passed(), "strace does not attach");
            std::thread::sleep(Duration::from_millis(1));
        }
        failures
    }
}

impl Drop for Failures {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        self.0.wait().unwrap();
    }
}

fn recording_threads() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap().path());
    let is_recording = |path: &Path| {
        let name = fs::read_to_string(path.join("comm")).unwrap_or_default();
        RECORDING.contains(&name.trim_end())
    };
    threads
        .filter(|path| is_recording(path))
        .map(|path| Pid(path.file_name().unwrap().to_str().unwrap().parse().unwrap()))
        .collect()
}

fn is_traced(thread: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
}

/// Returns the number of calls that strace has failed.
fn failed(log: &Path) -> usize {
    fs::read_to_string(log).unwrap().matches("(INJECTED)").count()
}

/// Rolls changes back whose recording was disturbed. Returns the number of failed calls.
fn changes_go_back(seed: u64, Failing { calls, each, .. }: &Failing, errno: &str) -> usize {
    let mut random = fastrand::Rng::with_seed(seed);
    let place = tempfile::tempdir().unwrap();
    let (watch, root) = watch(place.path(), ROOMY);
    let mut subject = Subject::start(&watch, "changing.py", &root, &[&seed.to_string(), "maps"]);
    let (mut known, mut count) = (BTreeMap::new(), 0);
    let log = place.path().join("strace");
    let case = format!("seed {seed}, {calls} {errno}");
    for sequence in (1..=EPOCHS).map(Sequence) {
        let failures =
            Failures::begin(&log, calls, errno, random.u32(1..=each.start), random.u32(each.clone()));
        subject.order(STEPS);
        subject.wait();
        drop(failures);
        count += failed(&log);
        known.insert(sequence, tree(&root));
        assert_eq!(subject.boundary(&watch, sequence), Boundary::Exact, "{case}: {:?}", watch.report());
    }
    subject.kill();
    watch.subject_ended().unwrap();
    let to = Sequence(1);
    assert!(watch.exact().contains(&to), "{case}: {:?}", watch.report());
    watch.go_back(to, &[]).unwrap_or_else(|error| panic!("{case}: {error}"));
    assert_eq!(difference(&known[&to], &tree(&root)), None, "{case}");
    count
}

#[test]
fn a_call_that_fails_while_a_change_is_recorded_costs_no_record() {
    if let Some(missing) = Watch::missing() {
        return println!("unsupported: {missing}");
    }
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        return println!("unsupported: strace");
    }
    let first = std::env::var("UNDYING_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let first: u64 = first.unwrap_or_else(|| fastrand::u64(0..1 << 32));
    println!("seed {first}");
    for seed in first..first + rounds(1, 3) {
        let mut sum = 0;
        // A normal run tries every other call.
        for failing in CALLS.iter().skip(seed as usize % rounds(2, 1)).step_by(rounds(2, 1)) {
            for errno in &failing.errnos[..rounds(1, failing.errnos.len())] {
                let count = changes_go_back(seed, failing, errno);
                println!("seed {seed}, {} {errno}: {count} calls failed", failing.calls);
                sum += count;
            }
        }
        assert!(sum > 0, "no call has failed");
    }
}
