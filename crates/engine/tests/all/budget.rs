//! Tests the pause budget, the maximum duration of one stop, with a program that fills memory as fast as possible.
//! No stop of the program is longer than the budget. Each checkpoint contains the memory of the program at that
//! time, and can be restored.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::late::Late;
use model::{PageCount, Pid, Sequence, Signal, Tid};
use store::{LogOptions, LogWriter, RetentionPolicy, Store, SubjectName};
use track::TrackerKind;
use undying_engine::{
    CheckpointOptions, Continuous, FilePolicy, Files, MAX_PAUSE_DEFAULT, RestoreOptions, Taken, Tuning,
    restore,
};

/// The memory of the program in MiB: 49,152 pages, many times the number that one stop copies.
const MIB: u64 = 192;
/// A scan of so little memory needs no worker threads.
const MIB_SMALL: u64 = 64;
const EVERY: Duration = Duration::from_millis(50);
/// The maximum duration of a wait.
const LIMIT: Duration = Duration::from_secs(60);
/// The number of checkpoints. One in `COMPARED_EACH` checkpoints is compared with the program.
const CHECKPOINTS: u64 = 4;
const COMPARED_EACH: u64 = 2;

struct Lab {
    folder: tempfile::TempDir,
    store: Store,
    name: SubjectName,
    program: PathBuf,
}

impl Lab {
    fn new() -> Option<Self> {
        Self::of("filler")
    }

    /// Compiles a subject.
    fn of(subject: &str) -> Option<Self> {
        let folder =
            tempfile::TempDir::with_prefix_in("undying-budget-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let store = Store::open(&folder.path().join("store")).unwrap();
        let program = testkit::compiled(env!("CARGO_MANIFEST_DIR"), subject, &["-O2"])?;
        Some(Self { folder, store, name: subject.parse().unwrap(), program })
    }

    fn start(&self, passes: u64) -> Child {
        self.start_with(MIB, passes)
    }

    fn start_with(&self, mib: u64, passes: u64) -> Child {
        // A pipe that this test has inherited must not become a descriptor of the subject.
        sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
        let mut command = Command::new(&self.program);
        command.arg(self.said()).arg(mib.to_string()).arg(passes.to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    fn said(&self) -> PathBuf {
        self.folder.path().join("said")
    }

    /// Returns how often the program has written all of its memory.
    fn passes(&self) -> u64 {
        let text = std::fs::read_to_string(self.said()).unwrap_or_default();
        assert!(!text.starts_with("broken"), "{text}");
        text.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
    }

    /// Waits until the program has written all of its memory again.
    fn await_pass(&self) {
        let (begun, before) = (Instant::now(), self.passes());
        while self.passes() < before + 2 {
            assert!(begun.elapsed() < LIMIT, "it does not fill its memory");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn log(&self) -> LogWriter {
        let options = LogOptions { keep: RetentionPolicy::newest(2), ..LogOptions::default() };
        self.store.open_log(&self.name, options).unwrap()
    }

    fn options(&self, number: u64) -> CheckpointOptions {
        CheckpointOptions {
            sequence: Sequence(number),
            name: self.name.to_string(),
            ..CheckpointOptions::default()
        }
    }
}

fn report(taken: &Taken) {
    println!(
        "{} slices, {:?} in all, {:?} the longest; {} pages before the last stop of {:?}, {} in it",
        taken.slices.count,
        taken.slices.total,
        taken.slices.longest,
        taken.precopied,
        taken.timings.pause,
        taken.residual
    );
}

fn kill(pid: Pid) {
    sys::signal::send(pid, Signal(9)).unwrap();
    let raw = rustix::process::Pid::from_raw(pid.get()).unwrap();
    rustix::process::waitpid(Some(raw), rustix::process::WaitOptions::empty()).unwrap();
}

/// Waits until a restored program has written all of its memory again, and kills the program.
fn await_pass_of(lab: &Lab, pid: Pid) {
    lab.await_pass();
    kill(pid);
}

#[test]
fn a_program_that_fills_its_memory_is_captured_in_slices() {
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    match track::choose("pagemap-scan") {
        Ok(chosen) if fill_and_restore(chosen.kind) == 0 => {
            println!("unsupported: a processor for the subject, which needed no slice");
        }
        Ok(_) => {}
        Err(error) => println!("unsupported: {error}"),
    }
}

/// With the tracker `late`, only the last stop finds written pages.
#[test]
fn a_stop_that_finds_too_much_is_a_slice() {
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    let slices = fill_and_restore(&Late);
    assert!(slices > 0, "the budget of {MAX_PAUSE_DEFAULT:?} was kept without a slice");
}

/// Takes checkpoints, compares some of them, and restores the last checkpoint. Returns the number of slices (short
/// stops that each copy a part of the pages).
fn fill_and_restore(tracker: &'static dyn TrackerKind) -> u32 {
    let Some(lab) = Lab::new() else { return 1 };
    let pid = Pid(lab.start(0).id() as i32);
    let log = lab.log();
    let mut subject = Continuous::new(pid, tracker);
    let read = |sequence| lab.store.image(&lab.name, sequence);
    let (mut slices, mut last, mut number) = (0, None, 0);
    let begun = Instant::now();
    while number < CHECKPOINTS {
        assert!(begun.elapsed() < LIMIT, "the log accepts no checkpoint");
        if number > 0 {
            lab.await_pass();
        }
        let options = lab.options(number + 1);
        let taken = if number % COMPARED_EACH == COMPARED_EACH - 1 {
            let taken = subject.checkpoint_and_verify(&log, &read, &options).unwrap();
            taken.map(|(taken, found)| {
                assert_eq!(found.differences, PageCount(0), "{found:?}");
                taken
            })
        } else {
            subject.checkpoint(&log, &options).unwrap()
        };
        if let Some(taken) = taken {
            report(&taken);
            number += 1;
            slices += taken.slices.count;
            // One stop copies as many pages as fit into the budget. The duration of a stop is not tested, because
            // the machine may be loaded. Two stops that were delayed raise the budget, perhaps by so much that all
            // of the memory fits.
            let is_raised = taken.max_pause > Some(MAX_PAUSE_DEFAULT);
            assert!(is_raised || taken.residual < PageCount((MIB << 20) >> 12), "{taken:?}");
            last = Some(taken);
        }
        std::thread::sleep(EVERY);
    }
    let committed = last.unwrap().ticket.wait().unwrap();
    kill(pid);
    drop(subject);
    log.close().unwrap();
    let reader = lab.store.image(&lab.name, committed.sequence).unwrap();
    let files = Files { policy: FilePolicy::Keep, ..Files::default() };
    let options = RestoreOptions { files, ..RestoreOptions::default() };
    await_pass_of(&lab, restore(reader, options).unwrap().roots.first());
    slices
}

#[test]
fn a_throttled_program_ends_by_itself() {
    /// The number of passes over the memory: enough for a few checkpoints, on a loaded machine in one of `TRIES` runs.
    const PASSES: u64 = 60;
    const TRIES: u32 = 3;
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    let Some(lab) = Lab::new() else { return };
    let taken = || {
        let mut child = lab.start(PASSES);
        let log = lab.log();
        let mut subject = Continuous::new(Pid(child.id() as i32), track::choose("auto").unwrap().kind);
        let (mut number, mut taken) = (0, 0);
        let begun = Instant::now();
        let status = loop {
            assert!(begun.elapsed() < LIMIT, "it does not end");
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            number += 1;
            match subject.checkpoint(&log, &lab.options(number)) {
                Ok(Some(one)) => {
                    report(&one);
                    taken += 1;
                }
                // The log has too much to write for another checkpoint.
                Ok(None) => {}
                // The program can end at any time.
                Err(error) => println!("{error}"),
            }
            std::thread::sleep(EVERY);
        };
        assert!(status.success(), "{status:?}, {:?}", std::fs::read_to_string(lab.said()));
        log.close().unwrap();
        taken
    };
    assert!((0..TRIES).any(|_| taken() > 0));
}

/// Copies that the program replaces by further writes cost page faults and time. The slow steps of the first checkpoint
/// must not lie between the protection of the pages and the copying.
#[test]
fn the_first_checkpoint_of_a_busy_program_wastes_few_copies() {
    const TRIES: u32 = 5;
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    let chosen = match track::choose("pagemap-scan") {
        Ok(chosen) => chosen.kind,
        Err(error) => return println!("unsupported: {error}"),
    };
    let pages = (MIB << 20) >> 12;
    let (mut fewest, limit) = (u64::MAX, pages * 7 / 4);
    for _ in 0..TRIES {
        let Some(lab) = Lab::new() else { return };
        let pid = Pid(lab.start(0).id() as i32);
        lab.await_pass();
        let log = lab.log();
        let taken = Continuous::new(pid, chosen).checkpoint(&log, &lab.options(1)).unwrap().unwrap();
        report(&taken);
        kill(pid);
        fewest = fewest.min(taken.precopied.get() + taken.residual.get());
        // A single checkpoint can be delayed by other programs.
        if fewest < limit {
            return;
        }
    }
    panic!("{fewest} copies of {pages} pages");
}

/// Large mappings that come and go make most copies useless: the program has removed the pages when they are stored. Once,
/// a checkpoint copied 18 times as many pages as the program had.
#[test]
fn mappings_that_come_and_go_cost_few_copies() {
    const TRIES: u64 = 5;
    const KEPT_MIB: u64 = 32;
    const COMING_MIB: u64 = 48;
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    let chosen = match track::choose("pagemap-scan") {
        Ok(chosen) => chosen.kind,
        Err(error) => return println!("unsupported: {error}"),
    };
    let Some(lab) = Lab::of("comer") else { return };
    let pid = Pid(lab.start_with(KEPT_MIB, COMING_MIB).id() as i32);
    let begun = Instant::now();
    while !lab.said().exists() {
        assert!(begun.elapsed() < LIMIT, "it fills no memory");
        std::thread::sleep(Duration::from_millis(1));
    }
    let log = lab.log();
    let mut subject = Continuous::new(pid, chosen);
    let pages = ((KEPT_MIB + COMING_MIB) << 20) >> 12;
    let mut copies = Vec::new();
    for number in 1..=TRIES {
        let taken = subject.checkpoint(&log, &lab.options(number)).unwrap().unwrap();
        report(&taken);
        copies.push(taken.precopied.get() + taken.residual.get());
        // Beyond some checkpoints that are not durable, the log begins none.
        taken.ticket.wait().unwrap();
        std::thread::sleep(EVERY);
    }
    kill(pid);
    copies.sort_unstable();
    // A single checkpoint can be delayed by other programs.
    let (median, most) = (copies[TRIES as usize / 2], copies[TRIES as usize - 2]);
    assert!(median < 2 * pages && most < 4 * pages, "{copies:?} copies of {pages} pages");
}

/// While a program is stopped, its processor is idle. A worker thread uses it, so that the slices are over sooner.
#[test]
fn worker_threads_help_to_copy_little_memory_in_slices() {
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    let chosen = match track::choose("pagemap-scan") {
        Ok(chosen) => chosen.kind,
        Err(error) => return println!("unsupported: {error}"),
    };
    let Some(processor) = second_processor() else { return println!("unsupported: two processors") };
    let Some(lab) = Lab::new() else { return };
    let pid = Pid(lab.start_with(MIB_SMALL, 0).id() as i32);
    lab.await_pass();
    let log = lab.log();
    // Only the workers of this test use exactly this processor.
    let tuning = Tuning { processors: processor.clone(), ..Tuning::default() };
    let mut subject = Continuous::new(pid, chosen).tuned(tuning);
    let mut slices = 0;
    for number in 1..=CHECKPOINTS {
        slices +=
            subject.checkpoint(&log, &lab.options(number)).unwrap().map_or(0, |taken| taken.slices.count);
        lab.await_pass();
    }
    let workers = worker_threads();
    kill(pid);
    if slices == 0 {
        return println!("unsupported: a processor for the subject, which needed no slice");
    }
    let is_bound = |tid: &Tid| sys::scheduling::affinity(*tid).is_ok_and(|mask| trimmed(mask) == processor);
    assert!(workers.iter().any(is_bound), "{slices} slices, workers {workers:?}");
}

/// Returns the affinity mask of the second processor that this process can use.
fn second_processor() -> Option<Vec<u64>> {
    let own = sys::scheduling::affinity(Tid(0)).unwrap();
    let usable = |bit: &usize| own[bit / 64] >> (bit % 64) & 1 == 1;
    let second = (0..own.len() * 64).filter(usable).nth(1)?;
    let mut mask = vec![0; second / 64 + 1];
    mask[second / 64] = 1 << (second % 64);
    Some(mask)
}

fn trimmed(mut mask: Vec<u64>) -> Vec<u64> {
    while mask.last() == Some(&0) {
        mask.pop();
    }
    mask
}

/// Returns the worker threads of this process.
fn worker_threads() -> Vec<Tid> {
    let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|entry| entry.unwrap());
    let workers = threads.filter(|thread| {
        std::fs::read_to_string(thread.path().join("comm")).is_ok_and(|name| name.trim() == "undying-worker")
    });
    workers.map(|thread| Tid(thread.file_name().to_str().unwrap().parse().unwrap())).collect()
}
