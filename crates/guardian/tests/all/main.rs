//! Tests of guards. One program contains all of them, because each test program must be linked.
//!
//! A guard forks, and owns the signals of its process. Therefore the program has its own `main`, and runs each test in a
//! process of its own, one after the other.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod common;
mod idle_subjects;
mod medium;
mod slow_store;
mod two_subjects;

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Failed, Trial};

/// The variable with the name of the test that the process runs.
const ROLE: &str = "UNDYING_TEST_ROLE";

/// A test with its name.
type Test = (&'static str, fn());

const TESTS: [Test; 6] = [
    ("an_idle_subject_costs_little", idle_subjects::an_idle_subject_costs_little),
    ("two_subjects_survive_each_other", two_subjects::two_subjects_survive_each_other),
    (
        "a_death_during_a_write_does_not_wait_for_its_end",
        slow_store::a_death_during_a_write_does_not_wait_for_its_end,
    ),
    ("the_only_checkpoint_is_waited_for", slow_store::the_only_checkpoint_is_waited_for),
    ("a_write_that_is_nearly_done_is_waited_for", slow_store::a_write_that_is_nearly_done_is_waited_for),
    (
        "the_checkpoint_of_a_program_that_has_ended_is_kept",
        slow_store::the_checkpoint_of_a_program_that_has_ended_is_kept,
    ),
];

fn main() -> ExitCode {
    if let Ok(role) = std::env::var(ROLE) {
        let (_, test) = TESTS.into_iter().find(|(name, _)| *name == role).unwrap();
        test();
        return ExitCode::SUCCESS;
    }
    let trials = TESTS.map(|(name, _)| Trial::test(name, || passes(name))).into();
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn passes(name: &str) -> Result<(), Failed> {
    if !rustix::process::geteuid().is_root() {
        testkit::unsupported("root");
        return Ok(());
    }
    let status = Command::new(std::env::current_exe().unwrap()).env(ROLE, name).status().unwrap();
    if status.success() { Ok(()) } else { Err(status.to_string().into()) }
}
