//! What the table-driven tests share: one trial per victim, the count of what this
//! machine does not support, and a seed for the moment of the checkpoint.
#![allow(dead_code)] // every test binary uses another part

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use undying_testkit::{HarnessError, unsupported, victims};

/// Names of victims that hold something a checkpoint refuses.
const REFUSED: &str = "refuse_";
/// The checkpoint comes this long after "ready" at most, so that it meets the loop anywhere.
const DELAY_MAX: Duration = Duration::from_millis(40);

static UNSUPPORTED: AtomicUsize = AtomicUsize::new(0);

/// One kind of test, applied to one victim.
pub(crate) type Test = fn(&str) -> Result<(), HarnessError>;

/// The victims that must come back.
pub(crate) fn restorable() -> Vec<String> {
    let mut names = all();
    names.retain(|name| !name.starts_with(REFUSED));
    names
}

/// The victims that must be refused.
pub(crate) fn refused() -> Vec<String> {
    let mut names = all();
    names.retain(|name| name.starts_with(REFUSED));
    names
}

/// All victims.
pub(crate) fn all() -> Vec<String> {
    victims().expect("the victims folder belongs to the source tree")
}

/// One trial per victim, named `GROUP/VICTIM`.
pub(crate) fn trials(group: &str, names: Vec<String>, test: Test) -> Vec<Trial> {
    let make =
        |name: String| Trial::ignorable_test(format!("{group}/{name}"), move || outcome(&name, test(&name)));
    names.into_iter().map(make).collect()
}

fn outcome(victim: &str, result: Result<(), HarnessError>) -> Result<Completion, Failed> {
    match result {
        Err(HarnessError::Unsupported { reason, .. }) => {
            UNSUPPORTED.fetch_add(1, Ordering::Relaxed);
            unsupported(&format!("{victim}: {reason}"));
            Ok(Completion::ignored_with(reason))
        }
        other => other.map(|()| Completion::Completed).map_err(|error| Failed::from(error.to_string())),
    }
}

/// Runs the trials and says at the end how many were not supported here.
pub(crate) fn run(trials: Vec<Trial>) -> ExitCode {
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    println!("unsupported in all: {}", UNSUPPORTED.load(Ordering::Relaxed));
    conclusion.exit_code()
}

/// Lets the victim work for a while. The time depends on its name and on `UNDYING_TEST_SEED`, so
/// that a failure can be repeated and a soak run can try other moments.
pub(crate) fn let_it_work(victim: &str) {
    let seed: u64 = std::env::var("UNDYING_TEST_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mixed =
        victim.bytes().fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let limit_us = u64::try_from(DELAY_MAX.as_micros()).expect("milliseconds fit");
    thread::sleep(Duration::from_micros(mixed % limit_us));
}

/// The error for a verdict that is not the expected one.
pub(crate) fn wrong(victim: &str, what: &str) -> HarnessError {
    HarnessError::Output { command: victim.to_owned(), detail: what.to_owned() }
}
