//! Tests `apply`: sets living process trees back to their checkpoints, again and again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{Address, Pid, Sequence, Signal};
use store::{
    Base, CheckpointSink, ImageReader, ImageWriter, LogOptions, LogWriter, RetentionPolicy, SizeLimit, Store,
    SubjectName, Urgency, WriteOptions,
};
use tracee::StoppedTree;
use undying_engine::{
    Applied, ApplyOptions, CheckpointOptions, Comparison, Continuous, EngineError, Held, Result, apply,
    checkpoint,
};

/// The maximum duration of a wait.
const LIMIT: Duration = Duration::from_secs(60);
/// How often a subject is set back that is captured anew each time.
const CAPTURED_TIMES: u32 = 20;

struct Lab {
    folder: tempfile::TempDir,
    subject: Child,
    /// The pid of each walker (a thread that changes its memory) and the address of its step counter.
    counts: Vec<(Pid, Address)>,
}

impl Lab {
    fn new() -> Option<Self> {
        Self::start("walker", 3)
    }

    /// Starts a program that reports the given number of counters.
    fn start(name: &str, counters: usize) -> Option<Self> {
        // A pipe that this test has inherited must not become a descriptor of the subject.
        sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
        let folder =
            tempfile::TempDir::with_prefix_in("undying-applying-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let program = testkit::compiled(env!("CARGO_MANIFEST_DIR"), name, &["-O2"])?;
        let said = folder.path().join("said");
        let errors = File::create(folder.path().join("errors")).unwrap();
        let mut command = Command::new(program);
        command.arg(&said).stdin(Stdio::null()).stdout(Stdio::null()).stderr(errors);
        let subject = command.spawn().unwrap();
        let begun = Instant::now();
        let text = loop {
            let text = std::fs::read_to_string(&said).unwrap_or_default();
            if text.lines().count() == counters {
                break text;
            }
            assert!(begun.elapsed() < LIMIT, "the subject has not begun");
            std::thread::sleep(Duration::from_millis(1));
        };
        let count = |line: &str| {
            let (pid, address) = line.split_once(' ').unwrap();
            (Pid(pid.parse().unwrap()), Address(address.parse().unwrap()))
        };
        let counts = text.lines().map(count).collect();
        Some(Self { folder, subject, counts })
    }

    fn root(&self) -> Pid {
        Pid(self.subject.id() as i32)
    }

    /// Returns the text that the subject has written about errors.
    fn errors(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("errors")).unwrap()
    }

    /// Returns the number of steps of each walker.
    fn steps(&self) -> Vec<u64> {
        let steps = |(pid, address): &(Pid, Address)| {
            let mut bytes = [0; 8];
            let outcome = sys::process_memory::read(*pid, *address, &mut bytes);
            outcome.unwrap_or_else(|error| panic!("{error}: {}", self.errors()));
            u64::from_ne_bytes(bytes)
        };
        self.counts.iter().map(steps).collect()
    }

    /// Waits until each walker has made more steps.
    fn go_on(&self) {
        let (before, begun) = (self.steps(), Instant::now());
        while self.steps().iter().zip(&before).any(|(now, before)| now < &(before + 2)) {
            assert!(begun.elapsed() < LIMIT, "a counter stays at {before:?}: {}", self.errors());
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn checkpoint(&self, number: u64) -> PathBuf {
        let image = self.folder.path().join(format!("image{number}"));
        let writer = ImageWriter::create(&image, WriteOptions::default()).unwrap();
        let options = CheckpointOptions { sequence: Sequence(number), ..CheckpointOptions::default() };
        checkpoint(self.root(), Box::new(writer), &options).unwrap();
        image
    }

    /// Sets the tree back to an image, and resumes the tree. Returns what was set, and the steps of each walker
    /// before the tree was resumed.
    fn bring_back(&self, image: &Path) -> Result<(Applied, Vec<u64>)> {
        self.bring_back_to(ImageReader::open(image).unwrap())
    }

    fn bring_back_to(&self, image: ImageReader) -> Result<(Applied, Vec<u64>)> {
        let tree = StoppedTree::stop(self.root()).unwrap();
        let (tree, applied) = apply(image, tree, &ApplyOptions::default())?;
        let steps = self.steps();
        tree.resume().unwrap();
        Ok((applied, steps))
    }

    /// Makes the subject check its own state, and returns its exit status.
    fn ask_to_judge(&mut self) -> std::process::ExitStatus {
        // The subject may have been killed already.
        let _ = sys::signal::send(self.root(), Signal(15));
        self.subject.wait().unwrap()
    }

    /// Makes the subject check its own state, and checks its exit status.
    fn judge(&mut self) {
        let status = self.ask_to_judge();
        assert!(status.success(), "the subject ended with {status}: {}", self.errors());
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for pid in tracee::tree::descendants(self.root()).unwrap_or_default() {
            let _ = sys::signal::send(pid, Signal(9));
        }
        let _ = self.subject.wait();
    }
}

/// The role of a helper process: it sets a tree back to an image until it is killed. The value is a pid and a path.
const ROLE: &str = "UNDYING_TEST_APPLIES";

#[test]
fn a_tracer_that_is_killed_leaves_no_tree_that_is_set_back_in_part() {
    const TEST: &str = "applying::a_tracer_that_is_killed_leaves_no_tree_that_is_set_back_in_part";
    const LONGEST: Duration = Duration::from_millis(40);
    if let Ok(role) = std::env::var(ROLE) {
        let (pid, image) = role.split_once(' ').unwrap();
        loop {
            let tree = StoppedTree::stop(Pid(pid.parse().unwrap())).unwrap();
            let image = ImageReader::open(Path::new(image)).unwrap();
            apply(image, tree, &ApplyOptions::default()).unwrap().0.resume().unwrap();
        }
    }
    let mut random = testkit::seeded(TEST);
    let (mut dead, mut alive, mut rounds) = (0, 0, testkit::Rounds::new(30, 300));
    while rounds.next(dead > 0 && alive > 0).is_some() {
        let Some(mut lab) = Lab::new() else { return };
        lab.go_on();
        let image = lab.checkpoint(1);
        lab.go_on();
        let mut helper = Command::new(std::env::current_exe().unwrap());
        helper.args(["--exact", TEST]).env(ROLE, format!("{} {}", lab.root(), image.display()));
        let mut helper = helper.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(testkit::moment(&mut random, rounds.stretched(LONGEST)));
        helper.kill().unwrap();
        helper.wait().unwrap();
        // A half-changed tree would find an error in its own state.
        let status = lab.ask_to_judge();
        if std::os::unix::process::ExitStatusExt::signal(&status) == Some(9) {
            dead += 1;
        } else {
            assert!(status.success(), "the subject ended with {status}: {}", lab.errors());
            alive += 1;
        }
    }
    println!("{dead} trees were killed with their tracers, {alive} were whole");
    assert!(dead > 0 && alive > 0, "{dead} {alive}");
}

#[test]
fn a_tree_is_brought_back_many_times_and_is_whole() {
    let Some(mut lab) = Lab::new() else { return };
    lab.go_on();
    let first = lab.checkpoint(1);
    lab.go_on();
    let second = lab.checkpoint(2);
    let steps = |image| lab.bring_back(image).unwrap().1;
    let (at_first, at_second) = (steps(&first), steps(&second));
    assert!(at_first.iter().zip(&at_second).all(|(first, second)| first < second));
    let pids = tracee::tree::descendants(lab.root()).unwrap();
    let mut took = Duration::ZERO;
    let times = testkit::rounds(30, 1000);
    for time in 0..times {
        lab.go_on();
        let begun = Instant::now();
        let (image, at) = if time % 3 == 0 { (&second, &at_second) } else { (&first, &at_first) };
        let (applied, steps) = lab.bring_back(image).unwrap();
        took += begun.elapsed();
        assert_eq!(steps, *at, "time {time}");
        assert!(applied.pages > 0);
    }
    println!("each took {:?}", took / times);
    lab.go_on();
    assert_eq!(tracee::tree::descendants(lab.root()).unwrap(), pids);
    lab.judge();
}

/// In each of `rounds` rounds, captures a tree and sets the tree back twice. Returns the mean time of a capture
/// until the capture is readable, and the mean time of setting the tree back.
fn capture_and_bring_back(
    lab: &Lab,
    sink: &dyn CheckpointSink,
    open: &dyn Fn(Sequence) -> ImageReader,
    rounds: u32,
) -> (Duration, Duration) {
    let (mut captured, mut applied) = (Duration::ZERO, Duration::ZERO);
    for round in 1..=rounds {
        lab.go_on();
        let options = CheckpointOptions { sequence: Sequence(round.into()), ..CheckpointOptions::default() };
        let begun = Instant::now();
        let epoch = sink.begin(options.sequence, Base::Nothing, Urgency::Precopy).unwrap().unwrap();
        checkpoint(lab.root(), epoch, &options).unwrap();
        captured += begun.elapsed();
        lab.go_on();
        let begun = Instant::now();
        let (_, at) = lab.bring_back_to(open(options.sequence)).unwrap();
        applied += begun.elapsed();
        lab.go_on();
        let (changed, again) = lab.bring_back_to(open(options.sequence)).unwrap();
        assert_eq!(at, again, "round {round}");
        assert!(changed.pages > 0);
    }
    (captured / rounds, applied / rounds)
}

#[test]
fn a_tree_is_captured_into_a_log_and_brought_back_from_there() {
    let Some(mut lab) = Lab::new() else { return };
    let store = Store::open(&lab.folder.path().join("store")).unwrap();
    let name = "walker".parse().unwrap();
    let log = store.open_log(&name, LogOptions::default()).unwrap();
    let in_log = |sequence| store.image(&name, sequence).unwrap();
    let of_log = capture_and_bring_back(&lab, &log, &in_log, CAPTURED_TIMES);
    println!("capture, apply: {of_log:?}");
    lab.judge();
}

#[test]
fn a_tree_with_another_descriptor_is_refused_by_name_and_goes_on() {
    let Some(mut lab) = Lab::new() else { return };
    lab.go_on();
    let image = lab.checkpoint(1);
    let folder = format!("/proc/{}/fd", lab.root());
    let descriptors = || std::fs::read_dir(&folder).unwrap().count();
    let (before, begun) = (descriptors(), Instant::now());
    sys::signal::send(lab.root(), Signal(10)).unwrap();
    while descriptors() == before {
        assert!(begun.elapsed() < LIMIT, "the subject has opened nothing");
        std::thread::sleep(Duration::from_millis(1));
    }
    let steps = lab.steps();
    let refusal = lab.bring_back(&image).unwrap_err();
    let EngineError::NotInPlace(found) = refusal else { panic!("{refusal}") };
    assert_eq!(found, [format!("pid {} has other descriptors, at {before}", lab.root())]);
    lab.go_on();
    assert!(lab.steps().iter().zip(&steps).all(|(now, before)| now > before), "it was not brought back");
    lab.judge();
}

#[test]
fn a_tree_that_is_brought_back_in_part_does_not_run() {
    let Some(lab) = Lab::new() else { return };
    lab.go_on();
    let image = lab.checkpoint(1);
    lab.go_on();
    let pages = std::fs::read_dir(&image).unwrap().map(|entry| entry.unwrap().path());
    let pages = pages.max_by_key(|path| path.metadata().unwrap().len()).unwrap();
    let mut bytes = std::fs::read(&pages).unwrap();
    bytes.iter_mut().skip(1 << 15).step_by(1 << 10).for_each(|byte| *byte ^= 1);
    std::fs::write(&pages, bytes).unwrap();
    let error = lab.bring_back(&image).unwrap_err();
    assert!(matches!(error, EngineError::InPart(_)), "{error}");
    for (pid, _) in &lab.counts {
        assert!(tracee::procfs::stat(*pid).map_or(true, |stat| stat.is_zombie()), "pid {pid} lives");
    }
}

/// Asserts that a checkpoint contains the memory of the subject, and that it is not empty.
fn assert_exact(comparison: &Comparison) {
    assert_eq!((comparison.differences.get(), &comparison.first), (0, &Vec::new()));
    assert!(comparison.pages.get() > 1000, "{comparison:?}");
}

/// The number of checkpoints that are kept: the last one, and an older one.
const KEPT: usize = 4;

/// A subject that is checkpointed continuously into a log.
struct TrackedLab {
    lab: Lab,
    store: Store,
    name: SubjectName,
    log: LogWriter,
    subject: Continuous,
    next: u64,
}

impl TrackedLab {
    fn new() -> Option<Self> {
        let lab = Lab::start("armed", 9)?;
        let store = Store::open(&lab.folder.path().join("store")).unwrap();
        let name: SubjectName = "armed".parse().unwrap();
        let keep = RetentionPolicy::newest(KEPT);
        let options = LogOptions { keep, size: SizeLimit::None, ..LogOptions::default() };
        let log = store.open_log(&name, options).unwrap();
        let subject = Continuous::new(lab.root(), track::choose("auto").unwrap().kind);
        Some(Self { lab, store, name, log, subject, next: 1 })
    }

    fn options(&mut self) -> CheckpointOptions {
        self.next += 1;
        CheckpointOptions { sequence: Sequence(self.next), ..CheckpointOptions::default() }
    }

    /// Takes a checkpoint, and returns the counters of the checkpoint.
    fn checkpoint(&mut self) -> (Sequence, Vec<u64>) {
        let options = self.options();
        let (taken, held) = self.subject.checkpoint_and_hold(&self.log, &options).unwrap().unwrap();
        let steps = self.lab.steps();
        taken.ticket.wait().unwrap();
        held.resume().unwrap();
        (options.sequence, steps)
    }

    /// Takes a checkpoint, and compares it with the memory of the stopped subject.
    fn verify(&mut self) {
        let options = self.options();
        let read = |sequence| self.store.image(&self.name, sequence);
        let verified = self.subject.checkpoint_and_verify(&self.log, &read, &options);
        assert_exact(&verified.unwrap().unwrap().1);
    }

    /// Holds the subject, and sets it back. Returns the held subject.
    fn apply(&mut self, sequence: Sequence) -> Result<(Held, Applied)> {
        let image = self.store.image(&self.name, sequence).unwrap();
        let held = self.subject.hold().unwrap();
        let options = ApplyOptions { tracked_by: Some(&self.subject), ..ApplyOptions::default() };
        held.apply(image, &options)
    }
}

/// The counters of the times that long timers have run, in microseconds.
const TIMES: std::ops::Range<usize> = 7..9;
/// The maximum time from the last step of the program to its checkpoint.
const STEP_MAX: Duration = Duration::from_millis(300);
/// The number of rounds between two checkpoints. They take much longer than `STEP_MAX`, so a timer that is not set back
/// is found.
const ROUNDS: u32 = 25;

/// In each round, the subject is set back to its last checkpoint or to the one before. The program itself checks its memory
/// and its threads.
#[test]
fn tracked_subject_with_timers_is_set_back_many_times() {
    let Some(mut tracked) = TrackedLab::new() else { return };
    tracked.lab.go_on();
    let is_tracked = track::choose("auto").unwrap().kind.name() != "full";
    let mut last = tracked.checkpoint();
    let mut older = last.clone();
    let (mut took, mut pages, rounds) = (Duration::ZERO, 0, testkit::rounds(30, 1000));
    for round in 0..rounds {
        if round % ROUNDS == ROUNDS - 1 {
            tracked.verify();
            older = std::mem::replace(&mut last, tracked.checkpoint());
            tracked.lab.go_on();
        }
        let (sequence, steps) = if round % 5 == 4 { &older } else { &last };
        let (sequence, steps) = (*sequence, steps.clone());
        let begun = Instant::now();
        let (held, applied) = tracked.apply(sequence).unwrap();
        took += begun.elapsed();
        pages += applied.compared;
        assert_eq!(tracked.lab.steps(), steps, "round {round}");
        assert!(applied.pages > 0);
        // The program has 1024 pages that it never writes.
        assert!(!is_tracked || sequence != last.0 || applied.compared < 1024, "round {round}: {applied:?}");
        held.resume().unwrap();
        tracked.lab.go_on();
        let (now, limit) = (tracked.lab.steps(), begun.elapsed() + STEP_MAX);
        for index in TIMES {
            let ran = Duration::from_micros(now[index] - steps[index]);
            assert!(ran <= limit, "round {round}: timer {index} has run for {ran:?}, but {limit:?} are over");
        }
    }
    tracked.verify();
    println!("each took {:?}, {} pages were compared", took / rounds, pages / u64::from(rounds));
    tracked.lab.go_on();
    tracked.lab.judge();
}

#[test]
fn untracked_subject_with_timers_is_set_back() {
    let Some(mut lab) = Lab::start("armed", 9) else { return };
    lab.go_on();
    let image = lab.checkpoint(1);
    let (_, at) = lab.bring_back(&image).unwrap();
    for round in 0..20 {
        lab.go_on();
        let (applied, steps) = lab.bring_back(&image).unwrap();
        assert_eq!(steps, at, "round {round}");
        assert!(applied.compared > 1024);
    }
    lab.go_on();
    lab.judge();
}

#[test]
fn new_timer_is_refused_by_name_and_the_subject_continues() {
    let Some(mut tracked) = TrackedLab::new() else { return };
    tracked.lab.go_on();
    let (sequence, _) = tracked.checkpoint();
    sys::signal::send(tracked.lab.root(), Signal(10)).unwrap();
    let timers = format!("/proc/{}/timers", tracked.lab.root());
    let count = || std::fs::read_to_string(&timers).unwrap().matches("signal: ").count();
    let begun = Instant::now();
    while count() == 3 {
        assert!(begun.elapsed() < LIMIT, "the subject has created no timer");
        std::thread::sleep(Duration::from_millis(1));
    }
    let refusal = tracked.apply(sequence).unwrap_err();
    let EngineError::NotInPlace(found) = refusal else { panic!("{refusal}") };
    assert_eq!(found, [format!("pid {} has another `state/posix_timers`", tracked.lab.root())]);
    tracked.lab.go_on();
    tracked.verify();
    tracked.lab.judge();
}

#[test]
fn checkpoint_is_applied_to_a_process_with_another_pid() {
    let Some(mut lab) = Lab::start("replaced", 1) else { return };
    lab.go_on();
    let image = lab.checkpoint(1);
    let (_, at) = lab.bring_back(&image).unwrap();
    let (old, address) = lab.counts[0];
    sys::signal::send(old, Signal(9)).unwrap();
    let begun = Instant::now();
    let new = loop {
        let text = std::fs::read_to_string(lab.folder.path().join("said")).unwrap();
        match text.split_once(' ').map(|(pid, _)| Pid(pid.parse().unwrap())) {
            Some(pid) if pid != old && text.ends_with('\n') => break pid,
            _ => std::thread::sleep(Duration::from_millis(1)),
        }
        assert!(begun.elapsed() < LIMIT, "there is no new child");
    };
    lab.counts[0] = (new, address);
    // The number of signals at the checkpoint is small, and the new child must be beyond it.
    while lab.steps()[0] <= at[0] {
        lab.go_on();
    }
    let reader = || ImageReader::open(&image).unwrap();
    let tree = StoppedTree::stop(lab.root()).unwrap();
    let refusal = apply(reader(), tree, &ApplyOptions::default()).map(drop).unwrap_err();
    assert!(matches!(refusal, EngineError::NotInPlace(_)), "{refusal}");
    lab.go_on();
    let tree = StoppedTree::stop(lab.root()).unwrap();
    let numbers = std::collections::HashMap::from([(old, new)]);
    let options = ApplyOptions { numbers: Some(&numbers), ..ApplyOptions::default() };
    let (tree, _) = apply(reader(), tree, &options).unwrap();
    assert_eq!(lab.steps(), at);
    tree.resume().unwrap();
    lab.go_on();
    sys::signal::send(new, Signal(15)).unwrap();
    let status = lab.subject.wait().unwrap();
    assert!(status.success(), "the subject ended with {status}");
}
