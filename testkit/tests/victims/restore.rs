//! Tests of all restorable victims (test programs). Preflight must report no obstacle. A victim must continue after a
//! checkpoint. It must also be restorable after a checkpoint with `--kill`, and so must a restored victim.

use libtest_mimic::Trial;
use serde_json::Value;
use undying_testkit::{HarnessError, Undying, Victim};

use crate::common;

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = common::trials("restore/goes_on", common::restorable(), goes_on);
    trials.extend(common::trials("restore/twice", common::restorable(), restore_twice));
    trials
}

/// Checks that preflight and a checkpoint leave the program unchanged, and leave no object of `undying` in it.
fn goes_on(name: &str) -> Result<(), HarnessError> {
    let undying = Undying::find()?;
    let mut victim = Victim::start(name)?;
    common::let_it_work(name);
    let report = common::preflight(&undying, &victim)?;
    if report["ok"] != Value::Bool(true) {
        return Err(common::wrong(name, &format!("preflight says {report}")));
    }
    victim.checkpoint(&undying)?.expect_status(0)?;
    common::expect_pass(&mut victim)
}

fn restore_twice(name: &str) -> Result<(), HarnessError> {
    common::restore_twice(Victim::start(name)?)
}
