//! Attaches to a tree that changes all the time, stops it often, and checks that it continues unchanged. The subject
//! itself checks that each signal arrives once, and that its children stop, continue, execute programs and end.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::common;
use crate::common::Subject;
use model::{Address, ByteCount, Pid, Signal, Tid};
use sys::ptrace::{Options, WaitStatus};
use undying_tracee::{Attached, Clients, Continue, ProcessMemory, Report, StopKind, procfs, tree};

const COUNTERS: ByteCount = ByteCount(10 * 8);
const KILL: Signal = Signal(9);

/// Parts of the subject, see `restless_tree.c`.
const STOPS: u32 = 4;
const THREADED_EXECS: u32 = 6;
const SIGNALS: u32 = 8;

fn start(part: Option<u32>) -> Option<(Subject, Address)> {
    let part = part.map(|part| part.to_string());
    let arguments: Vec<&str> = part.iter().map(String::as_str).collect();
    let mut subject = Subject::start("restless_tree", &arguments)?;
    let address = subject.line();
    Some((subject, Address(u64::from_str_radix(address.trim_start_matches("0x"), 16).unwrap())))
}

/// The stops that a client has received.
#[derive(Default)]
struct Seen {
    events: u64,
    groups: u64,
    deliveries: u64,
    created: u64,
    execs: u64,
    entries: u64,
    exits: u64,
    ended: u64,
    /// Whether the last stop of each thread in a system call was an entry.
    entered: HashMap<Tid, bool>,
}

impl Seen {
    fn note(&mut self, tid: Tid, kind: StopKind) {
        match kind {
            StopKind::Event => self.events += 1,
            StopKind::Group(_) => self.groups += 1,
            StopKind::Delivery(_) => self.deliveries += 1,
            StopKind::Created(_) => self.created += 1,
            StopKind::Exec(_) => {
                self.execs += 1;
                self.entered.remove(&tid);
            }
            StopKind::SyscallEntry(_) => {
                self.entries += 1;
                assert_ne!(self.entered.insert(tid, true), Some(true), "thread {tid} entered two calls");
            }
            StopKind::SyscallExit(_) => {
                self.exits += 1;
                assert_ne!(self.entered.insert(tid, false), Some(false), "thread {tid} left two calls");
            }
            other => panic!("thread {tid}: {other:?}"),
        }
    }

    fn ended(&mut self, tid: Tid) {
        self.ended += 1;
        self.entered.remove(&tid);
    }
}

/// Receives reports for a while, and resumes each stopped thread.
fn receive(attached: &mut Attached, time: Duration, how: Continue, seen: &mut Seen) {
    let began = Instant::now();
    while began.elapsed() < time {
        match attached.next(time).unwrap() {
            Some(Report::Stopped(stop)) => {
                seen.note(stop.tid, stop.kind);
                attached.resume(stop, how).unwrap();
            }
            Some(Report::Passed(_, tid, kind)) => seen.note(tid, kind),
            Some(Report::Ended(_, tid, _)) => seen.ended(tid),
            None => {}
        }
    }
}

/// Stops an attached subject many times. Returns the stops that the client has received.
fn stop_often(test: &str, part: Option<u32>, how: Continue, stops: u32) -> Option<Seen> {
    let (mut subject, address) = start(part)?;
    let memory = ProcessMemory::open(subject.pid()).unwrap();
    let counters = || memory.read_vec(address, COUNTERS).unwrap();
    let mut random = testkit::seeded(test);
    let clients = Clients::default().absorbing(|_| false);
    let mut attached = Attached::seize(subject.pid(), clients).unwrap();
    let (mut seen, mut durations) = (Seen::default(), Vec::new());
    for stop in 0..stops {
        receive(&mut attached, Duration::from_micros(random.u64(100..4000)), how, &mut seen);
        let began = Instant::now();
        let stopped = attached.stop().unwrap_or_else(|error| panic!("stop {stop}: {error}"));
        durations.push(began.elapsed());
        assert!(stopped.threads().all(|(_, _, kind)| kind.is_quiet()));
        let then = counters();
        std::thread::sleep(Duration::from_micros(random.u64(..500)));
        assert_eq!(counters(), then, "stop {stop}: something moves in the stopped tree");
        attached = stopped.release().unwrap();
    }
    attached.detach();
    subject.goes_on();
    subject.finish();
    durations.sort();
    println!("{test}: stopped in {:?} p50, {:?} max", durations[durations.len() / 2], durations.last());
    Some(seen)
}

#[test]
fn tree_with_threads_forks_and_execs_is_stopped_many_times() {
    let Some(seen) = stop_often("resident", None, Continue::Freely, testkit::rounds(200, 1000)) else {
        return;
    };
    assert!(seen.created > 50 && seen.execs > 10 && seen.ended > 50 && seen.events > 50);
    assert!(seen.deliveries > 50 && seen.groups > 0);
    assert_eq!(seen.entries + seen.exits, 0);
}

#[test]
fn queued_signals_arrive_once_and_calls_are_entered_and_left() {
    let Some(seen) = stop_often("resident signals", Some(SIGNALS), Continue::ToSyscall, 200) else { return };
    assert!(seen.deliveries > 50 && seen.entries > 50 && seen.exits > 50);
}

#[test]
fn execs_in_another_thread_than_the_leader() {
    let Some(seen) = stop_often("resident threaded execs", Some(THREADED_EXECS), Continue::Freely, 200)
    else {
        return;
    };
    assert!(seen.execs > 10 && seen.ended > 10);
}

#[test]
fn stopped_children_stay_stopped_and_continue() {
    let Some(seen) = stop_often("resident stops", Some(STOPS), Continue::Freely, 300) else { return };
    assert!(seen.groups > 10 && seen.deliveries > 10);
}

#[test]
fn absorbed_stops_are_not_reported() {
    let Some((mut subject, _)) = start(None) else { return };
    let clients = Clients::default()
        .with_options(Options::EXIT)
        .absorbing(|kind| !matches!(kind, StopKind::Exiting(_)));
    let mut attached = Attached::seize(subject.pid(), clients).unwrap();
    let (mut exiting, began) = (0, Instant::now());
    while exiting < 100 {
        assert!(began.elapsed() < common::TIMEOUT, "{exiting} threads exit");
        if let Some(Report::Stopped(stop)) = attached.next(Duration::from_millis(10)).unwrap() {
            assert!(matches!(stop.kind, StopKind::Exiting(_)), "{:?}", stop.kind);
            exiting += 1;
            attached.resume(stop, Continue::Freely).unwrap();
        }
    }
    attached.detach();
    subject.goes_on();
    subject.finish();
}

/// The kernel resumes the threads, and delivers the signals that were about to be delivered.
#[test]
fn nothing_stays_stopped_when_the_tracer_thread_ends() {
    for part in [None, Some(SIGNALS), Some(STOPS)] {
        let Some((mut subject, _)) = start(part) else { return };
        let root = subject.pid();
        let tracer = std::thread::spawn(move || {
            let clients = Clients::default().absorbing(|_| false);
            let mut attached = Attached::seize(root, clients).unwrap();
            receive(&mut attached, Duration::from_millis(50), Continue::Freely, &mut Seen::default());
            // These stops are not resumed.
            for _ in 0..5 {
                let _ = attached.next(Duration::from_millis(5)).unwrap();
            }
            std::mem::forget(attached);
        });
        tracer.join().unwrap();
        for pid in tree::descendants(root).unwrap() {
            common::wait_untraced(pid);
        }
        subject.goes_on();
        subject.finish();
    }
}

#[test]
fn deaths_are_reported_and_reaped() {
    let mut random = testkit::seeded("resident deaths");
    for _ in 0..testkit::rounds(10, 200) {
        let Some((mut subject, _)) = start(None) else { return };
        let root = subject.pid();
        let clients = Clients::default().absorbing(|_| false);
        let mut attached = Attached::seize(root, clients).unwrap();
        let mut seen = Seen::default();
        for _ in 0..random.u32(1..4) {
            receive(&mut attached, Duration::from_micros(random.u64(..20_000)), Continue::Freely, &mut seen);
            match attached.stop() {
                Ok(stopped) => attached = stopped.release().unwrap(),
                Err(error) => panic!("{error}"),
            }
            let pids = tree::descendants(root).unwrap();
            let _ = sys::signal::send(pids[random.usize(1..pids.len())], KILL);
        }
        // Processes whose parent was killed are not below the root any more, but they are attached.
        let stopped = attached.stop().unwrap();
        let pids: HashSet<Pid> = stopped.threads().map(|(pid, ..)| pid).collect();
        pids.iter().for_each(|pid| drop(sys::signal::send(*pid, KILL)));
        attached = stopped.release().unwrap();
        let (began, mut has_root_ended) = (Instant::now(), false);
        loop {
            assert!(
                began.elapsed() < common::TIMEOUT,
                "{:?} are left",
                attached.threads().collect::<Vec<_>>()
            );
            match attached.next(Duration::from_millis(5)).unwrap() {
                Some(Report::Stopped(stop)) => attached.resume(stop, Continue::Freely).unwrap(),
                Some(Report::Ended(pid, tid, end)) if tid == root.leader() => {
                    has_root_ended = pid == root && matches!(end, Some(WaitStatus::Killed(KILL)));
                }
                Some(_) => {}
                None if attached.threads().next().is_none() => break,
                None => {}
            }
        }
        assert!(has_root_ended);
        assert!(!subject.is_alive());
        let is_traced = |pid: &Pid| procfs::status(*pid).is_ok_and(|status| status.tracer.get() != 0);
        common::eventually("no process is left", || !pids.iter().any(is_traced));
    }
}
