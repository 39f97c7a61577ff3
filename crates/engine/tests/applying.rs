//! Tests `apply`: sets living process trees back to their checkpoints, again and again.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use model::{Address, Pid, Sequence, Signal};
use store::{
    Base, CheckpointSink, ImageReader, ImageWriter, LogOptions, Memory, MemoryOptions, Store, Urgency,
    WriteOptions,
};
use tracee::StoppedTree;
use undying_engine::{Applied, CheckpointOptions, EngineError, Result, apply, checkpoint};

/// The maximum duration of a wait.
const LIMIT: Duration = Duration::from_secs(60);
/// How often a subject is set back that is captured anew each time.
const CAPTURED_TIMES: u32 = 100;

struct Lab {
    folder: tempfile::TempDir,
    subject: Child,
    /// The pid of each walker (a thread that changes its memory) and the address of its step counter.
    counts: Vec<(Pid, Address)>,
}

impl Lab {
    fn new() -> Option<Self> {
        // A pipe that this test has inherited must not become a descriptor of the subject.
        sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
        let folder =
            tempfile::TempDir::with_prefix_in("undying-applying-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects/walker.c");
        let program = folder.path().join("walker");
        let mut compiler = Command::new("cc");
        let Ok(status) = compiler.args(["-O2", "-Wall", "-pthread", "-o"]).arg(&program).arg(source).status()
        else {
            println!("unsupported: a C compiler");
            return None;
        };
        assert!(status.success());
        let said = folder.path().join("said");
        let mut command = Command::new(program);
        command.arg(&said).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let subject = command.spawn().unwrap();
        let begun = Instant::now();
        let text = loop {
            let text = std::fs::read_to_string(&said).unwrap_or_default();
            if text.lines().count() == 3 {
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

    /// Returns the number of steps of each walker.
    fn steps(&self) -> Vec<u64> {
        let steps = |(pid, address): &(Pid, Address)| {
            let mut bytes = [0; 8];
            sys::process_memory::read(*pid, *address, &mut bytes).unwrap();
            u64::from_ne_bytes(bytes)
        };
        self.counts.iter().map(steps).collect()
    }

    /// Waits until each walker has made more steps.
    fn go_on(&self) {
        let (before, begun) = (self.steps(), Instant::now());
        while self.steps().iter().zip(&before).any(|(now, before)| now < &(before + 2)) {
            assert!(begun.elapsed() < LIMIT, "a walker stands at {before:?}");
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
        let (tree, applied) = apply(image, tree, &CheckpointOptions::default())?;
        let steps = self.steps();
        tree.resume().unwrap();
        Ok((applied, steps))
    }

    /// Makes the subject check its own state, and waits for its exit status.
    fn judge(&mut self) {
        sys::signal::send(self.root(), Signal(15)).unwrap();
        let status = self.subject.wait().unwrap();
        assert!(status.success(), "the subject ended with {status}");
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
    let times = testkit::rounds(300, 1000);
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
fn a_tree_is_captured_into_memory_and_into_a_log_and_brought_back_from_there() {
    let Some(mut lab) = Lab::new() else { return };
    let memory = Memory::new(MemoryOptions::default());
    let in_memory = |sequence| memory.image(sequence).unwrap().unwrap();
    let of_memory = capture_and_bring_back(&lab, &memory, &in_memory, CAPTURED_TIMES);
    let store = Store::open(&lab.folder.path().join("store")).unwrap();
    let name = "walker".parse().unwrap();
    let log = store.open_log(&name, LogOptions::default()).unwrap();
    let in_log = |sequence| store.image(&name, sequence).unwrap();
    let of_log = capture_and_bring_back(&lab, &log, &in_log, CAPTURED_TIMES / 10);
    println!("capture, apply: in memory {of_memory:?} with {}, in a log {of_log:?}", memory.size());
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
