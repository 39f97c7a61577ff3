//! Tests of all victims (test programs) with an unsupported object. Preflight must name the object. The checkpoint must
//! exit with status 3 and leave no image. The program must be unchanged.

mod common;

use std::ffi::OsStr;
use std::process::ExitCode;

use serde_json::Value;
use undying_testkit::{HarnessError, Undying, Verdict, Victim};

/// The exit status of a refusal, which changes nothing.
const REFUSED: i32 = 3;

fn main() -> ExitCode {
    let mut trials = common::trials("refuse", common::refused(), refuse);
    trials.extend(common::trials("preflight", common::refused(), preflight));
    trials.extend(common::trials("preflight_ok", common::restorable(), preflight_ok));
    common::run(trials)
}

fn refuse(name: &str) -> Result<(), HarnessError> {
    let undying = Undying::find()?;
    let mut victim = Victim::start(name)?;
    common::let_it_work(name);
    let finished = victim.checkpoint(&undying)?.expect_status(REFUSED)?;
    let pids: Vec<String> = victim.survivors().iter().map(|process| process.pid().to_string()).collect();
    if !pids.iter().any(|pid| finished.stderr.contains(pid.as_str())) {
        return Err(common::wrong(
            name,
            &format!("the refusal names no pid of {pids:?}: {}", finished.stderr),
        ));
    }
    if victim.image().exists() {
        return Err(common::wrong(name, "a refused checkpoint left an image behind"));
    }
    expect_pass(&mut victim)
}

fn preflight(name: &str) -> Result<(), HarnessError> {
    let undying = Undying::find()?;
    let mut victim = Victim::start(name)?;
    let report = report(&undying, &victim)?;
    let obstacles = report["obstacles"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_whole = |obstacle: &Value| {
        obstacle["pid"].is_number()
            && ["what", "where", "why", "fix"].iter().all(|key| obstacle[*key].is_string())
    };
    if report["ok"] != Value::Bool(false) || obstacles.is_empty() || !obstacles.iter().all(is_whole) {
        return Err(common::wrong(name, &format!("preflight says {report}")));
    }
    expect_pass(&mut victim)
}

/// Checks that preflight reports no obstacle for a restorable program, and changes nothing.
fn preflight_ok(name: &str) -> Result<(), HarnessError> {
    let undying = Undying::find()?;
    let mut victim = Victim::start(name)?;
    let report = report(&undying, &victim)?;
    if report["ok"] != Value::Bool(true) {
        return Err(common::wrong(name, &format!("preflight says {report}")));
    }
    expect_pass(&mut victim)
}

fn report(undying: &Undying, victim: &Victim) -> Result<Value, HarnessError> {
    let pid = victim.pid().to_string();
    let folder = victim.image();
    let folder = folder.parent().unwrap_or(victim.folder());
    undying.json(victim.guard(), folder, &[OsStr::new("preflight"), OsStr::new(&pid)])
}

fn expect_pass(victim: &mut Victim) -> Result<(), HarnessError> {
    match victim.judge()? {
        Verdict::Pass => Ok(()),
        Verdict::Fail(reason) => Err(common::wrong(victim.name(), &reason)),
    }
}
