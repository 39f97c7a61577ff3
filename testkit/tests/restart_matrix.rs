//! Every victim that must come back, under `undying run`: killed with SIGKILL
//! between two checkpoints, it goes on from the last one, and the guardian ends
//! with the victim's own status. `UNDYING_TEST_TRACKER` forces a tracker.

mod common;

use std::process::ExitCode;

use undying_testkit::{HarnessError, Supervised, SupervisedOptions, Undying, Verdict};

/// Enough that the last one is a delta.
const CHECKPOINTS_BEFORE_DEATH: usize = 3;

/// Names the tracker that all use; without it, undying chooses.
const TRACKER: &str = "UNDYING_TEST_TRACKER";

fn main() -> ExitCode {
    common::run(common::trials("restart", common::restorable(), restart))
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
