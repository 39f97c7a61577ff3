//! Tests with files that another user owns or has placed in a store or an image. `undying` must refuse such files
//! immediately with exit code 5, and must still handle the other subjects (protected process trees).

use std::ffi::OsStr;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::{Lab, Said, supported};

/// The uid of an account that owns nothing.
const NOBODY: u32 = 65_534;

/// Creates a store with the subjects `bad` and `good`. Both subjects have ended.
fn lab() -> Lab {
    let lab = Lab::new();
    for name in ["bad", "good"] {
        // On a loaded machine, a short run has no checkpoint.
        let has_checkpoint = ["0.3", "3", "30"].iter().any(|seconds| {
            let words =
                ["run", "--name", name, "--every", "10ms", "--restart", "never", "--", "sleep", seconds];
            let said = lab.say(words);
            assert_eq!(said.code, Some(0), "{said:?}");
            lab.say(["verify", name]).code == Some(0)
        });
        assert!(has_checkpoint);
    }
    lab
}

/// Asserts that the exit code is 5, and that the messages contain the path and a help line.
fn assert_refused(said: &Said, path: &Path) {
    assert_eq!(said.code, Some(5), "{said:?}");
    assert!(said.stderr.contains(path.to_str().unwrap()) && said.stderr.contains("help: "), "{said:?}");
}

fn fifo(path: &Path) {
    let _ = std::fs::remove_file(path);
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn segment(lab: &Lab) -> PathBuf {
    let entries = std::fs::read_dir(lab.store().join("bad/log")).unwrap();
    entries
        .map(|entry| entry.unwrap().path())
        .find(|path| path.extension() == Some(OsStr::new("seg")))
        .unwrap()
}

#[test]
fn a_planted_fifo_stops_no_verb_and_no_other_subject() {
    if !supported() {
        return;
    }
    let lab = lab();
    let segment = segment(&lab);
    fifo(&segment);
    for verb in [&["ls"][..], &["gc"], &["gc", "--dry-run"]] {
        let said = lab.say(verb);
        assert_refused(&said, &segment);
        assert!(said.stderr.contains("bad: "), "{verb:?}: {said:?}");
    }
    assert!(lab.say(["ls"]).stdout.contains("good"));
    for verb in ["ls", "verify", "show", "restore", "prune", "squash"] {
        let mut words = vec![verb, "bad"];
        words.extend((verb == "prune").then_some(["--keep", "1"]).into_iter().flatten());
        assert_refused(&lab.say(&words), &segment);
    }
    let (status, events) = (lab.store().join("bad/status.json"), lab.store().join("bad/events.jsonl"));
    fifo(&status);
    assert_refused(&lab.say(["status"]), &status);
    assert!(lab.say(["status"]).stdout.contains("good"));
    fifo(&events);
    for verb in [&["events"][..], &["deaths"], &["top", "--once"]] {
        let said = lab.say(verb);
        assert_eq!(said.code, Some(5), "{verb:?}: {said:?}");
        assert!(said.stdout.contains("good"), "{verb:?}: {said:?}");
    }
    // The next run cannot take over the name either.
    let said = lab.say(["run", "--name", "bad", "--", "true"]);
    assert_refused(&said, &segment);
}

#[test]
fn a_journal_of_another_user_or_open_to_others_is_refused() {
    if !supported() {
        return;
    }
    let lab = lab();
    let verbs =
        [("status.json", &["status"][..]), ("events.jsonl", &["events"]), ("events.jsonl", &["deaths"])];
    for (file, verb) in verbs {
        let path = lab.store().join("bad").join(file);
        let mode = std::fs::metadata(&path).unwrap().permissions();
        chown(&path, Some(NOBODY), None).unwrap();
        let foreign = lab.say(verb);
        chown(&path, Some(0), None).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o622)).unwrap();
        let open = lab.say(verb);
        std::fs::set_permissions(&path, mode).unwrap();
        for said in [foreign, open] {
            assert_refused(&said, &path);
            assert!(said.stdout.contains("good"), "{verb:?}: {said:?}");
        }
    }
}

#[test]
fn an_image_of_another_user_is_refused_and_a_copy_of_it_is_not() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let counter = lab.counter(&[]);
    let image = lab.path("image");
    let words = ["checkpoint", &counter.pid().to_string(), "--kill", "--image", image.to_str().unwrap()];
    assert_eq!(lab.say(words).code, Some(0));
    crate::common::reap(counter.pid());
    chown(&image, Some(NOBODY), None).unwrap();
    for entry in std::fs::read_dir(&image).unwrap() {
        chown(entry.unwrap().path(), Some(NOBODY), None).unwrap();
    }
    for verb in ["verify", "show", "restore"] {
        let said = lab.say([verb, image.to_str().unwrap()]);
        assert_refused(&said, &image);
        assert!(said.stderr.contains("belongs to uid 65534") && said.stderr.contains("cp -r"), "{said:?}");
    }
    // Follows the advice of the help line.
    let copy = lab.path("copy");
    assert!(Command::new("cp").arg("-r").args([&image, &copy]).status().unwrap().success());
    assert!(Command::new("chmod").args(["-R", "go-w"]).arg(&copy).status().unwrap().success());
    assert_eq!(lab.say(["verify", copy.to_str().unwrap()]).code, Some(0));
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o722)).unwrap();
    let said = lab.say(["restore", copy.to_str().unwrap()]);
    assert_refused(&said, &copy);
    assert!(said.stderr.contains("chmod -R go-w"), "{said:?}");
    std::fs::set_permissions(&copy, PermissionsExt::from_mode(0o700)).unwrap();
    let said = lab.say(["restore", "--detach", copy.to_str().unwrap()]);
    assert_eq!(said.code, Some(0), "{said:?}");
    counter.goes_on(2);
}

#[test]
fn killed_checkpoints_leave_nothing_behind_beside_the_next_image() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let counter = lab.counter(&[]);
    let images = lab.path("images");
    std::fs::create_dir(&images).unwrap();
    let pid = counter.pid().to_string();
    let left = || {
        let entries = std::fs::read_dir(&images).unwrap().map(|entry| entry.unwrap().file_name());
        entries.filter(|name| name.to_string_lossy().ends_with(".partial")).count()
    };
    // A checkpoint that ends before it is killed leaves an image. The next attempt therefore uses another name.
    let mut attempts = 0;
    while left() == 0 {
        let image = images.join(format!("image-{attempts}"));
        let mut command = lab.undying(["checkpoint", &pid, "--image", image.to_str().unwrap()]);
        let mut checkpoint = lab.detached(&mut command).spawn().unwrap();
        while checkpoint.try_wait().unwrap().is_none() && left() == 0 {
            std::thread::sleep(Duration::from_micros(100));
        }
        checkpoint.kill().unwrap();
        checkpoint.wait().unwrap();
        attempts += 1;
        assert!(attempts < 500, "no checkpoint was caught in the act");
    }
    let said = lab.say(["checkpoint", &pid, "--image", images.join("last").to_str().unwrap()]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(left(), 0);
    counter.goes_on(2);
    counter.process.signal(Signal::TERM).unwrap();
}

#[test]
fn a_system_file_that_another_user_can_write_is_refused() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let file = lab.path("system.toml");
    let made = lab.path("made");
    let text = format!(
        "[system]\nname = \"lab\"\n[component.a]\ncommand = [\"touch\", \"{}\"]\npolicy = \"never\"\n",
        made.display()
    );
    std::fs::write(&file, text).unwrap();
    let given = |owner: u32, group: u32, mode: u32| {
        chown(&file, Some(owner), Some(group)).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
    };
    for (owner, group, mode) in [(NOBODY, 0, 0o644), (0, 0, 0o646), (0, NOBODY, 0o664), (NOBODY, 0, 0o400)] {
        given(owner, group, mode);
        for verb in ["check", "up"] {
            let said = lab.say([verb, file.to_str().unwrap()]);
            assert_refused(&said, &file);
            assert!(said.stderr.contains("chown 0") && said.stderr.contains("go-w"), "{said:?}");
        }
    }
    assert!(!made.exists() && !lab.store().exists());
    for (group, mode) in [(0, 0o664), (NOBODY, 0o644), (0, 0o600)] {
        given(0, group, mode);
        assert_eq!(lab.say(["check", file.to_str().unwrap()]).code, Some(0), "{group} {mode:o}");
    }
}

/// Plants the directory for the cut-off ends of files beside an image.
type Plant = fn(&Path, &Path);

#[test]
fn the_end_of_a_file_is_not_kept_where_another_user_has_prepared_a_place() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let (shared, theirs, log) = (lab.path("shared"), lab.path("theirs"), lab.path("log"));
    for (directory, mode) in [(&shared, 0o1777), (&theirs, 0o755)] {
        std::fs::create_dir(directory).unwrap();
        std::fs::set_permissions(directory, PermissionsExt::from_mode(mode)).unwrap();
    }
    chown(&theirs, Some(NOBODY), None).unwrap();
    let script = format!("exec 7>>{}; echo first >&7; exec sleep 600", log.display());
    let mut program = lab.detached(Command::new("setsid").args(["sh", "-c", &script])).spawn().unwrap();
    crate::common::until("the first line", || std::fs::read(&log).ok().filter(|text| !text.is_empty()));
    let image = shared.join("image");
    let pid = program.id().to_string();
    let said = lab.say(["checkpoint", &pid, "--kill", "--image", image.to_str().unwrap()]);
    assert_eq!(said.code, Some(0), "{said:?}");
    crate::common::wait(&mut program);
    std::fs::write(&log, "first\nsecret\n").unwrap();
    let aside = shared.join("image.aside");
    let plants: [(&str, Plant); 4] = [
        ("belongs to uid 65534", |aside, _| {
            std::fs::create_dir(aside).unwrap();
            chown(aside, Some(NOBODY), None).unwrap();
        }),
        ("can be written by other users", |aside, _| {
            std::fs::create_dir(aside).unwrap();
            std::fs::set_permissions(aside, PermissionsExt::from_mode(0o777)).unwrap();
        }),
        ("is a symbolic link", |aside, theirs| std::os::unix::fs::symlink(theirs, aside).unwrap()),
        ("is a regular file", |aside, _| std::fs::write(aside, "").unwrap()),
    ];
    for (why, plant) in plants {
        plant(&aside, &theirs);
        let said = lab.say(["restore", image.to_str().unwrap(), "--detach"]);
        assert_refused(&said, &aside);
        assert!(said.stderr.contains(why), "{said:?}");
        assert_eq!(std::fs::read_to_string(&log).unwrap(), "first\nsecret\n");
        assert_eq!(std::fs::read_dir(&theirs).unwrap().count(), 0);
        let found = shared.join("image.aside.found");
        std::fs::rename(&aside, &found).unwrap();
        let _ = std::fs::remove_dir(&found).or_else(|_| std::fs::remove_file(&found));
    }
    let said = lab.say(["restore", image.to_str().unwrap(), "--detach"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "first\n");
    assert_eq!(std::fs::read_to_string(aside.join("1/bytes")).unwrap(), "secret\n");
}
