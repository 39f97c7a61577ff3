//! Tests of a watch over large mapped files: a program stores to them and is killed, and the files are rolled back.
//!
//! Owns: the comparison of mapped files with the files at a boundary.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use model::{Pid, Sequence};
use rustix::process::{Signal, kill_process_group};
use sys::dirty_tracker::DirtyTracker;
use undying_undo::watch::{Boundary, Watch};

use crate::common::{ROOMY, Subject, difference, tree, watch};

const INCARNATIONS: u64 = 3;
const EPOCHS: u64 = 6;
/// Time in which a deferred boundary must become exact while the program changes nothing.
const EXACT_WITHIN: Duration = Duration::from_secs(20);

fn is_unsupported() -> bool {
    let missing = Watch::missing().or_else(|| DirtyTracker::new().err().map(|error| error.to_string()));
    if let Some(missing) = &missing {
        println!("unsupported: {missing}");
    }
    missing.is_some()
}

/// Makes an exact boundary. The program changes no file meanwhile.
fn exact_boundary(subject: &Subject, watch: &Watch, sequence: Sequence, seed: u64) {
    let began = Instant::now();
    loop {
        match subject.boundary(watch, sequence) {
            Boundary::Exact => return,
            Boundary::Deferred(why) if began.elapsed() < EXACT_WITHIN => {
                assert!(why.contains("mapped"), "seed {seed}: {why}");
                std::thread::sleep(Duration::from_millis(5));
            }
            Boundary::Deferred(why) => panic!("seed {seed}, checkpoint {sequence}: {why}"),
        }
    }
}

fn roll_back_incarnations(place: &Path, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let (watch, root) = watch(place, ROOMY);
    let mut known = BTreeMap::from([(Sequence(0), tree(&root))]);
    let mut next = 1;
    for incarnation in 0..INCARNATIONS {
        let own = (seed * 100 + incarnation).to_string();
        let mut subject = Subject::start(&watch, "mapped.py", &root, &[&own]);
        for _ in 0..EPOCHS {
            subject.order(random.usize(1..80));
            subject.wait();
            if random.bool() {
                std::thread::sleep(Duration::from_millis(random.u64(0..80)));
            }
            let sequence = Sequence(next);
            next += 1;
            if random.u8(0..4) == 0 {
                // The checkpoint may be exact or not.
                if subject.boundary(&watch, sequence) == Boundary::Exact {
                    known.insert(sequence, tree(&root));
                }
                continue;
            }
            exact_boundary(&subject, &watch, sequence, seed);
            known.insert(sequence, tree(&root));
        }
        subject.order(300);
        std::thread::sleep(Duration::from_millis(random.u64(0..100)));
        subject.kill();
        watch.subject_ended().unwrap();
        let exact = watch.exact();
        assert!(exact.len() > 1, "seed {seed}: {:?}", watch.report());
        let to = exact[random.usize(0..exact.len())];
        watch.go_back(to, &[]).unwrap_or_else(|error| panic!("seed {seed}, to {to}: {error}"));
        let difference = difference(&known[&to], &tree(&root));
        assert_eq!(difference, None, "seed {seed}, incarnation {incarnation}, back to {to} of {exact:?}");
    }
}

#[test]
fn mapped_files_go_back_to_any_checkpoint_of_any_incarnation() {
    if is_unsupported() {
        return;
    }
    let rounds = std::env::var("UNDYING_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let seed = std::env::var("UNDYING_TEST_SEED").ok().and_then(|text| text.parse().ok());
    let first = seed.unwrap_or_else(|| fastrand::u64(0..1 << 32));
    println!("seed {first}");
    for seed in first..first + rounds {
        let place = tempfile::tempdir().unwrap();
        roll_back_incarnations(place.path(), seed);
    }
}

#[test]
fn a_checkpoint_whose_last_pause_is_deferred_is_not_exact() {
    if is_unsupported() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (watch, root) = watch(place.path(), ROOMY);
    let mut subject = Subject::start(&watch, "mapped.py", &root, &["1"]);
    subject.order(1);
    subject.wait();
    exact_boundary(&subject, &watch, Sequence(1), 1);
    exact_boundary(&subject, &watch, Sequence(2), 1);
    subject.order(0);
    subject.wait();
    let boundary = subject.boundary(&watch, Sequence(2));
    assert!(matches!(boundary, Boundary::Deferred(_)), "{boundary:?}");
    let reachable = |watch: &Watch| {
        let on_disk = undying_undo::back::reachable(&place.path().join("undo")).unwrap().0;
        assert_eq!(on_disk, watch.exact());
        on_disk
    };
    assert_eq!(reachable(&watch), [Sequence(0), Sequence(1)]);
    assert_eq!(watch.report().newest_exact, Some(Sequence(1)));
    exact_boundary(&subject, &watch, Sequence(2), 1);
    assert_eq!(reachable(&watch), [Sequence(0), Sequence(1), Sequence(2)]);
    subject.kill();
}

/// Stops all threads of a process group, and waits until they are stopped.
fn stop(subject: &Subject) -> rustix::process::Pid {
    let group = rustix::process::Pid::from_child(&subject.child);
    kill_process_group(group, Signal::STOP).unwrap();
    let leader = subject.child.id().to_string();
    let is_stopped = |stat: &str| {
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        fields[2] != leader || matches!(fields[0], "T" | "Z" | "X")
    };
    let all = || {
        fs::read_dir("/proc").unwrap().flatten().all(|entry| {
            let name = entry.file_name().into_string().unwrap_or_default();
            let Ok(pid) = name.parse() else { return true };
            fs::read_to_string(format!("/proc/{}/stat", Pid(pid))).map_or(true, |stat| is_stopped(&stat))
        })
    };
    while !all() {
        std::thread::sleep(Duration::from_micros(200));
    }
    group
}

#[test]
fn boundaries_are_exact_while_several_processes_store_without_end() {
    const BOUNDARIES: u64 = 40;
    if is_unsupported() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let (watch, root) = watch(place.path(), ROOMY);
    let seed = fastrand::u64(0..1 << 32);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let subject = Subject::start(&watch, "mapped.py", &root, &[&seed.to_string(), "crowd"]);
    let path = root.join("large");
    let mut known = BTreeMap::new();
    let mut deferred = Vec::new();
    for sequence in 1..=BOUNDARIES {
        std::thread::sleep(Duration::from_millis(random.u64(5..60)));
        let group = stop(&subject);
        match subject.boundary(&watch, Sequence(sequence)) {
            Boundary::Exact => drop(known.insert(Sequence(sequence), fs::read(&path).ok())),
            Boundary::Deferred(why) => deferred.push(why),
        }
        kill_process_group(group, Signal::CONT).unwrap();
    }
    subject.kill();
    watch.subject_ended().unwrap();
    let exact = watch.exact();
    println!("{} of {BOUNDARIES} boundaries are exact; deferred: {deferred:?}", known.len());
    assert!(known.len() as u64 > BOUNDARIES / 2, "{deferred:?}");
    // From new to old, because a rollback removes the newer checkpoints.
    for _ in 0..5 {
        let Some(to) =
            exact.iter().rev().filter(|one| known.contains_key(one)).nth(random.usize(0..3)).copied()
        else {
            return;
        };
        watch.go_back(to, &[]).unwrap();
        assert!(fs::read(&path).ok() == known[&to], "seed {seed}, to {to}");
        known.retain(|sequence, _| *sequence < to);
    }
}
