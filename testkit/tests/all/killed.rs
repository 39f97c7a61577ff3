//! Tests of state that a checkpoint can save only with `--kill`, and must refuse otherwise.

use undying_testkit::{HarnessError, Undying, Verdict, Victim};

#[test]
fn bytes_for_a_listener_that_has_not_accepted_come_back_when_the_subject_ends() {
    assert_eq!(restored_twice("refuse_unix_pending").unwrap(), Verdict::Pass);
}

#[test]
fn messages_of_a_queue_without_a_name_come_back_when_the_subject_ends() {
    assert_eq!(restored_twice("refuse_mqueue").unwrap(), Verdict::Pass);
}

fn restored_twice(victim: &str) -> Result<Verdict, HarnessError> {
    let undying = Undying::find()?;
    let mut victim = Victim::start(victim)?;
    for _life in 0..2 {
        victim.checkpoint_and_kill(&undying)?;
        victim.restore(&undying)?;
        std::fs::remove_dir_all(victim.image()).map_err(|source| HarnessError::File {
            operation: "remove",
            path: victim.image(),
            source,
        })?;
    }
    victim.judge()
}
