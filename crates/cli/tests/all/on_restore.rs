//! Tests of `--on-restore`: the command runs after each restore, before the program goes on.

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::system::System;
use crate::common::{Guarded, Lab, supported, until};

/// Notes what the command knows, and the state of the root.
const NOTE: &str = r#"echo "$UNDYING_NAME $UNDYING_IMAGE $UNDYING_SEQ $UNDYING_PID $(sed -n 's/^State:.//p' /proc/$UNDYING_PID/status | cut -c1)" >> notes"#;

fn notes(lab: &Lab) -> Vec<String> {
    let text = std::fs::read_to_string(lab.path("notes")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn the_command_runs_before_the_program_goes_on() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    // The program has no child that could end with it, and whose pid this process would keep from the restore by hand.
    let mut guarded = Guarded::run(&lab, &["--on-restore", NOTE], "exec sleep 600");
    guarded.await_checkpoints(2);
    assert!(notes(&lab).is_empty(), "the first start is no restore");
    for _ in 0..2 {
        guarded.kill();
        guarded.await_checkpoints(1);
    }
    let restored = lab.say(["events", "job", "--json", "--only", "restores"]).stdout;
    let rows = restored.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let restored: Vec<_> = rows.filter(|row| row["event"] == "restored").collect();
    let expected: Vec<String> =
        restored.iter().map(|row| format!("job job@{0} {0} {1} t", row["seq"], row["pid"])).collect();
    assert_eq!(notes(&lab), expected);
    assert!(!lab.say(["events", "job"]).stdout.contains("has left the program's tree"));
    let root = guarded.root();
    ProcessId::of(Pid(guarded.guardian.id() as i32)).unwrap().signal(Signal::TERM).unwrap();
    crate::common::wait(&mut guarded.guardian);
    // Another process reaps the program now.
    until("a free pid", || (!std::path::Path::new(&format!("/proc/{}", root.pid())).exists()).then_some(()));
    std::fs::remove_file(lab.path("notes")).unwrap();
    let said = lab.say(["restore", "job", "--detach", "--files", "keep", "--on-restore", NOTE]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(notes(&lab)[0].starts_with("job job@") && notes(&lab)[0].ends_with(" t"), "{:?}", notes(&lab));
    ProcessId::of(root.pid()).unwrap().signal(Signal::KILL).unwrap();
}

#[test]
fn a_command_that_fails_is_reported_and_the_program_goes_on() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let script = "until [ -e stop ]; do sleep 0.02; done";
    let guarded = Guarded::run(&lab, &["--on-restore", "exit 7"], script);
    guarded.await_checkpoints(1);
    guarded.kill();
    guarded.await_checkpoints(1);
    let told = "the command after the restore (on-restore) has failed: it exited with 7; the program goes on";
    until("the message", || guarded.said().contains(told).then_some(()));
    assert!(lab.say(["events", "job"]).stdout.contains(told));
    assert_eq!(guarded.end(), 0);
}

#[test]
fn a_component_has_the_command_and_the_limit_of_its_store_as_keys() {
    if !supported() {
        return;
    }
    let system = System::up(
        "[component.kept]\ncommand = [\"PROGRAM\", \"FOLDER/kept\", \"count\"]\npolicy = \"checkpointed\"\n\
         every = \"50ms\"\ndirectory = \"/usr\"\nstore_max = \"48MiB\"\n\
         on_restore = \"echo $UNDYING_NAME $PWD >> FOLDER/notes\"\n",
    );
    until("a checkpoint", || (system.status("kept")["checkpoints"].as_u64()? > 1).then_some(()));
    system.pid("kept").signal(Signal::KILL).unwrap();
    system.await_incarnation("kept", 2);
    assert_eq!(notes(&system.lab), ["kept /usr"]);
    until("the limit", || (system.status("kept")["stored"]["max_bytes"] == 48_u64 << 20).then_some(()));
    assert_eq!(system.down(), Some(0));
}
