//! Tests of groups with `together = true`: several components that are checkpointed at one moment and restored together.

use std::time::Duration;

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::system::System;
use crate::common::{compiled_from, supported, until};

/// A server that draws pictures into memory that it shares with two clients. The clients find each picture that is lost
/// or drawn twice.
fn pictures(keys: &str) -> String {
    let component = |name: &str, program: &'static str, arguments: &str, more: &str| {
        let program = compiled_from("../../demo/drawing", program).display();
        format!(
            "[component.{name}]\ncommand = [\"{program}\", {arguments}]\npolicy = \"checkpointed\"\nevery = \"50ms\"\n\
             log = \"{name}.log\"\nrestart = {{ max = \"1000/1m\", backoff = \"1ms..1ms\" }}\n{keys}\n{more}\n"
        )
    };
    let client = |name: &str| {
        let arguments = format!("\"FOLDER/socket\", \"FOLDER/{name}.seen\"");
        component(name, "client", &arguments, "needs = [\"server\"]")
    };
    [
        component("server", "server", "\"FOLDER/socket\"", "ready = { listen = true }"),
        client("one"),
        client("two"),
        "[group.pictures]\nmembers = [\"server\", \"one\", \"two\"]\ntogether = true\n".to_owned(),
    ]
    .concat()
}

/// Returns the number of the last picture that a client has found right.
fn seen(system: &System, client: &str) -> u64 {
    let text = std::fs::read_to_string(system.lab.path(&format!("{client}.seen"))).unwrap_or_default();
    let mut words = text.split_whitespace();
    assert_ne!(
        words.next(),
        Some("broken"),
        "{client} has found a wrong picture: {text}\n{}",
        system.lab.told()
    );
    words.next().and_then(|word| word.parse().ok()).unwrap_or(0)
}

/// Waits until both clients have seen more pictures.
fn await_progress(system: &System) {
    let before = ["one", "two"].map(|client| (client, seen(system, client)));
    until("new pictures", || before.iter().all(|(client, last)| seen(system, client) > *last).then_some(()));
}

fn await_checkpoints(system: &System, count: u64) {
    await_checkpoints_of(system, "pictures", count);
}

fn await_checkpoints_of(system: &System, group: &str, count: u64) {
    let taken = || system.status(group)["checkpoints"].as_u64().unwrap_or(0);
    let before = taken();
    until("checkpoints", || (taken() >= before + count).then_some(()));
}

fn pids(system: &System) -> Vec<ProcessId> {
    ["server", "one", "two"].iter().map(|name| system.pid(name)).collect()
}

fn reap(child: Pid) {
    let options = rustix::process::WaitOptions::NOHANG;
    let _ = rustix::process::waitpid(rustix::process::Pid::from_raw(child.get()), options);
}

fn rounds() -> u64 {
    testkit::rounds(4, 100)
}

#[test]
fn killed_members_and_killed_groups_go_on_from_one_moment() {
    if !supported() {
        return;
    }
    let system = System::up(&pictures(""));
    ["server", "one", "two"].iter().for_each(|name| system.await_state(name, "ready"));
    await_checkpoints(&system, 2);
    let numbers = |members: &[ProcessId]| members.iter().map(|member| member.pid()).collect::<Vec<_>>();
    let first = numbers(&pids(&system));
    let mut random = testkit::seeded("together");
    for round in 0..2 * rounds() {
        std::thread::sleep(testkit::moment(&mut random, Duration::from_millis(200)));
        let members = pids(&system);
        assert_eq!(numbers(&members), first, "a restore gives each member its pid");
        if round % 2 == 0 {
            members[random.usize(..3)].signal(Signal::KILL).unwrap();
        } else {
            members.iter().for_each(|member| drop(member.signal(Signal::KILL)));
        }
        until("the restore", || (system.incarnation("pictures") >= round + 2).then_some(()));
        ["server", "one", "two"].iter().for_each(|name| system.await_state(name, "ready"));
        await_progress(&system);
    }
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_member_is_stopped_and_started_while_the_others_go_on() {
    if !supported() {
        return;
    }
    let system = System::up(&pictures(""));
    ["server", "one", "two"].iter().for_each(|name| system.await_state(name, "ready"));
    await_checkpoints(&system, 2);
    let [server, one, two] = ["server", "one", "two"].map(|name| system.pid(name));
    assert_eq!(system.call(&["stop", "one"]).code, Some(0));
    assert!(!one.is_alive() && server.is_alive() && two.is_alive());
    // A checkpoint from before the stop contains the member. It does not come back with the others.
    server.signal(Signal::KILL).unwrap();
    until("the restore", || (system.incarnation("pictures") >= 2).then_some(()));
    ["server", "two"].iter().for_each(|name| system.await_state(name, "ready"));
    let gone = || testkit::ProcessId::of(one.pid()).is_ok_and(|process| process.is_alive());
    until("the end of the stopped member", || (!gone()).then_some(()));
    assert_eq!((system.state("one"), system.status("one")["pid"].as_i64()), ("stopped".to_owned(), Some(0)));
    assert_eq!(system.call(&["start", "one"]).code, Some(0));
    await_progress(&system);
    assert_eq!(system.call(&["restart", "two"]).code, Some(0));
    assert_ne!(system.pid("two").pid(), two.pid());
    await_progress(&system);
    await_checkpoints(&system, 2);
    system.pid("two").signal(Signal::KILL).unwrap();
    until("the restore", || (system.incarnation("pictures") >= 3).then_some(()));
    ["server", "one", "two"].iter().for_each(|name| system.await_state(name, "ready"));
    await_progress(&system);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_group_outlives_its_guardian_and_the_next_one_takes_all_members_over() {
    if !supported() {
        return;
    }
    let mut system = System::up(&pictures("files = \"keep\""));
    ["server", "one", "two"].iter().for_each(|name| system.await_state(name, "ready"));
    await_checkpoints(&system, 1);
    let before = pids(&system);
    system.guardian.kill().unwrap();
    system.guardian.wait().unwrap();
    await_progress(&system);
    let row = system.status("pictures");
    assert!(row["unprotected_because"].as_str().is_some_and(|why| why.contains("undying up")), "{row}");
    system.guardian = system.lab.undying(["up", "system.toml"]).spawn().unwrap();
    ["server", "one", "two"].iter().for_each(|name| system.await_state(name, "ready"));
    assert_eq!(pids(&system), before);
    await_checkpoints(&system, 2);
    system.pid("one").signal(Signal::KILL).unwrap();
    until("the restore", || {
        // This process has become the parent of the members.
        before.iter().for_each(|member| reap(member.pid()));
        system.told("is back at checkpoint").then_some(())
    });
    ["server", "one", "two"].iter().for_each(|name| system.await_state(name, "ready"));
    await_progress(&system);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn a_member_that_ends_with_success_leaves_the_group() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.stays]\ncommand = [\"PROGRAM\", \"FOLDER/stays\"]\npolicy = \"checkpointed\"\nevery = \"50ms\"\n\
         [component.ends]\ncommand = [\"sh\", \"-c\", \"sleep 2\"]\npolicy = \"checkpointed\"\nevery = \"50ms\"\n\
         [group.both]\nmembers = [\"stays\", \"ends\"]\ntogether = true\n",
    );
    ["stays", "ends"].iter().for_each(|name| system.await_state(name, "ready"));
    let stays = system.pid("stays");
    system.await_state("ends", "ended");
    assert!(stays.is_alive() && system.incarnation("both") == 1, "{}", system.lab.told());
    assert!(system.told("the other members of the group continue"), "{}", system.lab.told());
    await_checkpoints_of(&system, "both", 2);
    assert_eq!(system.down(), Some(0));
}

#[test]
fn files_with_groups_that_cannot_be_checkpointed_together_are_refused() {
    let component = "command = [\"sleep\", \"9\"]\npolicy = \"checkpointed\"\n";
    let cases = [
        ("every = \"1s\"", "[group.g]", "", "`every` differs between `a` and `b`"),
        ("restart = { max = \"9/1m\" }", "[group.g]", "", "`restart` differs"),
        ("", "[group.a]", "", "`a` is also the name of a component"),
        ("", "[group.g]", "on_member_death = \"one\"", "a member alone cannot be restored"),
    ];
    for (key, group, more, words) in cases {
        let system = System::up(&format!(
            "[component.a]\n{component}{key}\n[component.b]\n{component}{group}\nmembers = [\"a\", \"b\"]\n\
             together = true\n{more}\n"
        ));
        system.await_told(words);
    }
}
