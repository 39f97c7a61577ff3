//! Kills the process that attaches a tracker, at each step of the attachment.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common;
use crate::common::{Subject, attach};
use model::{Pid, Signal};
use tracee::{procfs, steps};

const TRACKER: &str = "pagemap-scan";
const TEST: &str = "deaths::a_death_while_attaching_leaves_nothing_open";

static STEPS: AtomicU64 = AtomicU64::new(0);
static LAST_STEP: AtomicU64 = AtomicU64::new(u64::MAX);

fn die_at_last_step(_step: &'static str) {
    if STEPS.fetch_add(1, Ordering::Relaxed) == LAST_STEP.load(Ordering::Relaxed) {
        sys::signal::send(Pid(std::process::id() as i32), Signal(9)).unwrap();
        std::thread::sleep(Duration::from_secs(60));
    }
}

#[test]
fn a_death_while_attaching_leaves_nothing_open() {
    if let Some((role, pid)) = common::role() {
        LAST_STEP.store(role.parse().unwrap(), Ordering::Relaxed);
        steps::observe(die_at_last_step);
        attach(TRACKER, pid);
        return common::say_attached();
    }
    for is_privileged in [true, false] {
        let Some(mut subject) = Subject::start("obedient", &[]) else { return };
        let area = subject.map("anon", 64);
        subject.act("write", area, 1);
        if !is_privileged && subject.tell("drop") != 0 {
            return println!("unsupported: root");
        }
        if attach(TRACKER, subject.pid()).is_none() {
            return;
        }
        let before = procfs::descriptors(subject.pid()).unwrap();
        let mut deaths = 0;
        while !common::helper(TEST, &deaths.to_string(), subject.pid()).attached() {
            common::eventually(|| procfs::descriptors(subject.pid()).unwrap() == before);
            subject.act("write", area, deaths);
            deaths += 1;
        }
        println!("privileged: {is_privileged}: died at each of {deaths} steps");
        assert!(deaths > 15);
        assert!(subject.is_alive());
        assert_eq!(procfs::descriptors(subject.pid()).unwrap(), before);
    }
}
