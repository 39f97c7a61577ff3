//! Tests of the output of all verbs (subcommands): help, manual, completions, tables, and the documented JSON keys.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::{Guarded, Lab, supported, until};

const VERBS: [&str; 20] = [
    "check",
    "doctor",
    "preflight",
    "checkpoint",
    "restore",
    "run",
    "ls",
    "show",
    "verify",
    "squash",
    "prune",
    "gc",
    "store",
    "get",
    "link",
    "del",
    "status",
    "metrics",
    "completions",
    "man",
];

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

fn assert_has(value: &Value, wanted: &[&str]) {
    for key in wanted {
        assert!(keys(value).contains(key), "no key {key} in {value}");
    }
}

#[test]
fn help_manual_and_completions_know_every_verb() {
    let lab = Lab::new();
    let help = lab.say(["--help"]);
    assert_eq!(help.code, Some(0));
    let manual = lab.say(["man"]);
    assert_eq!(manual.code, Some(0));
    assert!(manual.stdout.starts_with(".ie") || manual.stdout.starts_with(".TH"), "{}", manual.stdout);
    assert!(manual.stdout.contains("undying doctor") && !manual.stdout.contains("doctor(1)"));
    for verb in VERBS {
        assert!(help.stdout.contains(verb), "{verb} in the help");
        assert!(manual.stdout.contains(&format!("UNDYING {}", verb.to_uppercase())), "{verb} in the manual");
        let own = lab.say([verb, "--help"]);
        assert_eq!(own.code, Some(0));
        assert!(own.stdout.contains("--store"), "{verb} --help");
        for shell in ["bash", "zsh", "fish"] {
            let completions = lab.say(["completions", shell]);
            assert_eq!(completions.code, Some(0));
            assert!(completions.stdout.contains(verb), "{verb} in the completions of {shell}");
        }
    }
    assert!(lab.say(["--version"]).stdout.starts_with("undying "));
}

#[test]
fn a_subject_without_a_checkpoint_is_told_as_unprotected() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut words: Vec<String> = ["run", "--name", "job", "--every", "1h", "--"].map(String::from).into();
    words.extend(lab.counter_words(&[]));
    let mut guardian = lab.undying(words).spawn().unwrap();
    let one = until("a status", || lab.json(&["status", "job"]).get(0).cloned());
    assert_eq!(one["unprotected_because"], "no checkpoint of it has been taken yet", "{one}");
    for verb in [vec!["status"], vec!["top", "--once"]] {
        let said = lab.say(&verb);
        assert!(said.stdout.contains("job: unprotected, because no checkpoint"), "{said:?}");
    }
    // Before the counter has started, a signal would kill it without the guardian.
    let counter = until("the counter", || lab.guarded_counter());
    until("the first count", || counter.read());
    counter.process.signal(Signal::TERM).unwrap();
    assert_eq!(crate::common::wait(&mut guardian).code(), Some(143));
    assert_eq!(lab.json(&["status", "job"])[0]["unprotected_because"], Value::Null, "it has ended");
}

/// The exit codes 126 and 127 are the codes of a shell and of env(1). A script can distinguish them from a failure of
/// `undying` (125).
#[test]
fn a_program_that_cannot_be_started_has_the_exit_codes_of_a_shell() {
    let lab = Lab::new();
    let said = lab.say(["run", "--", "/nonexistent/program"]);
    assert_eq!(said.code, Some(127), "{said:?}");
    std::fs::write(lab.path("text"), "no program").unwrap();
    let said = lab.say(["run", "--", lab.path("text").to_str().unwrap()]);
    assert_eq!(said.code, Some(126), "{said:?}");
    assert_eq!(std::fs::read_dir(lab.store()).unwrap().count(), 0, "an empty subject was left");
}

#[test]
fn an_image_below_a_missing_directory_is_refused_by_name() {
    let lab = Lab::new();
    let child = lab.guard.mark(std::process::Command::new("sleep").arg("60")).spawn();
    let mut child = child.unwrap();
    let image = lab.path("missing/image");
    let said = lab.say(["checkpoint", &child.id().to_string(), "--image", image.to_str().unwrap()]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stderr.contains("there is no directory") && said.stderr.contains("mkdir -p"), "{said:?}");
    assert!(!lab.path("missing").exists());
}

/// The advice of an error must not be to change an object that does not belong to `undying`.
#[test]
fn what_is_no_store_and_no_image_is_called_so() {
    let lab = Lab::new();
    std::fs::write(lab.store(), "content").unwrap();
    let said = lab.say(["ls"]);
    assert!(said.stderr.contains("is not a directory") && !said.stderr.contains("remove"), "{said:?}");
    std::fs::remove_file(lab.store()).unwrap();
    let open = lab.path("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    for (path, word) in
        [("open", "contains no committed image"), ("gone", "there is no such file or directory")]
    {
        for verb in ["show", "verify", "restore"] {
            let said = lab.say([verb, lab.path(path).to_str().unwrap()]);
            assert_eq!(said.code, Some(5), "{said:?}");
            assert!(said.stderr.contains(word) && !said.stderr.contains("chmod"), "{said:?}");
        }
    }
    std::os::unix::fs::symlink("nothing", open.join("commit")).unwrap();
    let said = lab.say(["show", open.to_str().unwrap()]);
    assert!(said.stderr.contains("can be written by other users"), "{said:?}");
}

/// The program is a single file without a dynamic loader entry, so it runs without installed libraries.
#[test]
fn the_program_needs_no_library() {
    const PT_INTERP: usize = 3;
    let program = std::fs::read(env!("CARGO_BIN_EXE_undying")).unwrap();
    let number = |at: usize, bytes: usize| {
        let field = &program[at..at + bytes];
        field.iter().rev().fold(0_usize, |number, byte| number << 8 | usize::from(*byte))
    };
    let (start, size, count) = (number(32, 8), number(54, 2), number(56, 2));
    let kinds: Vec<usize> = (0..count).map(|index| number(start + index * size, 4)).collect();
    assert!(kinds.contains(&1), "no segment of {kinds:?} is loaded");
    assert!(!kinds.contains(&PT_INTERP), "it is linked at its start");
}

#[test]
fn a_wrong_command_line_is_a_matter_of_usage() {
    let lab = Lab::new();
    for words in [
        vec![],
        vec!["frobnicate"],
        vec!["checkpoint", "12"],
        vec!["checkpoint", "twelve", "--image", "x"],
        vec!["run"],
        vec!["run", "--every", "1ms", "--", "true"],
        vec!["run", "--restart", "sometimes", "--", "true"],
        vec!["run", "--keep", "0", "--", "true"],
        vec!["run", "--name", "a/b", "--", "true"],
        vec!["run", "--name", "x y", "--", "true"],
        vec!["prune", "job"],
    ] {
        let said = lab.say(&words);
        assert_eq!(said.code, Some(2), "{words:?}: {said:?}");
        assert!(said.stdout.is_empty(), "{words:?}: {said:?}");
    }
}

#[test]
fn what_is_planned_and_not_there_is_unknown() {
    let lab = Lab::new();
    for words in [vec!["replicate", "-n", "3", "--", "true"], vec!["run", "--isolate", "--", "true"]] {
        let said = lab.say(&words);
        assert_eq!(said.code, Some(2), "{words:?}: {said:?}");
    }
}

#[test]
fn doctor_has_the_keys_of_the_contract() {
    let lab = Lab::new();
    let report = lab.json(&["doctor"]);
    assert!(report["ok"].is_boolean());
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() > 8);
    for name in ["descriptors", "file-groups"] {
        assert!(checks.iter().any(|check| check["name"] == name), "{name}");
    }
    for check in checks {
        assert_has(check, &["name", "state", "detail", "fix"]);
        assert!(["ok", "degraded", "missing"].contains(&check["state"].as_str().unwrap()), "{check}");
        assert_eq!(check["state"] == "ok", check["fix"] == "", "{check}");
    }
}

#[test]
fn nothing_is_created_by_looking() {
    let lab = Lab::new();
    for words in [vec!["ls"], vec!["status"]] {
        let said = lab.say(&words);
        assert_eq!(said.code, Some(0), "{words:?}");
        assert!(said.stderr.contains("there is no store at"), "{words:?}: {said:?}");
    }
    let unknown = [
        vec!["ls", "job"],
        vec!["ls", "job", "--json"],
        vec!["prune", "job", "--keep", "1"],
        vec!["squash", "job"],
    ];
    for words in unknown {
        let said = lab.say(&words);
        assert_eq!((said.code, said.stdout.as_str()), (Some(5), ""), "{words:?}: {said:?}");
        assert!(said.stderr.contains("has no subject job"), "{words:?}: {said:?}");
    }
    assert_eq!(lab.json(&["ls"]), serde_json::json!([]));
    assert_eq!(lab.say(["status", "job"]).code, Some(3));
    assert!(!lab.store().exists());
}

/// Checks that the status of an ended subject states the bytes that its log occupies on the disk, at least `least`.
fn assert_occupies(lab: &Lab, least: u64) {
    let occupied = lab.json(&["status", "job"])[0]["store_bytes"].as_u64().unwrap();
    let mut du = Command::new("du");
    let du = du.args(["--summarize", "--block-size=1", "--separate-dirs"]);
    let du = lab.call(du.arg(lab.store().join("job/log"))).stdout;
    let of_log: u64 = du.split_whitespace().next().unwrap().parse().unwrap();
    assert!(occupied >= least);
    assert!(occupied <= of_log && of_log - occupied <= 64 << 10, "{occupied} of {of_log} bytes");
}

#[test]
fn a_run_is_told_with_the_keys_of_the_contract() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut words: Vec<String> =
        ["run", "--name", "job", "--every", "20ms", "--keep", "4", "--"].map(String::from).into();
    words.extend(lab.counter_words(&[]));
    let mut guardian = lab.undying(words).spawn().unwrap();
    until("checkpoints", || (lab.json(&["ls", "job"]).as_array()?.len() >= 3).then_some(()));
    std::thread::sleep(std::time::Duration::from_millis(500));
    let status = lab.json(&["status", "job"]);
    let one = &status[0];
    let contract = [
        "name",
        "pid",
        "state",
        "policy",
        "incarnation",
        "restarts",
        "last_death",
        "checkpoints",
        "requested_hz",
        "achieved_hz",
        "pause_us",
        "checkpoint_age_us",
        "store_bytes",
        "death_now",
        "late",
        "restored_age_us",
    ];
    assert_has(one, &contract);
    assert_has(&one["death_now"], &["brings", "seq", "taken", "why"]);
    assert_has(&one["pause_us"], &["p50", "p99", "max"]);
    assert_eq!(
        (&one["name"], &one["state"], &one["policy"]),
        (&"job".into(), &"running".into(), &"on-failure".into())
    );
    assert_eq!(one["unprotected_because"], Value::Null, "{one}");
    assert_eq!(one["requested_hz"], 50.0);
    assert!(one["achieved_hz"].as_f64().unwrap() > 0.0);
    assert_eq!(one["pid"], lab.guarded_counter().unwrap().pid().get());
    assert_list_agrees(&lab, one);

    lab.guarded_counter().unwrap().process.signal(Signal::TERM).unwrap();
    assert_eq!(crate::common::wait(&mut guardian).code(), Some(143));
    let rows = listed(&lab);
    let newest = rows.last().unwrap();
    let shown = lab.json(&["show", "job"]);
    assert_eq!(shown["seq"], newest["seq"]);
    assert_eq!(shown["subject"], "job");
    assert_has(&shown, &["path", "pids", "kernel", "tool_version", "records", "pause_us", "pages", "bytes"]);
    let oldest = format!("job@{}", rows[0]["seq"]);
    assert_eq!(lab.json(&["show", &oldest])["seq"], rows[0]["seq"]);
    assert!(lab.say(["show", "job"]).stdout.contains("subject  job@"));
    let verified = lab.say(["verify", "job"]);
    assert_eq!(verified.code, Some(0));
    assert!(verified.stdout.contains("is whole"), "{verified:?}");
    assert!(lab.say(["ls"]).stdout.contains("job"));
    assert!(lab.say(["ls", "job"]).stdout.contains("delta"));
    assert!(lab.say(["status"]).stdout.contains("ended"));
    assert_eq!(lab.say(["prune", "job", "--keep", "1"]).code, Some(0));
    let left = lab.json(&["ls", "job"]);
    assert_eq!(left.as_array().unwrap().len(), 1);
    assert_occupies(&lab, left[0]["bytes"].as_u64().unwrap());
    assert_eq!(lab.say(["prune", "job", "--keep", "0"]).code, Some(0));
    assert_eq!(lab.json(&["status", "job"])[0]["checkpoint_age_us"], Value::Null);
}

/// Returns the committed checkpoints of the subject. Asserts that each row has the documented keys.
fn listed(lab: &Lab) -> Vec<Value> {
    let rows = lab.json(&["ls", "job"]).as_array().unwrap().clone();
    // Besides the newest checkpoints of `--keep 4`, the two newest to which files can be rolled back are kept.
    assert!(rows.len() <= 4 + 2, "{} are kept", rows.len());
    for row in &rows {
        let contract = [
            "seq",
            "kind",
            "time",
            "pause_us",
            "stop_us",
            "scan_us",
            "copy_us",
            "pages",
            "bytes",
            "committed",
        ];
        assert_has(row, &contract);
        assert_eq!(row["committed"], true);
        assert!(["full", "delta"].contains(&row["kind"].as_str().unwrap()), "{row}");
        let time = row["time"].as_str().unwrap();
        assert!(time.len() == 27 && time.ends_with('Z'), "{time}");
    }
    rows
}

/// Asserts that the list of all subjects contains the same subject. Values that change over time are taken from the
/// list.
fn assert_list_agrees(lab: &Lab, one: &Value) {
    let mut expected = one.clone();
    let now = lab.json(&["status"]);
    for key in [
        "achieved_hz",
        "checkpoint_age_us",
        "death_now",
        "checkpoints",
        "costs",
        "held_back",
        "in_flight",
        "inexact_checkpoints",
        "pause_us",
        "store_bytes",
        "stored",
    ] {
        expected[key] = now[0][key].clone();
    }
    for key in ["apart_us", "cost", "exact", "undo_bytes"] {
        expected["files"][key] = now[0]["files"][key].clone();
    }
    assert_eq!(now[0], expected);
}

#[test]
fn a_restore_that_stays_ends_with_the_status_of_the_program() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let counter = lab.counter(&["fail", "3000"]);
    let image = lab.path("image");
    let image = image.to_str().unwrap();
    let pid = counter.pid().to_string();
    assert_eq!(lab.say(["checkpoint", &pid, "--image", image, "--kill"]).code, Some(0));
    crate::common::reap(counter.pid());
    assert_eq!(lab.say(["restore", image]).code, Some(3));
    let pidfile = lab.path("pid");
    let mut parent = lab.undying(["restore", image, "--pidfile", pidfile.to_str().unwrap()]).spawn().unwrap();
    until("the pid file", || std::fs::read_to_string(&pidfile).ok().filter(|text| text.trim() == pid));
    let process = testkit::ProcessId::of(model::Pid(parent.id() as i32)).unwrap();
    process.signal(Signal::TERM).unwrap();
    assert_eq!(crate::common::wait(&mut parent).code(), Some(143));
    assert!(lab.guard.marked().is_empty());
}

#[test]
fn a_store_is_tidied_by_name_and_what_is_being_written_is_left_alone() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut words: Vec<String> =
        ["run", "--name", "job", "--every", "20ms", "--keep", "4", "--"].map(String::from).into();
    words.extend(lab.counter_words(&[]));
    let mut guardian = lab.undying(words).spawn().unwrap();
    until("checkpoints", || (lab.json(&["ls", "job"]).as_array()?.len() >= 3).then_some(()));
    let has_log = lab.store().join("job/log").exists();
    // While the subject runs, its checkpoints can be copied, but not merged.
    assert_eq!(lab.say(["store", "job", "before"]).code, Some(0));
    if has_log {
        let said = lab.say(["squash", "job"]);
        assert_eq!(said.code, Some(3), "{said:?}");
        assert!(said.stderr.contains("is being written by another undying process"), "{said:?}");
        assert_eq!(lab.json(&["gc"])["busy"], serde_json::json!(["job"]));
    }
    let said = lab.say(["del", "job"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stderr.contains("is a subject, not a copy"), "{said:?}");
    lab.guarded_counter().unwrap().process.signal(Signal::TERM).unwrap();
    crate::common::wait(&mut guardian);

    let rows = lab.json(&["ls"]);
    let copy_of = |name: &str| {
        let row = rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        row["copy_of"].clone()
    };
    assert_eq!((copy_of("before"), copy_of("job")), ("job".into(), Value::Null));
    let squashed = lab.json(&["squash", "job"]);
    assert_eq!(squashed["seq"].is_null(), !has_log, "{squashed}");
    assert_eq!(lab.say(["verify", "job"]).code, Some(0));
    let stray = lab.store().join("job/.9.1-1.partial");
    std::fs::create_dir(&stray).unwrap();
    std::fs::set_permissions(&stray, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let rehearsed = lab.json(&["gc", "--dry-run"]);
    assert_eq!((rehearsed["found"].as_array().unwrap().len(), stray.exists()), (1, true), "{rehearsed}");
    assert_eq!(lab.say(["gc"]).code, Some(0));
    assert!(!stray.exists());

    assert_eq!(lab.say(["link", "before", "again"]).code, Some(0));
    assert_eq!(lab.say(["link", "job", "third"]).code, Some(3), "not a copy");
    assert_eq!(lab.say(["store", "job", "again"]).code, Some(3), "the name is taken");
    let taken = lab.path("taken");
    assert_eq!(lab.say(["get", "again", taken.to_str().unwrap()]).code, Some(0));
    assert_eq!(lab.say(["del", "before"]).code, Some(0));
    assert_eq!(lab.say(["del", "before"]).code, Some(5), "there is none any more");
    for image in ["again", taken.to_str().unwrap()] {
        assert_eq!(lab.say(["verify", image]).code, Some(0), "{image}");
    }
}

/// A program that opens 16,000 eventfds, or the number that the hard limit allows. All eventfds have the same inode.
const EVENTFDS: &str = r#"
import os, resource, time
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
count = min(16000, hard - 200)
if count < 10000:
    print("unsupported", flush=True)
else:
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kept = [os.eventfd(1) for _ in range(count)]
    print("ready", flush=True)
time.sleep(600)
"#;
/// Time limit of `preflight`. A comparison of all pairs of descriptors takes two minutes; sorting takes a fraction of a
/// minute.
const PREFLIGHT_MAX: Duration = Duration::from_secs(40);

#[test]
fn preflight_compares_many_descriptors_in_less_than_quadratic_time() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut program = lab.detached(Command::new("python3").args(["-c", EVENTFDS])).spawn().unwrap();
    let said = until("the descriptors", || {
        std::fs::read_to_string(lab.path("stdout")).ok().filter(|said| said.ends_with('\n'))
    });
    if said == "unsupported\n" {
        println!("unsupported: RLIMIT_NOFILE: 10000 descriptors");
    } else {
        let began = Instant::now();
        let report = lab.json(&["preflight", &program.id().to_string()]);
        assert_eq!(report["ok"], true, "{report}");
        assert!(began.elapsed() < PREFLIGHT_MAX, "{:?}", began.elapsed());
        let mut limited = Command::new("prlimit");
        limited.arg("--nofile=1000").arg(env!("CARGO_BIN_EXE_undying"));
        limited.args(["preflight", &program.id().to_string()]);
        let output = lab.detached(&mut limited).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains("Too many open files") && said.contains("ulimit -Hn"), "{said}");
    }
    program.kill().unwrap();
    program.wait().unwrap();
}

/// A program that uses the highest number that the limit on descriptors allows, as bash and valgrind do.
const HIGHEST: &str = r#"
import os, time
os.dup2(os.open("data", os.O_RDWR | os.O_CREAT), 299)
print("ready", flush=True)
while os.pread(299, 4, 0) != b"stop":
    time.sleep(0.01)
print("stopped", flush=True)
"#;

#[test]
fn a_program_that_uses_the_highest_descriptor_is_restored() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let limited = |words: &[&str]| {
        let mut command = Command::new("prlimit");
        command.arg("--nofile=300:300").args(words);
        command
    };
    let mut command = limited(&["setsid", "python3", "-c", HIGHEST]);
    let mut program = lab.detached(&mut command).current_dir(lab.path("")).spawn().unwrap();
    until("the program", || {
        std::fs::read_to_string(lab.path("stdout")).ok().filter(|said| said.ends_with("ready\n"))
    });
    let (own, image, pid) = (env!("CARGO_BIN_EXE_undying"), lab.path("image"), program.id().to_string());
    let image = image.to_str().unwrap();
    let call = |words: &[&str]| {
        let output = lab.guard.mark(&mut limited(words)).output().unwrap();
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    };
    call(&[own, "checkpoint", &pid, "--kill", "--image", image]);
    program.wait().unwrap();
    call(&[own, "restore", "--detach", image]);
    std::fs::write(lab.path("data"), "stop").unwrap();
    until("the end of the restored program", || {
        std::fs::read_to_string(lab.path("stdout")).ok().filter(|said| said.ends_with("stopped\n"))
    });
}

#[test]
fn checkpoints_of_a_running_subject_can_be_removed() {
    if !supported() {
        return;
    }
    for files in ["keep", "rewind"] {
        let lab = Lab::new();
        let script = "until [ -e stop ]; do sleep 0.02; done";
        let options = ["--files", files, "--every", "200ms", "--keep", "100"];
        let guarded = crate::common::Guarded::run(&lab, &options, script);
        let listed = || lab.json(&["ls", "job"]).as_array().map_or(0, Vec::len);
        until("checkpoints", || (listed() >= 8).then_some(()));
        let before = listed();
        let said = lab.say(["prune", "job", "--keep", "2"]);
        assert_eq!(said.code, Some(0), "{said:?}");
        let removed = said.stdout.lines().filter(|line| line.starts_with("removed job@")).count();
        assert!(removed >= before - 3, "{before}: {said:?}");
        assert!(listed() < before, "{before}: {said:?}");
        let incarnation = guarded.incarnation();
        guarded.kill();
        guarded.await_incarnation(incarnation + 1);
        assert!(guarded.said().contains("is back at checkpoint"), "{}", guarded.said());
        assert_eq!(guarded.end(), 0);
    }
}

#[test]
fn a_pause_beyond_its_limit_is_shown() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &["--every", "1h"], "exec sleep 600");
    let path = lab.store().join("job/status.json");
    guarded.status();
    let mut status: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for (longest, is_shown) in [(10_000, false), (10_001, true)] {
        status["pause_us"]["max"] = longest.into();
        std::fs::write(&path, status.to_string()).unwrap();
        let said = lab.say(["status", "job"]).stdout;
        assert_eq!(said.contains("10.0 ms, although pauses should take at most 5.0 ms"), is_shown, "{said}");
        let head = said.lines().next().unwrap();
        assert!(head.contains("PAUSE P99  PAUSE LIMIT") && !head.contains("MAX PAUSE"), "{said}");
    }
}
