//! Tests that the victims (test programs) detect damage of their state. Without these tests, a PASS after a restore would
//! prove nothing. `restore.rs` and `refusals.rs` test that a victim with unchanged state passes.

use libtest_mimic::Trial;
use undying_testkit::{HarnessError, Options, Verdict, Victim};

use crate::common;

pub(crate) fn trials() -> Vec<Trial> {
    common::trials("sabotage", common::all(), sabotage)
}

fn sabotage(name: &str) -> Result<(), HarnessError> {
    let mut victim = Victim::start_with(name, Options { sabotage: true, ..Options::default() })?;
    common::let_it_work(name);
    match victim.judge()? {
        Verdict::Fail(_) => Ok(()),
        Verdict::Pass => Err(common::wrong(name, "did not notice that its state was damaged")),
    }
}
