//! Tests of state that a checkpoint can save only with `--kill`, and must refuse otherwise.

use undying_testkit::{Undying, Verdict, Victim};

#[test]
fn bytes_for_a_listener_that_has_not_accepted_come_back_when_the_subject_ends() {
    comes_back("refuse_unix_pending");
}

#[test]
fn messages_of_a_queue_without_a_name_come_back_when_the_subject_ends() {
    comes_back("refuse_mqueue");
}

fn comes_back(victim: &str) {
    let undying = Undying::find().unwrap();
    let mut victim = Victim::start(victim).unwrap();
    for _life in 0..2 {
        victim.checkpoint_and_kill(&undying).unwrap();
        victim.restore(&undying).unwrap();
        std::fs::remove_dir_all(victim.image()).unwrap();
    }
    assert_eq!(victim.judge().unwrap(), Verdict::Pass);
}
