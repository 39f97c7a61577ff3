//! Tests of all victims (test programs) with an unsupported object. Preflight must name the object. The checkpoint must
//! exit with status 3 and leave no image. The program must be unchanged.

use libtest_mimic::Trial;
use serde_json::Value;
use undying_testkit::{HarnessError, Undying, Victim};

use crate::common;

/// The exit status of a refusal, which changes nothing.
const REFUSED: i32 = 3;

pub(crate) fn trials() -> Vec<Trial> {
    common::trials("refuse", common::refused(), refuse)
}

fn refuse(name: &str) -> Result<(), HarnessError> {
    let undying = Undying::find()?;
    let mut victim = Victim::start(name)?;
    common::let_it_work(name);
    preflight(name, &undying, &victim)?;
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
    common::expect_pass(&mut victim)
}

fn preflight(name: &str, undying: &Undying, victim: &Victim) -> Result<(), HarnessError> {
    let report = common::preflight(undying, victim)?;
    let obstacles = report["obstacles"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_whole = |obstacle: &Value| {
        obstacle["pid"].is_number()
            && ["what", "where", "why", "fix"].iter().all(|key| obstacle[*key].is_string())
    };
    if report["ok"] != Value::Bool(false) || obstacles.is_empty() || !obstacles.iter().all(is_whole) {
        return Err(common::wrong(name, &format!("preflight says {report}")));
    }
    Ok(())
}
