//! Tests that a program which rewrites its memory gets its huge pages back before the next checkpoint.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{Address, AddressRange, PageCount, Pid, Sequence};
use store::{LogOptions, Store, SubjectName};
use sys::Errno;
use sys::scratch::HUGE_PAGE_BYTES;
use undying_engine::{CheckpointOptions, Continuous};

/// The memory of the subject.
const MIB: u64 = 16;
/// The time between two checkpoints. The subject writes to all its memory several times in it.
const INTERVAL: Duration = Duration::from_secs(2);
/// The maximum duration of a wait.
const LIMIT: Duration = Duration::from_secs(30);

/// The subject process. Dropping the value kills the process.
struct Subject(Child);

impl Drop for Subject {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Subject {
    fn start(folder: &Path) -> Option<Self> {
        let program = testkit::compiled(env!("CARGO_MANIFEST_DIR"), "rewriter", &["-O1"])?;
        let said = folder.join("said");
        // A pipe that this test has inherited must not become a descriptor of the subject.
        sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
        let mut command = Command::new(program);
        command.arg(&said).arg(MIB.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let subject = Self(command.spawn().unwrap());
        let begun = Instant::now();
        while std::fs::read_to_string(&said).unwrap_or_default().is_empty() {
            assert!(begun.elapsed() < LIMIT, "it does not begin");
            std::thread::sleep(Duration::from_millis(1));
        }
        Some(subject)
    }

    /// Returns the memory in huge pages, in MiB.
    fn huge(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.0.id())).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("AnonHugePages:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024
    }
}

#[test]
fn a_program_that_rewrites_its_memory_gets_its_huge_pages_back_before_the_next_checkpoint() {
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    let tracker = match track::choose("pagemap-scan") {
        Ok(chosen) => chosen.kind,
        Err(error) => return println!("unsupported: {error}"),
    };
    let folder = tempfile::TempDir::with_prefix_in("undying-huge-", env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(child) = Subject::start(folder.path()) else { return };
    let process = sys::pidfd::open(Pid(child.0.id() as i32)).unwrap();
    let nothing = AddressRange::new(Address(0), Address(HUGE_PAGE_BYTES));
    if child.huge() < MIB || sys::huge_pages::build(process.as_fd(), nothing) == Err(Errno::EPERM) {
        return println!("unsupported: huge pages");
    }
    let store = Store::open(&folder.path().join("store")).unwrap();
    let name: SubjectName = "rewriter".parse().unwrap();
    let log = store.open_log(&name, LogOptions::default()).unwrap();
    let mut subject = Continuous::new(Pid(child.0.id() as i32), tracker);
    std::thread::sleep(INTERVAL);
    let options = |number| CheckpointOptions {
        sequence: Sequence(number),
        name: name.to_string(),
        ..CheckpointOptions::default()
    };
    subject.checkpoint(&log, &options(1)).unwrap().unwrap().ticket.wait().unwrap();
    let begun = Instant::now();
    let mut least = MIB;
    while least == MIB || child.huge() < MIB * 3 / 4 {
        least = least.min(child.huge());
        assert!(begun.elapsed() < LIMIT, "{} of {MIB} MiB, at least {least} MiB", child.huge());
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("down to {least} of {MIB} MiB, and back after {:?}", begun.elapsed());
    // The checkpoint has every page, also those that were not protected.
    let read = |sequence| store.image(&name, sequence);
    let (_, found) = subject.checkpoint_and_verify(&log, &read, &options(2)).unwrap().unwrap();
    assert!(found.pages >= PageCount(MIB << 8) && found.differences == PageCount(0), "{found:?}");
}
