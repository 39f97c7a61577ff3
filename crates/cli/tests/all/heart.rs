//! Tests of checkpoint, restore and restart in the environment of a terminal, and in that of a service manager or a
//! build.

use std::process::Command;

use model::Pid;
use rustix::process::Signal;

use crate::common::{Lab, supported, until, wait};

/// The test that the other tests run again: a checkpoint with a restore, and a restart after a death.
const HEART: &str = "heart::a_subject_comes_back_from_an_image_and_from_its_death";

/// Returns the sorted targets of the descriptors of a counter. The count file is left out, because it is open only
/// briefly.
fn descriptors(pid: Pid) -> Vec<String> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let link = |entry: std::fs::DirEntry| std::fs::read_link(entry.path()).unwrap().display().to_string();
    let mut found: Vec<String> = entries.map(|entry| link(entry.unwrap())).collect();
    found.retain(|link| !link.ends_with("/count"));
    found.sort_unstable();
    found
}

#[test]
fn a_subject_comes_back_from_an_image_and_from_its_death() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let counter = lab.counter(&[]);
    let before = descriptors(counter.pid());
    assert!(!before.iter().any(|link| link.starts_with("pipe:")), "the test's own pipes: {before:?}");
    let (pid, image) = (counter.pid().to_string(), lab.path("image"));
    let image = image.to_str().unwrap();
    let said = lab.say(["checkpoint", &pid, "--image", image, "--kill"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    crate::common::reap(counter.pid());
    let said = lab.say(["restore", image, "--detach"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    counter.goes_on(3);
    assert_eq!(descriptors(counter.pid()), before);
    testkit::ProcessId::of(counter.pid()).unwrap().signal(Signal::KILL).unwrap();

    let lab = Lab::new();
    let mut words: Vec<String> = ["run", "--name", "job", "--every", "50ms", "--"].map(String::from).into();
    words.extend(lab.counter_words(&[]));
    let mut guardian = lab.undying(words).spawn().unwrap();
    until("a checkpoint", || (!lab.json(&["ls", "job"]).as_array()?.is_empty()).then_some(()));
    let first = lab.guarded_counter().unwrap();
    first.process.signal(Signal::KILL).unwrap();
    let back = until("the subject", || lab.guarded_counter().filter(|now| now.process != first.process));
    back.goes_on(3);
    back.process.signal(Signal::TERM).unwrap();
    assert_eq!(wait(&mut guardian).code(), Some(143));
}

/// Replaces itself by a program that inherits three pipes and a narrow umask.
const WITH_PIPES: &str = r"
import os, sys
for _ in range(3):
    for fd in os.pipe():
        os.set_inheritable(fd, True)
os.umask(0o077)
os.execv(sys.argv[1], sys.argv[1:])
";

/// Runs the test `HEART` below a command that changes its environment.
fn passes_below(what: &str, command: &mut Command) {
    command.arg(std::env::current_exe().unwrap()).args(["--exact", HEART]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{what}: {said}{errors}");
}

#[test]
fn inherited_pipes_and_a_narrow_umask_change_nothing() {
    if !supported() {
        return;
    }
    passes_below("inherited pipes", Command::new("python3").args(["-c", WITH_PIPES]));
}

#[test]
fn an_empty_environment_and_a_closed_stdin_change_nothing() {
    if !supported() {
        return;
    }
    // A compiler searches its components in PATH. `make` sets PATH if it is missing.
    let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
    let shell = ["-i", path, "sh", "-c", "exec \"$@\" <&-", "sh"];
    passes_below("an empty environment", Command::new("env").args(shell));
}
