//! Tests that a stop results in no checkpoint if the subject is killed during the stop. The threads of the subject
//! write to its memory when they end.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{Pid, Sequence, Signal};
use store::{LogOptions, Store, SubjectName};
use sys::features::Feature;
use tracee::procfs::Mapping;
use track::{Attach, Coverage, DirtyPages, Moment, Properties, TrackError, Tracker, TrackerKind};
use undying_engine::{CheckpointOptions, Continuous};

const THREADS: &str = "64";
/// The number of deaths. After each kill, the capture continues one `STEP` later than after the previous kill.
const DEATHS: u32 = 25;
const STEP: Duration = Duration::from_micros(40);
const LIMIT: Duration = Duration::from_secs(30);

/// A tracker that kills the subject while the subject is stopped. The field is the wait after the kill.
#[derive(Debug)]
struct Killer(Duration);

#[derive(Debug)]
struct KillerTracker(Box<dyn Tracker>, &'static Killer, Pid);

impl TrackerKind for Killer {
    fn name(&self) -> &'static str {
        "killer"
    }

    fn purpose(&self) -> &'static str {
        "to kill a stopped subject"
    }

    fn features(&self) -> &'static [Feature] {
        &[]
    }

    fn properties(&self) -> Properties {
        Properties { rearms_running: true, automatic: false }
    }

    fn self_test(&self) -> Result<(), TrackError> {
        Ok(())
    }

    fn prepare(&self, pid: Pid, mappings: &[Mapping]) -> Result<Attach, TrackError> {
        let best = track::choose("auto").unwrap().kind.prepare(pid, mappings)?;
        let this: &'static Self = Box::leak(Box::new(Self(self.0)));
        Ok(Box::new(move |session| Ok(Box::new(KillerTracker(best(session)?, this, pid)))))
    }
}

impl Tracker for KillerTracker {
    fn kind(&self) -> &'static dyn TrackerKind {
        self.1
    }

    fn cover(&mut self, mappings: &[Mapping]) -> Result<&Coverage, TrackError> {
        self.0.cover(mappings)
    }

    fn scan(&mut self, moment: Moment, into: &mut DirtyPages) -> Result<(), TrackError> {
        let outcome = self.0.scan(moment, into);
        if moment == Moment::Stopped {
            sys::signal::send(self.2, Signal(9)).unwrap();
            std::thread::sleep(self.1.0);
        }
        outcome
    }
}

fn compile() -> Option<PathBuf> {
    testkit::compiled(env!("CARGO_MANIFEST_DIR"), "crowd", &["-O2"])
}

fn start(program: &Path, said: &Path) -> Child {
    // A pipe that this test has inherited must not become a descriptor of the subject.
    sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
    let _ = std::fs::remove_file(said);
    let mut command = Command::new(program);
    command.arg(said).arg(THREADS).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let child = command.spawn().unwrap();
    let began = Instant::now();
    while !std::fs::read(said).is_ok_and(|text| text == b"ready\n") {
        assert!(began.elapsed() < LIMIT, "it does not start");
        std::thread::sleep(Duration::from_millis(1));
    }
    child
}

#[test]
fn a_subject_that_is_killed_in_the_pause_has_no_checkpoint_of_it() {
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    let folder = tempfile::TempDir::with_prefix_in("undying-killed-", env!("CARGO_TARGET_TMPDIR")).unwrap();
    let Some(program) = compile() else { return };
    let store = Store::open(&folder.path().join("store")).unwrap();
    let name: SubjectName = "crowd".parse().unwrap();
    let log = store.open_log(&name, LogOptions::default()).unwrap();
    for death in 0..DEATHS {
        let mut child = start(&program, &folder.path().join("said"));
        let killer: &'static Killer = Box::leak(Box::new(Killer(death * STEP)));
        let mut subject = Continuous::new(Pid(child.id() as i32), killer);
        let sequence = Sequence(u64::from(death) + 1);
        let options = CheckpointOptions { name: name.to_string(), sequence, ..CheckpointOptions::default() };
        let outcome = subject.checkpoint(&log, &options);
        match outcome {
            Err(error) => assert!(error.says_gone(), "death {death}: {error}"),
            Ok(_) => panic!("death {death}: killed before the stop was over, and captured"),
        }
        child.wait().unwrap();
    }
    log.close().unwrap();
}
