//! Tests of checkpoints that are late, and of programs that one pause budget does not suffice for.

use crate::common::{Guarded, Lab, supported, until};
use crate::policies::events;

#[test]
fn late_checkpoints_are_reported_when_they_begin_to_be_late() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = r#"exec python3 -c '
import os, socket, time
guardian = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
guardian.bind(b"\0job-%d" % os.getpid())
while not os.path.exists("hold"):
    time.sleep(0.01)
guardian.sendto(b"hold", b"\0" + os.environ["UNDYING_SOCKET"].lstrip("@").encode())
guardian.recv(100)
while not os.path.exists("release"):
    time.sleep(0.01)
guardian.sendto(b"release", b"\0" + os.environ["UNDYING_SOCKET"].lstrip("@").encode())
while not os.path.exists("stop"):
    time.sleep(0.01)
'"#;
    let guarded = Guarded::run(&lab, &[], script);
    guarded.await_checkpoints(2);
    assert!(events(&lab, "checkpoints-late").is_empty(), "{}", guarded.said());
    std::fs::write(lab.path("hold"), "").unwrap();
    let late = until("a warning", || guarded.status()["late"]["reason"].as_str().map(str::to_owned));
    assert!(late.contains("holds checkpoints back"), "{late}");
    assert!(guarded.said().contains("no checkpoint was committed for"), "{}", guarded.said());
    std::fs::write(lab.path("release"), "").unwrap();
    until("the end of the warning", || guarded.status()["late"].is_null().then_some(()));
    assert_eq!(events(&lab, "checkpoints-on-time").len(), 1);
    assert_eq!(guarded.end(), 0);
}

/// One stop of all processes takes longer than the default of `--max-pause`.
#[test]
fn many_processes_that_write_are_checkpointed_and_run() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = r#"exec python3 -c '
import ctypes, mmap, os, signal, time
for number in range(80):
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        pages = mmap.mmap(-1, 30 * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        while True:
            for page in range(30):
                pages[page * 4096] = (pages[page * 4096] + 1) % 256
            time.sleep(0.1)
open("begun", "w").close()
while not os.path.exists("stop"):
    time.sleep(0.02)
'"#;
    let guarded = Guarded::run(&lab, &["--every", "100ms"], script);
    until("the processes", || lab.path("begun").exists().then_some(()));
    // Without a raised budget, no checkpoint is ever complete.
    guarded.await_checkpoints(3);
    let raised = events(&lab, "pause-raised");
    assert!((1..4).contains(&raised.len()), "{raised:?}");
    assert!(guarded.said().contains("takes longer than --max-pause 5.0 ms"), "{}", guarded.said());
    let status = guarded.status();
    assert_eq!(status["max_pause_asked_us"], 5000);
    assert!(status["max_pause_us"].as_u64() > Some(5000), "{status}");
    assert_eq!(guarded.end(), 0);
}

/// A program that writes to all its pages all the time.
const WIDE_WRITER: &str = r#"exec python3 -c '
import os
memory = bytearray(32 << 20)
number = 0
while not os.path.exists("stop"):
    number = (number + 1) % 256
    for page in range(0, len(memory), 4096):
        memory[page] = number
'"#;

#[test]
fn checkpoints_that_cost_too_much_are_taken_less_often() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &["--every", "20ms", "--cost-max", "5"], WIDE_WRITER);
    let raised = until("a longer interval", || events(&lab, "interval-raised").first().cloned());
    assert_eq!((&raised["asked_us"], &raised["max_percent"]), (&20_000.into(), &5.0.into()));
    assert!(raised["interval_us"].as_u64() > Some(30_000), "{raised}");
    until("the message", || guarded.said().contains("(--cost-max); they are taken every").then_some(()));
    assert!(!guarded.said().contains("no checkpoint was committed"), "{}", guarded.said());
    let costs = until("the copies", || {
        let costs = guarded.status()["costs"].clone();
        // The status is written after the event. This program changes pages while they are copied.
        let is_new = costs["copied_pages"].as_u64() > Some(8192) && !costs["interval_us"].is_null();
        (is_new && costs["wasted_copies"].as_u64() > Some(0)).then_some(costs)
    });
    assert_eq!(costs["max_percent"], 5.0);
    assert!(costs["wasted_copies"].as_u64() < costs["copied_pages"].as_u64(), "{costs}");
    assert!(costs["percent"].as_f64() > Some(0.0), "{costs}");
    assert!(costs["interval_us"].as_u64() > Some(20_000), "{costs}");
    let said = lab.say(["status"]);
    let expected = "more of them would cost more than 5 % of the program's time";
    assert!(format!("{}{}", said.stdout, said.stderr).contains(expected), "{said:?}");
    assert_eq!(guarded.end(), 0);
}

#[test]
fn without_a_limit_costs_are_measured() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &["--every", "20ms", "--cost-max", "off"], WIDE_WRITER);
    // The first checkpoint does not count.
    guarded.await_checkpoints(4);
    let costs = guarded.status()["costs"].clone();
    assert!(costs["percent"].as_f64() > Some(0.0), "{costs}");
    assert!(costs["max_percent"].is_null() && costs["interval_us"].is_null(), "{costs}");
    assert!(events(&lab, "interval-raised").is_empty());
    assert_eq!(guarded.end(), 0);
}

#[test]
fn fewer_checkpoints_are_kept_if_the_store_would_be_too_large() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let words = ["--every", "20ms", "--cost-max", "off", "--files", "keep", "--store-max", "16MiB"];
    let guarded = Guarded::run(&lab, &words, WIDE_WRITER);
    guarded.await_checkpoints(5);
    let stored = until("fewer checkpoints", || {
        let stored = guarded.status()["stored"].clone();
        // A checkpoint that a restart would use now is kept in addition. Older ones are removed soon.
        (stored["is_shortened"] == true && stored["kept"].as_u64() <= Some(3)).then_some(stored)
    });
    assert_eq!(stored["max_bytes"], 16_u64 << 20);
    assert!(stored["kept"].as_u64() >= Some(2), "{stored}");
    let said = lab.say(["status"]);
    let expected = "checkpoints are kept, because more would need more than 16.00 MiB (--store-max)";
    assert!(format!("{}{}", said.stdout, said.stderr).contains(expected), "{said:?}");
    guarded.kill();
    guarded.await_incarnation(1);
    assert_eq!(guarded.end(), 0);
}

/// Two checkpoints of this program do not fit.
#[test]
fn a_store_that_needs_more_than_its_limit_says_so() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let words = ["--every", "20ms", "--cost-max", "off", "--files", "keep", "--store-max", "1MiB"];
    let guarded = Guarded::run(&lab, &words, WIDE_WRITER);
    guarded.await_checkpoints(5);
    until("the message", || {
        let said = lab.say(["status"]);
        said.stdout.contains("more than this limit: at least two checkpoints are kept").then_some(())
    });
    assert!(guarded.status()["stored"]["kept"].as_u64() >= Some(2));
    guarded.kill();
    guarded.await_incarnation(1);
    assert_eq!(guarded.end(), 0);
}
