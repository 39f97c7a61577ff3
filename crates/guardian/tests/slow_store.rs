//! A subject that dies while its checkpoint is being written, on a store whose write speed the test controls.
//!
//! This test is one program without a harness, because the guard forks, and owns the signals of its process.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;

use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use common::medium::Gate;
use common::{LIMIT, Lab, Reported, until};
use model::Sequence;
use store::EPOCHS_IN_FLIGHT_MAX;

/// Memory of the subject. It is large enough that a restore takes far longer than the measurement itself.
const LARGE_MIB: &str = "192";
/// Number of deaths outside of any write, to measure how long a restore takes on this machine at present.
const USUAL_DEATHS: usize = 3;
/// Maximum ratio between the duration of a restore during a write and the longest duration outside of a write.
const RATIO_MAX: u32 = 5;
/// Additional time: a loaded machine may delay any step by this time.
const SLACK: Duration = Duration::from_secs(1);
/// Time until the first checkpoint, long enough to close the gate before that checkpoint.
const FIRST: Duration = Duration::from_secs(2);
/// Number of races with the timeout of the guard. A loaded machine may lose a race, but not every race.
const RACES: usize = 6;

/// A test with its name.
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

/// Without an argument, runs every test in a process of its own. With an argument, runs the named test in this process.
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

/// Waits for the next restore. Returns the checkpoint, and the time from the detection of the death.
fn returned(reports: &Receiver<Reported>) -> (Sequence, Duration) {
    loop {
        match reports.recv_timeout(LIMIT).expect("the subject comes back") {
            Reported::Restored(sequence, took) => return (sequence, took),
            Reported::StartedAfresh(_) => panic!("started afresh"),
            Reported::Died | Reported::Dropped(_) => {}
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
        |lab, reports| {
            lab.wait_committed(2);
            let mut usual = Duration::ZERO;
            for _ in 0..USUAL_DEATHS {
                let begun = Instant::now();
                lab.kill();
                returned(reports);
                usual = usual.max(begun.elapsed());
                lab.wait_committed_more(1);
            }
            gate.close();
            lab.wait_taken();
            let before = lab.newest();
            let begun = Instant::now();
            lab.kill();
            let (sequence, took) = returned(reports);
            let outage = begun.elapsed();
            let (is_held, bound) = (gate.is_held(), usual * RATIO_MAX + SLACK);
            println!("usually back after {usual:.1?}, now after {outage:.1?} (restore {took:.1?})");
            assert!(is_held, "the guard waited for the end of the write");
            assert!(outage < bound, "back after {outage:?}, usually {usual:?}");
            assert_eq!(sequence, before, "the newest that was committed");
            std::thread::sleep(every * 2);
            assert_eq!(lab.newest(), before, "written through a closed gate");
            gate.open();
            // Checkpoints that the disk had already received may appear, but only until the next commit.
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
        |lab, reports| {
            lab.close_before_the_first();
            lab.wait_taken();
            lab.kill();
            assert_eq!(reports.recv_timeout(LIMIT).unwrap(), Reported::Died);
            let early = reports.recv_timeout(Duration::from_secs(1));
            assert_eq!(early, Err(RecvTimeoutError::Timeout), "the only checkpoint was thrown away");
            gate.open();
            assert!(returned(reports).0 <= Sequence(EPOCHS_IN_FLIGHT_MAX as u64));
        },
    );
}

fn a_write_that_is_nearly_done_is_waited_for() {
    let gate = Arc::new(Gate::default());
    let lab = Lab::new(&gate);
    let opener = Arc::clone(&gate);
    // The write ends right after the death was detected.
    let on_event = move |event: &Reported| {
        if *event == Reported::Died {
            opener.open();
        }
    };
    // The guard waits for at most a tenth of this time.
    let every = Duration::from_secs(1);
    lab.guard_large("4", every, on_event, |lab, reports| {
        lab.wait_committed(1);
        let mut waited = 0;
        for _ in 0..RACES {
            gate.close();
            lab.wait_taken();
            let before = lab.newest();
            lab.kill();
            let (sequence, _) = returned(reports);
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
        |lab, _reports| {
            lab.close_before_the_first();
            lab.wait_taken();
            lab.terminate();
            std::thread::sleep(Duration::from_millis(300));
            gate.open();
        },
    );
    assert!(lab.newest() >= Sequence(1));
}
