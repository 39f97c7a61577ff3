//! Tests of the victims (test programs) without a checkpoint. Each victim must pass if its state is unchanged, and must
//! detect damage of its state. Without the second part, a PASS after a restore would prove nothing.

mod common;

use std::process::ExitCode;

use undying_testkit::{HarnessError, Options, Verdict, Victim};

fn main() -> ExitCode {
    let mut trials = common::trials("native", common::all(), native);
    trials.extend(common::trials("sabotage", common::all(), sabotage));
    common::run(trials)
}

fn native(name: &str) -> Result<(), HarnessError> {
    let mut victim = Victim::start(name)?;
    common::let_it_work(name);
    match victim.judge()? {
        Verdict::Pass if victim.survivors().is_empty() => Ok(()),
        Verdict::Pass => Err(common::wrong(name, &format!("left behind {:?}", victim.survivors()))),
        Verdict::Fail(reason) => Err(common::wrong(name, &reason)),
    }
}

fn sabotage(name: &str) -> Result<(), HarnessError> {
    let mut victim = Victim::start_with(name, Options { sabotage: true, ..Options::default() })?;
    common::let_it_work(name);
    match victim.judge()? {
        Verdict::Fail(_) => Ok(()),
        Verdict::Pass => Err(common::wrong(name, "did not notice that its state was damaged")),
    }
}
