//! The cost of an idle subject for its guardian: memory, threads, descriptors, processor time.

use std::time::Duration;

use guardian::{ChangedFiles, Guarded, Host, RunRequest, StoreLocation, SubjectStatus};
use model::{Pid, Signal};
use rustix::process::{Resource, Rlimit};
use tempfile::TempDir;
use testkit::{ProcessId, until};
use undying_guardian as guardian;

/// Number of subjects. The cost of each subject does not depend on this number.
const SUBJECTS: usize = 25;
/// Time between two checkpoints.
const EVERY: Duration = Duration::from_secs(5);
/// The default time between two checkpoints.
const USUAL: Duration = guardian::EVERY_DEFAULT;
/// Maximum memory of the guardian for each subject, in a build without optimization. An optimized build needs much less:
/// its threads use less of their stacks.
const MEMORY_MAX_KIB: u64 = 5120;
/// Maximum memory of the free page buffers, which all subjects share.
const STOCK_MAX_KIB: u64 = 32 << 10;
const THREADS_MAX: u64 = 4;
/// Maximum number of threads of the host that work for all subjects.
const WORKERS_MAX: u64 = 16;
/// Some 13 of them hold the program and the libraries that the checkpoints of the subject need.
const DESCRIPTORS_MAX: u64 = 60;
/// The usual soft limit of open descriptors.
const USUAL_DESCRIPTORS: u64 = 1024;
/// A clock tick of /proc/PID/stat.
const TICK: Duration = Duration::from_millis(10);
const TERM: Signal = Signal(15);

pub(crate) fn an_idle_subject_costs_little() {
    let folder = TempDir::with_prefix_in("undying-idle-", env!("CARGO_TARGET_TMPDIR")).unwrap();
    let store = StoreLocation::new(Some(&folder.path().join("store"))).unwrap();
    // The host raises its limit: the subjects need more descriptors than a shell usually allows.
    let limit = rustix::process::getrlimit(Resource::Nofile);
    assert!(
        SUBJECTS as u64 * DESCRIPTORS_MAX > USUAL_DESCRIPTORS && limit.maximum.is_none_or(|max| max > 2048)
    );
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(USUAL_DESCRIPTORS), ..limit })
        .unwrap();
    let before = Cost::now();
    let mut host = Host::new().unwrap();
    for number in 0..SUBJECTS {
        host.add(request(&format!("idle-{number}"), &store));
    }
    let outcomes = std::thread::scope(|scope| {
        let watcher = scope.spawn(|| measure(&store, &before));
        let outcomes = host.run(&mut |name, event| println!("    {name}: {event}")).unwrap();
        watcher.join().unwrap();
        outcomes
    });
    assert_eq!(outcomes.len(), SUBJECTS);
    for outcome in outcomes.into_values() {
        assert!(matches!(outcome, Ok(SubjectStatus::Killed(TERM))), "{outcome:?}");
    }
}

/// Waits until each subject has a checkpoint, measures for one checkpoint interval, and ends all subjects.
fn measure(store: &StoreLocation, before: &Cost) {
    let rows = || guardian::status(store, None).unwrap().rows;
    until("a checkpoint of each", || {
        let rows = rows();
        (rows.len() == SUBJECTS && rows.iter().all(|row| row.facts.checkpoints > 0)).then_some(())
    });
    let taken = || rows().iter().map(|row| row.facts.checkpoints).sum::<u64>();
    let (first, begun) = (taken(), Cost::now());
    std::thread::sleep(EVERY);
    let (count, ended) = (taken() - first, Cost::now());
    for row in rows() {
        ProcessId::of(Pid(row.pid)).unwrap().signal(rustix::process::Signal::TERM).unwrap();
    }
    let each = |all: u64| all as f64 / SUBJECTS as f64;
    println!(
        "{SUBJECTS} idle subjects: {} KiB in all; each {:.1} threads, {:.1} descriptors, {:.0} KiB",
        ended.memory_kib,
        each(ended.threads - before.threads),
        each(ended.descriptors - before.descriptors),
        each(ended.memory_kib - before.memory_kib),
    );
    let cost = (ended.processor - begun.processor).as_secs_f64() / count.max(1) as f64;
    let share = 100.0 * cost * SUBJECTS as f64 / USUAL.as_secs_f64();
    println!(
        "{count} checkpoints: {:.2} ms each, {share:.2} % of a processor at one in {USUAL:?}",
        cost * 1e3
    );
    let within = |now: u64, before: u64, max: u64| now.saturating_sub(before) <= max * SUBJECTS as u64;
    assert!(within(ended.memory_kib, before.memory_kib + STOCK_MAX_KIB, MEMORY_MAX_KIB), "memory");
    assert!(within(ended.threads, before.threads + WORKERS_MAX, THREADS_MAX), "threads");
    assert!(within(ended.descriptors, before.descriptors, DESCRIPTORS_MAX), "descriptors");
}

/// The resources that this process uses.
struct Cost {
    threads: u64,
    descriptors: u64,
    memory_kib: u64,
    processor: Duration,
}

impl Cost {
    fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let number = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
            line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
        };
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let words: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        let ticks = words[11].parse::<u32>().unwrap() + words[12].parse::<u32>().unwrap();
        Self {
            threads: number("Threads:"),
            descriptors: std::fs::read_dir("/proc/self/fd").unwrap().count() as u64,
            memory_kib: number("VmRSS:"),
            processor: TICK * ticks,
        }
    }
}

fn request(name: &str, store: &StoreLocation) -> RunRequest {
    RunRequest {
        name: Some(name.to_owned()),
        every: Some(EVERY),
        keep: 4,
        files: Some(ChangedFiles::Keep),
        ..RunRequest::new(Guarded::Command(vec!["sleep".into(), "600".into()]), store.clone())
    }
}
