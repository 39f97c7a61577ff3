//! The demo that `make demo` runs: redis-server, python3 and make under `undying run`, and a system under `undying up`;
//! all are killed with SIGKILL.
//!
//! Must hold: whatever the demo promises; it judges itself.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use testkit::Undying;

use super::problem::{Outcome, check};
use super::requirements;
use super::sources::words;
use super::subject::{End, Subject};

/// It takes some seconds on a machine with nothing else to do.
const DEMO_LIMIT: Duration = Duration::from_secs(180);
/// For its own tidying up.
const END_LIMIT: Duration = Duration::from_secs(30);

#[test]
fn demo() -> Outcome {
    if !requirements::are_met(&["redis-server", "redis-cli", "python3", "make", "cc"]) {
        return Ok(());
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo/demo.py");
    let subject =
        Subject::start("demo", |_folder| Ok(words([&"python3", &script, &Undying::find()?.binary()])))?;
    let ended = subject.process().wait_end(DEMO_LIMIT)?;
    if !ended {
        subject.process().signal(Signal::TERM)?;
        subject.process().wait_end(END_LIMIT)?;
    }
    let said = subject.said();
    check(ended, || format!("the demo does not end:\n{said}"))?;
    subject.end(None, End::Exit(0))
}
