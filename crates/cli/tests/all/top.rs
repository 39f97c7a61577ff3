//! Tests of `undying top` on a terminal, and of `undying show` for the same subject (a protected process tree).

use serde_json::Value;

use crate::common::terminal::{PROMPT, Terminal};
use crate::common::{Guarded, Lab, supported, until};

const ALTERNATE: &str = "\x1b[?1049h";
const ORDINARY: &str = "\x1b[?1049l";

#[test]
fn the_view_follows_a_subject_and_leaves_the_terminal_as_it_was() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let _guarded = Guarded::run(&lab, &["--every", "50ms"], "until [ -e stop ]; do sleep 0.02; done");
    let name = until("a subject", || {
        let rows: Value = serde_json::from_str(&lab.say(["status", "--json"]).stdout).ok()?;
        (rows[0]["checkpoints"].as_u64()? > 3).then(|| rows[0]["name"].as_str().unwrap().to_owned())
    });
    let mut terminal = Terminal::open(&lab);
    terminal.resize(24, 80);
    terminal.send("TERM=xterm \"$UNDYING\" --store \"$STORE\" top --interval 100ms\n");
    terminal.expect(ALTERNATE);
    terminal.expect("1 subject, by NAME");
    terminal.expect(&name);
    terminal.send("\r");
    terminal.expect("incarnation");
    terminal.expect("last events");
    // The view draws only changed cells. The expected words are drawn in one piece.
    terminal.send("\x1b");
    terminal.expect("DIRTY/S");
    terminal.send("?");
    terminal.expect("Ctrl-Z");
    // A resize draws all cells again. The terminal of this test does not answer queries of a program.
    terminal.resize(30, 100);
    terminal.expect("Ctrl-Z");
    terminal.send("\x1a");
    terminal.expect(ORDINARY);
    terminal.expect("Stopped");
    terminal.is_usable(PROMPT);
    terminal.send("fg\n");
    terminal.expect(ALTERNATE);
    terminal.expect("Ctrl-Z");
    terminal.send("q");
    terminal.expect(ORDINARY);
    terminal.expect(PROMPT);
    terminal.is_usable(PROMPT);
    // SIGTERM ends the view in the same way.
    terminal.send("(sleep 0.5; kill -TERM $$) & TERM=xterm exec \"$UNDYING\" --store \"$STORE\" top\n");
    terminal.expect(ALTERNATE);
    terminal.expect(ORDINARY);
    until("its end", || terminal.shell.try_wait().unwrap());
}

#[test]
fn the_view_ends_with_its_terminal() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut terminal = Terminal::open(&lab);
    terminal.send("trap '' HUP; TERM=xterm exec \"$UNDYING\" --store \"$STORE\" top\n");
    terminal.expect(ALTERNATE);
    // Closes the last descriptor of the master side, so the terminal is gone.
    terminal.hang_up();
    until("its end", || terminal.shell.try_wait().unwrap());
}

#[test]
fn an_image_shows_processes_descriptors_and_mappings() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    std::fs::write(lab.path("read"), "some text").unwrap();
    let guarded = Guarded::run(
        &lab,
        &["--every", "50ms"],
        "exec 7<read; read -r word <&7; sleep 600 & until [ -e stop ]; do sleep 0.02; done",
    );
    let name = until("a checkpoint with a child", || {
        let rows: Value = serde_json::from_str(&lab.say(["status", "--json"]).stdout).ok()?;
        let name = rows[0]["name"].as_str()?.to_owned();
        let shown = lab.say(["show", &name, "--json"]);
        let image: Value = serde_json::from_str(&shown.stdout).ok()?;
        let is_there = |process: &Value| process["command"] == "sleep 600";
        image["processes"].as_array()?.iter().any(is_there).then_some(name)
    });
    drop(guarded);
    let image: Value = serde_json::from_str(&lab.say(["show", &name, "--json"]).stdout).unwrap();
    let processes = image["processes"].as_array().unwrap();
    let (root, child) = (&processes[0], &processes[1]);
    assert_eq!((child["ppid"].clone(), child["state"].as_str()), (root["pid"].clone(), Some("running")));
    assert!(root["command"].as_str().unwrap().contains("until [ -e stop ]"), "{root}");
    assert!(root["stored"].as_u64().unwrap() > 4096 && root["mapped"].as_u64() > root["stored"].as_u64());
    let descriptors = image["descriptors"].as_array().unwrap();
    let read = descriptors.iter().find(|one| one["pid"] == root["pid"] && one["fd"] == 7).unwrap();
    assert_eq!((read["access"].as_str(), read["kind"].as_str()), (Some("r"), Some("regular")));
    assert!(read["name"].as_str().unwrap().ends_with("/read"), "{read}");
    let mappings = image["mappings"].as_array().unwrap();
    assert!(mappings.iter().any(|one| one["mode"] == "r-xp" && one["name"] == root["executable"]));
    let stored = |pid: &Value| -> u64 {
        mappings.iter().filter(|one| one["pid"] == *pid).map(|one| one["stored"].as_u64().unwrap()).sum()
    };
    assert_eq!(stored(&root["pid"]), root["stored"].as_u64().unwrap());

    let text = lab.say(["show", &name]).stdout;
    for words in ["subject  ", "PPID", "sleep 600", "COMMAND", "7r", "regular", "/read"] {
        assert!(text.contains(words), "{words:?} is missing in\n{text}");
    }
    let maps = lab.say(["show", &name, "--maps"]).stdout;
    assert!(maps.contains("KBYTES") && maps.contains("[stack]") && maps.contains("total"), "{maps}");
    assert!(!lab.say(["show", &name, "--files"]).stdout.contains("PPID"));
    assert_eq!(lab.say(["show", &name, "--files", "--maps"]).code, Some(2));
}
