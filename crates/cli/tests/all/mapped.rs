//! Tests of `undying run`: large files that a program changes through shared mappings are rolled back with the program.

use std::path::PathBuf;
use std::process::Child;
use std::time::Duration;

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::{Lab, compiled, supported, until};

const DEATHS: usize = 5;
/// Bytes that the program appends for each number.
const LINE_BYTES: u64 = 11;
/// Numbers of a life before the program is killed: about two seconds.
const LIFE: u64 = 400;
/// Maximum age of the checkpoint that a restart uses, on a loaded machine. A checkpoint before the mapping is older.
const AGE_MAX: Duration = Duration::from_secs(5);

/// Reports whether this machine has all checks of `undying doctor` in `names`.
fn has(lab: &Lab, names: &[&str]) -> bool {
    let report = lab.json(&["doctor"]);
    let checks = report["checks"].as_array().unwrap();
    let missing = checks
        .iter()
        .find(|check| names.contains(&check["name"].as_str().unwrap()) && check["state"] != "ok");
    if let Some(check) = missing {
        println!("unsupported: {} ({})", check["name"], check["detail"]);
    }
    missing.is_none()
}

/// The program under a guardian.
struct Mapping<'a> {
    lab: &'a Lab,
    guardian: Child,
    data: PathBuf,
}

impl<'a> Mapping<'a> {
    fn begin(lab: &'a Lab, features_off: &str) -> Self {
        let data = lab.path("data");
        std::fs::create_dir(&data).unwrap();
        let program = compiled("mapper");
        let words = ["run", "--name", "job", "--every", "100ms", "--max-restarts", "99/1m", "--"];
        let mut command = lab.undying(words);
        command.arg(program).arg(&data).env("UNDYING_FEATURES_OFF", features_off);
        Self { lab, guardian: command.spawn().unwrap(), data }
    }

    fn numbers(&self) -> u64 {
        std::fs::metadata(self.data.join("lines")).map_or(0, |found| found.len() / LINE_BYTES)
    }

    fn status(&self) -> serde_json::Value {
        until("a status", || self.lab.json(&["status", "job"]).get(0).cloned())
    }

    /// Kills the program, and waits until the next incarnation runs.
    fn kill(&self) {
        let status = self.status();
        let before = status["incarnation"].as_u64().unwrap();
        let root = ProcessId::of(Pid(status["pid"].as_i64().unwrap() as i32)).unwrap();
        root.signal(Signal::KILL).unwrap();
        until("the next incarnation", || {
            let status = self.status();
            let runs = status["incarnation"].as_u64()? > before && status["state"] == "running";
            runs.then_some(())
        });
    }

    fn assert_agree(&self) {
        let wrong = std::fs::read_to_string(self.data.join("wrong")).unwrap_or_default();
        assert_eq!(wrong, "", "{}", self.lab.told());
        let lines = std::fs::read_to_string(self.data.join("lines")).unwrap();
        for (line, number) in lines.lines().zip(1_u64..) {
            assert_eq!(line.trim().parse(), Ok(number));
        }
    }
}

impl Drop for Mapping<'_> {
    fn drop(&mut self) {
        let guardian = rustix::process::Pid::from_child(&self.guardian);
        let _ = rustix::process::kill_process(guardian, Signal::TERM);
        let _ = self.guardian.wait();
    }
}

#[test]
fn memory_a_large_mapped_file_and_a_second_file_agree_after_each_of_five_deaths() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    if !has(&lab, &["files-go-back", "dirty-tracker"]) {
        return;
    }
    let mapping = Mapping::begin(&lab, "");
    let mut goal = LIFE;
    for _ in 0..DEATHS {
        until("a checkpoint with the mapping", || {
            let is_exact = mapping.status()["death_now"]["brings"] == "restore";
            (is_exact && mapping.numbers() >= goal).then_some(())
        });
        mapping.kill();
        goal = mapping.numbers() + LIFE;
        mapping.assert_agree();
    }
    std::thread::sleep(Duration::from_millis(100));
    mapping.assert_agree();
    let deaths = lab.json(&["deaths", "job"]);
    assert_eq!(deaths.as_array().unwrap().len(), DEATHS, "{deaths}");
    for death in deaths.as_array().unwrap() {
        assert_eq!(death["followed_by"], "restored", "{death}");
        let age = Duration::from_micros(death["age_us"].as_u64().unwrap());
        assert!(age < AGE_MAX, "{death}");
    }
}

#[test]
fn without_a_tracker_the_reason_is_said_and_no_large_mapped_file_is_rolled_back() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    if !has(&lab, &["files-go-back"]) {
        return;
    }
    let mapping = Mapping::begin(&lab, "dirty-tracker");
    until("the reason", || {
        let said = lab.told();
        let names = said.contains("/data/map is mapped by the program, and too large");
        (names && said.contains("the feature dirty-tracker is switched off")).then_some(())
    });
    mapping.assert_agree();
}

/// Only the data of the file is in the image. Its length has no limit.
#[test]
fn a_long_sparse_file_that_was_deleted_is_restored() {
    const PROGRAM: &str = "
import mmap, os, time
LENGTH = 5 << 30
file = os.open('long', os.O_RDWR | os.O_CREAT | os.O_EXCL)
os.truncate(file, LENGTH)
memory = mmap.mmap(file, LENGTH)
os.unlink('long'); os.close(file)
memory[:5] = b'begin'; memory[3 << 30:(3 << 30) + 6] = b'middle'; memory[-3:] = b'end'
open('begun', 'w').close()
while not os.path.exists('check'): time.sleep(0.01)
right = memory[:5] == b'begin' and memory[3 << 30:(3 << 30) + 6] == b'middle' and memory[-3:] == b'end'
open('result', 'w').write(f'{right} {len(memory)}\\n')";
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut command = std::process::Command::new("setsid");
    command.args(["--fork", "python3", "-c", PROGRAM]);
    crate::common::wait(&mut lab.detached(&mut command).spawn().unwrap());
    until("the program", || lab.path("begun").exists().then_some(()));
    let python = until("the process", || lab.guard.marked().first().copied());
    let image = lab.path("image").display().to_string();
    let said = lab.say(["checkpoint", &python.pid().to_string(), "--kill", "--image", &image]);
    assert_eq!(said.code, Some(0), "{said:?}");
    crate::common::reap(python.pid());
    let said = lab.say(["restore", &image, "--detach"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    std::fs::write(lab.path("check"), "").unwrap();
    let result = until("the result", || {
        std::fs::read_to_string(lab.path("result")).ok().filter(|text| text.ends_with('\n'))
    });
    assert_eq!(result, format!("True {}\n", 5_u64 << 30));
    let files = std::fs::read_dir(lab.path("image")).unwrap();
    let bytes: u64 = files.map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert!(bytes < 64 << 20, "{bytes}");
}
