//! Stops a tree that changes all the time, repeatedly, and checks that it continues unchanged.

use std::io::{BufRead, BufReader};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::Subject;
use model::{Address, ByteCount, Pid};
use undying_tracee::{FreezeError, ProcessMemory, StoppedTree};

const COUNTERS: ByteCount = ByteCount(10 * 8);
const DEATHS: u32 = 100;

/// Reads the counters that all parts of the subject share.
fn counters(memory: &ProcessMemory, at: Address) -> Vec<u8> {
    memory.read_vec(at, COUNTERS).unwrap()
}

fn start(part: Option<u32>) -> Option<(Subject, Address)> {
    let part = part.map(|part| part.to_string());
    let arguments: Vec<&str> = part.iter().map(String::as_str).collect();
    let mut subject = Subject::start("restless_tree", &arguments)?;
    let address = subject.line();
    let address = Address(u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap());
    Some((subject, address))
}

fn stop_often(test: &str, part: Option<u32>, stops: u32) {
    const LONGEST_US: u64 = 4000;
    let Some((mut subject, address)) = start(part) else { return };
    let memory = ProcessMemory::open(subject.pid()).unwrap();
    let mut random = testkit::seeded(test);
    let mut durations = Vec::new();
    for stop in 0..stops {
        std::thread::sleep(Duration::from_micros(random.u64(..LONGEST_US)));
        let started = Instant::now();
        let tree = match StoppedTree::stop(subject.pid()) {
            Ok(tree) => tree,
            Err(FreezeError::Ended(_)) => panic!("stop {stop}: the subject says: {}", subject.line()),
            Err(error) => panic!("stop {stop}: {error}"),
        };
        durations.push(started.elapsed());
        let then = counters(&memory, address);
        std::thread::sleep(Duration::from_micros(random.u64(..1000)));
        assert_eq!(counters(&memory, address), then, "stop {stop}: something moves in the stopped tree");
        tree.resume().unwrap();
        if stop % 25 == 24 {
            subject.goes_on();
        }
    }
    durations.sort();
    let at = |percent: usize| durations[(durations.len() - 1) * percent / 100];
    println!("{test}: stopped in {:?} p50, {:?} p99, {:?} max", at(50), at(99), at(100));
    subject.finish();
}

#[test]
fn threads_that_come_and_go() {
    stop_often("threads", Some(0), 100);
}

#[test]
fn forks() {
    stop_often("forks", Some(1), 100);
}

#[test]
fn execs() {
    stop_often("execs", Some(2), 100);
}

#[test]
fn spawns() {
    stop_often("spawns", Some(3), 100);
}

#[test]
fn a_child_that_is_stopped_and_continued() {
    stop_often("stops", Some(4), 100);
}

#[test]
fn a_process_without_leader() {
    stop_often("headless", Some(5), 50);
}

#[test]
fn execs_in_a_thread_other_than_the_leader() {
    stop_often("threaded execs", Some(6), 100);
}

#[test]
fn queued_signals() {
    stop_often("signals", Some(8), 100);
}

#[test]
fn all_at_once() {
    stop_often("all at once", None, testkit::rounds(15, 150));
}

#[test]
fn the_wait_for_a_thread_in_an_uninterruptible_call_does_not_count_as_stopped() {
    let Some(program) = common::compile("uninterruptible") else { return };
    let mut child = std::process::Command::new(&program)
        .stdin(std::process::Stdio::null())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    let mut late = Vec::new();
    // Some stops come between two calls of the subject, and more on a busy machine.
    for _ in 0..400 {
        if late.len() == 9 {
            break;
        }
        if said != "ready\n" {
            println!("unsupported: userfaultfd(2) of this user");
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
        let requested = Instant::now();
        let tree = StoppedTree::stop(Pid(child.id() as i32)).unwrap();
        let (waited, stopped_for) = (requested.elapsed(), tree.began.elapsed());
        tree.resume().unwrap();
        if waited > Duration::from_millis(20) {
            late.push(stopped_for);
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    late.sort();
    println!("stops that took more than 20 ms: {}, of which it stood: {late:?}", late.len());
    assert!(said != "ready\n" || late.len() == 9);
    // On a busy machine, the kernel may preempt the tracer in a single stop.
    assert!(late.get(late.len() / 2).is_none_or(|stopped_for| *stopped_for < Duration::from_millis(10)));
}

#[test]
fn the_death_of_the_tracer_while_it_stops_the_tree() {
    const TEST: &str = "freeze::the_death_of_the_tracer_while_it_stops_the_tree";
    if let Some(role) = common::role() {
        let pid = Pid(role.parse().unwrap());
        loop {
            StoppedTree::stop(pid).unwrap().resume().unwrap();
        }
    }
    let Some((mut subject, _)) = start(None) else { return };
    let mut random = testkit::seeded(TEST);
    for death in 0..DEATHS {
        let mut helper = common::helper(TEST, &subject.pid().to_string()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.u64(..20_000)));
        helper.kill().unwrap();
        helper.wait().unwrap();
        assert!(subject.is_alive(), "death {death}: the subject says: {}", subject.line());
        if death % 10 == 9 {
            subject.goes_on();
        }
    }
    subject.finish();
}

#[test]
fn a_process_that_is_ended_while_it_is_stopped() {
    let Some(program) = common::compile("restless_tree") else { return };
    let mut random = testkit::seeded("a_process_that_is_ended_while_it_is_stopped");
    for _ in 0..100 {
        let mut child = std::process::Command::new(&program)
            .args(["exit", "9"])
            .stdin(std::process::Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_micros(random.u64(..1500)));
        match StoppedTree::stop(Pid(child.id() as i32)) {
            Ok(tree) => tree.resume().unwrap(),
            Err(FreezeError::Ended(_)) => {}
            Err(error) => panic!("{error}"),
        }
        // The tracer is also the parent, so it may have reaped the child already.
        let status = child.wait();
        assert!(status.is_err() || status.is_ok_and(|status| status.code() == Some(9)));
    }
}
