//! Tests of `undying run` on a full disk, and on a disk that stalls. A program that dies while the disk is full continues
//! from its newest checkpoint as soon as the disk has free space again. A program runs on while the disk of the store
//! stalls.
//!
//! Owns: the disk, which is an ext4 file system in a file.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;

use crate::common::system::System;
use crate::common::{Guarded, Lab, supported, until};

const DISK_BYTES: u64 = 64 << 20;
/// The time that the disk stays full after the death. A restore is tried several times in this time.
const FULL: Duration = Duration::from_secs(3);

/// A file system that is unmounted on drop.
struct Disk {
    path: PathBuf,
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

/// A frozen file system. Drop ends the freeze.
struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = Command::new("/sbin/fsfreeze").arg("-u").arg(&self.0).status();
    }
}

impl Disk {
    /// Mounts an empty file system at a path. Prints the reason if this is impossible here.
    fn mount(lab: &Lab, path: &Path) -> Option<Self> {
        let image = lab.path("disk.image");
        File::create(&image).unwrap().set_len(DISK_BYTES).unwrap();
        fs::create_dir(path).unwrap();
        let done = |command: &mut Command| command.status().is_ok_and(|status| status.success());
        if !done(Command::new("/sbin/mkfs.ext4").args(["-q", "-F"]).arg(&image))
            || !done(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(path))
        {
            println!("unsupported: a file system in a file");
            return None;
        }
        // The store must belong to its user alone.
        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        Some(Self { path: path.to_owned() })
    }

    /// Writes a file until no space is left.
    fn fill(&self) {
        let mut filler = File::create(self.path.join("filler")).unwrap();
        // The last piece is small, because other writers can release and use space meanwhile.
        for bytes in [1 << 20, 4096] {
            while filler.write_all(&vec![1; bytes]).is_ok() {}
        }
        let _ = filler.sync_all();
    }

    /// Lets all writes wait, as at a snapshot of the disk. Prints the reason if this is impossible here.
    fn freeze(&self) -> Option<Frozen> {
        let done = Command::new("/sbin/fsfreeze").arg("-f").arg(&self.path).status();
        if done.is_ok_and(|status| status.success()) {
            return Some(Frozen(self.path.clone()));
        }
        println!("unsupported: a frozen file system");
        None
    }

    fn free(&self) {
        fs::remove_file(self.path.join("filler")).unwrap();
    }
}

/// Adds a line with the next number to a file, as often as the disk permits.
const COUNTING: &str = "n=0; until [ -e stop ]; do \
     echo $n >> files/numbers && n=$((n + 1)); sleep 0.01; done 2> /dev/null";

fn a_death_on_a_full_disk_is_survived(disk: &str) {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let Some(disk) = Disk::mount(&lab, &lab.path(disk)) else { return };
    fs::create_dir_all(lab.path("files")).unwrap();
    let guarded = Guarded::run(&lab, &["--files", "rewind"], COUNTING);
    guarded.await_checkpoints(3);
    disk.fill();
    std::thread::sleep(Duration::from_millis(500));
    let before = guarded.incarnation();
    guarded.root().signal(Signal::KILL).unwrap();
    std::thread::sleep(FULL);
    disk.free();
    guarded.await_incarnation(before + 1);
    let count = || fs::read_to_string(lab.path("files/numbers")).unwrap().lines().count();
    let first = count();
    until("more numbers", || (count() > first).then_some(()));
    let deaths = lab.json(&["deaths", "job"]);
    assert_eq!(deaths[0]["followed_by"], "restored", "{deaths} {}", guarded.said());
    assert_eq!(guarded.end(), 0);
    let numbers = fs::read_to_string(lab.path("files/numbers")).unwrap();
    for (expected, number) in numbers.lines().enumerate() {
        assert_eq!(number, expected.to_string(), "memory and file are of different moments");
    }
}

#[test]
fn a_full_disk_of_the_files_costs_no_checkpoint() {
    a_death_on_a_full_disk_is_survived("files");
}

#[test]
fn a_full_disk_of_the_store_costs_no_checkpoint() {
    a_death_on_a_full_disk_is_survived("store");
}

/// Adds a line with a number and a time to an open file, every few milliseconds.
const BEATING: &str = r#"exec python3 -c '
import os, time
beats = open("beats", "a")
number = 0
while not os.path.exists("stop"):
    print(number, time.monotonic(), file=beats, flush=True)
    number += 1
    time.sleep(0.005)
'"#;

#[test]
fn a_program_runs_on_while_the_store_stalls() {
    const STALL: Duration = Duration::from_secs(5);
    /// The stop is much shorter, but other tests use the processors.
    const GAP_MAX: f64 = 2.0;
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let Some(disk) = Disk::mount(&lab, &lab.path("store")) else { return };
    let guarded = Guarded::run(&lab, &["--files", "rewind", "--every", "20ms"], BEATING);
    guarded.await_checkpoints(3);
    let beats = || -> Vec<(usize, f64)> {
        let text = fs::read_to_string(lab.path("beats")).unwrap();
        let words = text.lines().filter_map(|line| line.split_once(' '));
        words.map(|(number, time)| (number.parse().unwrap(), time.parse().unwrap())).collect()
    };
    let before = beats().len();
    let Some(frozen) = disk.freeze() else {
        guarded.end();
        return;
    };
    std::thread::sleep(STALL);
    let meanwhile = beats();
    drop(frozen);
    let gaps = meanwhile[before - 1..].windows(2).map(|pair| pair[1].1 - pair[0].1);
    let longest = gaps.fold(0.0, f64::max);
    assert!(longest < GAP_MAX, "stood still for {longest} s: {}", guarded.said());
    assert!(meanwhile.len() > before + 50, "{} beats in {STALL:?}", meanwhile.len() - before);

    let checkpoints = guarded.status()["checkpoints"].as_u64().unwrap();
    until("more checkpoints", || (guarded.status()["checkpoints"].as_u64()? > checkpoints + 3).then_some(()));
    let incarnation = guarded.incarnation();
    guarded.root().signal(Signal::KILL).unwrap();
    guarded.await_incarnation(incarnation + 1);
    let count = beats().len();
    until("more beats", || (beats().len() > count).then_some(()));
    assert_eq!(guarded.end(), 0);
    let numbers: Vec<usize> = beats().into_iter().map(|(number, _)| number).collect();
    assert!(numbers.iter().enumerate().all(|(expected, number)| expected == *number), "{numbers:?}");
}

#[test]
fn a_restart_with_state_on_a_full_store_succeeds_or_is_called_off() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let Some(disk) = Disk::mount(&lab, &lab.store()) else { return };
    fs::create_dir_all(lab.path("files")).unwrap();
    let guarded = Guarded::run(&lab, &["--files", "keep"], COUNTING);
    guarded.await_checkpoints(3);
    let root = guarded.root();
    disk.fill();
    let count = || fs::read_to_string(lab.path("files/numbers")).unwrap().lines().count();
    for _ in 0..5 {
        // The open segment of the store may still have space.
        let said = lab.say(["restart", "--restore", "job"]);
        let is_called_off = said.stderr.contains("is not restarted, and continues");
        assert!(said.code == Some(0) || said.code == Some(3) && is_called_off, "{said:?}");
        let before = count();
        until("more numbers", || (count() > before).then_some(()));
    }
    disk.free();
    until("a restart", || (lab.say(["restart", "--restore", "job"]).code == Some(0)).then_some(()));
    assert_eq!(guarded.root().pid(), root.pid());
    assert_eq!(guarded.end(), 0);
    let numbers = fs::read_to_string(lab.path("files/numbers")).unwrap();
    for (expected, number) in numbers.lines().enumerate() {
        assert_eq!(number, expected.to_string(), "work is lost or repeated");
    }
}

#[test]
fn a_restart_with_state_stops_the_program_only_for_a_bounded_time_while_the_store_stalls() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let Some(disk) = Disk::mount(&lab, &lab.store()) else { return };
    fs::create_dir_all(lab.path("files")).unwrap();
    let guarded = Guarded::run(&lab, &["--files", "keep", "--every", "1h"], COUNTING);
    let count = || fs::read_to_string(lab.path("files/numbers")).unwrap_or_default().lines().count();
    until("numbers", || (count() > 3).then_some(()));
    let root = guarded.root();
    let Some(frozen) = disk.freeze() else { return };
    let said = lab.say(["restart", "--restore", "job"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stderr.contains("no checkpoint was durable in time"), "{said:?}");
    let before = count();
    until("more numbers", || (count() > before).then_some(()));
    drop(frozen);
    until("a restart", || (lab.say(["restart", "--restore", "job"]).code == Some(0)).then_some(()));
    assert_eq!((guarded.root().pid(), guarded.incarnation()), (root.pid(), 2));
    assert_eq!(guarded.end(), 0);
}

#[test]
fn a_guardian_that_dies_while_the_store_is_full_leaves_no_second_instance_behind() {
    if !supported() {
        return;
    }
    let mut disk = None;
    let mut system = System::up_with(
        "[component.a]\ncommand = [\"PROGRAM\", \"FOLDER/a\"]\nrestart = { max = \"100/1m\", backoff = \"10ms..20ms\" }\n\
         [component.b]\ncommand = [\"PROGRAM\", \"FOLDER/b\"]\n",
        |lab, _| disk = Disk::mount(lab, &lab.store()),
    );
    let Some(disk) = disk else {
        system.down();
        return;
    };
    ["a", "b"].into_iter().for_each(|name| system.await_state(name, "ready"));
    disk.fill();
    // The status names the processes from before these restarts.
    system.pid("a").signal(Signal::KILL).unwrap();
    until("the next incarnation", || (system.lines("a").len() == 2).then_some(()));
    let said = system.lab.undying(["restart", "b"]).spawn().unwrap();
    until("the next run", || (system.lines("b").len() == 3).then_some(()));
    std::thread::sleep(Duration::from_millis(300));
    let guardian = testkit::ProcessId::of(model::Pid(system.guardian.id() as i32)).unwrap();
    guardian.signal(Signal::KILL).unwrap();
    system.guardian.wait().unwrap();
    drop(said.wait_with_output());
    disk.free();
    system.guardian = system.lab.undying(["up", "system.toml"]).spawn().unwrap();
    ["a", "b"].into_iter().for_each(|name| system.await_state(name, "ready"));
    std::thread::sleep(Duration::from_millis(300));
    for (name, count) in [("a", 2), ("b", 3)] {
        let lines = system.lines(name);
        assert_eq!(lines.len(), count, "{name} was started again: {lines:?}\n{}", system.lab.told());
        assert_eq!(lines[count - 1], format!("up {}", system.pid(name).pid()), "{}", system.lab.told());
    }
    assert_eq!(system.down(), Some(0));
}
