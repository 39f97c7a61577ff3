//! Tests of `undying run --restart-on child-signal`: when a child is killed by a signal, the whole program is restored.

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::{Guarded, Lab, supported, until};

const OPTION: [&str; 4] = ["--restart-on", "child-signal", "--max-restarts", "99/1m"];

/// Reports whether this machine supports notifications of the deaths of children. Prints the reason otherwise.
fn is_told(lab: &Lab) -> bool {
    let checks = lab.json(&["doctor"]);
    let row =
        checks["checks"].as_array().unwrap().iter().find(|row| row["name"] == "process-events").unwrap();
    let is_there = row["state"] == "ok";
    if !is_there {
        println!("unsupported: process-events: {}", row["detail"]);
    }
    is_there
}

fn children_of(root: &ProcessId) -> Vec<Pid> {
    let list =
        std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", root.pid())).unwrap_or_default();
    list.split_whitespace().map(|pid| Pid(pid.parse().unwrap())).collect()
}

fn printed(lab: &Lab) -> String {
    std::fs::read_to_string(lab.path("stdout")).unwrap()
}

/// Waits until a later incarnation (restored program) has a child that survives two checkpoints. A checkpoint may
/// contain the fatal signal as pending. The restored child then dies again, and the next restart uses an earlier
/// checkpoint.
fn await_living_child(guarded: &Guarded<'_>, child: Pid, incarnation: u64) {
    let mut seen = None;
    until("the child", || {
        let status = guarded.status();
        let number = |key: &str| status[key].as_u64().unwrap();
        let (now, checkpoints) = (number("incarnation"), number("checkpoints"));
        let is_back = now > incarnation && status["state"] == "running";
        match seen.filter(|_| is_back) {
            Some((since, first)) if since == now => (checkpoints >= first + 2).then_some(()),
            _ => {
                seen = is_back.then_some((now, checkpoints));
                None
            }
        }
    });
    assert_eq!(children_of(&guarded.root()), [child], "{}", guarded.said());
}

#[test]
fn a_killed_child_comes_back_with_the_whole_program() {
    let lab = Lab::new();
    if !supported() || !is_told(&lab) {
        return;
    }
    let script = "until [ -e stop ]; do sleep 600 & wait $!; sleep 0.2; echo noticed; done";
    let guarded = Guarded::run(&lab, &OPTION, script);
    guarded.await_checkpoints(3);
    let root = guarded.root();
    let child = until("the child", || children_of(&root).first().copied());
    for signal in [Signal::KILL, Signal::SEGV, Signal::BUS, Signal::ABORT] {
        let (before, incarnation) = (ProcessId::of(child).unwrap(), guarded.incarnation());
        before.signal(signal).unwrap();
        await_living_child(&guarded, child, incarnation);
        assert_ne!(ProcessId::of(child).unwrap(), before, "{signal:?}");
    }
    let deaths = lab.json(&["deaths", "job"]);
    let deaths = deaths.as_array().unwrap();
    for death in deaths {
        assert_eq!(death["child"]["pid"], child.get());
        assert_eq!(death["followed_by"], "restored");
    }
    let mut signals: Vec<_> = deaths.iter().map(|death| death["child"]["signal"].as_i64().unwrap()).collect();
    signals.dedup();
    assert_eq!(signals, [9, 11, 7, 6]);
    assert!(
        guarded.said().contains(&format!("child pid {child} was killed by signal 9")),
        "{}",
        guarded.said()
    );
    // SIGTERM does not count as a failure, so the program continues normally.
    assert!(!printed(&lab).contains("noticed"));
    std::fs::write(lab.path("stop"), "").unwrap();
    ProcessId::of(child).unwrap().signal(Signal::TERM).unwrap();
    assert_eq!(guarded.end(), 0);
    assert_eq!(printed(&lab), "noticed\n");
}

#[test]
fn a_child_of_a_moment_that_crashes_between_two_checkpoints_is_noticed() {
    let lab = Lab::new();
    if !supported() || !is_told(&lab) {
        return;
    }
    // The child starts and dies within several milliseconds, so a scan of the process tree would not find it.
    let script = "until [ -e stop ]; do if [ -e go ]; then rm go; (sh -c 'kill -SEGV $$'); echo passed; fi; \
                  sleep 0.02; done; echo end";
    let guarded = Guarded::run(&lab, &OPTION, script);
    guarded.await_checkpoints(2);
    std::fs::write(lab.path("go"), "").unwrap();
    guarded.await_incarnation(2);
    let deaths = lab.json(&["deaths", "job"]);
    assert_eq!(deaths[0]["child"]["signal"], 11, "{deaths}");
    assert_eq!(deaths[0]["followed_by"], "restored");
    assert_eq!(guarded.end(), 0);
}

#[test]
fn without_the_option_a_child_may_die() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = "until [ -e stop ]; do sh -c 'kill -SEGV $$'; echo passed; sleep 0.02; done";
    let guarded = Guarded::run(&lab, &[], script);
    guarded.await_checkpoints(3);
    assert_eq!(guarded.incarnation(), 1);
    assert_eq!(guarded.end(), 0);
    assert_eq!(lab.json(&["deaths", "job"])[0]["followed_by"], "ended");
}

#[test]
fn what_cannot_be_heard_is_refused_before_the_start() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut command = lab.undying(["run", "--restart-on", "child-signal", "--", "touch", "begun"]);
    command.env("UNDYING_FEATURES_OFF", "process-events");
    assert_eq!(command.status().unwrap().code(), Some(4));
    let said = lab.told();
    assert!(said.contains("process-events") && said.contains("CAP_NET_ADMIN"), "{said}");
    assert!(!lab.path("begun").exists());
}
