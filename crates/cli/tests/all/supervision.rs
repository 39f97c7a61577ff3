//! Tests of `undying run` with repeated failures: the reports, the remaining processes, and the final attempt.

use std::process::Command;

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::{Guarded, Lab, supported, until, wait};

#[test]
fn nothing_of_a_dead_life_goes_on_while_a_restart_waits() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &[], "sleep 600 & echo $! >> children; kill -SEGV $$");
    until("a restart that waits", || (guarded.status()["state"] == "backing-off").then_some(()));
    let children = std::fs::read_to_string(lab.path("children")).unwrap();
    for child in children.lines() {
        // A killed process exists until its parent has waited for it.
        let pid = Pid(child.parse().unwrap());
        until("the end of the children of the dead life", || ProcessId::of(pid).is_err().then_some(()));
    }
    let mut guardian = guarded.guardian;
    ProcessId::of(Pid(guardian.id() as i32)).unwrap().signal(Signal::TERM).unwrap();
    wait(&mut guardian);
}

#[test]
fn an_end_that_takes_long_is_no_reason_against_checkpoints() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = "exec python3 -c 'import os, time; memory = b\"x\" * (1 << 30)\n\
                  while not os.path.exists(\"stop\"): time.sleep(0.01)\nos._exit(0)'";
    let guarded = Guarded::run(&lab, &[], script);
    guarded.await_checkpoints(6);
    assert_eq!(guarded.end(), 0);
    let events = lab.say(["events", "job", "--json"]).stdout;
    assert!(events.contains("\"checkpoint\"") && !events.contains("\"refused\""), "{events}");
}

#[test]
fn the_last_restart_is_one_from_the_beginning() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    // A restored program ends at once, like a program that has lost a connection.
    let script = "rm -f poison; echo begun; until [ -e poison ]; do [ -e stop ] && exit 0; sleep 0.02; done; kill -SEGV $$";
    let guarded = Guarded::run(&lab, &["--max-restarts", "4/1m"], script);
    guarded.await_checkpoints(6);
    std::fs::write(lab.path("poison"), "").unwrap();
    guarded.await_incarnation(5);
    let status = guarded.status();
    let reason = status["fresh"]["reason"].as_str().unwrap();
    assert!(reason.contains("--max-restarts"), "files did not prevent a restart: {status}");
    let deaths = lab.json(&["deaths", "job"]);
    assert_eq!(deaths[3]["followed_by"], "started", "{deaths}");
    assert!(deaths[3]["why"].as_str().unwrap().contains("--max-restarts"), "{deaths}");
    assert_eq!(guarded.end(), 0);
    assert_eq!(std::fs::read_to_string(lab.path("stdout")).unwrap(), "begun\nbegun\n");
}

#[test]
fn a_program_that_can_no_longer_be_checkpointed_is_told_as_unprotected() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = "until [ -e stop ]; do if [ -e go ]; then rm go; unshare --mount sleep 600 & fi; sleep 0.02; done; \
                  exit 0";
    let guarded = Guarded::run(&lab, &[], script);
    guarded.await_checkpoints(2);
    assert!(guarded.status()["unprotected_because"].is_null());
    std::fs::write(lab.path("go"), "").unwrap();
    let because = until("the state", || guarded.status()["unprotected_because"].as_str().map(str::to_owned));
    assert!(
        because.starts_with("no checkpoint could be taken since") && because.contains("namespace"),
        "{because}"
    );
    assert_eq!(guarded.status()["achieved_hz"], 0.0);
    for verb in ["status", "events"] {
        let said = lab.say([verb, "job"]);
        assert!(said.stdout.contains("namespace"), "{verb} names the reason: {said:?}");
        assert!(!said.stderr.contains("namespace"), "{verb} names it once: {said:?}");
    }
    // A refusal in one incarnation (run of the program) must not be reported in the next incarnation.
    guarded.kill();
    assert!(guarded.status()["refusals"].as_array().unwrap().is_empty());
    assert_eq!(guarded.end(), 0);
}

#[test]
fn a_new_life_begins_with_the_best_tracker_again() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    // The child cannot open a descriptor, so it cannot open a userfaultfd.
    let script = "mkfifo line; exec 9<>line; until [ -e stop ]; do \
                  if [ -e start ]; then rm start; (exec <&9; ulimit -n 0; read word); echo ended; fi; \
                  sleep 0.02; done";
    let guarded = Guarded::run(&lab, &["--max-restarts", "99/1m"], script);
    guarded.await_checkpoints(2);
    let best = guarded.status()["tracker"].as_str().unwrap().to_owned();
    for ended in 1.. {
        std::fs::write(lab.path("start"), "").unwrap();
        let begun = std::time::Instant::now();
        let is_other = || guarded.status()["tracker"] != *best;
        // A child that was tracked before it lowered its limit keeps the best tracker: another one follows.
        while best == "pagemap-scan" && !is_other() && begun.elapsed() < std::time::Duration::from_secs(3) {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let is_done = best != "pagemap-scan" || is_other();
        std::fs::write(lab.path("line"), "word\n").unwrap();
        until("the end of the child", || {
            let said = std::fs::read_to_string(lab.path("stdout")).unwrap();
            (said.matches("ended").count() == ended).then_some(())
        });
        if is_done {
            break;
        }
        assert!(ended < 10, "no child was seen with its limit");
    }
    guarded.await_checkpoints(2);
    guarded.kill();
    guarded.await_checkpoints(2);
    assert_eq!(guarded.status()["tracker"], *best);
    assert_eq!(guarded.end(), 0);
}

#[test]
fn checkpoints_that_all_fail_alike_end_in_a_fresh_start() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let input = lab.path("input");
    std::fs::write(&input, "text").unwrap();
    // The file is open for reading only, so no comparison of written files finds its removal. A child in a new mount
    // namespace prevents checkpoints after the removal.
    let script = format!(
        "[ -e {0} ] && exec 7<{0}; echo begun; until [ -e stop ]; do if [ -e go ]; then rm go; \
         unshare --mount sleep 600 & fi; sleep 0.02; done; exit 0",
        input.display()
    );
    let guarded = Guarded::run(&lab, &[], &script);
    guarded.await_checkpoints(3);
    std::fs::write(lab.path("go"), "").unwrap();
    until("a refusal", || {
        guarded.status()["refusals"].as_array().filter(|found| !found.is_empty()).map(|_| ())
    });
    std::fs::remove_file(&input).unwrap();
    let root = guarded.root();
    guarded.kill();
    assert_ne!(ProcessId::of(guarded.root().pid()).unwrap(), root);
    let status = guarded.status();
    assert_eq!(status["state"], "running");
    let reason = status["fresh"]["reason"].as_str().unwrap();
    assert!(reason.contains("cannot be restored from any of its") && reason.contains("input"), "{reason}");
    let deaths = lab.json(&["deaths", "job"]);
    assert_eq!(deaths[0]["followed_by"], "started", "{deaths}");
    assert!(deaths[0]["why"].as_str().unwrap().contains("input"), "{deaths}");
    let said = guarded.said();
    assert!(said.matches("cannot be restored").count() >= 3, "each one that was tried, and the end: {said}");
    assert_eq!(guarded.end(), 0);
    assert_eq!(std::fs::read_to_string(lab.path("stdout")).unwrap(), "begun\nbegun\n");
}

/// Waits until a file grows.
fn await_growth(file: &std::path::Path) {
    let length = || std::fs::metadata(file).map_or(0, |found| found.len());
    let before = length();
    until("growth", || (length() > before).then_some(()));
}

#[test]
fn a_daemon_of_the_program_is_named_and_lives_through_restarts_from_checkpoints() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let daemon = "until [ -e end-daemon ]; do echo >> daemon; sleep 0.02; done";
    let script = format!(
        "(setsid sh -c '{daemon}' & echo $! >> daemons); echo begun; until [ -e stop ]; do sleep 0.02; done"
    );
    let guarded = Guarded::run(&lab, &["--max-restarts", "99/1m"], &script);
    let daemon = until("the daemon", || {
        let pids = std::fs::read_to_string(lab.path("daemons")).ok()?;
        ProcessId::of(Pid(pids.trim().parse().ok()?)).ok()
    });
    let named = format!("pid {} (sh) has left the program's tree and is in no checkpoint", daemon.pid());
    until("the report", || guarded.said().contains(&named).then_some(()));
    // After the second listing of processes, checkpoints are taken again, without the daemon.
    std::thread::sleep(std::time::Duration::from_millis(300));
    guarded.await_checkpoints(2);
    for _ in 0..2 {
        guarded.kill();
        assert_eq!(ProcessId::of(daemon.pid()).unwrap(), daemon);
        await_growth(&lab.path("daemon"));
        guarded.await_checkpoints(2);
    }
    let events = lab.say(["events", "job"]).stdout;
    assert!(events.contains("has left the program's tree"), "{events}");
    assert_eq!(guarded.end(), 0);
    assert_eq!(std::fs::read_to_string(lab.path("stdout")).unwrap(), "begun\n");
    assert_eq!(std::fs::read_to_string(lab.path("daemons")).unwrap().lines().count(), 1);
    std::fs::write(lab.path("end-daemon"), "").unwrap();
}

#[test]
fn a_program_that_goes_into_the_background_is_reported_as_not_guarded() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut command = lab.undying(["run", "--", "sh", "-c", "setsid sleep 600 & echo $! > daemon"]);
    assert_eq!(command.status().unwrap().code(), Some(0));
    let daemon: i32 = std::fs::read_to_string(lab.path("daemon")).unwrap().trim().parse().unwrap();
    let told = lab.told();
    assert!(
        told.contains(&format!("pid {daemon} (")) && told.contains("goes on and is not guarded"),
        "{told}"
    );
    ProcessId::of(Pid(daemon)).unwrap().signal(Signal::KILL).unwrap();
}

#[test]
fn a_process_that_outlives_its_program_is_shown_and_named() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = "sleep 600 & echo $! > worker.new; mv worker.new worker; while :; do sleep 0.1; done";
    let mut guardian =
        lab.undying(["run", "--name", "job", "--every", "100ms", "--", "sh", "-c", script]).spawn().unwrap();
    let worker = until("the worker", || std::fs::read_to_string(lab.path("worker")).ok());
    until("checkpoints", || (lab.json(&["status", "job"])[0]["checkpoints"].as_u64()? >= 2).then_some(()));
    assert!(!lab.say(["status", "job"]).stdout.contains("not guarded"));
    ProcessId::of(Pid(guardian.id() as i32)).unwrap().signal(Signal::TERM).unwrap();
    assert_eq!(wait(&mut guardian).code(), Some(143));
    let worker = ProcessId::of(Pid(worker.trim().parse().unwrap())).unwrap();
    let status = lab.say(["status", "job"]).stdout;
    assert!(
        status.contains(&format!("job: pid {} (sleep)", worker.pid())) && status.contains("not guarded"),
        "{status}"
    );
    let left = lab.json(&["status", "job"])[0]["left"].clone();
    assert!(left.as_array().unwrap().iter().any(|left| left["pid"] == worker.pid().get()), "{left}");
    for files in ["rewind", "refuse", "keep"] {
        let said = lab.say(["restore", "job", "--detach", "--files", files]);
        assert_eq!(said.code, Some(3), "{said:?}");
        let wanted =
            [&format!("pid {} (sleep) of job still runs", worker.pid()), &format!("kill {}", worker.pid())];
        assert!(wanted.iter().all(|words| said.stderr.contains(*words)), "{said:?}");
    }
    worker.signal(Signal::KILL).unwrap();
    // The killed shell and its worker are children of the test.
    until("the end of the worker", || {
        crate::common::reap(worker.pid());
        ProcessId::of(worker.pid()).is_err().then_some(())
    });
    assert!(!lab.say(["status", "job"]).stdout.contains("not guarded"));
    let said = lab.say(["restore", "job", "--detach", "--files", "keep"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    // The restored program has no guardian.
    let status = lab.say(["status", "job"]).stdout;
    assert!(status.contains("still run and are not guarded"), "{status}");
}

#[test]
fn a_living_program_without_its_guardian_is_named_by_a_restore() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut guardian =
        lab.undying(["run", "--name", "job", "--every", "100ms", "--", "sleep", "600"]).spawn().unwrap();
    let status = until("checkpoints", || {
        let status = lab.json(&["status", "job"])[0].clone();
        (status["checkpoints"].as_u64()? >= 2).then_some(status)
    });
    ProcessId::of(Pid(guardian.id() as i32)).unwrap().signal(Signal::KILL).unwrap();
    wait(&mut guardian);
    let said = lab.say(["restore", "job", "--detach"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stderr.contains(&format!("pid {} (sleep) of job still runs", status["pid"])), "{said:?}");
    let way = lab.say(["status", "job"]).stdout;
    let adopt = format!("undying run --store {} --name job --every 100ms --adopt", lab.store().display());
    assert!(way.contains(&format!("`{adopt} {}`", status["pid"])), "{way}");
}

/// Starts `undying run` with these words, waits for two checkpoints of the subject, and kills the guardian. Returns the
/// root.
fn bereaved(lab: &Lab, name: &str, words: &[&str]) -> ProcessId {
    let mut guardian = lab.undying(words).spawn().unwrap();
    let status = until("checkpoints", || {
        let status = lab.json(&["status", name])[0].clone();
        (status["checkpoints"].as_u64()? >= 2).then_some(status)
    });
    ProcessId::of(Pid(guardian.id() as i32)).unwrap().signal(Signal::KILL).unwrap();
    wait(&mut guardian);
    ProcessId::of(Pid(status["pid"].as_i64().unwrap() as i32)).unwrap()
}

#[test]
fn the_same_command_guards_a_program_again_whose_guardian_was_killed() {
    if !supported() {
        return;
    }
    for is_named in [true, false] {
        let lab = Lab::new();
        let words = ["run", "--every", "100ms", "--name", "sleep", "--", "sleep", "600"];
        let unnamed = ["run", "--every", "100ms", "--", "sleep", "600"];
        let words = if is_named { &words[..] } else { &unnamed[..] };
        let root = bereaved(&lab, "sleep", words);
        let mut guardian = lab.undying(words).spawn().unwrap();
        let status = || lab.json(&["status", "sleep"])[0].clone();
        until("a guardian", || {
            (status()["guardian"] == guardian.id() && status()["checkpoints"].as_u64()? > 1).then_some(())
        });
        assert!(root.is_alive() && status()["pid"] == root.pid().get());
        let told = lab.told();
        assert!(
            told.contains("not executed a second time") && !told.contains("it is not restarted"),
            "{told}"
        );
        root.signal(Signal::KILL).unwrap();
        until("a restart", || {
            // The program is a child of the test, since its first guardian has died.
            crate::common::reap(root.pid());
            (status()["incarnation"] == 2 && status()["state"] == "running").then_some(())
        });
        ProcessId::of(Pid(guardian.id() as i32)).unwrap().signal(Signal::TERM).unwrap();
        wait(&mut guardian);
        assert_eq!(status()["state"], "ended");
    }
}

#[test]
fn another_command_is_not_started_under_the_name_of_a_living_program() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let root = bereaved(&lab, "sleep", &["run", "--every", "100ms", "--", "sleep", "600"]);
    let said = lab.say(["run", "--name", "sleep", "--", "sleep", "0.1"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stderr.contains(&format!("sleep still runs as pid {}", root.pid())), "{said:?}");
    assert!(said.stderr.contains(&format!("--adopt {}`", root.pid())), "{said:?}");
    // Another process cannot take the name, either.
    let mut other = lab.detached(Command::new("setsid").args(["sleep", "600"])).spawn().unwrap();
    let said = lab.say(["run", "--name", "sleep", "--adopt", &other.id().to_string()]);
    assert_eq!(said.code, Some(3), "{said:?}");
    other.kill().unwrap();
    other.wait().unwrap();
    // Without a chosen name, the program gets another one.
    assert_eq!(lab.say(["run", "--", "sleep", "0.1"]).code, Some(0));
    let status = lab.json(&["status"]);
    let named = |name: &str| {
        status.as_array().unwrap().iter().find(|subject| subject["name"] == name).unwrap().clone()
    };
    assert_eq!(
        (&named("sleep")["state"], &named("sleep-2")["state"]),
        (&"unprotected".into(), &"ended".into())
    );
    root.signal(Signal::KILL).unwrap();
}

#[test]
fn an_adopted_program_is_not_said_to_be_started_again() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut program = lab.detached(Command::new("setsid").args(["sleep", "600"])).spawn().unwrap();
    let pid = program.id().to_string();
    let guardian = lab.undying(["run", "--name", "job", "--every", "1h", "--adopt", &pid]).spawn().unwrap();
    let status = until("a status", || lab.json(&["status", "job"]).get(0).cloned());
    assert_eq!(status["death_now"]["brings"], "end", "{status}");
    // The message follows the status.
    let words = "it is not restarted, because its command is not known";
    let told = until("the message", || Some(lab.told()).filter(|told| told.contains(words)));
    assert!(!told.contains("from its beginning"), "{told}");
    program.kill().unwrap();
    program.wait().unwrap();
    drop(guardian);
}

#[test]
fn no_process_of_a_dead_tree_acts_on_the_end_of_another() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    // Readers of pipes write a line when their writers end. The writers are older processes than the readers.
    let script = "for number in 1 2 3 4 5 6 7 8; do (sleep 600 | (read line; echo ended >> ended)) & done; \
                  until [ -e stop ]; do sleep 0.02; done; exec kill -KILL 0";
    let mut command = lab.undying(["run", "--name", "job", "--every", "50ms", "--max-restarts", "99/1m"]);
    command.args(["--", "setsid", "sh", "-c", script]);
    let guarded = Guarded { lab: &lab, guardian: command.spawn().unwrap() };
    for _ in 0..5 {
        guarded.await_checkpoints(2);
        guarded.kill();
    }
    assert!(!lab.path("ended").exists(), "a reader saw the end of its writer");
    let mut guardian = guarded.guardian;
    ProcessId::of(Pid(guardian.id() as i32)).unwrap().signal(Signal::TERM).unwrap();
    wait(&mut guardian);
}

#[test]
fn the_children_of_a_killed_root_have_not_left_its_tree() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = "for number in 1 2 3 4 5 6 7 8; do sleep 600 & done; until [ -e stop ]; do sleep 0.02; done";
    let guarded = Guarded::run(&lab, &["--every", "10ms", "--max-restarts", "999/1m"], script);
    for _ in 0..testkit::rounds(8, 200) {
        guarded.await_checkpoints(1);
        guarded.kill();
    }
    let events = lab.say(["events", "job"]).stdout;
    assert!(!events.contains("has left the program's tree"), "{events}");
    let mut guardian = guarded.guardian;
    ProcessId::of(Pid(guardian.id() as i32)).unwrap().signal(Signal::TERM).unwrap();
    wait(&mut guardian);
}

/// A stopped process receives no SIGTERM before it is continued.
#[test]
fn a_stopped_program_ends_when_it_is_asked_to() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &[], "exec sleep 600");
    guarded.await_checkpoints(1);
    let root = guarded.root();
    root.signal(Signal::STOP).unwrap();
    guarded.await_checkpoints(2);
    let mut guardian = guarded.guardian;
    ProcessId::of(Pid(guardian.id() as i32)).unwrap().signal(Signal::TERM).unwrap();
    assert_eq!(wait(&mut guardian).code(), Some(143));
    // The checkpoints contain the stopped program.
    let pidfile = lab.path("pid");
    let words = ["restore", "job", "--files", "keep", "--pidfile", pidfile.to_str().unwrap()];
    let mut parent = lab.undying(words).spawn().unwrap();
    until("the restored program", || pidfile.exists().then_some(()));
    let restored = ProcessId::of(root.pid()).unwrap();
    until("the stop", || restored.is_stopped().then_some(()));
    ProcessId::of(Pid(parent.id() as i32)).unwrap().signal(Signal::TERM).unwrap();
    assert_eq!(wait(&mut parent).code(), Some(143));
}

#[test]
fn the_status_says_that_a_program_that_was_asked_to_end_is_not_restarted() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut guarded = Guarded::run(&lab, &["--every", "100ms"], "trap '' TERM; while :; do sleep 0.1; done");
    guarded.await_checkpoints(2);
    assert_eq!(guarded.status()["death_now"]["brings"], "restore");
    guarded.signal(Signal::TERM);
    let status = until("the end in the status", || {
        let status = guarded.status();
        (status["death_now"]["brings"] == "end").then_some(status)
    });
    assert_eq!(status["death_now"]["why"], "the program was asked to end");
    guarded.await_checkpoints(2);
    assert_eq!(guarded.status()["death_now"]["brings"], "end");
    ProcessId::of(Pid(status["pid"].as_i64().unwrap() as i32)).unwrap().signal(Signal::KILL).unwrap();
    assert_eq!(wait(&mut guarded.guardian).code(), Some(137));
}
