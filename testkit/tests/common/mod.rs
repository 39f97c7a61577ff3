//! Helpers that the table-driven tests share: one trial for each victim (test program), the number of unsupported
//! trials, and a seed for the moment of the checkpoint.
#![allow(dead_code)] // every test binary uses a different part

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use undying_testkit::{HarnessError, unsupported, victims};

/// The prefix of victims that contain an object which a checkpoint must refuse.
const REFUSED: &str = "refuse_";
/// Maximum delay between "ready" and the checkpoint. With the delay, the checkpoint occurs at any position of the loop.
const DELAY_MAX: Duration = Duration::from_millis(40);

static UNSUPPORTED: AtomicUsize = AtomicUsize::new(0);

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

/// Runs the trials, and prints the number of unsupported trials.
pub(crate) fn run(trials: Vec<Trial>) -> ExitCode {
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials);
    println!("unsupported in all: {}", UNSUPPORTED.load(Ordering::Relaxed));
    conclusion.exit_code()
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
