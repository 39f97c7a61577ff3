//! Tests of the records of guardians (the supervising processes): `events`, `deaths`, `top` and the trace must match
//! the behaviour of the processes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Guarded, Lab, supported, until, wait};

/// Returns the events of the subject. `events --json` prints one JSON object on each line.
fn events(lab: &Lab) -> Vec<Value> {
    let said = lab.say(["events", "job", "--json"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn of_kind(lab: &Lab, kind: &str) -> Vec<Value> {
    events(lab).into_iter().filter(|event| event["event"] == kind).collect()
}

#[test]
fn a_life_and_a_death_are_told_in_order() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    assert_eq!(lab.say(["events", "job"]).code, Some(3), "no subject was guarded yet");
    // With an explicit `--files` option, the guardian prints no message about files.
    let words = ["run", "--name", "job", "--every", "20ms", "--files", "keep", "--"];
    let mut words: Vec<String> = words.map(String::from).into();
    words.extend(lab.counter_words(&[]));
    let mut guardian = lab.undying(words).spawn().unwrap();
    until("a status", || (lab.say(["status", "job"]).code == Some(0)).then_some(()));
    let mut follower = lab.undying(["events", "-f", "--json"]);
    let heard = lab.path("heard");
    let mut follower = follower.stdout(std::fs::File::create(&heard).unwrap()).spawn().unwrap();
    until("checkpoints", || (of_kind(&lab, "checkpoint").len() >= 5).then_some(()));
    let pid = lab.guarded_counter().unwrap().pid().get();
    lab.guarded_counter().unwrap().process.signal(Signal::KILL).unwrap();
    until("the restore", || (!of_kind(&lab, "restored").is_empty()).then_some(()));
    let newest = of_kind(&lab, "checkpoint").len();
    until("more checkpoints", || (of_kind(&lab, "checkpoint").len() > newest + 2).then_some(()));

    let top = lab.say(["top", "--once"]);
    assert!(top.stdout.lines().any(|line| line.starts_with("job") && line.contains("running")), "{top:?}");
    lab.guarded_counter().unwrap().process.signal(Signal::TERM).unwrap();
    wait(&mut guardian);

    let all = events(&lab);
    let kinds: Vec<&str> = all.iter().map(|event| event["event"].as_str().unwrap()).collect();
    // On a busy machine, other events report late checkpoints and long stops.
    const OF_LIVES: [&str; 4] = ["started", "died", "restored", "ended"];
    let of_lives: Vec<&str> = kinds.iter().copied().filter(|kind| OF_LIVES.contains(kind)).collect();
    assert_eq!(of_lives, OF_LIVES, "{kinds:?}");
    assert!(all.windows(2).all(|pair| pair[0]["time"].as_str() <= pair[1]["time"].as_str()));
    let restored = &of_kind(&lab, "restored")[0];
    let checkpoints = of_kind(&lab, "checkpoint");
    assert!(checkpoints.iter().any(|event| event["seq"] == restored["seq"]));
    for checkpoint in &checkpoints {
        let parts = ["stop_us", "scan_us", "copy_us"].map(|key| checkpoint[key].as_u64().unwrap());
        assert!(parts.iter().sum::<u64>() <= checkpoint["pause_us"].as_u64().unwrap(), "{checkpoint}");
    }
    let whole = checkpoints.iter().filter(|event| event["full"] == true).count();
    assert_eq!(whole, 2, "one for each life");

    let deaths = lab.json(&["deaths", "job"]);
    assert_eq!((&deaths[0]["signal"], &deaths[0]["pid"]), (&9.into(), &pid.into()));
    assert_eq!((&deaths[0]["followed_by"], &deaths[0]["seq"]), (&"restored".into(), &restored["seq"]));
    assert_eq!((&deaths[1]["signal"], &deaths[1]["followed_by"]), (&15.into(), &"ended".into()));
    assert!(lab.say(["deaths"]).stdout.contains("restored at"));

    let lines = || std::fs::read_to_string(&heard).unwrap().lines().count();
    until("the follower", || (lines() >= all.len()).then_some(()));
    assert_eq!(lines(), all.len(), "each event once");
    follower.kill().unwrap();
    wait(&mut follower);
    assert_is_trace(&lab, checkpoints.len());
}

#[test]
fn events_and_the_list_of_checkpoints_agree_on_pages() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    // The memory of the program grows, so that the checkpoints differ in their numbers of pages.
    let script = "piece=$(head -c 65536 /dev/zero | tr '\\0' x)
        while [ ! -e stop ]; do [ ${#all} -gt 4000000 ] || all=$all$piece; sleep 0.02; done";
    let guarded = Guarded::run(&lab, &["--keep", "1000", "--store-max", "off"], script);
    guarded.await_checkpoints(5);
    guarded.kill();
    guarded.await_checkpoints(5);
    assert_eq!(guarded.end(), 0);
    let listed = pages_by_sequence(lab.json(&["ls", "job"]).as_array().unwrap());
    let told = pages_by_sequence(&of_kind(&lab, "checkpoint"));
    assert!(listed.len() >= 10, "{listed:?}");
    assert!(listed.values().any(|pages| pages != listed.values().next().unwrap()), "{listed:?}");
    assert_eq!(listed, told);
}

/// Returns the number of pages of each checkpoint. Asserts that each sequence number occurs only once.
fn pages_by_sequence(checkpoints: &[Value]) -> BTreeMap<u64, u64> {
    let numbers = |one: &Value| (one["seq"].as_u64().unwrap(), one["pages"].as_u64().unwrap());
    let pages: BTreeMap<u64, u64> = checkpoints.iter().map(numbers).collect();
    assert_eq!(pages.len(), checkpoints.len(), "{checkpoints:?}");
    pages
}

#[test]
fn checkpoints_are_compared_with_their_program() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let options =
        ["run", "--name", "job", "--every", "20ms", "--cost-max", "off", "--verify-every", "3", "--"];
    let mut words: Vec<String> = options.map(String::from).into();
    words.extend(lab.counter_words(&[]));
    let mut guardian = lab.undying(words).spawn().unwrap();
    until("a status", || (lab.say(["status", "job"]).code == Some(0)).then_some(()));
    until("comparisons", || (of_kind(&lab, "verified").len() >= 5).then_some(()));
    lab.guarded_counter().unwrap().process.signal(Signal::TERM).unwrap();
    wait(&mut guardian);
    let verified = of_kind(&lab, "verified");
    for one in &verified {
        assert!(one["pages"].as_u64() > Some(100) && one["differences"] == 0, "{one}");
    }
    assert_eq!(verified.len(), of_kind(&lab, "checkpoint").len() / 3);
    let status = lab.json(&["status", "job"]);
    assert_eq!(status[0]["verified"]["checkpoints"], verified.len());
    assert_eq!(status[0]["verified"]["differences"], 0);
}

#[test]
fn a_dry_run_tracks_and_takes_nothing() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let options = ["run", "--name", "job", "--every", "10ms", "--dry-run-tracking", "--"];
    let mut words: Vec<String> = options.map(String::from).into();
    words.extend(lab.counter_words(&["exit", "500"]));
    let mut guardian = lab.undying(words).spawn().unwrap();
    assert_eq!(wait(&mut guardian).code(), Some(0));
    let scans = of_kind(&lab, "scan");
    assert!(scans.len() > 3 && scans.iter().any(|one| one["pages"].as_u64() > Some(0)), "{scans:?}");
    assert!(of_kind(&lab, "checkpoint").is_empty());
    assert_eq!(lab.json(&["ls", "job"]), serde_json::json!([]));
}

/// Asserts that the file for the trace viewer contains a span for each pause.
fn assert_is_trace(lab: &Lab, checkpoints: usize) {
    let path = lab.path("trace.json");
    assert_eq!(lab.say(["events", "job", "--trace", path.to_str().unwrap()]).code, Some(0));
    let trace: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let pauses = trace["traceEvents"].as_array().unwrap().iter().filter(|event| event["name"] == "pause");
    assert_eq!(pauses.count(), checkpoints);
}

/// A program with 64 MiB of random memory, which does not compress. A kill can therefore occur during the comparison.
const LARGE: &str = r#"
import os, time
memory = os.urandom(1 << 20) * 64
while not os.path.exists("stop"):
    time.sleep(0.02)
"#;
/// A stop of this length is longer than the pause of a checkpoint without a comparison.
const COMPARED: Duration = Duration::from_millis(30);

#[test]
fn a_death_while_a_checkpoint_is_compared_is_no_difference() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    std::fs::write(lab.path("large.py"), LARGE).unwrap();
    let options = ["--verify-every", "1", "--max-restarts", "99/1m"];
    let guarded = Guarded::run(&lab, &options, "exec python3 large.py");
    for _ in 0..3 {
        guarded.await_checkpoints(2);
        let root = guarded.root();
        let incarnation = guarded.incarnation();
        let mut stopped: Option<Instant> = None;
        until("a comparison", || {
            let is_stopped = crate::common::status_of(root.pid(), "State").starts_with('t');
            stopped = if is_stopped { stopped.or_else(|| Some(Instant::now())) } else { None };
            stopped.filter(|since| since.elapsed() > COMPARED).map(|_| ())
        });
        root.signal(Signal::KILL).unwrap();
        guarded.await_incarnation(incarnation + 1);
    }
    let said = guarded.said();
    assert_eq!(guarded.status()["verified"]["differences"], 0, "{said}");
    assert!(!said.contains("differ from the subject"), "{said}");
    assert_eq!(guarded.end(), 0);
}

#[test]
fn events_are_selected_by_kind() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &[], "until [ -e stop ]; do sleep 0.02; done");
    guarded.await_checkpoints(2);
    guarded.kill();
    guarded.await_checkpoints(1);
    assert_eq!(guarded.end(), 0);
    let names = |only: &str| {
        let said = lab.say(["events", "job", "--json", "--only", only]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let rows = said.stdout.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        rows.map(|row| row["event"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names("deaths"), ["died", "ended"]);
    assert_eq!(names("deaths,restores"), ["started", "died", "restored", "ended"]);
    let checkpoints = names("checkpoints");
    assert!(checkpoints.contains(&"checkpoint".to_owned()) && !checkpoints.contains(&"died".to_owned()));
    let said = lab.say(["events", "--only", "death"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.stderr.contains("deaths") && said.stderr.contains("checkpoints"), "{said:?}");
}

#[test]
fn the_start_of_a_run_is_told_and_status_answers_on_standard_output() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &["--files", "keep"], "until [ -e stop ]; do sleep 0.02; done");
    guarded.await_checkpoints(1);
    let told =
        "undying: job is protected by a checkpoint every 50ms; at a restart, its files stay as they are\n";
    assert!(guarded.said().starts_with(told), "{}", guarded.said());
    guarded.kill();
    let said = lab.say(["status", "job"]);
    assert!(said.stdout.contains("job: a death now") && said.stderr.is_empty(), "{said:?}");
    assert_eq!(guarded.end(), 0);
}
