//! Tests of `undying run` and `undying restore`: files are rolled back with the program, and no step is executed twice.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::{Lab, compiled, supported, until, wait};

/// Number of steps of the subject (the test program). Each step takes about 5 ms.
const STEPS: &str = "700";
/// Maximum time in milliseconds before an incarnation (one run of the program) is killed.
const LIFE_MS: u64 = 500;

/// Returns the reason why files cannot be rolled back on this machine; `None` if they can.
fn missing(lab: &Lab) -> Option<String> {
    let report = lab.json(&["doctor"]);
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "files-go-back").unwrap();
    (check["state"] != "ok").then(|| check["detail"].as_str().unwrap().to_owned())
}

/// Creates a lab on a machine that can roll back files. Prints the reason otherwise.
fn lab() -> Option<Lab> {
    if !supported() {
        return None;
    }
    let lab = Lab::new();
    if let Some(why) = missing(&lab) {
        println!("unsupported: files-go-back ({why})");
        return None;
    }
    Some(lab)
}

/// Returns the path of the subject.
fn writer() -> &'static str {
    compiled("writer").to_str().unwrap()
}

/// Returns the content of a directory: for each path, the mode and the content or the target of a link.
fn tree(directory: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(folder) = left.pop() {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            let content = if metadata.is_symlink() {
                std::fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes()
            } else if metadata.is_dir() {
                left.push(path.clone());
                Vec::new()
            } else {
                std::fs::read(&path).unwrap()
            };
            let name = path.strip_prefix(directory).unwrap().to_owned();
            found.insert(name, (metadata.permissions().mode(), content));
        }
    }
    found
}

fn assert_same(expected: &Path, found: &Path) {
    let (expected, found) = (tree(expected), tree(found));
    let names = |tree: &BTreeMap<PathBuf, _>| tree.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&found), names(&expected));
    for (name, (mode, content)) in &expected {
        let (found_mode, found_content) = &found[name];
        assert_eq!(found_mode, mode, "the mode of {}", name.display());
        let differs = content.iter().zip(found_content).position(|(one, other)| one != other);
        assert!(found_content == content, "{} differs at {differs:?}", name.display());
    }
}

/// Runs the subject without `undying`, and returns its directory. The file `expected.out` contains its output.
fn uninterrupted(lab: &Lab) -> PathBuf {
    let directory = lab.path("expected");
    std::fs::create_dir(&directory).unwrap();
    let mut command = Command::new(writer());
    lab.detached(command.arg(&directory).arg(STEPS));
    let status = wait(&mut command.stdout(File::create(lab.path("expected.out")).unwrap()).spawn().unwrap());
    assert!(status.success(), "{}", lab.told());
    directory
}

/// The subject under a guardian. Its directory is `data`, and its standard output is the file `out`.
struct Writing<'a> {
    lab: &'a Lab,
    guardian: Child,
}

impl<'a> Writing<'a> {
    fn begin(lab: &'a Lab, options: &[&str]) -> Self {
        Self::with(lab, options, |command, out| {
            command.stdout(out);
        })
    }

    fn with(lab: &'a Lab, options: &[&str], streams: impl FnOnce(&mut Command, File)) -> Self {
        let data = lab.path("data");
        std::fs::create_dir(&data).unwrap();
        let mut words = vec!["run", "--name", "job", "--max-restarts", "999/1m", "--files", "rewind"];
        // With this cost limit, files can be rolled back to every checkpoint, even in a slow build.
        words.extend(["--files-cost-max", "10000"]);
        words.extend(options);
        words.extend(["--", writer(), data.to_str().unwrap(), STEPS]);
        let mut command = lab.undying(words);
        streams(&mut command, File::create(lab.path("out")).unwrap());
        Self { lab, guardian: command.spawn().unwrap() }
    }

    fn status(&self) -> serde_json::Value {
        until("a status", || {
            let status = self.lab.json(&["status", "job"]);
            status.get(0).cloned()
        })
    }

    fn root(&self) -> Option<ProcessId> {
        ProcessId::of(Pid(self.status()["pid"].as_i64()? as i32)).ok()
    }

    fn await_exact(&self) {
        until("an exact checkpoint", || {
            let status = self.status();
            (status["files"]["exact"].as_u64()? > 0).then_some(())
        });
    }

    /// Kills the root the given number of times, at random moments.
    fn kill_often(&mut self, times: usize) {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        for _ in 0..times {
            std::thread::sleep(Duration::from_millis(random.u64(20..LIFE_MS)));
            if self.guardian.try_wait().unwrap().is_some() {
                return;
            }
            let before = self.status()["incarnation"].as_u64().unwrap();
            // The program may have ended by itself.
            if let Some(root) = self.root() {
                let _ = root.signal(Signal::KILL);
            }
            until("the next life or the end", || {
                let status = self.status();
                let lives = status["incarnation"].as_u64()? > before && status["state"] == "running";
                (lives || status["state"] == "ended").then_some(())
            });
        }
    }

    /// Waits for the end of the program.
    fn end(&mut self) {
        let status = wait(&mut self.guardian);
        assert_eq!(status.code(), Some(0), "{}", self.lab.told());
    }

    fn assert_like(&self, expected: &Path) {
        assert_same(expected, &self.lab.path("data"));
        let read = |name: &str| std::fs::read_to_string(self.lab.path(name)).unwrap();
        assert_eq!(read("out"), read("expected.out"));
    }
}

#[test]
fn what_is_killed_ten_times_leaves_what_an_uninterrupted_run_leaves() {
    let Some(lab) = lab() else { return };
    let expected = uninterrupted(&lab);
    let mut writing = Writing::begin(&lab, &["--every", "100ms"]);
    writing.await_exact();
    writing.kill_often(testkit::rounds(10, 100));
    writing.end();
    writing.assert_like(&expected);
    let said = lab.told();
    assert!(said.contains("files were rolled back to checkpoint"), "{said}");
}

#[test]
fn a_death_before_the_first_checkpoint_takes_files_back_to_the_beginning() {
    let Some(lab) = lab() else { return };
    let expected = uninterrupted(&lab);
    let mut writing = Writing::begin(&lab, &["--every", "1h", "--await-ready"]);
    writing.kill_often(3);
    let said = lab.told();
    assert!(said.contains("files were rolled back to the beginning"), "{said}");
    writing.end();
    writing.assert_like(&expected);
}

#[test]
fn standard_output_and_error_in_one_file_have_each_line_of_the_program_once() {
    let Some(lab) = lab() else { return };
    let expected = uninterrupted(&lab);
    // A shell opens the file like this for `> FILE 2>&1`: one open file description, without O_APPEND.
    let mut writing = Writing::with(&lab, &["--every", "100ms"], |command, out| {
        command.stdout(out.try_clone().unwrap()).stderr(out);
    });
    writing.await_exact();
    writing.kill_often(5);
    writing.end();
    assert_same(&expected, &lab.path("data"));
    let text = std::fs::read_to_string(lab.path("out")).unwrap();
    assert!(!text.contains('\0'), "{text}");
    let steps: String = text.split_inclusive('\n').filter(|line| line.starts_with("step ")).collect();
    assert_eq!(steps, std::fs::read_to_string(lab.path("expected.out")).unwrap());
    assert!(text.contains("was killed by signal 9") && text.contains("files were rolled back"), "{text}");
}

#[test]
fn an_output_that_another_program_writes_stays_as_it_is() {
    let Some(lab) = lab() else { return };
    let mut other = Command::new("sleep");
    let out = File::options().create(true).append(true).open(lab.path("out")).unwrap();
    let mut other = lab.detached(other.arg("600")).stdout(out).spawn().unwrap();
    let mut writing = Writing::with(&lab, &["--every", "100ms"], |command, _| {
        command.stdout(File::options().append(true).open(lab.path("out")).unwrap());
    });
    writing.await_exact();
    writing.kill_often(3);
    writing.end();
    other.kill().unwrap();
    other.wait().unwrap();
    let said = lab.told();
    assert!(said.contains("standard streams stayed, since other programs write"), "{said}");
    let text = std::fs::read_to_string(lab.path("out")).unwrap();
    let last: u32 = STEPS.parse().unwrap();
    for step in 1..=last {
        assert!(text.contains(&format!("step {step}\n")), "step {step} is missing: {text}");
    }
}

/// Makes all writes of a process to a file fail with EPERM, until the process ends.
fn fail_writes(process: u32, file: &Path) -> Option<Child> {
    let mut command = Command::new("strace");
    command.args(["-f", "-e", "inject=pwrite64,write,ftruncate,fallocate,copy_file_range:error=EPERM", "-P"]);
    command.arg(file).args(["-p", &process.to_string()]);
    let mut strace = command.stdin(Stdio::null()).stderr(Stdio::piped()).spawn().ok()?;
    let mut said = BufReader::new(strace.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.contains("attached"), "{line}");
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    Some(strace)
}

#[test]
fn a_program_is_not_started_over_files_that_have_gone_back_in_part() {
    let Some(lab) = lab() else { return };
    let expected = uninterrupted(&lab);
    let mut writing = Writing::begin(&lab, &["--every", "2s"]);
    writing.await_exact();
    std::thread::sleep(Duration::from_millis(300));
    let root = writing.root().unwrap();
    root.signal(Signal::STOP).unwrap();
    let Some(mut strace) = fail_writes(writing.guardian.id(), &lab.path("data").join("table")) else {
        println!("unsupported: strace");
        root.signal(Signal::CONT).unwrap();
        return writing.end();
    };
    root.signal(Signal::KILL).unwrap();
    let status = wait(&mut writing.guardian);
    strace.wait().unwrap();
    let said = lab.told();
    assert_eq!(status.code(), Some(125), "{said}");
    assert!(said.contains("during the rollback of") && said.contains("changes are left"), "{said}");
    assert_eq!(writing.status()["state"], "failed");
    // A restore rolls back the remaining changes. The failed run has written a message to the program's standard error,
    // which is a file. This file has therefore changed.
    let pidfile = lab.path("pid");
    let restore = ["restore", "job", "--detach", "--files", "force", "--pidfile", pidfile.to_str().unwrap()];
    let said = lab.say(restore);
    assert_eq!(said.code, Some(0), "{said:?}");
    let pid: i32 = std::fs::read_to_string(&pidfile).unwrap().trim().parse().unwrap();
    let root = ProcessId::of(Pid(pid)).unwrap();
    until("the end", || (!root.is_alive()).then_some(()));
    assert_same(&expected, &lab.path("data"));
}

#[test]
fn show_names_the_files_that_do_not_go_back_with_the_others() {
    let Some(lab) = lab() else { return };
    let input = lab.path("in");
    let mut writing = Writing::with(&lab, &["--every", "100ms"], |command, out| {
        // The file is open before the program starts, for writing at any position.
        command.stdout(out);
        command.stdin(File::options().read(true).write(true).create_new(true).open(&input).unwrap());
    });
    writing.await_exact();
    writing.end();
    let rows = lab.json(&["ls", "job"]);
    let exact = rows.as_array().unwrap().iter().rfind(|row| row["files_exact"] == true).unwrap();
    let image = format!("job@{}", exact["seq"]);
    assert_eq!(lab.json(&["show", &image])["uncovered"], serde_json::json!([input.to_str().unwrap()]));
    let said = lab.say(["show", &image]);
    let line = format!("files    rolled back with the program; compared: {}", input.display());
    assert!(said.stdout.lines().any(|found| found == line), "{said:?}");
}

/// Runs the subject for a while, and ends it. Returns the newest checkpoint to which its files can be rolled back.
fn ended_early(lab: &Lab) -> u64 {
    let mut writing = Writing::begin(lab, &["--every", "100ms", "--keep", "100"]);
    writing.await_exact();
    std::thread::sleep(Duration::from_millis(500));
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&writing.guardian),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    wait(&mut writing.guardian);
    let rows = lab.json(&["ls", "job"]);
    let rows = rows.as_array().unwrap();
    let exact = rows.iter().filter(|row| row["files_exact"] == true);
    let found: Vec<u64> = exact.filter_map(|row| row["seq"].as_u64()).collect();
    assert!(found.len() >= 2, "{rows:?}");
    found[found.len() / 2]
}

#[test]
fn restore_takes_files_back_and_the_program_goes_on_from_there() {
    let Some(lab) = lab() else { return };
    let expected = uninterrupted(&lab);
    let image = format!("job@{}", ended_early(&lab));
    let (now, out) = (tree(&lab.path("data")), std::fs::read(lab.path("out")).unwrap());
    assert!(out.len() < std::fs::read(lab.path("expected.out")).unwrap().len(), "it was ended early");
    // Another program has changed a file. The restore must name this file and change nothing.
    let state = lab.path("data").join("table");
    let original = std::fs::read(&state).unwrap();
    std::fs::write(&state, "changed by another program").unwrap();
    let said = lab.say(["restore", &image, "--detach"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stderr.contains("table"), "{said:?}");
    assert_eq!(std::fs::read(&state).unwrap(), b"changed by another program");
    assert_eq!(tree(&lab.path("data")).len(), now.len());
    assert_ne!(original, b"changed by another program");
    let pidfile = lab.path("pid");
    let restore = ["restore", &image, "--detach", "--files", "force", "--pidfile", pidfile.to_str().unwrap()];
    let said = lab.say(restore);
    assert_eq!(said.code, Some(0), "{said:?}");
    let pid: i32 = std::fs::read_to_string(&pidfile).unwrap().trim().parse().unwrap();
    let root = ProcessId::of(Pid(pid)).unwrap();
    until("the end", || (!root.is_alive()).then_some(()));
    assert_same(&expected, &lab.path("data"));
    let read = |name: &str| std::fs::read_to_string(lab.path(name)).unwrap();
    assert_eq!(read("out"), read("expected.out"));
}

#[test]
fn what_was_moved_aside_is_listed_and_put_back() {
    let Some(lab) = lab() else { return };
    let image = format!("job@{}", ended_early(&lab));
    let before = tree(&lab.path("data"));
    let pidfile = lab.path("pid");
    let said = lab.say(["restore", &image, "--detach", "--pidfile", pidfile.to_str().unwrap()]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let pid: i32 = std::fs::read_to_string(&pidfile).unwrap().trim().parse().unwrap();
    let _ = ProcessId::of(Pid(pid)).map(|root| root.signal(Signal::KILL));
    let rows = lab.json(&["files", "job"]);
    let rows = rows.as_array().unwrap();
    // These are files that the program has created since the checkpoint, without files that it has created again.
    let is_gone = |row: &&serde_json::Value| {
        let path = |key: &str| Path::new(row[key].as_str().unwrap()).to_owned();
        !path("path").exists() && path("to").symlink_metadata().is_ok_and(|moved| moved.is_file())
    };
    let gone = rows.iter().find(is_gone);
    let gone = gone.unwrap_or_else(|| panic!("nothing is aside: {rows:?}"));
    let path = Path::new(gone["path"].as_str().unwrap());
    assert!(lab.say(["files", "job"]).stdout.contains(gone["path"].as_str().unwrap()));
    let (parent, moved, elsewhere) = (path.parent().unwrap(), lab.path("moved"), lab.path("elsewhere"));
    std::fs::create_dir(&elsewhere).unwrap();
    std::fs::rename(parent, &moved).unwrap();
    std::os::unix::fs::symlink(&elsewhere, parent).unwrap();
    let said = lab.say(["files", "job", "--put-back", gone["path"].as_str().unwrap()]);
    assert_ne!(said.code, Some(0), "{said:?}");
    assert_eq!(std::fs::read_dir(&elsewhere).unwrap().count(), 0, "the link was followed");
    std::fs::remove_file(parent).unwrap();
    std::fs::rename(&moved, parent).unwrap();
    let said = lab.say(["files", "job", "--put-back", gone["path"].as_str().unwrap()]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let name = path.strip_prefix(lab.path("data")).unwrap();
    assert_eq!(std::fs::read(path).unwrap(), before[name].1);
    assert_eq!(path.metadata().unwrap().permissions().mode(), before[name].0);
    let said = lab.say(["files", "job", "--put-back", gone["path"].as_str().unwrap()]);
    assert_ne!(said.code, Some(0), "{said:?}");
    // Without checkpoints, there is no state for a rollback.
    assert_eq!(lab.say(["prune", "job", "--keep", "0"]).code, Some(0));
    let said = lab.say(["restore", &image, "--files", "rewind"]);
    assert!(said.code.is_some_and(|code| code != 0), "{said:?}");
}

#[test]
fn the_death_of_the_guardian_makes_no_call_of_the_program_fail() {
    let Some(lab) = lab() else { return };
    let expected = uninterrupted(&lab);
    let mut writing = Writing::begin(&lab, &["--every", "50ms"]);
    writing.await_exact();
    let root = writing.root().unwrap();
    writing.guardian.kill().unwrap();
    wait(&mut writing.guardian);
    assert!(root.is_alive(), "the program ended with its guardian");
    until("the end", || (!root.is_alive()).then_some(()));
    // A failed call would have ended the program before its last step, with a message.
    assert!(!lab.told().contains("writer: step"), "{}", lab.told());
    writing.assert_like(&expected);
}

#[test]
fn a_program_without_files_has_no_log_beside_it_when_it_was_not_started() {
    let Some(lab) = lab() else { return };
    let said = lab.say(["run", "--name", "job", "--files", "rewind", "--", "/does/not/exist"]);
    assert_eq!(said.code, Some(127), "{said:?}");
    assert!(!lab.store().join("job").exists());
}

#[test]
fn rewind_is_refused_by_name_where_files_cannot_go_back() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let Some(why) = missing(&lab) else { return println!("unsupported: a system without file events") };
    let touched = lab.path("touched");
    let script = format!("touch {}", touched.display());
    let said = lab.say(["run", "--name", "job", "--files", "rewind", "--", "sh", "-c", &script]);
    assert_eq!(said.code, Some(4), "{said:?}");
    assert!(
        said.stderr.contains("files cannot be rolled back with the program") && said.stderr.contains("help:")
    );
    assert!(!touched.exists() && !lab.store().join("job").exists(), "nothing was begun");
    // Without the option, the run prints the reason once, and continues.
    let said = lab.say(["run", "--name", "job", "--", "sh", "-c", &script]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(
        touched.exists() && said.stderr.contains("files are not rolled back with the program"),
        "{said:?}"
    );
    let files = lab.json(&["status", "job"])[0]["files"].clone();
    assert_eq!(files["policy"], "trim");
    assert!(why.ends_with(files["because"].as_str().unwrap()), "{files} {why}");
    // An explicitly chosen policy needs no explanation.
    let said = lab.say(["run", "--name", "job", "--files", "fresh", "--", "true"]);
    assert!(!said.stderr.contains("files are not rolled back"), "{said:?}");
}

#[test]
fn an_image_without_an_undo_log_is_compared_or_refused_by_name() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let (image, pidfile) = (lab.path("image"), lab.path("pid"));
    let mut sleeper = Command::new("setsid");
    let mut child = lab.detached(sleeper.args(["sleep", "600"])).stdin(Stdio::null()).spawn().unwrap();
    let pid = child.id().to_string();
    until("sleep", || {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).ok().filter(|name| name == "sleep\n")
    });
    let image = image.to_str().unwrap();
    assert_eq!(lab.say(["checkpoint", &pid, "--image", image, "--kill"]).code, Some(0));
    wait(&mut child);
    for policy in ["rewind", "force"] {
        let said = lab.say(["restore", image, "--detach", "--files", policy]);
        assert_eq!(said.code, Some(3), "{said:?}");
        assert!(
            said.stderr.contains("files cannot be rolled back to") && said.stderr.contains("no undo log"),
            "{said:?}"
        );
    }
    let said = lab.say(["restore", image, "--detach", "--pidfile", pidfile.to_str().unwrap()]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let pid: i32 = std::fs::read_to_string(&pidfile).unwrap().trim().parse().unwrap();
    ProcessId::of(Pid(pid)).unwrap().signal(Signal::KILL).unwrap();
    let shown = lab.say(["show", image]).stdout;
    assert!(shown.contains("files    "), "{shown}");
}

#[test]
fn files_of_a_subject_without_a_log_are_none() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let said = lab.say(["run", "--name", "job", "--files", "fresh", "--", "true"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(lab.json(&["files", "job"]), serde_json::json!([]));
    let said = lab.say(["files", "job", "--put-back", "nothing"]);
    assert!(said.stderr.contains("nothing was moved aside from") && said.code == Some(3), "{said:?}");
    assert_eq!(lab.say(["files", "absent"]).code, Some(5));
    for bad in [["--files-undo-max", "none"], ["--files-cost-max", "-1"], ["--files", "maybe"]] {
        let said = lab.say(["run", bad[0], bad[1], "--", "true"]);
        assert_eq!(said.code, Some(2), "{said:?}");
    }
    assert!(lab.store().metadata().unwrap().mode() & 0o077 == 0);
}
