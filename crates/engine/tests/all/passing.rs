//! Tests objects that cannot be checkpointed. A continuous checkpoint is not refused if the subject holds the
//! object only for a moment, or closes the object during the scan. A checkpoint is refused if the subject keeps the
//! object, and the error names the object.

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use model::{PageCount, Pid, Sequence, Signal};
use store::{
    ImageReader, ImageWriter, LogOptions, LogWriter, RetentionPolicy, Store, SubjectName, WriteOptions,
};
use undying_engine::{
    CheckpointOptions, Continuous, EngineError, FilePolicy, Files, RestoreOptions, checkpoint, restore,
};

/// The number of checkpoints of each subject.
const CHECKPOINTS: u64 = 100;
/// The time between two checkpoints.
const EVERY: Duration = Duration::from_millis(10);
/// The maximum duration of a wait.
const LIMIT: Duration = Duration::from_secs(60);

struct Lab {
    folder: tempfile::TempDir,
    store: Store,
    name: SubjectName,
}

/// The subject process. Dropping the value kills the process.
struct Subject(Child);

impl Subject {
    fn pid(&self) -> Pid {
        Pid(self.0.id() as i32)
    }

    fn assert_alive(&mut self) {
        let ended = self.0.try_wait().unwrap();
        assert!(ended.is_none(), "it ended: {ended:?}");
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Lab {
    fn new() -> Self {
        let folder =
            tempfile::TempDir::with_prefix_in("undying-passing-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        Self { folder, store, name: "passing".parse().unwrap() }
    }

    fn log(&self) -> LogWriter {
        let options = LogOptions { keep: RetentionPolicy::newest(3), ..LogOptions::default() };
        self.store.open_log(&self.name, options).unwrap()
    }

    fn options(&self, sequence: u64) -> CheckpointOptions {
        let sequence = Sequence(sequence);
        CheckpointOptions { name: self.name.to_string(), sequence, ..CheckpointOptions::default() }
    }

    fn start(&self, mode: &str) -> Option<Subject> {
        if !rustix::process::geteuid().is_root() {
            println!("unsupported: root");
            return None;
        }
        let program = testkit::compiled(env!("CARGO_MANIFEST_DIR"), "passing", &["-O1"])?;
        // A pipe that this test has inherited must not become a descriptor of the subject.
        sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
        let mut command = Command::new(program);
        command.arg(mode).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let subject = Subject(command.spawn().unwrap());
        std::thread::sleep(Duration::from_millis(50));
        Some(subject)
    }
}

/// The result of a series of checkpoints.
#[derive(Default)]
struct Outcome {
    taken: u64,
    refused: Vec<EngineError>,
    last: Option<Sequence>,
}

fn take(lab: &Lab, log: &LogWriter, pid: Pid) -> Outcome {
    let mut subject = Continuous::new(pid, track::choose("auto").unwrap().kind);
    let mut outcome = Outcome::default();
    let (begun, mut sequence) = (Instant::now(), 1);
    while outcome.taken + (outcome.refused.len() as u64) < CHECKPOINTS {
        assert!(begun.elapsed() < LIMIT, "{} were taken", outcome.taken);
        match subject.checkpoint(log, &lab.options(sequence)) {
            Ok(Some(taken)) => {
                outcome.taken += 1;
                outcome.last = Some(taken.ticket.wait().unwrap().sequence);
            }
            Ok(None) => {}
            Err(error) => outcome.refused.push(error),
        }
        sequence += 1;
        std::thread::sleep(EVERY);
    }
    outcome
}

/// Takes many checkpoints of a subject, and restores the last checkpoint. At most `refusals_max` checkpoints may be
/// refused.
fn passes(mode: &str, refusals_max: usize) {
    let lab = Lab::new();
    if let Some(last) = goes_on(&lab, mode, refusals_max) {
        restores(lab.store.image(&lab.name, last).unwrap());
    }
}

/// Takes many checkpoints of a subject. At most `refusals_max` checkpoints may be refused. Returns the sequence
/// number of the last checkpoint.
fn goes_on(lab: &Lab, mode: &str, refusals_max: usize) -> Option<Sequence> {
    let mut subject = lab.start(mode)?;
    let log = lab.log();
    let Outcome { taken, refused, last } = take(lab, &log, subject.pid());
    println!("{mode}: {taken} taken, {} refused", refused.len());
    for error in refused.iter().take(3) {
        println!("{error}");
    }
    subject.assert_alive();
    drop(subject);
    assert!(refused.len() <= refusals_max, "{} of {CHECKPOINTS} were refused", refused.len());
    log.close().unwrap();
    last
}

fn restores(image: ImageReader) {
    let files = Files { policy: FilePolicy::Keep, ..Files::default() };
    let options = RestoreOptions { files, ..RestoreOptions::default() };
    let root = restore(image, options).unwrap().roots.first();
    std::thread::sleep(Duration::from_millis(100));
    let raw = rustix::process::Pid::from_raw(root.get()).unwrap();
    let ended = rustix::process::waitpid(Some(raw), rustix::process::WaitOptions::NOHANG).unwrap();
    assert!(ended.is_none(), "it ended: {ended:?}");
    rustix::process::kill_process(raw, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitpid(Some(raw), rustix::process::WaitOptions::empty()).unwrap();
}

/// Makes the program open or close the file that cannot be saved.
fn toggle(lab: &Lab, pid: Pid, is_held: bool) {
    const TOGGLE: Signal = Signal(10);
    sys::signal::send(pid, TOGGLE).unwrap();
    let begun = Instant::now();
    while lab.folder.path().join("held").exists() != is_held {
        assert!(begun.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn what_stays_is_refused_by_name_and_the_next_checkpoints_are_whole() {
    let lab = Lab::new();
    let Some(mut program) = lab.start("held") else { return };
    let (log, pid) = (lab.log(), program.pid());
    let read = |sequence| lab.store.image(&lab.name, sequence);
    let mut subject = Continuous::new(pid, track::choose("auto").unwrap().kind);
    for round in 0..10 {
        for sequence in [3 * round + 1, 3 * round + 2] {
            let taken = subject.checkpoint_and_verify(&log, &read, &lab.options(sequence)).unwrap();
            assert_eq!(taken.unwrap().1.differences, PageCount(0));
        }
        toggle(&lab, pid, true);
        let begun = Instant::now();
        let error = subject.checkpoint(&log, &lab.options(3 * round + 3)).unwrap_err();
        let took = begun.elapsed();
        let EngineError::Refused(obstacles) = &error else { panic!("{error}") };
        assert!(obstacles.len() == 1 && obstacles[0].place.ends_with("/stat"), "{error}");
        assert!(took < Duration::from_secs(1), "{took:?}");
        toggle(&lab, pid, false);
    }
    program.assert_alive();
}

/// Most checkpoints of this subject are begun more than once. The last attempt must contain the pages that earlier
/// attempts have copied.
#[test]
fn a_checkpoint_that_was_begun_again_holds_every_page() {
    let lab = Lab::new();
    let Some(mut program) = lab.start("busy") else { return };
    let (log, pid) = (lab.log(), program.pid());
    let read = |sequence| lab.store.image(&lab.name, sequence);
    let mut subject = Continuous::new(pid, track::choose("auto").unwrap().kind);
    let (mut again, mut refused, mut pages) = (0, 0, 0);
    for sequence in 1..=CHECKPOINTS {
        match subject.checkpoint_and_verify(&log, &read, &lab.options(sequence)) {
            Ok(Some((taken, found))) => {
                assert_eq!(found.differences, PageCount(0), "checkpoint {sequence}: {found:?}");
                pages += found.pages.get();
                again += u64::from(sequence > 1 && !taken.arming.is_zero());
            }
            Ok(None) => {}
            Err(EngineError::Refused(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(EVERY);
    }
    println!("busy: {again} of {CHECKPOINTS} were begun again, {refused} refused, {pages} pages compared");
    program.assert_alive();
    assert!(again >= CHECKPOINTS / 20 && refused <= CHECKPOINTS / 20 && pages > 0);
}

#[test]
fn a_file_of_proc_that_is_open_for_a_moment_refuses_nothing() {
    passes("stat", 0);
}

#[test]
fn objects_that_come_and_go_refuse_nothing() {
    passes("objects", 0);
}

#[test]
fn children_that_live_for_no_time_refuse_nothing() {
    passes("children", 0);
}

#[test]
fn pipes_of_which_a_dying_child_holds_the_other_end_refuse_nothing() {
    passes("pipes", 0);
}

/// Between vfork(2) and execve(2), a child uses the memory of its parent. Facts about this memory must not be used
/// for the child after execve(2).
#[test]
fn programs_that_are_started_by_vfork_refuse_nothing() {
    passes("programs", CHECKPOINTS as usize / 20);
}

/// When a tracker is prepared for the child, the child still uses the memory of its parent. When the tracker is
/// attached, the child has its own memory.
#[test]
fn a_child_that_begins_a_program_of_its_own_while_it_is_about_to_be_tracked_is_copied() {
    let lab = Lab::new();
    let Some(mut program) = lab.start("programs") else { return };
    let log = lab.log();
    let read = |sequence| lab.store.image(&lab.name, sequence);
    let mut subject = Continuous::new(program.pid(), track::choose("auto").unwrap().kind);
    let (mut refused, mut pages) = (0, 0);
    for sequence in 1..=CHECKPOINTS {
        match subject.checkpoint_and_verify(&log, &read, &lab.options(sequence)) {
            Ok(Some((_, found))) => {
                assert_eq!(found.differences, PageCount(0), "checkpoint {sequence}: {found:?}");
                pages += found.pages.get();
            }
            Ok(None) => {}
            Err(EngineError::Refused(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(EVERY);
    }
    println!("programs: {refused} of {CHECKPOINTS} refused, {pages} pages compared");
    program.assert_alive();
    assert!(refused <= CHECKPOINTS / 20 && pages > 0);
}

/// A checkpoint must not hold duplicates of descriptors that the program closes. Otherwise a port stays in use, a
/// file stays locked, and a program file that was written cannot be executed.
#[test]
fn what_a_program_closes_is_closed() {
    goes_on(&Lab::new(), "closes", CHECKPOINTS as usize / 20);
}

/// At the end of a single checkpoint, the tracker must not leave a mapping registered in part, because mremap(2)
/// cannot move such a mapping. Programs that this test starts meanwhile hold duplicates of all descriptors until
/// their execve(2). Closing the descriptor of the tracker therefore does not end a registration.
#[test]
fn areas_that_grow_at_the_end_of_a_checkpoint_can_be_moved() {
    let lab = Lab::new();
    let Some(mut subject) = lab.start("grows") else { return };
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                Command::new("true").status().unwrap();
            }
        });
        let _over = testkit::SetAtEnd(&is_over);
        take_while_it_grows(&lab, &mut subject);
    });
}

fn take_while_it_grows(lab: &Lab, subject: &mut Subject) {
    for sequence in 1..=testkit::rounds(CHECKPOINTS / 8, CHECKPOINTS) {
        let image = lab.folder.path().join(format!("image{sequence}"));
        let writer = ImageWriter::create(&image, WriteOptions::default()).unwrap();
        checkpoint(subject.pid(), Box::new(writer), &lab.options(sequence)).unwrap();
        std::fs::remove_dir_all(image).unwrap();
        subject.assert_alive();
    }
}
