//! Tests of `undying run`: what a restart decides. A restart discards no more than a bound that the user knows, and says
//! how much it was.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use rustix::process::{Resource, Rlimit, Signal};
use serde_json::Value;

use crate::common::{Guarded, Lab, supported, until, wait};

/// Creates a lab on a machine that can roll back files, and hold output if `holds_output`. Prints the reason otherwise.
pub(crate) fn lab(holds_output: bool) -> Option<Lab> {
    if !supported() {
        return None;
    }
    let lab = Lab::new();
    let options: &[&str] = if holds_output { &["--output", "committed"] } else { &[] };
    let words = ["run", "--name", "probe", "--every", "50ms", "--files", "rewind"].iter().chain(options);
    let said = lab.say(words.chain(&["--", "true"]).copied());
    if said.code != Some(0) {
        println!("unsupported: {}", said.stderr.lines().next().unwrap_or_default());
        return None;
    }
    Some(lab)
}

pub(crate) fn events(lab: &Lab, kind: &str) -> Vec<Value> {
    let said = lab.say(["events", "job", "--json"]).stdout;
    let events = said.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events.filter(|event| event["event"] == kind).collect()
}

/// A server that appends each line of a client to `data`, syncs the file if the line begins with `sync`, and then
/// replies.
const SERVER: &str = r#"exec python3 -c '
import os, socket
data = os.open("data", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
server = socket.create_server(("127.0.0.1", 0))
with open("port.new", "w") as made:
    made.write("%d" % server.getsockname()[1])
os.rename("port.new", "port")
guardian = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
guardian.bind(b"\0job-%d" % os.getpid())
guardian.sendto(b"checkpoint", b"\0" + os.environ["UNDYING_SOCKET"].lstrip("@").encode())
guardian.recv(100)
guardian.close()
while True:
    client = server.accept()[0].makefile("rwb", buffering=0)
    for line in client:
        os.write(data, line)
        if line.startswith(b"sync"):
            os.fsync(data)
        if not line.endswith(b"silent\n"):
            client.write(line)
'"#;

/// Starts `SERVER`, and waits for its only checkpoint.
fn serve<'a>(lab: &'a Lab, options: &[&str]) -> Guarded<'a> {
    let mut words = vec!["run", "--name", "job", "--every", "1m"];
    words.extend(options);
    words.extend(["--", "sh", "-c", SERVER]);
    let guarded = Guarded { lab, guardian: lab.undying(words).spawn().unwrap() };
    until("the checkpoint", || (guarded.status()["checkpoints"] == 1).then_some(()));
    guarded
}

/// Sends a line, and receives the reply.
fn exchange(lab: &Lab, line: &str) {
    let port: u16 = std::fs::read_to_string(lab.path("port")).unwrap().parse().unwrap();
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    writeln!(stream, "{line}").unwrap();
    if !line.ends_with("silent") {
        let mut reply = vec![0; line.len() + 1];
        stream.read_exact(&mut reply).unwrap();
    }
}

#[test]
fn data_that_was_synced_and_told_is_never_rolled_back() {
    let Some(lab) = lab(false) else { return };
    let mut guarded = serve(&lab, &[]);
    let data = || std::fs::read_to_string(lab.path("data")).unwrap();
    let brings = |guarded: &Guarded<'_>, wanted: &str| {
        until(wanted, || (guarded.status()["death_now"]["brings"] == wanted).then_some(()));
    };
    exchange(&lab, "write one");
    brings(&guarded, "restore");
    exchange(&lab, "sync two");
    brings(&guarded, "present-files");
    guarded.kill();
    assert_eq!(
        data(),
        "write one
sync two
"
    );
    let deaths = lab.json(&["deaths", "job"]);
    assert!(deaths[0]["why"].as_str().unwrap().contains("has synced files after checkpoint"), "{deaths}");
    assert!(guarded.said().contains("which may rely on these files"), "{}", guarded.said());
    guarded.root().signal(Signal::TERM).unwrap();
    wait(&mut guarded.guardian);
}

#[test]
fn a_program_that_has_told_nobody_is_restored_with_its_files() {
    let Some(lab) = lab(false) else { return };
    // A reply without a sync, and a sync without a reply.
    for lines in [&["write one"][..], &["sync one silent"], &["write one", "sync two silent"]] {
        let _ = std::fs::remove_file(lab.path("port"));
        let _ = std::fs::remove_file(lab.path("data"));
        let mut guarded = serve(&lab, &[]);
        lines.iter().for_each(|line| exchange(&lab, line));
        until("the data", || {
            let data = std::fs::read_to_string(lab.path("data")).unwrap();
            (data.lines().count() == lines.len()).then_some(())
        });
        guarded.kill();
        assert_eq!(
            lab.json(&["deaths", "job"])[0]["followed_by"],
            "restored",
            "{lines:?}: {}",
            guarded.said()
        );
        assert_eq!(std::fs::read_to_string(lab.path("data")).unwrap(), "");
        guarded.root().signal(Signal::TERM).unwrap();
        wait(&mut guarded.guardian);
        std::fs::remove_dir_all(lab.store()).unwrap();
    }
}

#[test]
fn a_rollback_that_was_asked_for_by_name_ignores_syncs() {
    let Some(lab) = lab(false) else { return };
    let mut guarded = serve(&lab, &["--files", "rewind"]);
    exchange(&lab, "sync one");
    guarded.kill();
    assert_eq!(lab.json(&["deaths", "job"])[0]["followed_by"], "restored", "{}", guarded.said());
    assert_eq!(std::fs::read_to_string(lab.path("data")).unwrap(), "");
    guarded.root().signal(Signal::TERM).unwrap();
    wait(&mut guarded.guardian);
}

/// A program that appends lines to `data`. After its first checkpoint, it maps a file that is too large for a rollback
/// without the feature dirty-tracker.
const MAPPING: &str = r#"exec python3 -c '
import mmap, os, time
data = open("data", "a")
print("begun", flush=True)
while not os.path.exists("go"):
    time.sleep(0.01)
with open("index", "wb") as made:
    made.truncate(10 << 20)
opened = open("index", "r+b")
memory = mmap.mmap(opened.fileno(), 0)
n = 0
while not os.path.exists("stop"):
    n += 1
    memory[0:8] = b"%8d" % n
    data.write("%d\n" % n)
    data.flush()
    time.sleep(0.01)
'"#;

#[test]
fn beyond_the_bound_a_program_starts_beside_its_present_files() {
    let Some(lab) = lab(false) else { return };
    let words = ["run", "--name", "job", "--every", "50ms", "--files", "rewind", "--files-back-max", "500ms"];
    let mut command = lab.undying(words.iter().chain(&["--", "sh", "-c", MAPPING]));
    command.env("UNDYING_FEATURES_OFF", "dirty-tracker");
    let guarded = Guarded { lab: &lab, guardian: command.spawn().unwrap() };
    guarded.await_checkpoints(2);
    let death_now = guarded.status()["death_now"].clone();
    assert_eq!(death_now["brings"], "restore", "{death_now}");
    std::fs::write(lab.path("go"), "").unwrap();
    let because = until("the state", || {
        guarded.status()["unprotected_because"]
            .as_str()
            .filter(|why| why.contains("index"))
            .map(str::to_owned)
    });
    assert!(because.starts_with("files cannot be rolled back since checkpoint"), "{because}");
    let status = guarded.status();
    assert_eq!(status["death_now"]["brings"], "present-files", "{status}");
    let said = lab.say(["status", "job"]);
    assert!(said.stdout.contains("a death now starts the program from its beginning"), "{said:?}");
    assert!(
        guarded.said().contains("a death now starts the program from its beginning"),
        "{}",
        guarded.said()
    );
    let reports = events(&lab, "files-too-old");
    let of_mapping = |event: &&Value| event["reason"].as_str().is_some_and(|why| why.contains("index"));
    assert_eq!(reports.iter().filter(of_mapping).count(), 1, "it is reported once: {reports:?}");
    let data = || std::fs::read_to_string(lab.path("data")).unwrap();
    guarded.root().signal(Signal::STOP).unwrap();
    let before = data();
    guarded.root().signal(Signal::KILL).unwrap();
    guarded.await_incarnation(2);
    assert!(data().starts_with(&before), "lines were lost");
    let deaths = lab.json(&["deaths", "job"]);
    assert_eq!(deaths[0]["followed_by"], "started", "{deaths}");
    assert!(deaths[0]["why"].as_str().unwrap().contains("index"), "{deaths}");
    assert_eq!(guarded.end(), 0);
    assert_eq!(std::fs::read_to_string(lab.path("stdout")).unwrap(), "begun\nbegun\n");
}

/// A program that changes no file. With the file `go`, it can no longer be checkpointed.
const WITHOUT_FILES: &str = r#"exec python3 -c '
import os, time
open("begun", "a").write("x")
held = None
while not os.path.exists("stop"):
    if held is None and os.path.exists("go"):
        held = open("/proc/1/stat")
    time.sleep(0.005)
'"#;

#[test]
fn an_old_checkpoint_is_restored_if_the_program_has_changed_no_file_since() {
    let Some(lab) = lab(false) else { return };
    let options = ["--every", "50ms", "--files", "rewind", "--files-back-max", "500ms"];
    let guarded = Guarded::run(&lab, &options, WITHOUT_FILES);
    let begun = || std::fs::read(lab.path("begun")).map_or(0, |begun| begun.len());
    until("the begin", || (begun() > 0).then_some(()));
    guarded.await_checkpoints(3);
    // The first checkpoints can take longer than the bound.
    let too_old = || events(&lab, "files-too-old").len();
    let before = too_old();
    std::fs::write(lab.path("go"), "").unwrap();
    // This message is appended to the file that is the standard error of the program, too.
    until("a message", || guarded.said().contains("no checkpoint: ").then_some(()));
    std::thread::sleep(Duration::from_secs(1));
    let death_now = guarded.status()["death_now"].clone();
    assert_eq!(death_now["brings"], "restore", "{death_now}\n{}", guarded.said());
    std::fs::remove_file(lab.path("go")).unwrap();
    guarded.kill();
    assert_eq!((followed(&lab), begun()), ("restored".to_owned(), 1), "{}", guarded.said());
    assert_eq!(too_old(), before, "{}", guarded.said());
    assert_eq!(guarded.end(), 0);
}

#[test]
fn messages_in_the_standard_error_of_a_program_are_no_changes_of_files() {
    let Some(lab) = lab(false) else { return };
    let words =
        ["run", "--name", "job", "--every", "2s", "--files", "rewind", "--files-back-max", "500ms", "--"];
    let mut command = lab.undying(words);
    let guarded = Guarded { lab: &lab, guardian: command.args(["sleep", "1000"]).spawn().unwrap() };
    guarded.await_checkpoints(1);
    // A message, between two checkpoints. Then the newest checkpoint becomes older than the bound.
    let mut stderr = std::fs::OpenOptions::new().append(true).open(lab.path("stderr")).unwrap();
    writeln!(stderr, "undying: a message").unwrap();
    std::thread::sleep(Duration::from_secs(1));
    let death_now = guarded.status()["death_now"].clone();
    assert_eq!(death_now["brings"], "restore", "{death_now}\n{}", guarded.said());
    guarded.kill();
    assert_eq!(followed(&lab), "restored", "{}", guarded.said());
    guarded.root().signal(Signal::TERM).unwrap();
}

#[test]
fn a_restart_says_how_much_work_is_lost() {
    let Some(lab) = lab(false) else { return };
    let script = "exec 7>>log; until [ -e stop ]; do echo line >&7; sleep 0.02; done";
    let guarded = Guarded::run(&lab, &["--files", "rewind", "--every", "200ms"], script);
    guarded.await_checkpoints(2);
    guarded.kill();
    let deaths = lab.json(&["deaths", "job"]);
    let age = deaths[0]["age_us"].as_u64().unwrap();
    assert!((1..30_000_000).contains(&age), "{deaths}");
    let restored = events(&lab, "restored");
    assert_eq!(restored[0]["age_us"].as_u64(), Some(age));
    assert!(guarded.said().contains("before the death is lost"), "{}", guarded.said());
    assert!(lab.say(["deaths", "job"]).stdout.contains(" lost"));
    let metrics = lab.say(["metrics"]).stdout;
    for name in ["undying_restored_checkpoint_age_seconds{", "undying_death_now{", "brings=\"restore\""] {
        assert!(metrics.contains(name), "{name}: {metrics}");
    }
    assert_eq!(guarded.end(), 0);
}

/// A thread that starts a program (vfork) can be stopped only after the execve(2) of the child.
#[test]
fn a_thread_that_cannot_be_stopped_is_named() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = r#"exec python3 -c '
import os, time
os.mkfifo("fifo")
while not os.path.exists("spawn"):
    time.sleep(0.01)
opens = (os.POSIX_SPAWN_OPEN, 0, "fifo", os.O_RDONLY, 0)
os.waitpid(os.posix_spawn("/bin/true", ["true"], os.environ, file_actions=[opens]), 0)
while not os.path.exists("stop"):
    time.sleep(0.01)
'"#;
    let guarded = Guarded::run(&lab, &[], script);
    guarded.await_checkpoints(2);
    std::fs::write(lab.path("spawn"), "").unwrap();
    let late = until("a warning", || guarded.status()["late"]["reason"].as_str().map(str::to_owned));
    let pid = guarded.status()["pid"].to_string();
    assert!(late.contains(&format!("thread {pid} of pid {pid} waits in the kernel")), "{late}");
    drop(std::fs::OpenOptions::new().write(true).open(lab.path("fifo")).unwrap());
    until("the end of the warning", || guarded.status()["late"].is_null().then_some(()));
    assert_eq!(guarded.end(), 0);
}

/// A program that opens, changes and closes a file, like a journal that is opened for each record. Each start from the
/// beginning reads the file. The file `wrong` appears if the memory does not match the file.
const CLOSING: &str = r#"exec python3 -c '
import os, time
def read():
    return int(open("count").read()) if os.path.exists("count") else 0
n = read()
open("begun", "a").write("x")
while not os.path.exists("stop"):
    if os.path.exists("idle"):
        time.sleep(0.005)
        continue
    if read() != n:
        open("wrong", "a").write("memory %d, file %d\n" % (n, read()))
        n = read()
    n += 1
    file = os.open("count", os.O_RDWR | os.O_CREAT)
    os.pwrite(file, b"%08d" % n, 0)
    os.close(file)
    time.sleep(0.25)
'"#;

#[test]
fn no_memory_is_restored_beside_a_file_that_was_changed_and_closed() {
    for policy in ["fresh", "trim", "refuse"] {
        let Some(lab) = lab(false) else { return };
        let options = ["--every", "50ms", "--files", policy, "--max-restarts", "99/1m"];
        std::fs::write(lab.path("idle"), "").unwrap();
        let mut guarded = Guarded::run(&lab, &options, CLOSING);
        let begun = || std::fs::read(lab.path("begun")).map_or(0, |begun| begun.len());
        // From now on, the program changes no file while it is idle.
        until("the start", || (begun() > 0).then_some(()));
        guarded.await_checkpoints(3);
        until("the state", || (guarded.status()["death_now"]["brings"] == "restore").then_some(()));
        let before = begun();
        guarded.kill();
        assert_eq!((begun(), followed(&lab)), (before, "restored".to_owned()), "{}", guarded.said());
        assert_eq!(guarded.status()["files"]["unnoticed"], Value::Null);
        std::fs::remove_file(lab.path("idle")).unwrap();
        let count = || std::fs::read_to_string(lab.path("count")).unwrap_or_default();
        // A checkpoint between the change and the kill is restored, so the kill is repeated.
        let is_over = |guarded: &mut Guarded<'_>| guarded.guardian.try_wait().unwrap().is_some();
        let is_told = || {
            let deaths = lab.json(&["deaths", "job"]).to_string();
            deaths.contains("it has changed files after checkpoint")
        };
        for round in 0.. {
            let is_done = if policy == "refuse" { is_over(&mut guarded) } else { round >= 5 && is_told() };
            if is_done {
                break;
            }
            guarded.await_checkpoints(2);
            let (root, incarnation, was) = (guarded.root(), guarded.incarnation(), count());
            until("a change", || (count() != was).then_some(()));
            root.signal(Signal::KILL).unwrap();
            until("a restart or the end", || {
                let is_restarted =
                    guarded.incarnation() > incarnation && guarded.status()["state"] == "running";
                (is_restarted || is_over(&mut guarded)).then_some(())
            });
        }
        assert!(!lab.path("wrong").exists(), "{policy}: {}", guarded.said());
        if policy == "refuse" {
            assert_eq!(wait(&mut guarded.guardian).code(), Some(3), "{}", guarded.said());
            // The second text: the program had the file open at the checkpoint.
            let refusals = [
                "the program has changed files after",
                "the memory of the checkpoint does not match these files",
            ];
            let said = guarded.said();
            assert!(refusals.iter().any(|refusal| said.contains(refusal)), "{said}");
            continue;
        }
        assert!(begun() > before, "{}", guarded.said());
        assert!(!lab.store().join("job/undo").exists(), "nothing is recorded");
        assert_eq!(guarded.end(), 0);
    }
}

fn followed(lab: &Lab) -> String {
    lab.json(&["deaths", "job"])[0]["followed_by"].as_str().unwrap_or_default().to_owned()
}

#[test]
fn fresh_touches_no_file() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    // A write-ahead log: each line is durable, and the program recovers from the last line.
    let script = "exec 7>>log; n=$(tail -n 1 log); n=$((n)); until [ -e stop ]; do n=$((n + 1)); echo $n >&7; sleep 0.01; done";
    let options = ["--every", "500ms", "--files", "fresh", "--max-restarts", "99/1m"];
    let guarded = Guarded::run(&lab, &options, script);
    let lines = || std::fs::read_to_string(lab.path("log")).unwrap_or_default();
    // If the program dies before it writes a line after the checkpoint, it is restored, so the kill is repeated.
    while guarded.status()["fresh"].is_null() {
        guarded.await_checkpoints(1);
        let length = lines().len();
        until("a line", || (lines().len() > length).then_some(()));
        guarded.root().signal(Signal::STOP).unwrap();
        let (before, incarnation) = (lines(), guarded.incarnation());
        guarded.root().signal(Signal::KILL).unwrap();
        guarded.await_incarnation(incarnation + 1);
        assert!(lines().starts_with(&before), "lines were cut off");
    }
    assert!(guarded.said().contains("was appended to after the checkpoint"), "{}", guarded.said());
    assert_eq!(guarded.end(), 0);
    for (line, number) in lines().lines().zip(1..) {
        assert_eq!(line, format!("{number}"), "{}", lines());
    }
    assert!(!lab.store().join("job/aside").exists());
}

#[test]
fn a_program_can_be_restarted_without_checkpoints() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = "echo begun; n=0; until [ -e stop ]; do n=$((n + 1)); echo $n > state; sleep 0.02; done";
    let words = ["run", "--name", "job", "--restart-from", "beginning", "--", "sh", "-c", script];
    let guarded = Guarded { lab: &lab, guardian: lab.undying(words).spawn().unwrap() };
    until("the state", || lab.path("state").exists().then_some(()));
    guarded.kill();
    let status = guarded.status();
    assert_eq!((&status["checkpoints"], &status["requested_hz"]), (&0.into(), &0.0.into()), "{status}");
    assert_eq!(lab.json(&["deaths", "job"])[0]["followed_by"], "started");
    assert_eq!(guarded.end(), 0);
    assert_eq!(std::fs::read_to_string(lab.path("stdout")).unwrap(), "begun\nbegun\n");
    for option in [["--every", "1s"], ["--files", "keep"], ["--output", "committed"]] {
        let said = lab.say(["run", "--restart-from", "beginning", option[0], option[1], "--", "true"]);
        assert_eq!(said.code, Some(2), "{said:?}");
    }
}

#[test]
fn a_regular_exit_code_runs_a_program_twice_or_once() {
    if !supported() {
        return;
    }
    let script = "echo start >> side; sleep 0.5; echo result; exit 20";
    let run = |lab: &Lab, options: &[&str]| {
        let mut guarded = Guarded::run(lab, options, script);
        assert_eq!(wait(&mut guarded.guardian).code(), Some(20), "{}", guarded.said());
        let read = |name: &str| std::fs::read_to_string(lab.path(name)).unwrap().lines().count();
        let restarts = guarded.status()["restarts"].as_u64().unwrap();
        (restarts, read("stdout"), read("side"))
    };
    let lab = Lab::new();
    // A checkpoint after the output and before the exit restores a program that does not repeat the output.
    let (restarts, results, starts) = run(&lab, &["--files", "keep"]);
    assert!((restarts, starts) == (1, 1) && matches!(results, 1 | 2), "{results} results: {}", lab.told());
    assert!(lab.told().contains("exited with 20 again"), "{}", lab.told());
    assert_eq!(events(&lab, "ended-again")[0]["exit"], 20);
    let lab = Lab::new();
    assert_eq!(run(&lab, &["--files", "keep", "--success", "10,20"]), (0, 1, 1), "{}", lab.told());
}

#[test]
fn a_program_that_handles_sigterm_and_exits_with_its_code_has_ended() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = "trap 'exit 143' TERM; until [ -e stop ]; do sleep 0.02; done";
    let mut guarded = Guarded::run(&lab, &[], script);
    guarded.await_checkpoints(2);
    guarded.root().signal(Signal::TERM).unwrap();
    assert_eq!(wait(&mut guarded.guardian).code(), Some(143));
    assert_eq!(guarded.status()["restarts"], 0, "{}", guarded.said());
}

/// The operator stops a program and continues it. A program that dies afterwards is restored from a checkpoint of the
/// stop, and no program outside would continue it a second time.
#[test]
fn a_program_that_was_stopped_at_its_checkpoint_runs_after_a_restart() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = r#"exec python3 -c '
import os, time
name = "root" if os.fork() else "child"
while not os.path.exists("stop"):
    with open("beats", "a") as beats:
        beats.write(name + "\n")
    time.sleep(0.05)
if name == "root":
    os.wait()
'"#;
    let guarded = Guarded::run(&lab, &["--every", "100ms", "--files", "keep"], script);
    let beats = |name| std::fs::read_to_string(lab.path("beats")).unwrap_or_default().matches(name).count();
    until("beats of both", || (beats("root") > 0 && beats("child") > 0).then_some(()));
    guarded.await_checkpoints(2);
    let root = guarded.root();
    for process in testkit::descendants(root).into_iter().chain([root]) {
        process.signal(Signal::STOP).unwrap();
    }
    guarded.await_checkpoints(3);
    guarded.kill();
    guarded.await_incarnation(1);
    for name in ["root", "child"] {
        let before = beats(name);
        until("a beat", || (beats(name) > before).then_some(()));
    }
    std::fs::write(lab.path("stop"), "").unwrap();
    assert_eq!(guarded.end(), 0);
}

/// A rollback truncates the standard error of the program, to which `undying` writes as well.
#[test]
fn messages_about_earlier_restarts_stay_in_the_standard_error_of_the_program() {
    let Some(lab) = lab(false) else { return };
    let script = "until [ -e stop ]; do echo line >&2; sleep 0.02; done";
    let guarded = Guarded::run(&lab, &["--files", "rewind", "--every", "3s"], script);
    guarded.await_checkpoints(1);
    for number in 1..=3 {
        std::thread::sleep(Duration::from_millis(200));
        guarded.kill();
        guarded.await_incarnation(number);
        until("the message", || guarded.said().contains("is back at checkpoint").then_some(()));
    }
    let told = || guarded.said().matches("was killed by signal 9").count();
    until("three messages", || (told() >= 3).then_some(()));
    assert_eq!(told(), 3, "{}", guarded.said());
    assert_eq!(guarded.end(), 0);
}

/// A limit keeps the guardian from opening files while the program changes some.
#[test]
fn a_momentary_lack_of_descriptors_costs_no_checkpoint() {
    let Some(lab) = lab(false) else { return };
    let script = "until [ -e stop ]; do echo line >> data; sleep 0.01; done";
    let guarded = Guarded::run(&lab, &["--files", "rewind"], script);
    guarded.await_checkpoints(3);
    let guardian = rustix::process::Pid::from_child(&guarded.guardian);
    let limit = |wanted| rustix::process::prlimit(Some(guardian), Resource::Nofile, wanted).unwrap();
    let own = rustix::process::getrlimit(Resource::Nofile);
    let before = limit(Rlimit { current: Some(10), maximum: own.maximum });
    std::thread::sleep(Duration::from_secs(1));
    let exact = || guarded.status()["files"]["exact"].as_u64();
    let last = exact();
    limit(before);
    until("an exact checkpoint", || (exact() > last).then_some(()));
    assert!(events(&lab, "files-broken").is_empty(), "{}", guarded.said());
    assert_eq!(guarded.end(), 0);
}
