//! Tests of `undying run` and `undying restore`: memory is never restored together with files that have changed since.

use std::time::Duration;

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::{Guarded, Lab, supported, until, wait};

/// Returns a script that counts until a file `stop` appears, and then writes `end`.
fn counting(write: &str) -> String {
    format!("n=0; until [ -e stop ]; do n=$((n + 1)); {write}; sleep 0.02; done; n=end; {write}")
}

/// Asserts that the lines of a text are 1, 2, 3 … and `end`, each exactly once.
fn assert_counted(text: &str) {
    let lines: Vec<&str> = text.lines().collect();
    let (last, counted) = lines.split_last().unwrap();
    assert_eq!(*last, "end", "{text}");
    for (line, number) in counted.iter().zip(1..) {
        assert_eq!(*line, format!("{number}"), "{text}");
    }
}

#[test]
fn a_log_that_only_grew_is_cut_back_and_the_end_is_kept() {
    if !supported() {
        return;
    }
    for open in [">>", ">"] {
        let lab = Lab::new();
        let log = lab.path("log");
        let script = format!("exec 7{open}{}; {}", log.display(), counting("echo $n >&7"));
        let guarded = Guarded::run(&lab, &["--files", "trim", "--max-restarts", "99/1m"], &script);
        let aside = lab.store().join("job/aside");
        // It is possible that nothing was written between the checkpoint and the death, so the kill is repeated.
        while !aside.exists() {
            guarded.await_checkpoints(2);
            guarded.kill();
        }
        assert_eq!(guarded.end(), 0);
        assert_counted(&std::fs::read_to_string(&log).unwrap());
        for part in std::fs::read_dir(aside).unwrap() {
            let bytes = std::fs::read_to_string(part.unwrap().path().join("bytes")).unwrap();
            assert!(bytes.lines().all(|line| line.parse::<u32>().is_ok()), "{bytes:?}");
            assert!(bytes.ends_with('\n'), "{bytes:?}");
        }
    }
}

/// A program with a log of its files, like RocksDB. When `merge` appears, `data.1` becomes `data.2`, and the program
/// dies.
const MERGING: &str = r#"
echo begun
mkdir -p db
[ -e db/data.2 ] || echo 1 > db/data.1
exec 7>>db/log
echo started >&7
until [ -e merge ]; do sleep 0.02; done
if [ -e db/data.1 ]; then
    echo 1 > db/data.2
    rm db/data.1
    echo merged >&7
    kill -9 $$
fi
until [ -e stop ]; do sleep 0.02; done
"#;

#[test]
fn a_log_is_not_cut_back_once_a_file_beside_it_was_removed() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    // The interval is long, so that no checkpoint is taken between the merge and the death.
    let mut command =
        lab.undying(["run", "--name", "job", "--every", "2s", "--files", "trim", "--", "sh", "-c", MERGING]);
    // Where changes are noticed, opening a file for the merge prevents the restore before files are compared.
    command.env("UNDYING_FEATURES_OFF", "file-notify");
    let guarded = Guarded { lab: &lab, guardian: command.spawn().unwrap() };
    guarded.await_checkpoints(2);
    let unnoticed = guarded.status()["files"]["unnoticed"].as_str().unwrap_or_default().to_owned();
    assert!(unnoticed.contains("file-notify"), "{unnoticed}");
    let said = lab.say(["status", "job"]).stdout;
    assert!(said.contains("compares only files that were open at the checkpoint"), "{said}");
    std::fs::write(lab.path("merge"), "").unwrap();
    guarded.await_incarnation(2);
    let reason = guarded.status()["fresh"]["reason"].as_str().unwrap_or_default().to_owned();
    let why = "db/log was appended to, and files beside it were removed after the checkpoint";
    assert!(reason.contains(why), "{reason}");
    assert!(guarded.said().contains(why), "{}", guarded.said());
    assert_eq!(guarded.end(), 0);
    let log = std::fs::read_to_string(lab.path("db/log")).unwrap();
    assert_eq!(log, "started\nmerged\nstarted\n");
    let said = std::fs::read_to_string(lab.path("stdout")).unwrap();
    assert_eq!(said.matches("begun").count(), 2);
    assert!(!lab.store().join("job/aside").exists());
}

/// A program that counts in a log file. The program has no children, which could keep its process group number in use.
/// A restore needs this number.
const COUNTING: &str = r#"
exec 7>>db/log
n=0
until [ -e stop ]; do
    n=$((n + 1))
    echo $n >&7
    i=0
    until [ $i = 5000 ]; do i=$((i + 1)); done
done
echo end >&7
"#;

#[test]
fn an_image_beside_a_log_is_no_removed_file() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let (folder, pidfile) = (lab.path("db"), lab.path("pid"));
    std::fs::create_dir(&folder).unwrap();
    let (log, data, image) = (folder.join("log"), folder.join("data"), folder.join("image"));
    std::fs::write(&data, "").unwrap();
    let mut command = std::process::Command::new("setsid");
    let mut child = lab.detached(command.args(["sh", "-c", COUNTING])).spawn().unwrap();
    let lines = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    until("the log", || (lines() > 0).then_some(()));
    let pid = child.id();
    let image = image.to_str().unwrap();
    // While this image is written, it has a hidden name in the same directory.
    let said = lab.say(["checkpoint", &pid.to_string(), "--image", image]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let written = lines();
    until("more of the log", || (lines() > written).then_some(()));
    ProcessId::of(Pid(pid as i32)).unwrap().signal(Signal::KILL).unwrap();
    wait(&mut child);
    let grown = std::fs::read(&log).unwrap();
    std::fs::remove_file(&data).unwrap();
    let restore = ["restore", image, "--detach", "--pidfile", pidfile.to_str().unwrap()];
    let said = lab.say(restore);
    assert_eq!(said.code, Some(3), "{said:?}");
    let why = "log was appended to, and files beside it were removed after the checkpoint";
    assert!(said.stderr.contains(why), "{said:?}");
    assert_eq!(std::fs::read(&log).unwrap(), grown);
    std::fs::write(&data, "").unwrap();
    let said = lab.say(restore);
    assert_eq!(said.code, Some(0), "{said:?}");
    let pid: i32 = std::fs::read_to_string(&pidfile).unwrap().trim().parse().unwrap();
    let root = ProcessId::of(Pid(pid)).unwrap();
    std::fs::write(lab.path("stop"), "").unwrap();
    until("the end", || (!root.is_alive()).then_some(()));
    assert_counted(&std::fs::read_to_string(&log).unwrap());
}

#[test]
fn a_file_changed_in_place_makes_the_restart_a_fresh_one_that_says_why() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let data = lab.path("data");
    std::fs::write(&data, "0".repeat(100)).unwrap();
    // `<>` opens the file for reading and writing, so the descriptor may write anywhere in the file.
    let script = format!("exec 7<>{}; echo begun; {}", data.display(), counting("echo $n >&7"));
    let guarded = Guarded::run(&lab, &["--files", "fresh", "--max-restarts", "99/1m"], &script);
    guarded.await_checkpoints(2);
    let status = guarded.status();
    assert_eq!(status["files"]["policy"], "fresh");
    assert_eq!(status["files"]["in_place"][0], data.display().to_string());
    // If the program dies immediately after a checkpoint, the file is unchanged, so the kill is repeated.
    while guarded.status()["fresh"].is_null() {
        guarded.await_checkpoints(1);
        guarded.kill();
    }
    let status = guarded.status();
    let reason = status["fresh"]["reason"].as_str().unwrap();
    assert!(reason.contains("data") && reason.contains("after the checkpoint"), "{reason}");
    let deaths = lab.json(&["deaths", "job"]);
    let last = deaths.as_array().unwrap().last().unwrap();
    assert_eq!(last["followed_by"], "started");
    assert!(last["why"].as_str().unwrap().contains("data"), "{deaths}");
    let events = lab.say(["events", "job"]).stdout;
    assert!(events.contains("started from the beginning") && events.contains("data"), "{events}");
    let said = guarded.said();
    assert!(said.contains("no checkpoint is restored after which one of these files has changed"), "{said}");
    assert!(said.contains("started from the beginning as pid"), "{said}");
    let names_files = || lab.say(["status", "job"]).stdout.contains("if the program dies");
    assert!(names_files());
    assert_eq!(guarded.end(), 0);
    assert!(!names_files(), "what has ended does not die");
    let said = std::fs::read_to_string(lab.path("stdout")).unwrap();
    assert_eq!(said.matches("begun").count(), 2);
}

/// A program that maps a file of 2 MiB as shared and writable memory, and runs until a file `stop` appears.
const MAPPING: &str = r#"
import mmap, os, time
print("begun", flush=True)
with open("mapped", "wb") as made:
    made.truncate(2 << 20)
with open("mapped", "r+b") as opened:
    memory = mmap.mmap(opened.fileno(), 0)
while not os.path.exists("stop"):
    memory[0] = (memory[0] + 1) % 256
    time.sleep(0.02)
"#;

#[test]
fn a_large_file_that_is_mapped_leaves_the_program_unprotected_and_that_is_said() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    std::fs::write(lab.path("mapping.py"), MAPPING).unwrap();
    let guarded = Guarded::run(&lab, &["--files", "fresh"], "exec python3 mapping.py");
    let because = until("the state", || {
        let because = guarded.status()["unprotected_because"].as_str().map(str::to_owned);
        because.filter(|because| because.contains("mapped"))
    });
    assert!(because.starts_with("no checkpoint can be restored"), "{because}");
    assert!(lab.say(["status", "job"]).stdout.contains("no checkpoint can be restored"));
    let said = guarded.said();
    assert!(
        said.contains("if the program dies, it starts from its beginning, because these files are mapped"),
        "{said}"
    );
    guarded.kill();
    let deaths = lab.json(&["deaths", "job"]);
    assert_eq!(deaths[0]["followed_by"], "started", "{deaths}");
    assert!(deaths[0]["why"].as_str().unwrap().contains("mapped"), "{deaths}");
    assert_eq!(guarded.end(), 0);
    assert_eq!(std::fs::read_to_string(lab.path("stdout")).unwrap(), "begun\nbegun\n");
}

#[test]
fn the_policy_decides_over_changed_files() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let data = lab.path("data");
    std::fs::write(&data, "0".repeat(100)).unwrap();
    let script = format!("exec 7<>{}; echo begun; {}", data.display(), counting("echo $n >&7"));
    let guarded = Guarded::run(&lab, &["--files", "keep"], &script);
    guarded.await_checkpoints(2);
    guarded.kill();
    assert_eq!(guarded.status()["fresh"], serde_json::Value::Null);
    assert_eq!(guarded.end(), 0);
    std::fs::remove_file(lab.path("stop")).unwrap();
    let said = std::fs::read_to_string(lab.path("stdout")).unwrap();
    assert_eq!(said.matches("begun").count(), 1, "it was restored");
    let mut guarded = Guarded::run(&lab, &["--files", "refuse", "--max-restarts", "99/1m"], &script);
    guarded.await_checkpoints(2);
    while guarded.guardian.try_wait().unwrap().is_none() {
        let pid = Pid(guarded.status()["pid"].as_i64().unwrap() as i32);
        // The process may already have ended.
        let _ = ProcessId::of(pid).map(|root| root.signal(Signal::KILL));
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(wait(&mut guarded.guardian).code(), Some(3));
}

#[test]
fn an_image_is_not_restored_over_files_that_have_moved_on() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let (data, log, image) = (lab.path("data"), lab.path("log"), lab.path("image"));
    std::fs::write(&data, "0".repeat(100)).unwrap();
    let script = format!("exec 7<>{} 8>>{}; echo first >&8; exec sleep 600", data.display(), log.display());
    let mut child =
        lab.detached(std::process::Command::new("setsid").args(["sh", "-c", &script])).spawn().unwrap();
    until("the log", || std::fs::read_to_string(&log).ok().filter(|text| !text.is_empty()));
    let pid = child.id().to_string();
    let image = image.to_str().unwrap();
    let said = lab.say(["checkpoint", &pid, "--image", image, "--kill"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    wait(&mut child);
    let original = std::fs::metadata(&data).unwrap().modified().unwrap();
    std::fs::write(&data, "1".repeat(100)).unwrap();
    for why in ["was written to", "has other names or attributes"] {
        let said = lab.say(["restore", image, "--detach"]);
        assert_eq!(said.code, Some(3), "{said:?}");
        assert!(
            said.stderr.contains(&format!("data {why}")) && said.stderr.contains("--files keep"),
            "{said:?}"
        );
        // A program can set the modification time (mtime) to any value, but not the change time (ctime).
        std::fs::File::options().write(true).open(&data).unwrap().set_modified(original).unwrap();
    }
    let restore = ["restore", image, "--detach", "--files", "keep", "--pidfile"];
    let pidfile = lab.path("pid");
    let said = lab.say(restore.iter().copied().chain([pidfile.to_str().unwrap()]));
    assert_eq!(said.code, Some(0), "{said:?}");
    let pid: i32 = std::fs::read_to_string(&pidfile).unwrap().trim().parse().unwrap();
    ProcessId::of(model::Pid(pid)).unwrap().signal(Signal::KILL).unwrap();
}

#[test]
fn standard_streams_in_a_file_stay_where_files_do_not_go_back() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let path = lab.path("both");
    // A shell opens the file like this for `> FILE 2>&1`: one open file description, without O_APPEND.
    let file = std::fs::File::create(&path).unwrap();
    let script = counting("echo $n");
    let mut command = lab
        .undying(["run", "--name", "job", "--every", "50ms", "--files", "fresh", "--", "sh", "-c", &script]);
    command.stdout(file.try_clone().unwrap()).stderr(file);
    let guarded = Guarded { lab: &lab, guardian: command.spawn().unwrap() };
    guarded.await_checkpoints(2);
    guarded.kill();
    assert_eq!(guarded.end(), 0);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains('\0') && text.ends_with("end\n"), "{text}");
    assert!(text.contains("was killed by signal 9") && text.contains("is back at checkpoint"), "{text}");
    // Every line is present. Lines between the checkpoint and the death appear twice.
    let counted: Vec<u32> = text.lines().filter_map(|line| line.parse().ok()).collect();
    for number in 1..=counted.iter().copied().max().unwrap() {
        assert!(counted.contains(&number), "line {number} is missing: {text}");
    }
}

#[test]
fn a_root_that_execs_after_the_first_checkpoint_has_restorable_ones() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = "for n in 1 2 3 4 5 6 7 8; do sleep 0.05; done; echo replaced; exec sh -c 'until [ -e stop ]; do sleep 0.02; done'";
    let guarded = Guarded::run(&lab, &[], script);
    guarded.await_checkpoints(1);
    let out = lab.path("stdout");
    until("the exec", || std::fs::read_to_string(&out).ok().filter(|text| text.contains("replaced")));
    std::thread::sleep(Duration::from_millis(20));
    guarded.await_checkpoints(3);
    guarded.kill();
    let said = guarded.said();
    assert!(said.contains("is back at checkpoint") && !said.contains("cannot be restored"), "{said}");
    assert_eq!(guarded.end(), 0);
    assert_eq!(std::fs::read_to_string(&out).unwrap().matches("replaced").count(), 1);
}

#[test]
fn a_crash_loop_is_given_time() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let begun = std::time::Instant::now();
    let gate = lab.path("gate");
    // Simulates a program that needs a port or a file that becomes available later.
    let script = format!("test -e {} || kill -SEGV $$", gate.display());
    let guarded = Guarded::run(&lab, &[], &script);
    until("the back-off", || (guarded.status()["state"] == "backing-off").then_some(()));
    std::thread::sleep(Duration::from_millis(500));
    std::fs::write(&gate, "").unwrap();
    assert_eq!(guarded.end(), 0, "it was given the time: {:?}", begun.elapsed());
}
