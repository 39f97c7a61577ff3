//! Tests continuous checkpoints of a program that changes its memory in every way. After each restore, the program
//! continues and finds its memory as at the checkpoint.
//!
//! A normal run tests a few incarnations of the program. With `UNDYING_LONG_TESTS` set, a run tests many
//! incarnations. An incarnation begins with a start or restore and ends with the next death.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{PageCount, Pid, Sequence, Signal};
use store::{
    CheckpointSink, ImageReader, ImageWriter, LogOptions, LogWriter, RetentionPolicy, Store, SubjectName,
    WriteOptions,
};
use sys::features::Feature;
use tracee::procfs::Mapping;
use track::{Attach, Coverage, DirtyPages, Moment, Properties, TrackError, Tracker, TrackerKind};
use undying_engine::{
    CheckpointOptions, Continuous, FilePolicy, Files, MAX_PAUSE_MIN, Preference, RestoreOptions, Tuning,
    checkpoint, restore,
};

use crate::outside::remote_sink::RemoteSink;

/// The time between two checkpoints.
const EVERY: Duration = Duration::from_millis(10);
/// The maximum duration of a wait.
const LIMIT: Duration = Duration::from_secs(30);

struct Lab {
    folder: tempfile::TempDir,
    store: Store,
    name: SubjectName,
}

impl Lab {
    fn new() -> Self {
        let folder =
            tempfile::TempDir::with_prefix_in("undying-engine-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        Self { folder, store, name: "dirtier".parse().unwrap() }
    }

    fn said(&self) -> PathBuf {
        self.folder.path().join("said")
    }

    fn log(&self) -> LogWriter {
        let options = LogOptions { keep: RetentionPolicy::newest(3), ..LogOptions::default() };
        self.store.open_log(&self.name, options).unwrap()
    }

    /// Returns the number of rounds that the program has reported; `None` before the first report.
    fn rounds(&self) -> Option<u64> {
        let text = std::fs::read_to_string(self.said()).ok()?;
        let (what, number) = text.trim_end().rsplit_once(' ')?;
        assert_eq!(what, "round", "the program found its memory changed: {text}");
        number.parse().ok()
    }

    fn await_rounds(&self, at_least: u64) {
        let begun = Instant::now();
        while self.rounds().is_none_or(|rounds| rounds < at_least) {
            assert!(
                begun.elapsed() < LIMIT,
                "the program has stopped reporting at round {:?}",
                self.rounds()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn start(&self) -> Option<Child> {
        self.start_with(0)
    }

    /// Starts the program with `ballast` MiB of additional memory that stays mapped.
    fn start_with(&self, ballast: u64) -> Option<Child> {
        let program = compile()?;
        // A pipe that this test has inherited must not become a descriptor of the subject.
        sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
        let mut command = Command::new(program);
        command.arg(ballast.to_string()).arg(self.said()).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Some(command.spawn().unwrap())
    }

    fn options(&self) -> CheckpointOptions {
        let sequence = self.store.next_sequence(&self.name).unwrap();
        CheckpointOptions { name: self.name.to_string(), sequence, ..CheckpointOptions::default() }
    }

    fn restore(&self, sequence: Sequence) -> Pid {
        let reader = self.store.image(&self.name, sequence).unwrap();
        let options = RestoreOptions { files: kept(), ..RestoreOptions::default() };
        restore(reader, options).unwrap().roots.first()
    }
}

/// Returns the policy that keeps changed files, because the subjects write files after their checkpoints.
fn kept() -> Files {
    Files { policy: FilePolicy::Keep, ..Files::default() }
}

fn compile() -> Option<PathBuf> {
    testkit::compiled(env!("CARGO_MANIFEST_DIR"), "dirtier", &["-O1"])
}

/// Kills the program and its children, and waits until all their pids are free.
fn kill(root: Pid) {
    const STOP: Signal = Signal(19);
    sys::signal::send(root, STOP).unwrap();
    let tree = tracee::tree::descendants(root).unwrap();
    for pid in &tree {
        // The child may already have ended.
        let _ = sys::signal::send(*pid, Signal(9));
    }
    let raw = rustix::process::Pid::from_raw(root.get()).unwrap();
    rustix::process::waitpid(Some(raw), rustix::process::WaitOptions::empty()).unwrap();
    let begun = Instant::now();
    while tree.iter().any(|pid| tracee::procfs::stat(*pid).is_ok()) {
        assert!(begun.elapsed() < LIMIT, "the children of {root} do not go");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Asserts that the program has not ended.
fn assert_alive(pid: Pid) {
    let raw = rustix::process::Pid::from_raw(pid.get()).unwrap();
    let ended = rustix::process::waitpid(Some(raw), rustix::process::WaitOptions::NOHANG).unwrap();
    assert!(ended.is_none(), "it ended: {ended:?}");
}

fn incarnations() -> u64 {
    testkit::rounds(3, 100)
}

fn epochs_restore_with(tracker: &str) {
    if !rustix::process::geteuid().is_root() {
        println!("unsupported: root");
        return;
    }
    let kind = match track::choose(tracker) {
        Ok(choice) => choice.kind,
        Err(error) => return println!("unsupported: tracker {tracker}: {error}"),
    };
    let lab = Lab::new();
    let Some(child) = lab.start() else { return };
    lab.await_rounds(5);
    let mut pid = Pid(child.id() as i32);
    for incarnation in 0..incarnations() {
        let log = lab.log();
        let mut subject = Continuous::new(pid, kind);
        let mut last = None;
        // Incarnations differ in length, so that their last checkpoints have different distances from a checkpoint
        // with all pages.
        let mut sequence = lab.options().sequence;
        for _ in 0..(5 + 7 * incarnation % 40) {
            let options = CheckpointOptions { sequence, ..lab.options() };
            match subject.checkpoint(&log, &options) {
                Ok(Some(taken)) => last = Some(taken),
                Ok(None) => {}
                // A checkpoint can fail if a child is between fork(2) and exit.
                Err(error) => println!("incarnation {incarnation}: {error}"),
            }
            sequence = Sequence(sequence.get() + 1);
            std::thread::sleep(EVERY);
        }
        assert_alive(pid);
        assert!(lab.rounds().is_some());
        let last = last.expect("one of them was taken");
        println!(
            "incarnation {incarnation}: {:?}, {} + {} pages",
            last.timings, last.precopied, last.residual
        );
        let committed = last.ticket.wait().unwrap();
        kill(pid);
        drop(subject);
        log.close().unwrap();
        std::fs::write(lab.said(), format!("{:64}", "round 0")).unwrap();
        pid = lab.restore(committed.sequence);
        lab.await_rounds(1);
        let rounds = lab.rounds().unwrap();
        lab.await_rounds(rounds + 20);
    }
    kill(pid);
}

/// A tracker that reports all pages in its first scan, and no pages in later scans.
#[derive(Debug)]
struct Blind;

#[derive(Debug)]
struct BlindTracker(Box<dyn Tracker>, bool);

impl TrackerKind for Blind {
    fn name(&self) -> &'static str {
        "blind"
    }

    fn purpose(&self) -> &'static str {
        "to be found out"
    }

    fn features(&self) -> &'static [Feature] {
        &[]
    }

    fn properties(&self) -> Properties {
        Properties { rearms_running: false, automatic: false }
    }

    fn self_test(&self) -> Result<(), TrackError> {
        Ok(())
    }

    fn prepare(&self, pid: Pid, mappings: &[Mapping]) -> Result<Attach, TrackError> {
        let full = track::choose("full").unwrap().kind.prepare(pid, mappings)?;
        Ok(Box::new(|session| Ok(Box::new(BlindTracker(full(session)?, false)))))
    }
}

impl Tracker for BlindTracker {
    fn kind(&self) -> &'static dyn TrackerKind {
        &Blind
    }

    fn cover(&mut self, mappings: &[Mapping]) -> Result<&Coverage, TrackError> {
        self.0.cover(mappings)
    }

    fn scan(&mut self, moment: Moment, into: &mut DirtyPages) -> Result<(), TrackError> {
        if std::mem::replace(&mut self.1, true) { Ok(()) } else { self.0.scan(moment, into) }
    }
}

/// The number of checkpoints that are compared with the program.
const COMPARISONS: usize = 30;
/// The number of compared checkpoints in cases where each checkpoint takes longer, for example of a large program.
const COMPARISONS_LARGE: usize = 2;

fn best() -> &'static dyn TrackerKind {
    track::choose("auto").unwrap().kind
}

/// Takes checkpoints and compares them with the program. Returns how many pages were compared, and how many pages
/// differed.
fn differences_with(subject: Continuous, lab: &Lab, count: usize) -> (u64, u64) {
    differences_in(&lab.log(), subject, lab, count)
}

fn differences_in(sink: &dyn CheckpointSink, mut subject: Continuous, lab: &Lab, count: usize) -> (u64, u64) {
    let read = |sequence| lab.store.image(&lab.name, sequence);
    let (mut pages, mut differences) = (0, 0);
    let mut sequence = lab.options().sequence;
    for _ in 0..count {
        let options = CheckpointOptions { sequence, ..lab.options() };
        sequence = Sequence(sequence.get() + 1);
        match subject.checkpoint_and_verify(sink, &read, &options) {
            Ok(Some((_, found))) => {
                pages += found.pages.get();
                differences += found.differences.get();
                assert_eq!(found.first.is_empty(), found.differences.get() == 0);
            }
            Ok(None) => {}
            // A checkpoint can fail if a child is between fork(2) and exit.
            Err(error) => println!("{error}"),
        }
        std::thread::sleep(EVERY);
    }
    (pages, differences)
}

#[test]
fn a_comparison_finds_what_a_tracker_misses_and_nothing_else() {
    if !rustix::process::geteuid().is_root() {
        println!("unsupported: root");
        return;
    }
    let lab = Lab::new();
    let Some(child) = lab.start() else { return };
    let pid = Pid(child.id() as i32);
    lab.await_rounds(5);
    let (pages, differences) = differences_with(Continuous::new(pid, best()), &lab, COMPARISONS);
    assert!(pages > 1_000 && differences == 0, "{differences} of {pages} pages");
    let tuning = Tuning { max_pause: Some(MAX_PAUSE_MIN), ..Tuning::default() };
    let sliced = Continuous::new(pid, best()).tuned(tuning);
    let (pages, differences) = differences_with(sliced, &lab, COMPARISONS_LARGE);
    assert!(pages > 100 && differences == 0, "{differences} of {pages} pages");
    let (pages, differences) = differences_with(Continuous::new(pid, &Blind), &lab, COMPARISONS);
    println!("blind: {differences} of {pages} pages");
    assert!(differences > 0, "{pages} pages");
    assert_alive(pid);
    kill(pid);
}

#[test]
fn a_sink_outside_of_the_store_receives_every_page() {
    if !rustix::process::geteuid().is_root() {
        println!("unsupported: root");
        return;
    }
    let lab = Lab::new();
    let Some(child) = lab.start() else { return };
    let pid = Pid(child.id() as i32);
    lab.await_rounds(5);
    let sink = RemoteSink::new(lab.log(), PageCount(512));
    let (pages, differences) = differences_in(&sink, Continuous::new(pid, best()), &lab, COMPARISONS);
    assert!(pages > 1_000 && differences == 0, "{differences} of {pages} pages");
    assert_alive(pid);
    kill(pid);
}

#[test]
fn whatever_is_tuned_nothing_differs() {
    /// More memory than `AHEAD_MIN` of the crate `track`, so that worker threads begin scans ahead of time.
    const BALLAST_MIB: u64 = 160;
    if !rustix::process::geteuid().is_root() {
        println!("unsupported: root");
        return;
    }
    let lab = Lab::new();
    let Some(child) = lab.start_with(BALLAST_MIB) else { return };
    let pid = Pid(child.id() as i32);
    lab.await_rounds(2);
    // No pause budget: a build without optimisation copies so slowly that a budget means hundreds of slices (short
    // stops that each copy a part of the pages). Slices have their own tests.
    let standard = || Tuning { max_pause: None, ..Tuning::default() };
    for tuning in [
        standard(),
        Tuning { copiers: NonZeroUsize::MIN, ..standard() },
        Tuning { copiers: NonZeroUsize::new(4).unwrap(), processors: vec![1], ..standard() },
        Tuning { granularity: NonZeroU64::new(16).unwrap(), ..standard() },
        Tuning { prefer: Preference::Throughput, ..standard() },
    ] {
        let subject = Continuous::new(pid, best()).tuned(tuning.clone());
        let (pages, differences) = differences_with(subject, &lab, COMPARISONS_LARGE);
        assert!(pages > 40_000 && differences == 0, "{tuning:?}: {differences} of {pages} pages");
    }
    assert_alive(pid);
    kill(pid);
}

/// Restores single checkpoints. A single checkpoint of a program of this size also copies pages before the pause.
#[test]
fn a_single_checkpoint_restores() {
    if !rustix::process::geteuid().is_root() {
        println!("unsupported: root");
        return;
    }
    let lab = Lab::new();
    let Some(child) = lab.start() else { return };
    lab.await_rounds(5);
    let mut pid = Pid(child.id() as i32);
    for incarnation in 0..incarnations() {
        let image = lab.folder.path().join(format!("image{incarnation}"));
        let writer = ImageWriter::create(&image, WriteOptions::default()).unwrap();
        // A checkpoint can fail if a child is between fork(2) and exit.
        let taken = match checkpoint(pid, Box::new(writer), &lab.options()) {
            Ok(taken) => taken,
            Err(error) => {
                println!("incarnation {incarnation}: {error}");
                continue;
            }
        };
        println!("incarnation {incarnation}: {:?}", taken.commit.timings);
        let rounds = lab.rounds().unwrap();
        lab.await_rounds(rounds + 5);
        assert_alive(pid);
        kill(pid);
        std::fs::write(lab.said(), format!("{:64}", "round 0")).unwrap();
        let options = RestoreOptions { files: kept(), ..RestoreOptions::default() };
        pid = restore(ImageReader::open(&image).unwrap(), options).unwrap().roots.first();
        lab.await_rounds(1);
        let rounds = lab.rounds().unwrap();
        lab.await_rounds(rounds + 20);
    }
    kill(pid);
}

#[test]
fn every_epoch_restores_with_the_best_tracker() {
    // `cargo xtask trackers` sets this variable to the name of a tracker.
    let named = std::env::var("UNDYING_TEST_TRACKER");
    epochs_restore_with(named.as_deref().unwrap_or("auto"));
}

#[test]
fn every_epoch_restores_with_full_copies() {
    epochs_restore_with("full");
}

#[test]
fn every_epoch_restores_with_soft_dirty_bits() {
    epochs_restore_with("soft-dirty");
}
