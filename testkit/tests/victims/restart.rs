//! Tests of all restorable victims (test programs) under `undying run`. A victim is killed with SIGKILL between two
//! checkpoints, and must continue from the last checkpoint. The guardian must exit with the status of the victim.
//! `UNDYING_TEST_TRACKER` forces a tracker (a mechanism that finds changed pages).

use libtest_mimic::Trial;
use undying_testkit::{HarnessError, Supervised, SupervisedOptions, Undying, Verdict};

use crate::common;

/// Number of checkpoints before the kill. The last checkpoint is then a delta.
const CHECKPOINTS_BEFORE_DEATH: usize = 3;

/// The variable with the name of the tracker for all tests. Without the variable, `undying` chooses a tracker.
const TRACKER: &str = "UNDYING_TEST_TRACKER";

pub(crate) fn trials() -> Vec<Trial> {
    common::trials("restart", common::restorable(), restart)
}

fn restart(name: &str) -> Result<(), HarnessError> {
    let undying = Undying::find()?;
    let tracker = std::env::var(TRACKER).ok().map(|tracker| format!("--tracker={tracker}"));
    let options = SupervisedOptions { arguments: tracker.into_iter().collect(), ..Default::default() };
    let mut victim = Supervised::start(&undying, name, &options)?;
    victim.wait_checkpoints(CHECKPOINTS_BEFORE_DEATH)?;
    common::let_it_work(name);
    victim.kill_and_wait_restart()?;
    common::let_it_work(name);
    match victim.judge()? {
        Verdict::Pass => Ok(()),
        Verdict::Fail(reason) => Err(common::wrong(name, &reason)),
    }
}
