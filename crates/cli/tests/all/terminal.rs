//! Tests with names that a subject (a protected process tree) has chosen. Wherever `undying` prints such a name, the
//! name must not move the cursor, forge a line or reverse the text.

use rustix::process::Signal;

use crate::common::{Lab, Said, program, supported, until};

/// A hostile file name: a forged line of `undying`, control characters of both kinds, and a control character for
/// bidirectional text. The letters must stay readable.
const NAME: &str = "größe\nhelp: forged\x1b[2J\x07\u{9b}31m\u{202e}";
const SHOWN: &str = "größe\\nhelp: forged\\u{1b}[2J\\u{7}\\u{9b}31m\\u{202e}";

fn assert_escaped(what: &str, text: &str) {
    assert!(text.contains(SHOWN), "{what}: {text:?}");
    assert_harmless(what, text);
}

fn assert_harmless(what: &str, text: &str) {
    let is_control = |character: char| character.is_control() && character != '\n' || character == '\u{202e}';
    assert!(!text.contains(is_control), "{what}: {text:?}");
    assert!(text.lines().all(|line| !line.starts_with("help: forged")), "{what}: {text:?}");
}

#[test]
fn an_error_escapes_the_names_that_it_quotes() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let (own, image) = (lab.path(NAME), lab.path("image"));
    crate::common::copy_program(program(), &own);
    let counter = lab.counter_like(&own, &[], &mut std::process::Command::new("setsid"));
    let words = ["checkpoint", &counter.pid().to_string(), "--kill", "--image", image.to_str().unwrap()];
    assert_eq!(lab.say(words).code, Some(0));
    crate::common::reap(counter.pid());
    std::fs::remove_file(&own).unwrap();
    let Said { code, stdout, stderr } = lab.say(["restore", image.to_str().unwrap()]);
    assert_eq!(code, Some(3), "{stderr}");
    assert_escaped("restore", &stderr);
    assert_harmless("restore", &stdout);
    let missing = lab.say(["verify", lab.path(NAME).to_str().unwrap()]);
    assert_escaped("verify", &missing.stderr);
}

#[test]
fn run_and_its_events_escape_the_names_that_they_quote() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    // The guardian holds the program file, so that a removed data file has to prevent the restore.
    let (own, data) = (lab.path("own"), lab.path(NAME));
    crate::common::copy_program(program(), &own);
    std::fs::write(&data, "content").unwrap();
    let mut words = vec!["run", "--name", "job", "--every", "10ms", "--files", "keep", "--"];
    let count = lab.path("count");
    words.extend([own.to_str().unwrap(), count.to_str().unwrap(), "hold", data.to_str().unwrap()]);
    let mut command = lab.undying(&words);
    let mut guardian = lab.detached(&mut command).spawn().unwrap();
    let counter = until("the counter", || {
        let exe = |pid| std::fs::read_link(format!("/proc/{pid}/exe")).ok();
        let is_counter = |one: &testkit::ProcessId| exe(one.pid()) == Some(own.clone());
        lab.guard.marked().into_iter().find(is_counter)
    });
    until("a checkpoint", || lab.json(&["ls", "job"]).as_array().filter(|rows| !rows.is_empty()).map(drop));
    std::fs::remove_file(&data).unwrap();
    counter.signal(Signal::KILL).unwrap();
    crate::common::wait(&mut guardian);
    assert_escaped("run", &lab.told());
    for verb in
        [&["events", "job"][..], &["deaths", "job"], &["status", "job"], &["top", "job", "--once"], &["ls"]]
    {
        let said = lab.say(verb);
        assert_harmless(verb[0], &said.stdout);
        assert_harmless(verb[0], &said.stderr);
    }
    assert_escaped("events", &lab.say(["events", "job"]).stdout);
}
