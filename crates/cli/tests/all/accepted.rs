//! Tests that a checkpoint that was accepted can be restored, also after the files of the program were renamed,
//! replaced, installed again, rotated or removed. A restore finds a file by its identity, and compares the content
//! before the file counts as changed. A refusal names the file.

use std::fs;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::{Lab, Said, reap, supported, until, wait};

/// The files that the program maps. Unchanged pages come from these files.
const MAPPED: [&str; 3] = ["program", "lib.so", "data"];
/// The mapped files, and a file that the program only has open.
const INSTALLED: [&str; 4] = ["program", "lib.so", "data", "config"];

/// A folder with the files of the test program, and the last line that the program is known to have written.
struct Scene {
    lab: Lab,
    folder: PathBuf,
}

impl Scene {
    /// Returns `None` without root or a C compiler.
    fn new() -> Option<Self> {
        if !supported() {
            return None;
        }
        let lab = Lab::new();
        let folder = lab.path("files").canonicalize().unwrap_or_else(|_| {
            fs::create_dir(lab.path("files")).unwrap();
            lab.path("files").canonicalize().unwrap()
        });
        let scene = Self { lab, folder };
        let build_id = "-Wl,--build-id";
        scene.compile("upgraded.c", "program", &[build_id, "-ldl"])?;
        scene.compile("upgraded_library.c", "lib.so", &["-shared", "-fPIC", "-DVERSION=\"a\"", build_id])?;
        scene.compile(
            "upgraded_library.c",
            "other.so",
            &["-shared", "-fPIC", "-DVERSION=\"b\"", build_id],
        )?;
        fs::write(scene.path("data"), [b'd'; 65536]).unwrap();
        fs::write(scene.path("config"), "config").unwrap();
        Some(scene)
    }

    fn compile(&self, source: &str, name: &str, flags: &[&str]) -> Option<()> {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/subjects").join(source);
        let mut command = Command::new(std::env::var_os("CC").unwrap_or_else(|| "cc".into()));
        command.args(["-O1", "-o"]).arg(self.path(name)).arg(source).args(flags);
        if command.status().is_ok_and(|status| status.success()) {
            return Some(());
        }
        println!("unsupported: a C compiler");
        None
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    #[expect(clippy::zombie_processes, reason = "`common::reap` waits for it by its pid")]
    fn start(&self) -> Pid {
        let mut command = Command::new(self.path("program"));
        command.arg(&self.folder);
        self.lab.detached(&mut command);
        let child = command.process_group(0).spawn().unwrap();
        let pid = Pid(child.id() as i32);
        self.goes_on("the start");
        pid
    }

    fn run(&self, options: &[&str]) -> Child {
        let mut words = vec!["run", "--name", "job", "--every", "50ms"];
        words.extend(options);
        let (program, folder) = (self.path("program"), self.folder.clone());
        words.extend(["--", program.to_str().unwrap(), folder.to_str().unwrap()]);
        let guardian = self.lab.undying(words).spawn().unwrap();
        self.goes_on("the start");
        self.await_checkpoints(3);
        guardian
    }

    fn status(&self) -> serde_json::Value {
        until("a status", || {
            let status = self.lab.json(&["status", "job"]);
            status.get(0).cloned()
        })
    }

    fn await_checkpoints(&self, more: u64) {
        let count = || self.status()["checkpoints"].as_u64().unwrap_or(0);
        let from = count();
        until("checkpoints", || (count() >= from + more).then_some(()));
    }

    /// Kills the root under `run`. Returns what the guardian has said since about the restart, or about its failure.
    fn kill(&self) -> String {
        let before = self.lab.told().len();
        let status = self.status();
        let incarnation = status["incarnation"].as_u64().unwrap();
        ProcessId::of(Pid(status["pid"].as_i64().unwrap() as i32)).unwrap().signal(Signal::KILL).unwrap();
        until("the next incarnation", || {
            let now = self.status();
            let runs = now["incarnation"].as_u64()? > incarnation && now["state"] == "running";
            (runs || now["state"] == "failed").then_some(())
        });
        until("the message about the restart", || {
            let told = self.lab.told()[before..].to_owned();
            ["is back at checkpoint", "started from the beginning", GIVEN_UP]
                .iter()
                .any(|end| told.contains(end))
                .then_some(told)
        })
    }

    fn image(&self) -> PathBuf {
        self.lab.path("image")
    }

    fn checkpoint_and_kill(&self, pid: Pid) -> Said {
        let _ = fs::remove_dir_all(self.image());
        let said = self.lab.say([
            "checkpoint".as_ref(),
            pid.to_string().as_ref(),
            "--kill".as_ref(),
            "--image".as_ref(),
            self.image().as_os_str(),
        ]);
        reap(pid);
        said
    }

    fn restore(&self) -> Said {
        self.lab.say(["restore".as_ref(), "--detach".as_ref(), self.image().as_os_str()])
    }

    /// Returns the number of the last complete line in all log files.
    fn last_line(&self) -> u64 {
        let logs = fs::read_dir(&self.folder).unwrap().flatten();
        let logs = logs.filter(|entry| entry.file_name().to_string_lossy().starts_with("log"));
        let text = |path: PathBuf| fs::read_to_string(path).unwrap_or_default();
        let last = |text: String| {
            text.rsplit('\n').find_map(|line| line.strip_prefix("line ")?.parse::<u64>().ok()).unwrap_or(0)
        };
        logs.map(|entry| last(text(entry.path()))).max().unwrap_or(0)
    }

    /// Waits until the program has written more lines. The program checks its files before each line.
    fn goes_on(&self, after: &str) {
        let total = || {
            let logs = fs::read_dir(&self.folder).unwrap().flatten();
            let logs = logs.filter(|entry| entry.file_name().to_string_lossy().starts_with("log"));
            logs.filter_map(|entry| entry.metadata().ok()).map(|found| found.len()).sum::<u64>()
        };
        let from = total();
        until(&format!("lines after {after}"), || (total() >= from + 40).then_some(()));
    }

    /// Replaces a file by a new file with the same or other content, as a package manager does.
    fn replace(&self, name: &str, same: bool) {
        let new = self.path(&format!("{name}.new"));
        let from = if same { self.path(name) } else { PathBuf::from("/bin/true") };
        assert!(Command::new("install").args(["-m", "755"]).args([&from, &new]).status().unwrap().success());
        fs::rename(new, self.path(name)).unwrap();
    }

    fn end(&self, mut guardian: Child) {
        let status = self.status();
        let pid = Pid(status["pid"].as_i64().unwrap() as i32);
        guardian.kill().unwrap();
        wait(&mut guardian);
        if let Ok(root) = ProcessId::of(pid) {
            let _ = root.signal(Signal::KILL);
        }
        self.lab.guard.kill_all();
    }
}

#[test]
fn files_that_were_replaced_before_the_checkpoint_are_in_the_image() {
    let Some(scene) = Scene::new() else { return };
    let pid = scene.start();
    INSTALLED.iter().for_each(|name| scene.replace(name, false));
    for _ in 0..2 {
        let said = scene.checkpoint_and_kill(pid);
        assert_eq!(said.code, Some(0), "{said:?}");
        let said = scene.restore();
        assert_eq!(said.code, Some(0), "{said:?}");
        fs::write(scene.path("late"), "").unwrap();
        scene.goes_on("the restore");
    }
}

#[test]
fn files_that_were_installed_again_are_the_same() {
    let Some(scene) = Scene::new() else { return };
    let pid = scene.start();
    let said = scene.checkpoint_and_kill(pid);
    assert_eq!(said.code, Some(0), "{said:?}");
    INSTALLED.iter().for_each(|name| scene.replace(name, true));
    let said = scene.restore();
    assert_eq!(said.code, Some(0), "{said:?}");
    scene.goes_on("the restore");
}

#[test]
fn another_version_of_a_file_is_refused_by_name_until_the_right_one_is_back() {
    let Some(scene) = Scene::new() else { return };
    let pid = scene.start();
    let said = scene.checkpoint_and_kill(pid);
    assert_eq!(said.code, Some(0), "{said:?}");
    for name in MAPPED {
        let aside = scene.lab.path("aside");
        fs::copy(scene.path(name), &aside).unwrap();
        scene.replace(name, false);
        let said = scene.restore();
        assert_eq!(said.code, Some(3), "{name}: {said:?}");
        let path = scene.path(name);
        assert!(said.stderr.contains(path.to_str().unwrap()), "{name}: {said:?}");
        assert!(said.stderr.contains("help: install the same version of the file ("), "{name}: {said:?}");
        assert!(
            Command::new("install").args(["-m", "755"]).args([&aside, &path]).status().unwrap().success()
        );
    }
    let said = scene.restore();
    assert_eq!(said.code, Some(0), "{said:?}");
    scene.goes_on("the restore");
}

#[test]
fn a_file_that_was_renamed_while_the_program_was_a_checkpoint_is_found() {
    let Some(scene) = Scene::new() else { return };
    let pid = scene.start();
    let said = scene.checkpoint_and_kill(pid);
    assert_eq!(said.code, Some(0), "{said:?}");
    let last = scene.last_line();
    for name in INSTALLED {
        fs::rename(scene.path(name), scene.path(&format!("old-{name}"))).unwrap();
    }
    fs::rename(scene.path("log"), scene.path("log.1")).unwrap();
    fs::write(scene.path("log"), "").unwrap();
    let said = scene.restore();
    assert_eq!(said.code, Some(0), "{said:?}");
    until("lines in the rotated log", || (scene.last_line() > last + 5).then_some(()));
    assert_eq!(fs::read_to_string(scene.path("log")).unwrap(), "", "the program has opened the rotated log");
}

/// The last checkpoint can be older than the upgrade, and the files at the paths are then other files.
#[test]
fn an_upgrade_between_the_last_checkpoint_and_the_death_makes_no_checkpoint_useless() {
    let Some(scene) = Scene::new() else { return };
    let guardian = scene.run(&[]);
    MAPPED.iter().for_each(|name| scene.replace(name, false));
    let told = scene.kill();
    assert!(told.contains("is back at checkpoint"), "{told}");
    scene.goes_on("the restart");
    scene.end(guardian);
}

#[test]
fn a_rotated_log_makes_no_checkpoint_useless() {
    let Some(scene) = Scene::new() else { return };
    let guardian = scene.run(&[]);
    for number in 1..4 {
        fs::rename(scene.path("log"), scene.path(&format!("log.{number}"))).unwrap();
        let told = scene.kill();
        assert!(told.contains("is back at checkpoint"), "{told}");
        scene.goes_on("the restart");
        fs::rename(scene.path(&format!("log.{number}")), scene.path("log")).unwrap();
        scene.await_checkpoints(2);
    }
    scene.end(guardian);
}

/// A breakpoint in code that the program cannot write: a tool outside has set it (uprobe). When the tool ends, it does
/// not know the restored program.
#[test]
fn a_breakpoint_of_another_tool_does_not_kill_the_restored_program() {
    let Some(scene) = Scene::new() else { return };
    let pid = scene.start();
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let code = maps.lines().find(|line| line.contains("r-xp") && line.ends_with("lib.so")).unwrap();
    let mut fields = code.split([' ', '-']);
    let start = u64::from_str_radix(fields.next().unwrap(), 16).unwrap();
    let file_offset = u64::from_str_radix(code.split_whitespace().nth(2).unwrap(), 16).unwrap();
    let symbols = Command::new("nm").arg("-D").arg(scene.path("lib.so")).stderr(Stdio::null()).output();
    let Some(late) = symbols.ok().and_then(|said| {
        let text = String::from_utf8(said.stdout).ok()?;
        let line = text.lines().find(|line| line.ends_with(" T late"))?.to_owned();
        u64::from_str_radix(line.split(' ').next()?, 16).ok()
    }) else {
        return println!("unsupported: nm");
    };
    let memory = fs::File::options().write(true).open(format!("/proc/{pid}/mem")).unwrap();
    memory.write_all_at(&[0xcc], start + late - file_offset).unwrap();
    drop(memory);
    let said = scene.checkpoint_and_kill(pid);
    assert_eq!(said.code, Some(0), "{said:?}");
    let said = scene.restore();
    assert_eq!(said.code, Some(0), "{said:?}");
    fs::write(scene.path("late"), "").unwrap();
    scene.goes_on("the call of the function with the breakpoint");
}

/// The first process of a PID namespace, for example of a container. The advice must not end in the same refusal.
#[test]
fn the_first_process_of_a_container_is_refused_by_name() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sleep", "1000"]);
    let mut unshare = lab.detached(&mut command).spawn().unwrap();
    let inner = || {
        assert!(unshare.try_wait().unwrap().is_none(), "unsupported: PID namespaces");
        let is_sleep = |one: &ProcessId| {
            fs::read_to_string(format!("/proc/{}/comm", one.pid())).is_ok_and(|name| name == "sleep\n")
        };
        lab.guard.marked().into_iter().find(is_sleep)
    };
    let pid = until("the program", inner).pid();
    let image = lab.path("image");
    let outside = pid.to_string();
    let inside = ["-t", &outside, "-p", "-m", env!("CARGO_BIN_EXE_undying"), "checkpoint", "1"];
    let mut nsenter = Command::new("nsenter");
    nsenter.args(inside).args(["--kill", "--image"]).arg(&image);
    lab.detached(&mut nsenter);
    for said in [
        lab.say(["checkpoint".as_ref(), outside.as_ref(), "--image".as_ref(), image.as_os_str()]),
        lab.call(&mut nsenter),
    ] {
        assert_eq!(said.code, Some(3), "{said:?}");
        assert!(said.stderr.contains("first process of a PID namespace"), "{said:?}");
        assert!(said.stderr.contains("help: ") && !said.stderr.contains("nsenter"), "{said:?}");
    }
    assert!(ProcessId::of(pid).unwrap().is_alive() && !image.exists());
    lab.guard.kill_all();
    let _reaped_already = unshare.wait();
}

/// The message of a run that ends because no checkpoint can be restored.
const GIVEN_UP: &str = "cannot be restored from any";

/// One change of the identity of a file.
#[derive(Clone, Copy, Debug)]
enum Change {
    Rename,
    Replace,
    Install,
    Rotate,
    Truncate,
    Remove,
}

const CHANGES: [Change; 6] =
    [Change::Rename, Change::Replace, Change::Install, Change::Rotate, Change::Truncate, Change::Remove];

impl Scene {
    /// Changes a random file. Returns what was done.
    fn change(&self, random: &mut fastrand::Rng) -> String {
        let change = CHANGES[random.usize(..CHANGES.len())];
        let name = INSTALLED[random.usize(..INSTALLED.len())];
        let path = self.path(name);
        match change {
            Change::Rename => drop(fs::rename(&path, self.path(&format!("{name}.old")))),
            // A program that opens a configuration again gets the new one, as the bare program would.
            Change::Replace if name == "config" => {}
            Change::Replace => self.replace(name, false),
            Change::Install if path.exists() => self.replace(name, true),
            Change::Install => {}
            Change::Rotate => {
                let _ = fs::rename(self.path("log"), self.path("log.1"));
            }
            Change::Truncate => {
                let log = fs::File::options().write(true).open(self.path("log"));
                let _ = log.and_then(|log| log.set_len(0));
            }
            Change::Remove => drop(fs::remove_file(path)),
        }
        format!("{change:?} {name}")
    }
}

/// Changes of identity between a checkpoint and its restore: the program goes on, or the restore is refused with the
/// name of a file that was changed.
#[test]
fn after_random_changes_a_restore_works_or_names_a_changed_file() {
    let mut random = testkit::seeded("after_random_changes_a_restore_works_or_names_a_changed_file");
    for _ in 0..testkit::rounds(6, 200) {
        let Some(scene) = Scene::new() else { return };
        let pid = scene.start();
        let mut done: Vec<String> = (0..random.usize(..2)).map(|_| scene.change(&mut random)).collect();
        std::thread::sleep(testkit::moment(&mut random, Duration::from_millis(20)));
        let said = scene.checkpoint_and_kill(pid);
        assert_eq!(said.code, Some(0), "{done:?}: {said:?}");
        done.push("checkpoint".to_owned());
        done.extend((0..random.usize(..3)).map(|_| scene.change(&mut random)));
        let said = scene.restore();
        if said.code == Some(0) {
            scene.goes_on(&format!("{done:?}"));
        } else {
            assert_eq!(said.code, Some(3), "{done:?}: {said:?}");
            let is_named = INSTALLED.iter().chain(&["log"]).any(|name| {
                said.stderr.contains(scene.path(name).to_str().unwrap())
                    && done.iter().any(|change| *name == "log" || change.ends_with(name))
            });
            assert!(is_named && said.stderr.contains("help: "), "{done:?}: {said:?}");
        }
    }
}

/// The same under `run`, at random moments between checkpoints. The guardian holds the mapped files, so only a
/// configuration or a log that is gone can make the checkpoints useless.
#[test]
fn after_random_changes_a_restart_goes_on() {
    let mut random = testkit::seeded("after_random_changes_a_restart_goes_on");
    for _ in 0..testkit::rounds(3, 100) {
        let Some(scene) = Scene::new() else { return };
        let mut guardian = scene.run(&[]);
        let mut done = Vec::new();
        for _ in 0..1 + random.usize(..3) {
            std::thread::sleep(testkit::moment(&mut random, Duration::from_millis(60)));
            done.push(scene.change(&mut random));
        }
        let told = scene.kill();
        let is_gone = done.iter().any(|change| change == "Remove config");
        assert!(is_gone || told.contains("is back at checkpoint"), "{done:?}: {told}");
        if told.contains(GIVEN_UP) {
            // Files are at a checkpoint, so that the program does not start from its beginning beside them.
            assert_eq!(wait(&mut guardian).code(), Some(3), "{done:?}: {told}");
            continue;
        }
        if told.contains("is back at checkpoint") {
            scene.goes_on(&format!("{done:?}"));
        }
        scene.end(guardian);
    }
}
