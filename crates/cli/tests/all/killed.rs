//! Tests that kill `undying` with SIGKILL at random moments. The subject (a protected process tree) must continue
//! unharmed, and the store must contain only complete images. No partially built process may remain. Other tests kill
//! the processes that a restore builds.
//!
//! The tests run a few rounds, or 500 rounds with `UNDYING_LONG_TESTS`.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use model::Pid;
use rustix::process::Signal;

use crate::common::{Counter, Guarded, Lab, supported, until, wait};

const ROUNDS: (usize, usize) = (12, 500);
/// The latest moment of a kill, unless the first checkpoint takes longer on a slow machine.
const LATEST: Duration = Duration::from_millis(150);

/// Time limit after which the remains of a killed restore must have ended or must run.
const SETTLED: Duration = Duration::from_secs(20);

/// Asserts that the subject runs without a tracer, with unchanged registers and memory.
fn assert_unharmed(counter: &Counter, round: usize) {
    assert!(counter.process.is_alive(), "round {round}: the subject has died");
    counter.goes_on(3);
    assert_eq!(counter.status("TracerPid"), "0", "round {round}");
    let state = counter.status("State");
    assert!(!state.starts_with(['t', 'T']), "round {round}: the subject is in state {state}");
}

/// Returns the numbers of the open descriptors of the subject.
fn open_in(counter: &Counter) -> BTreeSet<OsString> {
    let entries = std::fs::read_dir(format!("/proc/{}/fd", counter.pid())).unwrap();
    entries.map(|entry| entry.unwrap().file_name()).collect()
}

/// Asserts that all descriptors that were opened in the subject are closed again.
fn assert_closed(counter: &Counter, before: &BTreeSet<OsString>, round: usize) {
    until(&format!("round {round}'s descriptors to go"), || (open_in(counter) == *before).then_some(()));
}

/// Asserts that the subject is the only remaining process of the test.
fn assert_alone(lab: &Lab, counter: &Counter, round: usize) {
    let alone = || lab.guard.marked().iter().all(|process| *process == counter.process);
    until(&format!("leftovers of round {round} to go"), || alone().then_some(()));
}

fn is_whole(lab: &Lab, image: &str) -> bool {
    let said = lab.say(["verify", image]);
    assert!(matches!(said.code, Some(0 | 5)), "{said:?}");
    said.code == Some(0)
}

#[test]
fn a_guardian_killed_at_any_moment_leaves_a_whole_subject_and_a_whole_store() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut random = testkit::seeded("killed guardian");
    let counter = lab.counter(&[]);
    let before = open_in(&counter);
    let pid = counter.pid().to_string();
    let words = ["run", "--name", "job", "--every", "10ms", "--adopt", &pid];
    let begun = Instant::now();
    let mut first = lab.undying(words).spawn().unwrap();
    until("a checkpoint", || (!lab.json(&["ls", "job"]).as_array()?.is_empty()).then_some(()));
    let latest = LATEST.max(begun.elapsed() * 3);
    first.kill().unwrap();
    wait(&mut first);
    let (mut checkpoints, mut rounds) = (0, testkit::Rounds::new(ROUNDS.0, ROUNDS.1));
    while let Some(round) = rounds.next(newest(&lab) > Some(1)) {
        let mut guardian = lab.undying(words).spawn().unwrap();
        std::thread::sleep(testkit::moment(&mut random, rounds.stretched(latest)));
        guardian.kill().unwrap();
        wait(&mut guardian);
        assert_unharmed(&counter, round);
        assert_closed(&counter, &before, round);
        assert_alone(&lab, &counter, round);
        let rows = lab.json(&["ls", "job"]);
        for row in rows.as_array().unwrap() {
            assert_eq!(row["committed"], true, "round {round}: {row}");
        }
        if !rows.as_array().unwrap().is_empty() {
            checkpoints += 1;
            assert!(is_whole(&lab, "job"), "round {round}: the newest image is not whole");
        }
    }
    println!("rounds with a checkpoint: {checkpoints}");
    let said = lab.told();
    assert!(newest(&lab) > Some(1), "no round was long enough:\n{said}");
}

/// Returns the number of the newest checkpoint of the job.
fn newest(lab: &Lab) -> Option<u64> {
    lab.json(&["ls", "job"]).as_array().unwrap().last().and_then(|row| row["seq"].as_u64())
}

#[test]
fn a_checkpoint_killed_at_any_moment_is_whole_or_is_not_there() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut random = testkit::seeded("killed checkpoint");
    let counter = lab.counter(&[]);
    let before = open_in(&counter);
    let pid = counter.pid().to_string();
    let mut whole = 0;
    let begun = Instant::now();
    let first = lab.path("image");
    assert_eq!(lab.say(["checkpoint", &pid, "--image", first.to_str().unwrap()]).code, Some(0));
    let latest = begun.elapsed() * 2;
    let mut rounds = testkit::Rounds::new(ROUNDS.0, ROUNDS.1);
    while let Some(round) = rounds.next(whole > 0) {
        let image = lab.path(&format!("image-{round}"));
        let image = image.to_str().unwrap();
        let mut command = lab.undying(["checkpoint", &pid, "--image", image]).spawn().unwrap();
        std::thread::sleep(testkit::moment(&mut random, rounds.stretched(latest)));
        command.kill().unwrap();
        wait(&mut command);
        assert_unharmed(&counter, round);
        assert_closed(&counter, &before, round);
        assert_alone(&lab, &counter, round);
        let is_there = Path::new(image).exists();
        assert_eq!(is_whole(&lab, image), is_there, "round {round}");
        whole += usize::from(is_there);
    }
    println!("whole images: {whole}");
    assert!(whole > 0, "no round was long enough");
}

#[test]
fn a_restore_killed_at_any_moment_leaves_the_whole_tree_or_nothing() {
    kill_restores(&["orphan"], 2, |_, latest, random| std::thread::sleep(testkit::moment(random, latest)));
}

/// Kills a restore while it detaches from a large tree. The detach takes a while, because it handles one process after
/// another.
#[test]
fn a_restore_killed_while_it_lets_its_tree_go_leaves_all_of_it_or_nothing() {
    const CHILDREN: usize = 40;
    kill_restores(&["family", "40"], CHILDREN + 1, |root, latest, random| {
        let tracer = || Some(crate::common::status_of(root, "TracerPid")).filter(|value| !value.is_empty());
        let deadline = Instant::now() + latest * 10;
        while Instant::now() < deadline && tracer().is_none_or(|tracer| tracer == "0") {}
        while Instant::now() < deadline && tracer().is_some_and(|tracer| tracer != "0") {}
        std::thread::sleep(testkit::moment(random, latest / 200));
    });
}

/// Restores a counter with its children, and kills the restore when `wait_for` returns. The arguments of `wait_for` are
/// the pid of the root and a duration that is longer than a restore.
fn kill_restores(words: &[&str], size: usize, wait_for: impl Fn(Pid, Duration, &mut fastrand::Rng)) {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut random = testkit::seeded("killed restore");
    let counter = lab.counter(words);
    let image = lab.path("image");
    let image = image.to_str().unwrap();
    let children = until("its children", || {
        Some(testkit::descendants(counter.process)).filter(|children| children.len() + 1 == size)
    });
    let tree = [vec![counter.process], children].concat();
    let pid = counter.pid().to_string();
    let said = lab.say(["checkpoint", &pid, "--image", image, "--kill"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    collect(&tree);
    let begun = Instant::now();
    assert_eq!(lab.say(["restore", image, "--detach"]).code, Some(0));
    let latest = begun.elapsed() * 2;
    lab.guard.kill_all();
    collect(&tree);
    let (mut restored, mut rounds) = (0, testkit::Rounds::new(ROUNDS.0, ROUNDS.1));
    while let Some(round) = rounds.next(restored > 0) {
        let mut command = lab.undying(["restore", image]).spawn().unwrap();
        wait_for(counter.pid(), rounds.stretched(latest), &mut random);
        command.kill().unwrap();
        wait(&mut command);
        // Processes under construction die with the restore, but possibly slightly later.
        let deadline = Instant::now() + SETTLED;
        let standing = loop {
            if let Some(standing) = settled(&lab, size) {
                break standing;
            }
            assert!(Instant::now() < deadline, "round {round} has left {}", lab.guard.describe());
            std::thread::sleep(Duration::from_millis(2));
        };
        if let Some(back) = standing {
            restored += 1;
            assert_eq!(back.pid(), counter.pid(), "round {round}");
            assert_unharmed(&back, round);
        }
        lab.guard.kill_all();
        collect(&tree);
    }
    println!("restored: {restored}");
    assert!(restored > 0, "no round was long enough");
}

/// Waits until the pids of dead processes are free. Orphans are children of this test, which reaps them.
fn collect(dead: &[testkit::ProcessId]) {
    for process in dead {
        until("a number to be free", || {
            crate::common::reap(process.pid());
            testkit::ProcessId::of(process.pid()).is_err().then_some(())
        });
    }
}

/// Returns `Some(None)` if no process is left, and `Some(Some(root))` if the whole tree runs. Otherwise returns `None`.
fn settled(lab: &Lab, size: usize) -> Option<Option<Counter>> {
    match lab.guard.marked().len() {
        0 => Some(None),
        all if all == size => {
            let root = lab.guarded_counter()?;
            let count = root.read();
            std::thread::sleep(Duration::from_millis(5));
            (root.process.is_alive() && root.read() != count).then_some(Some(root))
        }
        _ => None,
    }
}

#[test]
fn a_killed_guardian_under_load_is_replaced_again_and_again() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut random = testkit::seeded("killed guardian under load");
    let counter = lab.counter(&[]);
    let before = open_in(&counter);
    let pid = counter.pid().to_string();
    for round in 0..testkit::rounds(5, 50) {
        let words = ["run", "--name", "job", "--every", "10ms", "--adopt", &pid];
        let mut guardian = lab.undying(words).spawn().unwrap();
        std::thread::sleep(testkit::moment(&mut random, Duration::from_millis(100)));
        // A signal to the subject in this phase must not be lost. SIGSTOP has no handler, so the signal stops the
        // subject.
        counter.process.signal(Signal::STOP).unwrap();
        guardian.kill().unwrap();
        wait(&mut guardian);
        until("the stop", || counter.status("State").starts_with('T').then_some(()));
        counter.process.signal(Signal::CONT).unwrap();
        assert_unharmed(&counter, round);
        assert_closed(&counter, &before, round);
    }
}

/// Tests with threads: the kernel reports the end of a thread group leader only after all other threads were reaped.
#[test]
fn processes_with_threads_that_are_killed_while_they_are_built_are_built_again() {
    const THREADS: &str = r#"exec python3 -c '
import os, threading, time
for _ in range(12):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
rounds = 0
while not os.path.exists("stop"):
    rounds += 1
    with open("rounds.new", "w") as file:
        file.write(str(rounds))
    os.rename("rounds.new", "rounds")
    time.sleep(0.005)
'"#;
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut random = testkit::seeded("killed while built");
    let guarded = Guarded::run(&lab, &["--max-restarts", "100000/1m"], THREADS);
    let rounds_made =
        || until("a round", || std::fs::read_to_string(lab.path("rounds")).ok()?.parse::<u64>().ok());
    rounds_made();
    guarded.await_checkpoints(3);
    // The pid of the root is the same in each incarnation (restored program), even while the process is being built.
    let pid = rustix::process::Pid::from_raw(guarded.root().pid().get()).unwrap();
    for _ in 0..testkit::rounds(30, 600) {
        std::thread::sleep(testkit::moment(&mut random, Duration::from_millis(60)));
        // Between two incarnations, the process does not exist.
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
    let seen = rounds_made();
    until("another round", || (rounds_made() > seen + 3).then_some(()));
    assert_eq!(guarded.end(), 0);
}
