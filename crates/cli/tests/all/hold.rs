//! Tests of `undying hold` and `undying release`: a program is stopped for a while, and its peers only see a delay.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use serde_json::Value;

use crate::common::system::System;
use crate::common::{Guarded, Lab, supported, until, wait};
use crate::restart::{SERVER, talk};

/// How long a program is held. With `UNDYING_LONG_TESTS`, a minute.
fn held_for() -> Duration {
    Duration::from_secs(testkit::rounds(1, 60) as u64)
}

#[test]
fn clients_of_a_held_program_see_a_delay_and_no_error() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let guarded = Guarded::run(&lab, &[], SERVER);
    let port: u16 = until("a port", || std::fs::read_to_string(lab.path("port")).ok()).parse().unwrap();
    guarded.await_checkpoints(2);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(|| talk(port, &is_over))).collect();
        let over = testkit::SetAtEnd(&is_over);
        for _ in 0..2 {
            std::thread::sleep(Duration::from_millis(100));
            let said = lab.say(["hold", "job", "--for", "5m"]);
            assert!(said.code == Some(0) && said.stderr.contains("job is held at job@"), "{said:?}");
            let status = until("the hold in the status", || {
                Some(guarded.status()).filter(|status| status["state"] == "held")
            });
            assert!(
                status["held"]["seq"].as_u64().is_some() && status["held"]["until"].is_string(),
                "{status}"
            );
            std::thread::sleep(held_for());
            let second = lab.say(["hold", "job"]);
            assert!(second.code == Some(3) && second.stderr.contains("held already"), "{second:?}");
            assert_eq!(lab.say(["release", "job"]).code, Some(0));
            until("the status", || (guarded.status()["held"] == Value::Null).then_some(()));
        }
        drop(over);
        for client in clients {
            assert!(client.join().unwrap() > 0);
        }
    });
    assert_eq!((guarded.incarnation(), guarded.status()["state"].as_str()), (1, Some("running")));
    let said = lab.say(["release", "job"]);
    assert!(said.code == Some(3) && said.stderr.contains("not held"), "{said:?}");
    assert_eq!(guarded.end(), 0);
}

#[test]
fn a_held_program_stands_still_until_its_time_is_over_or_it_dies() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let words = ["run", "--name", "job", "--every", "100ms", "--"].map(str::to_owned).into_iter();
    let mut guardian = lab.undying(words.chain(lab.counter_words(&[]))).spawn().unwrap();
    let counter = until("the counter", || lab.guarded_counter());
    until("the status", || {
        lab.json(&["status", "job"])[0]["checkpoints"].as_u64().filter(|count| *count > 1)
    });
    counter.goes_on(3);
    assert_eq!(lab.say(["hold", "job", "--for", "1s"]).code, Some(0));
    let before = counter.read();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(counter.read(), before, "a held program runs");
    counter.goes_on(3);
    until("the report", || lab.told().contains("the time of the hold is over").then_some(()));
    // A held program that is killed comes back at the moment of its hold.
    assert_eq!(lab.say(["hold", "job"]).code, Some(0));
    let before = counter.read().unwrap();
    counter.process.signal(rustix::process::Signal::KILL).unwrap();
    let counter = until("the counter", || {
        lab.guarded_counter().filter(|counter| counter.process.is_alive() && counter.read() > Some(before))
    });
    counter.goes_on(3);
    // A request to end the program ends its hold, too.
    assert_eq!(lab.say(["hold", "job"]).code, Some(0));
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(guardian.id() as i32).unwrap(),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    wait(&mut guardian);
    assert!(!counter.process.is_alive());
}

#[test]
fn a_held_component_is_not_killed_for_a_missing_heartbeat() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\", \"ready\", \"beat=100\"]\nready = { notify = true }\n\
         policy = \"checkpointed\"\nevery = \"100ms\"\nheartbeat = { notify = true, every = \"500ms\", misses = 2 }\n",
    );
    system.await_state("a", "ready");
    until("a checkpoint", || (system.status("a")["checkpoints"].as_u64()? > 1).then_some(()));
    assert_eq!(system.call(&["hold", "a"]).code, Some(0));
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(system.call(&["release", "a"]).code, Some(0));
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(system.incarnation("a"), 1, "{}", system.lab.told());
    assert_eq!(system.down(), Some(0));
}
