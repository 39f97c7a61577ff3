//! Helpers that the table-driven tests share: one trial for each victim (test program), common steps of the tests, and a
//! seed for the moment of the checkpoint.

use std::ffi::OsStr;
use std::thread;
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use undying_testkit::{HarnessError, Undying, Verdict, Victim, unsupported, victims};

/// The prefix of victims that contain an object which a checkpoint must refuse.
const REFUSED: &str = "refuse_";
/// Maximum delay between "ready" and the checkpoint. With the delay, the checkpoint occurs at any position of the loop.
const DELAY_MAX: Duration = Duration::from_millis(40);

/// A test that is applied to one victim.
pub(crate) type Test = fn(&str) -> Result<(), HarnessError>;

/// Returns the victims that must be restorable.
pub(crate) fn restorable() -> Vec<String> {
    let mut names = all();
    names.retain(|name| !name.starts_with(REFUSED));
    names
}

/// Returns the victims that a checkpoint must refuse.
pub(crate) fn refused() -> Vec<String> {
    let mut names = all();
    names.retain(|name| name.starts_with(REFUSED));
    names
}

/// Returns all victims.
pub(crate) fn all() -> Vec<String> {
    victims().expect("the victims folder belongs to the source tree")
}

/// Returns one trial for each victim, with the name `GROUP/VICTIM`.
pub(crate) fn trials(group: &str, names: Vec<String>, test: Test) -> Vec<Trial> {
    let make = |name: String| Trial::test(format!("{group}/{name}"), move || outcome(&name, test(&name)));
    names.into_iter().map(make).collect()
}

fn outcome(victim: &str, result: Result<(), HarnessError>) -> Result<(), Failed> {
    match result {
        Err(HarnessError::Unsupported { reason, .. }) => {
            unsupported(&format!("{victim}: {reason}"));
            Ok(())
        }
        other => other.map_err(|error| Failed::from(error.to_string())),
    }
}

/// Checks that a victim can be checkpointed with `--kill` and restored, and that the restored victim can be, too.
pub(crate) fn restore_twice(mut victim: Victim) -> Result<(), HarnessError> {
    let undying = Undying::find()?;
    let name = victim.name().to_owned();
    for _incarnation in 0..2 {
        let_it_work(&name);
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

/// Returns the report of preflight.
pub(crate) fn preflight(undying: &Undying, victim: &Victim) -> Result<Value, HarnessError> {
    let pid = victim.pid().to_string();
    let image = victim.image();
    let folder = image.parent().unwrap_or(victim.folder());
    undying.json(victim.guard(), folder, &[OsStr::new("preflight"), OsStr::new(&pid)])
}

/// Checks that the victim passes, and that none of its processes is left.
pub(crate) fn expect_pass(victim: &mut Victim) -> Result<(), HarnessError> {
    let name = victim.name().to_owned();
    match victim.judge()? {
        Verdict::Pass if victim.survivors().is_empty() => Ok(()),
        Verdict::Pass => Err(wrong(&name, &format!("left behind {:?}", victim.survivors()))),
        Verdict::Fail(reason) => Err(wrong(&name, &reason)),
    }
}

/// Waits for a while, so that the victim runs. The time depends on the victim's name and on `UNDYING_TEST_SEED`. A
/// failure can therefore be repeated, and a soak run can use other moments.
pub(crate) fn let_it_work(victim: &str) {
    let seed: u64 = std::env::var("UNDYING_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mixed =
        victim.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let limit_us = u64::try_from(DELAY_MAX.as_micros()).expect("milliseconds fit");
    thread::sleep(Duration::from_micros(mixed % limit_us));
}

/// Creates the error for an unexpected verdict.
pub(crate) fn wrong(victim: &str, what: &str) -> HarnessError {
    HarnessError::Output { command: victim.to_owned(), detail: what.to_owned() }
}
