//! Tests of programs that send requests to their guardian (the supervising process): an answer of the guardian stays
//! true even after a death.

use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use model::Pid;
use rustix::process::Signal;
use serde_json::Value;
use testkit::ProcessId;

use crate::common::{Lab, supported, until, wait};

/// Number of kills of a program that requests its checkpoints.
const ROUNDS: (usize, usize) = (6, 100);

/// Compiles the subject with the published header.
fn asker(lab: &Lab) -> PathBuf {
    let own = lab.path("asker");
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let status = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()))
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&own)
        .arg("-I")
        .arg(here.join("../../bindings/c"))
        .arg(here.join("tests/subjects/asker.c"))
        .status()
        .unwrap();
    assert!(status.success(), "the asker does not compile");
    own
}

fn run(lab: &Lab, options: &[&str], words: &[&str]) -> Child {
    let program = asker(lab).display().to_string();
    let diary = lab.path("diary").display().to_string();
    let own = ["--", &program, &diary];
    let words = ["run", "--name", "job"].iter().chain(options).chain(&own).chain(words);
    lab.undying(words.copied()).spawn().unwrap()
}

fn diary(lab: &Lab) -> Vec<Vec<String>> {
    let text = std::fs::read_to_string(lab.path("diary")).unwrap_or_default();
    text.lines().map(|line| line.split(' ').map(str::to_owned).collect()).collect()
}

fn times(lab: &Lab, what: &str) -> Vec<String> {
    diary(lab).into_iter().filter(|entry| entry[0] == what).map(|entry| entry[1].clone()).collect()
}

/// Returns the time of the stop for each checkpoint of the subject.
fn checkpoints(lab: &Lab) -> Vec<String> {
    let said = lab.say(["events", "job", "--json"]);
    let rows = said.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let taken = rows.filter(|row| row["event"] == "checkpoint");
    taken.map(|row| row["time"].as_str().unwrap().to_owned()).collect()
}

fn root(lab: &Lab) -> Option<ProcessId> {
    let said = lab.say(["status", "job", "--json"]);
    let status: Value = serde_json::from_str(&said.stdout).ok()?;
    let is_running = status[0]["state"] == "running";
    let pid = status[0]["pid"].as_i64().filter(|_| is_running)?;
    ProcessId::of(Pid(i32::try_from(pid).ok()?)).ok()
}

fn end(lab: &Lab, mut guardian: Child) {
    until("a subject", || root(lab)).signal(Signal::TERM).unwrap();
    assert_eq!(wait(&mut guardian).code(), Some(128 + 15));
}

#[test]
fn no_death_takes_back_what_was_called_durable() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut random = testkit::seeded("killed subject");
    // The interval is one hour, so that all checkpoints are requested by the program.
    let guardian = run(&lab, &["--every", "1h", "--max-restarts", "1000/1m"], &["checkpoint"]);
    for round in 0..testkit::rounds(ROUNDS.0, ROUNDS.1) {
        let before = times(&lab, "durable").len();
        until("an answer", || (times(&lab, "durable").len() > before + 1).then_some(()));
        std::thread::sleep(testkit::moment(&mut random, Duration::from_millis(30)));
        let subject = until("a subject", || root(&lab));
        subject.signal(Signal::KILL).unwrap();
        until("its death", || (!subject.is_alive()).then_some(()));
        let written = diary(&lab);
        let durable = written.iter().rev().find(|entry| entry[0] == "durable").unwrap()[1].clone();
        // The first entry that the next incarnation (restored program) writes.
        let next = until("the next life", || diary(&lab).get(written.len()).cloned());
        let number = |text: &str| text.parse::<u64>().unwrap();
        assert!(number(&next[1]) >= number(&durable), "round {round}: {durable} was durable, then {next:?}");
    }
    end(&lab, guardian);
}

#[test]
fn no_checkpoint_is_taken_while_the_program_holds_them_back() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guardian = run(&lab, &["--every", "10ms"], &["hold"]);
    until("sections", || (times(&lab, "released").len() >= 5).then_some(()));
    end(&lab, guardian);
    let taken = checkpoints(&lab);
    let sections: Vec<(String, String)> =
        times(&lab, "held").into_iter().zip(times(&lab, "released")).collect();
    for (held, released) in &sections {
        let inside: Vec<&String> = taken.iter().filter(|time| held < *time && *time < released).collect();
        assert!(inside.is_empty(), "held from {held} to {released}: {inside:?}");
    }
    assert!(taken.len() >= sections.len(), "{} checkpoints between sections", taken.len());
}

#[test]
fn checkpoints_begin_when_the_program_is_ready() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guardian = run(&lab, &["--every", "10ms", "--await-ready"], &["ready"]);
    until("checkpoints", || (checkpoints(&lab).len() >= 3).then_some(()));
    end(&lab, guardian);
    let ready = times(&lab, "ready");
    assert_eq!(ready.len(), 1);
    assert!(checkpoints(&lab).iter().all(|time| *time > ready[0]), "{ready:?}");
}

#[test]
fn the_python_module_asks_for_the_same() {
    const PROGRAM: &str = "import undying; undying.ready(); first = undying.checkpoint()
with undying.hold(): pass
second = undying.checkpoint(); print(first, second, flush=True); assert 0 < first < second";
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/python");
    let mut guardian = lab.undying(["run", "--name", "job", "--", "python3", "-c", PROGRAM]);
    let said = std::fs::File::create(lab.path("said")).unwrap();
    let status = guardian.env("PYTHONPATH", &module).stdout(said).status().unwrap();
    let said = std::fs::read_to_string(lab.path("said")).unwrap();
    assert_eq!(status.code(), Some(0), "{said}");
    assert_eq!(said.split_whitespace().count(), 2, "{said}");
    let mut alone = Command::new("python3");
    alone.args(["-c", "import undying; undying.checkpoint()"]);
    let output = alone.env("PYTHONPATH", &module).env_remove("UNDYING_SOCKET").output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("NotGuarded"));
}

/// Two restores of one checkpoint have different generations from the time before, although their memory is the same.
#[test]
fn a_program_notices_each_restore() {
    const PROGRAM: &str = "
import os, time, undying
first = undying.generation()
held = os.memfd_create('undying-generation'); os.write(held, bytes(24))
open('begun', 'w').write(str(first))
while undying.generation() == first: time.sleep(0.01)
unmapped = os.pread(held, 24, 0)
open('noticed', 'w').write(f'{first} {undying.generation()} {unmapped[0]} {unmapped[8:].hex()}\\n')
time.sleep(600)";
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/python");
    let mut command = Command::new("setsid");
    command.args(["--fork", "python3", "-c", PROGRAM]).env("PYTHONPATH", &module);
    wait(&mut lab.detached(&mut command).spawn().unwrap());
    until("the program", || lab.path("begun").exists().then_some(()));
    let python = until("the process", || lab.guard.marked().first().copied());
    let image = lab.path("image").display().to_string();
    let said = lab.say(["checkpoint", &python.pid().to_string(), "--kill", "--image", &image]);
    assert_eq!(said.code, Some(0), "{said:?}");
    crate::common::reap(python.pid());
    let mut seen = Vec::new();
    for _ in 0..2 {
        let said = lab.say(["restore", &image, "--detach", "--files", "keep"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let noticed = until("the restore", || {
            std::fs::read_to_string(lab.path("noticed")).ok().filter(|text| text.ends_with('\n'))
        });
        assert!(noticed.starts_with("0 1 1 "), "{noticed}");
        seen.push(noticed);
        std::fs::remove_file(lab.path("noticed")).unwrap();
        let restored = ProcessId::of(python.pid()).unwrap();
        restored.signal(Signal::KILL).unwrap();
        until("the end", || {
            crate::common::reap(python.pid());
            (!restored.is_alive()).then_some(())
        });
    }
    assert_ne!(seen[0], seen[1], "the random bytes of two restores");
}
