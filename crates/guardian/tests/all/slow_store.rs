//! A subject that dies while its checkpoint is being written, on a store whose write speed the test controls.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use model::Sequence;
use store::EPOCHS_IN_FLIGHT_MAX;

use crate::common::{LIMIT, Lab, Reported, until};
use crate::medium::Gate;

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

pub(crate) fn a_death_during_a_write_does_not_wait_for_its_end() {
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

pub(crate) fn the_only_checkpoint_is_waited_for() {
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

pub(crate) fn a_write_that_is_nearly_done_is_waited_for() {
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
        let is_waited_for = |_| {
            gate.close();
            lab.wait_taken();
            let before = lab.newest();
            lab.kill();
            let (sequence, _) = returned(reports);
            gate.open();
            sequence > before
        };
        assert!((0..RACES).any(is_waited_for));
    });
}

pub(crate) fn the_checkpoint_of_a_program_that_has_ended_is_kept() {
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
