//! Tests of `undying restart --restore`: a program is stopped, killed and restored, and keeps its state and its
//! connections. If this is not possible, the program continues as it was.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::system::System;
use crate::common::{Guarded, LIMIT, Lab, supported, until, wait};

const ROUNDS: (usize, usize) = (3, 20);
/// A server that counts the lines of each connection, and counts all lines in its memory. It answers each line with both
/// numbers.
pub(crate) const SERVER: &str = r#"exec python3 -c '
import os, selectors, socket
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 0))
listener.listen(64)
with open("port.new", "w") as file:
    file.write(str(listener.getsockname()[1]))
os.rename("port.new", "port")
selector = selectors.DefaultSelector()
selector.register(listener, selectors.EVENT_READ)
counts, rest, total = {}, {}, 0
while not os.path.exists("stop"):
    for key, _ in selector.select(0.02):
        connection = key.fileobj
        if connection is listener:
            connection, _ = listener.accept()
            selector.register(connection, selectors.EVENT_READ)
            counts[connection.fileno()], rest[connection.fileno()] = 0, b""
            continue
        number = connection.fileno()
        said = connection.recv(4096)
        if not said:
            selector.unregister(connection)
            connection.close()
            continue
        *lines, rest[number] = (rest[number] + said).split(b"\n")
        for line in lines:
            counts[number] += 1
            total += 1
            connection.sendall(b"%d %d\n" % (counts[number], total))
'"#;

/// Sends lines over one connection, and checks each reply, until `is_over` is set. Returns the number of replies.
pub(crate) fn talk(port: u16, is_over: &AtomicBool) -> u64 {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut stream = BufReader::new(stream);
    let (mut replies, mut last) = (0, 0);
    while !is_over.load(Ordering::Relaxed) {
        stream.get_mut().write_all(b"question\n").unwrap();
        let mut reply = String::new();
        assert!(
            stream.read_line(&mut reply).unwrap() > 0,
            "the connection has ended after {replies} replies"
        );
        let numbers: Vec<u64> = reply.split_whitespace().map(|number| number.parse().unwrap()).collect();
        replies += 1;
        assert_eq!(numbers[0], replies, "a line is lost or doubled");
        assert!(numbers[1] > last, "the server has lost its state");
        last = numbers[1];
    }
    replies
}

fn can_hold() -> bool {
    const MISSING: i32 = 4;
    let said = Lab::new().say(["run", "--output", "committed", "--every", "50ms", "--", "true"]);
    if said.code == Some(MISSING) {
        println!("unsupported: {}", said.stderr.lines().next().unwrap_or_default());
    }
    said.code != Some(MISSING)
}

fn restart(lab: &Lab, name: &str) -> String {
    let said = lab.say(["restart", "--restore", name]);
    assert_eq!(said.code, Some(0), "{said:?}\n{}", lab.told());
    said.stderr
}

/// Restarts a server under load, and checks that no client has noticed.
fn serves_through_restarts(options: &[&str]) {
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, options, SERVER);
    let port: u16 = until("a port", || std::fs::read_to_string(lab.path("port")).ok()).parse().unwrap();
    guarded.await_checkpoints(2);
    let root = guarded.root();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| talk(port, &is_over))).collect();
        let over = testkit::SetAtEnd(&is_over);
        for round in 0..testkit::rounds(ROUNDS.0, ROUNDS.1) as u64 {
            restart(&lab, "job");
            // On a busy disk, the guardian writes its status later than it answers.
            until("the next incarnation", || (guarded.incarnation() == round + 2).then_some(()));
            std::thread::sleep(Duration::from_millis(100));
        }
        drop(over);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
    });
    assert_eq!(guarded.root().pid(), root.pid(), "the program keeps its pid");
    assert_eq!(guarded.status()["checkpoint_age_us"].as_u64().map(|age| age < 60_000_000), Some(true));
    assert_eq!(guarded.end(), 0);
}

#[test]
fn connections_in_use_and_the_state_stay_over_a_restart() {
    if supported() {
        serves_through_restarts(&[]);
        // Without the request, a restore would close idle connections at this interval.
        serves_through_restarts(&["--every", "1s"]);
    }
}

#[test]
fn connections_in_use_and_the_state_stay_over_a_restart_with_held_output() {
    if supported() && can_hold() {
        serves_through_restarts(&["--output", "committed", "--files", "keep"]);
    }
}

#[test]
fn a_restart_on_request_loses_no_work_and_counts_for_no_limit() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let words = lab.counter_words(&[]);
    let options =
        ["run", "--name", "job", "--every", "1h", "--restart", "never", "--max-restarts", "0/1m", "--"];
    let words = options.iter().map(ToString::to_string).chain(words);
    let mut guardian = lab.undying(words).spawn().unwrap();
    let counter = until("the counter", || lab.guarded_counter());
    // On a busy disk, the guardian writes its status later than the program counts.
    until("the status", || lab.json(&["status", "job"])[0]["pid"].as_i64());
    for _ in 0..testkit::rounds(ROUNDS.0, ROUNDS.1) {
        counter.goes_on(3);
        let before = counter.read().unwrap();
        let said = restart(&lab, "job");
        assert!(said.contains("job continues from job@"), "{said}");
        assert!(counter.read().unwrap() >= before, "work is lost");
        counter.goes_on(3);
    }
    let deaths = lab.json(&["deaths", "job"]);
    for death in deaths.as_array().unwrap() {
        assert_eq!(
            (&death["fault"], &death["followed_by"]),
            (&"requested".into(), &"restored".into()),
            "{death}"
        );
    }
    // Any other death follows the policy.
    until("the counter", || lab.guarded_counter()).process.signal(Signal::KILL).unwrap();
    assert_eq!(wait(&mut guardian).code(), Some(137));
}

#[test]
fn a_rollback_after_a_requested_restart_finds_nothing_to_undo() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = "i=0; while [ ! -e stop ]; do i=$((i+1)); echo $i >> log; sleep 0.01; done";
    let guarded = Guarded::run(&lab, &["--files", "rewind"], script);
    guarded.await_checkpoints(2);
    for _ in 0..testkit::rounds(ROUNDS.0, ROUNDS.1) {
        restart(&lab, "job");
        std::thread::sleep(Duration::from_millis(30));
    }
    let said = lab.say(["events", "job", "--json"]).stdout;
    let rows = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let back: Vec<Value> = rows.filter(|row| row["event"] == "files-went-back").collect();
    assert!(back.len() >= ROUNDS.0, "{back:?}");
    assert!(back.iter().all(|row| row["changed"] == 0), "{back:?}");
    assert_eq!(guarded.end(), 0);
    let log = std::fs::read_to_string(lab.path("log")).unwrap();
    let lines: Vec<usize> = log.lines().map(|line| line.parse().unwrap()).collect();
    assert!(
        lines.iter().enumerate().all(|(place, line)| place + 1 == *line),
        "a line is lost or doubled: {log}"
    );
}

#[test]
fn a_program_that_cannot_be_checkpointed_is_not_restarted_and_continues() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = "exec 9< /dev/kmsg; while [ ! -e stop ]; do echo . >> log; sleep 0.01; done";
    let guarded = Guarded::run(&lab, &[], script);
    let root = guarded.root();
    let said = lab.say(["restart", "--restore", "job"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    let reason = "job is not restarted, and continues: no checkpoint could be taken: ";
    assert!(said.stderr.contains(reason) && said.stderr.contains("/dev/kmsg"), "{said:?}");
    assert_eq!((guarded.root(), guarded.incarnation()), (root, 1));
    let length = || std::fs::metadata(lab.path("log")).map_or(0, |file| file.len());
    let before = length();
    until("further work", || (length() > before + 5).then_some(()));
    assert_eq!(guarded.end(), 0);

    let lab = Lab::new();
    let words = ["run", "--name", "job", "--restart-from", "beginning", "--", "sleep", "1000"];
    let mut guardian = lab.undying(words).spawn().unwrap();
    until("a status", || (lab.json(&["status", "job"])[0]["state"] == "running").then_some(()));
    let said = lab.say(["restart", "--restore", "job"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stderr.contains("no checkpoints are taken"), "{said:?}");
    rustix::process::kill_process(rustix::process::Pid::from_child(&guardian), Signal::TERM).unwrap();
    assert_eq!(wait(&mut guardian).code(), Some(128 + 15));
    let said = lab.say(["restart", "--restore", "job"]);
    assert_eq!(said.code, Some(3), "{said:?}");
}

#[test]
fn components_restart_with_their_state_and_touch_no_other_component() {
    if !supported() {
        return;
    }
    let port = testkit::free_port();
    let system = System::up(&format!(
        "[group.all]\nmembers = [\"kept\", \"other\"]\nstrategy = \"all\"\n\
         [component.kept]\ncommand = [\"PROGRAM\", \"FOLDER/kept\", \"keep\", \"listen={port}\", \"beat=50\"]\n\
         policy = \"checkpointed\"\nevery = \"1h\"\nready = {{ tcp = \"127.0.0.1:{port}\" }}\n\
         restart = {{ max = \"1/1h\" }}\nheartbeat = {{ notify = true, every = \"500ms\" }}\n\
         [component.other]\ncommand = [\"PROGRAM\", \"FOLDER/other\"]\npolicy = \"stateless\"\nneeds = [\"kept\"]\n\
         [component.late]\ncommand = [\"PROGRAM\", \"FOLDER/late\", \"delay=3600000\", \"ready\"]\n\
         policy = \"checkpointed\"\nready = {{ notify = true, timeout = \"1h\" }}\n"
    ));
    system.await_state("other", "ready");
    let pids = [system.pid("kept"), system.pid("other")];
    let mut client = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.set_read_timeout(Some(LIMIT)).unwrap();
    for round in 0..3 {
        restart(&system.lab, "kept");
        system.await_incarnation("kept", round + 2);
        let mut answer = [0];
        client.write_all(b"x").unwrap();
        client.read_exact(&mut answer).unwrap();
        assert_eq!(answer, *b"x");
    }
    assert_eq!((system.pid("kept").pid(), system.pid("other")), (pids[0].pid(), pids[1]));
    assert_eq!((system.incarnation("other"), system.lines("kept").len()), (1, 1));
    assert!(system.status("kept")["component"]["last_fault"].is_null());
    let said = system.call(&["restart", "--restore", "late"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stderr.contains("not ready yet"), "{said:?}");
    assert_eq!(system.incarnation("late"), 1);
    let said = system.call(&["restart", "--restore", "kept", "other"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(
        said.stderr.contains("other is not restarted") && said.stderr.contains("kept continues"),
        "{said:?}"
    );
    assert_eq!(system.down(), Some(0));
}
