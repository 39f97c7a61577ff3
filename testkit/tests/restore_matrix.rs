//! Tests of all restorable victims (test programs). A victim must continue after a checkpoint. It must also be
//! restorable after a checkpoint with `--kill`.

mod common;

use std::process::ExitCode;

use undying_testkit::{HarnessError, Undying, Verdict, Victim};

fn main() -> ExitCode {
    let mut trials = common::trials("goes_on", common::restorable(), goes_on);
    trials.extend(common::trials("restore", common::restorable(), restore));
    trials.extend(common::trials("restore_twice", common::restorable(), restore_twice));
    common::run(trials)
}

/// Checks that a checkpoint leaves the program unchanged, and leaves no object of `undying` in it.
fn goes_on(name: &str) -> Result<(), HarnessError> {
    let undying = Undying::find()?;
    let mut victim = Victim::start(name)?;
    common::let_it_work(name);
    victim.checkpoint(&undying)?.expect_status(0)?;
    expect_pass(&mut victim)
}

fn restore(name: &str) -> Result<(), HarnessError> {
    let undying = Undying::find()?;
    let mut victim = Victim::start(name)?;
    common::let_it_work(name);
    victim.checkpoint_and_kill(&undying)?;
    victim.restore(&undying)?;
    expect_pass(&mut victim)
}

/// Checks that a restored program can be checkpointed and restored again.
fn restore_twice(name: &str) -> Result<(), HarnessError> {
    let undying = Undying::find()?;
    let mut victim = Victim::start(name)?;
    for _life in 0..2 {
        common::let_it_work(name);
        victim.checkpoint_and_kill(&undying)?;
        victim.restore(&undying)?;
        std::fs::remove_dir_all(victim.image()).map_err(|source| HarnessError::File {
            operation: "remove",
            path: victim.image(),
            source,
        })?;
    }
    expect_pass(&mut victim)
}

fn expect_pass(victim: &mut Victim) -> Result<(), HarnessError> {
    let name = victim.name().to_owned();
    match victim.judge()? {
        Verdict::Pass if victim.survivors().is_empty() => Ok(()),
        Verdict::Pass => Err(common::wrong(&name, &format!("left behind {:?}", victim.survivors()))),
        Verdict::Fail(reason) => Err(common::wrong(&name, &reason)),
    }
}
