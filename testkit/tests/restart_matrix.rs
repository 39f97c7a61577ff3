//! Every victim that must come back, under `undying run`: killed with SIGKILL
//! between two checkpoints, it goes on from the last one, and the guardian ends
//! with the victim's own status.

mod common;

use std::process::ExitCode;

use undying_testkit::{HarnessError, Supervised, SupervisedOptions, Undying, Verdict};

/// Enough that the last one is a delta.
const CHECKPOINTS_BEFORE_DEATH: usize = 3;

fn main() -> ExitCode {
    common::run(common::trials("restart", common::restorable(), restart))
}

fn restart(name: &str) -> Result<(), HarnessError> {
    let undying = Undying::find()?;
    let mut victim = Supervised::start(&undying, name, &SupervisedOptions::default())?;
    victim.wait_checkpoints(CHECKPOINTS_BEFORE_DEATH)?;
    common::let_it_work(name);
    victim.kill_and_wait_restart()?;
    common::let_it_work(name);
    match victim.judge()? {
        Verdict::Pass => Ok(()),
        Verdict::Fail(reason) => Err(common::wrong(name, &reason)),
    }
}
