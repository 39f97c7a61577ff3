//! A subject that dies while a checkpoint of it is being written, on a store whose disk takes as long as the test
//! wants it to.
//!
//! One program without a harness: the guard forks, and owns the signals of its process.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use common::medium::Gate;
use common::{LIMIT, Lab, Told, until};
use model::Sequence;
use store::EPOCHS_IN_FLIGHT_MAX;

/// Enough that a restore takes far longer than what the measurement itself costs.
const LARGE_MIB: &str = "192";
/// Deaths outside of any write, to know how long a restore takes on this machine, as it is now.
const USUAL_DEATHS: usize = 3;
/// How much longer than the longest of those a restore may take while a write is under way.
const RATIO_MAX: u32 = 5;
/// Beside that: what a loaded machine makes any step wait.
const SLACK: Duration = Duration::from_secs(1);
/// Time enough to close the gate before the first checkpoint.
const FIRST: Duration = Duration::from_secs(2);
/// How often the race with the timeout of the guard is run; a loaded machine may lose it, but not each time.
const RACES: usize = 6;

/// A test by its name.
type Test = (&'static str, fn());

const TESTS: [Test; 4] = [
    ("a_death_during_a_write_does_not_wait_for_its_end", a_death_during_a_write_does_not_wait_for_its_end),
    ("the_only_checkpoint_is_waited_for", the_only_checkpoint_is_waited_for),
    ("a_write_that_is_nearly_done_is_waited_for", a_write_that_is_nearly_done_is_waited_for),
    (
        "the_checkpoint_of_a_program_that_has_ended_is_kept",
        the_checkpoint_of_a_program_that_has_ended_is_kept,
    ),
];

/// Without an argument every test, each in a process of its own; with one, that test in this process.
fn main() -> ExitCode {
    if !rustix::process::geteuid().is_root() {
        println!("unsupported: root");
        return ExitCode::SUCCESS;
    }
    let named = std::env::args().nth(1);
    if let Some((_, test)) = TESTS.iter().find(|(name, _)| named.as_deref() == Some(*name)) {
        test();
        return ExitCode::SUCCESS;
    }
    let failed = TESTS.iter().filter(|(name, _)| !passes(name)).count();
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn passes(name: &str) -> bool {
    let begun = Instant::now();
    let status = Command::new(std::env::current_exe().unwrap()).arg(name).status().unwrap();
    println!("{name}: {status}, {:.1} s", begun.elapsed().as_secs_f64());
    status.success()
}

/// Waits for the next return, and gives the checkpoint and how long it took from the notice of the death.
fn returned(told: &Receiver<Told>) -> (Sequence, Duration) {
    loop {
        match told.recv_timeout(LIMIT).expect("the subject comes back") {
            Told::Restored(sequence, took) => return (sequence, took),
            Told::StartedAfresh(_) => panic!("started afresh"),
            Told::Died | Told::Dropped(_) => {}
        }
    }
}

fn a_death_during_a_write_does_not_wait_for_its_end() {
    let gate = Arc::new(Gate::default());
    let lab = Lab::new(&gate);
    let every = Duration::from_millis(500);
    lab.guard_large(
        LARGE_MIB,
        every,
        |_| {},
        |lab, told| {
            lab.wait_committed(2);
            let mut usual = Duration::ZERO;
            for _ in 0..USUAL_DEATHS {
                let begun = Instant::now();
                lab.kill();
                returned(told);
                usual = usual.max(begun.elapsed());
                lab.wait_committed_more(1);
            }
            gate.close();
            lab.wait_taken();
            let before = lab.newest();
            let begun = Instant::now();
            lab.kill();
            let (sequence, took) = returned(told);
            let outage = begun.elapsed();
            let (is_held, bound) = (gate.is_held(), usual * RATIO_MAX + SLACK);
            println!("usually back after {usual:.1?}, now after {outage:.1?} (restore {took:.1?})");
            assert!(is_held, "the guard waited for the end of the write");
            assert!(outage < bound, "back after {outage:?}, usually {usual:?}");
            assert_eq!(sequence, before, "the newest that was committed");
            std::thread::sleep(every * 2);
            assert_eq!(lab.newest(), before, "written through a closed gate");
            gate.open();
            // What the disk had been given already may show up, but no longer than until the next commit.
            until("a checkpoint of the new life", || lab.newest_time().filter(|time| *time > lab.death()));
            let left = lab.between(before, lab.death());
            assert!(left.is_empty(), "checkpoints of the dead life beside the new one: {left:?}");
        },
    );
}

fn the_only_checkpoint_is_waited_for() {
    let gate = Arc::new(Gate::default());
    let lab = Lab::new(&gate);
    lab.guard_large(
        "4",
        FIRST,
        |_| {},
        |lab, told| {
            lab.close_before_the_first();
            lab.wait_taken();
            lab.kill();
            assert_eq!(told.recv_timeout(LIMIT).unwrap(), Told::Died);
            let early = told.recv_timeout(Duration::from_secs(1));
            assert_eq!(early, Err(RecvTimeoutError::Timeout), "the only checkpoint was thrown away");
            gate.open();
            assert!(returned(told).0 <= Sequence(EPOCHS_IN_FLIGHT_MAX as u64));
        },
    );
}

fn a_write_that_is_nearly_done_is_waited_for() {
    let gate = Arc::new(Gate::default());
    let lab = Lab::new(&gate);
    let opener = Arc::clone(&gate);
    // The write ends right after the death was noticed.
    let tell = move |event: &Told| {
        if *event == Told::Died {
            opener.open();
        }
    };
    // A tenth of it is the longest that is ever waited.
    let every = Duration::from_secs(1);
    lab.guard_large("4", every, tell, |lab, told| {
        lab.wait_committed(1);
        let mut waited = 0;
        for _ in 0..RACES {
            gate.close();
            lab.wait_taken();
            let before = lab.newest();
            lab.kill();
            let (sequence, _) = returned(told);
            waited += usize::from(sequence > before);
            gate.open();
        }
        println!("waited for {waited} of {RACES} writes that were nearly done");
        assert!(waited > 0);
    });
}

fn the_checkpoint_of_a_program_that_has_ended_is_kept() {
    let gate = Arc::new(Gate::default());
    let lab = Lab::new(&gate);
    lab.guard_large(
        "4",
        FIRST,
        |_| {},
        |lab, _told| {
            lab.close_before_the_first();
            lab.wait_taken();
            lab.terminate();
            std::thread::sleep(Duration::from_millis(300));
            gate.open();
        },
    );
    assert!(lab.newest() >= Sequence(1));
}
