//! Kills a tree while it is being stopped, stopped and resumed. Every ended process and thread must be
//! reaped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::Subject;
use model::{Pid, Signal};
use undying_tracee::{FreezeError, StoppedTree, procfs, tree};

const KILL: Signal = Signal(9);
/// Maximum time until the kernel and the tracer have reaped every process of a killed tree. It takes about
/// 100 ms on a busy machine.
const LIMIT: Duration = Duration::from_secs(5);
const STOPS_MAX: u32 = 8;

fn rounds() -> u32 {
    testkit::rounds(60, 5000)
}

/// Returns the descendants of a process, including zombies.
fn below(pid: Pid) -> Vec<Pid> {
    tree::descendants(pid).map(|pids| pids[1..].to_vec()).unwrap_or_default()
}

fn kill_one(pid: Pid) {
    // An error means that the process has already ended.
    let _ = sys::signal::send(pid, KILL);
}

/// Kills single processes of the tree at random moments, and finally all of them in random order.
fn kill_at_random(reaper: Pid, seed: u64, is_over: &AtomicBool) {
    const LONGEST_US: u64 = 1500;
    let mut random = fastrand::Rng::with_seed(seed);
    let last = random.u32(1..6);
    for kill in 0..=last {
        std::thread::sleep(Duration::from_micros(random.u64(..LONGEST_US)));
        let mut victims = below(reaper);
        random.shuffle(&mut victims);
        victims.truncate(if kill == last { usize::MAX } else { 1 });
        victims.into_iter().for_each(kill_one);
    }
    is_over.store(true, Ordering::Relaxed);
}

fn stop_until(is_over: &AtomicBool, root: Pid, random: &mut fastrand::Rng) {
    for _ in 0..STOPS_MAX {
        match StoppedTree::stop(root) {
            Ok(tree) => {
                std::thread::sleep(Duration::from_micros(random.u64(..300)));
                if random.u32(..16) == 0 {
                    tree.kill().unwrap();
                } else {
                    tree.resume().unwrap();
                }
            }
            Err(FreezeError::Ended(_)) if is_over.load(Ordering::Relaxed) => return,
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_micros(random.u64(..500)));
    }
}

/// Describes the remaining threads of a tree, one in each line.
fn describe(reaper: Pid) -> String {
    let mut text = String::new();
    for pid in below(reaper) {
        for tid in procfs::threads(pid).unwrap_or_default() {
            let status = procfs::thread_status(pid, tid).map(|status| (status.state, status.tracer));
            text += &format!("\n{pid} {tid}: {status:?}");
        }
    }
    text
}

/// Kills the remaining processes until the subreaper has reaped all of them.
fn await_gone(subject: &mut Subject, round: u32) {
    let (reaper, began) = (subject.pid(), Instant::now());
    let is_gone = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let killer = scope.spawn(|| {
            while !is_gone.load(Ordering::Relaxed) {
                below(reaper).into_iter().for_each(kill_one);
                if began.elapsed() > LIMIT {
                    let left = describe(reaper);
                    // This ends the read of the subject's answer below.
                    kill_one(reaper);
                    panic!("round {round}: not reaped after {LIMIT:?}:{left}");
                }
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let answer = subject.line();
        is_gone.store(true, Ordering::Relaxed);
        killer.join().unwrap();
        assert_eq!(answer, "gone");
    });
}

#[test]
fn a_tree_that_is_killed_at_any_moment_is_reaped() {
    let Some(mut subject) = Subject::start("mortal_tree", &[]) else { return };
    let mut random = testkit::seeded("a_tree_that_is_killed_at_any_moment_is_reaped");
    let mut slowest = Duration::ZERO;
    for round in 0..rounds() {
        subject.tell("go\n");
        let root = Pid(subject.line().parse().unwrap());
        std::thread::sleep(Duration::from_micros(random.u64(..3000)));
        let (reaper, seed, is_over) = (subject.pid(), random.u64(..), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| kill_at_random(reaper, seed, &is_over));
            stop_until(&is_over, root, &mut random);
        });
        let began = Instant::now();
        await_gone(&mut subject, round);
        slowest = slowest.max(began.elapsed());
    }
    println!("the slowest tree was gone after {slowest:?}");
}
