//! Tests of `undying restore --lazy`, which starts a program before its memory is loaded. The program must never see a
//! wrong page.
//!
//! The tests run a few rounds, or many rounds with `UNDYING_LONG_TESTS`.

use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::{Lab, Said, compiled, supported, until, wait};

/// Size of the memory in MiB. The load takes long enough for a kill or a checkpoint in the middle of it.
const MIB: u64 = 80;
const CHURNS: (usize, usize) = (1, 200);
const KILLS: (usize, usize) = (12, 400);
const PAGE: u64 = 4096;

/// A subject (test program) that knows the correct content of its memory, with its image and its report file.
struct Subject {
    lab: Lab,
    report: PathBuf,
    go: PathBuf,
    pid: Pid,
}

fn program() -> &'static Path {
    compiled("lazy")
}

impl Subject {
    /// Starts the subject, writes an image, and ends the subject.
    fn image(mib: u64) -> Self {
        Self::image_with(mib, &[])
    }

    fn image_with(mib: u64, options: &[&str]) -> Self {
        let lab = Lab::new();
        let words = Self::words(&lab, mib);
        let mut setsid = Command::new("setsid");
        wait(&mut lab.detached(setsid.arg("--fork").args(words)).spawn().unwrap());
        let subject = Self::found(lab);
        let pid = subject.pid.to_string();
        let image = subject.image_path();
        let words = ["checkpoint", &pid, "--image", &image, "--kill"];
        let said = subject.lab.say(words.iter().chain(options));
        assert_eq!(said.code, Some(0), "{said:?}");
        subject.is_gone();
        subject
    }

    fn words(lab: &Lab, mib: u64) -> [String; 4] {
        let text = |path: PathBuf| path.display().to_string();
        [text(program().to_owned()), text(lab.path("report")), text(lab.path("go")), mib.to_string()]
    }

    /// Waits until the subject is ready.
    fn found(lab: Lab) -> Self {
        let (report, go) = (lab.path("report"), lab.path("go"));
        until("the subject", || (word(&report, 0)? == 1).then_some(()));
        let runs_it = |one: &ProcessId| {
            std::fs::read_link(format!("/proc/{}/exe", one.pid())).is_ok_and(|exe| exe == program())
        };
        let process = lab.guard.marked().into_iter().find(runs_it).unwrap();
        Self { lab, report, go, pid: process.pid() }
    }

    fn image_path(&self) -> String {
        self.lab.path("image").display().to_string()
    }

    /// Chooses the task that the next restored subject executes from its first instruction.
    fn will(&self, kind: &str, seed: u64) {
        std::fs::File::create(&self.report).unwrap().set_len(PAGE).unwrap();
        std::fs::write(&self.go, format!("{kind} {seed}\n")).unwrap();
    }

    fn word(&self, number: u64) -> u64 {
        word(&self.report, number).unwrap()
    }

    /// Asserts that the subject itself has found no wrong page.
    fn is_well(&self, what: &str) {
        let said: Vec<u64> = (0..8).map(|number| self.word(number)).collect();
        assert_eq!(said[1], 0, "{what}: {said:x?}");
    }

    fn process(&self) -> Option<ProcessId> {
        ProcessId::of(self.pid).ok().filter(|process| process.is_alive())
    }

    fn status(&self, name: &str) -> String {
        crate::common::status_of(self.pid, name)
    }

    fn is_gone(&self) {
        until("the subject's number to be free", || {
            crate::common::reap(self.pid);
            ProcessId::of(self.pid).is_err().then_some(())
        });
    }

    fn end(&self) {
        if let Some(process) = self.process() {
            process.signal(Signal::KILL).unwrap();
        }
        self.is_gone();
    }

    /// Asserts that the subject reads all its memory twice more, without a tracer.
    fn goes_on(&self, what: &str) {
        let from = self.word(0);
        until("two more rounds", || (self.word(0) >= from + 2).then_some(()));
        self.is_well(what);
        assert_eq!(self.status("TracerPid"), "0", "{what}");
    }

    /// Waits until the restored subject runs completely or is dead. Returns whether it runs.
    fn is_whole_or_dead(&self, what: &str) -> bool {
        let from = self.word(0);
        let settled = || match self.process() {
            None => Some(false),
            Some(_) => (self.word(0) >= from + 2).then_some(true),
        };
        let is_whole = until(&format!("the program to go on or be dead, {what}"), settled);
        assert!(!is_whole || self.status("TracerPid") == "0", "{what}");
        is_whole
    }

    fn restore(&self, options: &[&str]) -> Said {
        let image = self.image_path();
        self.lab.say(["restore", "--files", "keep", image.as_str()].iter().chain(options))
    }

    /// Returns the flags of the subject's mappings and the targets of its descriptors, without the amounts of resident
    /// memory.
    fn traces(&self) -> (usize, String) {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{}/{name}", self.pid)).unwrap();
        let smaps = read("smaps");
        let flags: Vec<&str> = smaps.lines().filter(|line| line.starts_with("VmFlags:")).collect();
        assert!(!flags.iter().any(|line| line.contains(" um")), "an area is watched still");
        let folder = format!("/proc/{}/fd", self.pid);
        let mut descriptors: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| std::fs::read_link(entry.unwrap().path()).unwrap().display().to_string())
            .collect();
        descriptors.sort_unstable();
        (read("maps").lines().count(), format!("{flags:?} {descriptors:?}"))
    }
}

/// Returns the child that is not the subject, if it exists. This child is the fd holder, which keeps descriptors open.
fn fd_holder_of(filler: Pid, subject: Pid) -> Option<ProcessId> {
    let children = std::fs::read_to_string(format!("/proc/{filler}/task/{filler}/children")).ok()?;
    let mut children = children.split_whitespace().filter_map(|word| word.parse().ok().map(Pid));
    ProcessId::of(children.find(|child| *child != subject)?).ok()
}

fn word(report: &Path, number: u64) -> Option<u64> {
    let mut bytes = [0_u8; 8];
    let mut file = std::fs::File::open(report).ok()?;
    file.seek(SeekFrom::Start(number * 8)).ok()?;
    file.read_exact(&mut bytes).ok()?;
    Some(u64::from_ne_bytes(bytes))
}

/// Returns the content that the subject writes to a page at its start (`fill(mix(number + 1) | 1)`).
fn content(number: u64) -> [u8; 16] {
    let mut x = number + 1;
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let value = (x ^ (x >> 31)) | 1;
    let words = [value, value.wrapping_add(1)];
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&words[0].to_ne_bytes());
    bytes[8..].copy_from_slice(&words[1].to_ne_bytes());
    bytes
}

/// Flips a bit in every stored copy of a page below a directory. Returns the number of copies.
fn damage(folder: &Path, page: u64) -> usize {
    let (wanted, mut found) = (content(page), 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found += damage(&path, page);
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        for (number, stored) in bytes.chunks(PAGE as usize).enumerate() {
            if stored.starts_with(&wanted) {
                let at = number * PAGE as usize + 2048;
                let mut file = std::fs::File::options().write(true).open(&path).unwrap();
                file.seek(SeekFrom::Start(at as u64)).unwrap();
                file.write_all(&[bytes[at] ^ 16]).unwrap();
                found += 1;
            }
        }
    }
    found
}

#[test]
fn a_program_that_ran_before_its_memory_was_there_is_the_same_as_any_other() {
    if !supported() {
        return;
    }
    let subject = Subject::image(MIB);
    let mut traces = Vec::new();
    // Memory is filled by writing, by userfaultfd, and lazily.
    let ways = [("userfaultfd-missing", false), ("", false), ("", true)];
    for (off, is_lazy) in ways {
        subject.will("watch", 1);
        let image = subject.image_path();
        let words =
            ["restore", "--files", "keep", &image, "--detach"].into_iter().chain(is_lazy.then_some("--lazy"));
        let said = subject.lab.call(subject.lab.undying(words).env("UNDYING_FEATURES_OFF", off));
        assert_eq!(said.code, Some(0), "{said:?}");
        assert_eq!(said.stderr.contains("all memory loaded after"), is_lazy, "{said:?}");
        let only: Vec<Pid> = subject.lab.guard.marked().iter().map(|process| process.pid()).collect();
        assert_eq!(only, [subject.pid], "another process remains");
        traces.push(subject.traces());
        subject.goes_on("after a restore");
        subject.end();
    }
    assert_eq!((&traces[0], &traces[0]), (&traces[1], &traces[2]));
}

#[test]
fn a_program_from_a_compressed_image_is_the_same_as_any_other() {
    if !supported() {
        return;
    }
    for codec in ["lz4", "zstd"] {
        let subject = Subject::image_with(MIB / 4, &["--compress", codec]);
        let stored = std::fs::metadata(subject.lab.path("image").join("pages-0.seg")).unwrap().len();
        assert!(stored < ((MIB / 4) << 20) * 2 / 3, "{codec}: {stored} bytes");
        for options in [&["--detach"][..], &["--detach", "--lazy"]] {
            subject.will("watch", 1);
            assert_eq!(subject.restore(options).code, Some(0), "{codec}, {options:?}");
            subject.goes_on(codec);
            subject.end();
        }
        assert!(damage_compressed(&subject.lab.path("image")), "{codec}");
        let said = subject.restore(&["--detach"]);
        assert_eq!(said.code, Some(5), "{codec}: {said:?}");
        assert!(said.stderr.contains("pages-0.seg: damaged at byte"), "{codec}: {said:?}");
    }
}

/// Flips a bit in the middle of the segment file.
fn damage_compressed(image: &Path) -> bool {
    let path = image.join("pages-0.seg");
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 16;
    std::fs::write(&path, bytes).is_ok()
}

#[test]
fn what_a_program_does_with_memory_that_is_still_to_come_is_done() {
    if !supported() {
        return;
    }
    let subject = Subject::image(MIB);
    let mut random = testkit::seeded("changes of missing memory");
    for round in 0..testkit::rounds(CHURNS.0, CHURNS.1) {
        subject.will("churn", random.u64(..1 << 40));
        let said = subject.restore(&["--lazy"]);
        subject.is_well(&format!("round {round}"));
        assert_eq!(said.code, Some(0), "round {round}: {said:?}");
        subject.is_gone();
    }
}

/// Repeats restores. In each restore, `kill` ends the restore at a moment of its choice, and returns a description.
fn kill_restores(options: &[&str], kill: impl Fn(&Subject, Child, &mut fastrand::Rng) -> String) {
    if !supported() {
        return;
    }
    let subject = Subject::image(MIB);
    let mut random = testkit::seeded("killed lazy restore");
    subject.will("watch", 0);
    let begun = Instant::now();
    assert_eq!(subject.restore(options).code, Some(0));
    let latest = begun.elapsed();
    subject.end();
    let (mut dead, mut alive) = (0, 0);
    let mut rounds = testkit::Rounds::new(KILLS.0, KILLS.1);
    while let Some(round) = rounds.next(dead > 0) {
        subject.will("watch", random.u64(..1 << 40));
        let image = subject.image_path();
        let words = ["restore", "--files", "keep", image.as_str()].into_iter().chain(options.iter().copied());
        let restore = subject.lab.undying(words).spawn().unwrap();
        std::thread::sleep(testkit::moment(&mut random, latest));
        let what = format!("round {round}, {}", kill(&subject, restore, &mut random));
        *(if subject.is_whole_or_dead(&what) { &mut alive } else { &mut dead }) += 1;
        subject.end();
        subject.is_well(&what);
    }
    println!("killed in {dead} rounds, whole in {alive}");
    assert!(dead > 0, "no round ended early");
}

#[test]
fn whoever_is_killed_the_program_dies_or_has_all_its_memory() {
    kill_restores(&["--detach", "--lazy"], |subject, mut filler, random| {
        let number = Pid(filler.id() as i32);
        let fd_holder = fd_holder_of(number, subject.pid);
        // The child is now an fd holder. If it were killed while it starts, the restore would fail at its beginning.
        let is_begun = subject.process().is_some();
        let kind = random.u64(..4);
        let targets: Vec<ProcessId> = match kind {
            0 => Vec::new(),
            1 => fd_holder.into_iter().collect(),
            _ => fd_holder.into_iter().chain(fd_holder).collect(),
        };
        if kind == 2 {
            filler.kill().unwrap();
        }
        for target in targets {
            // The process may already have ended.
            let _ = target.signal(Signal::KILL);
        }
        if kind != 1 && kind != 2 {
            filler.kill().unwrap();
        }
        let status = wait(&mut filler);
        let what = format!("kind {kind}, {status}");
        let never_ran = subject.process().is_none() && subject.word(0) == 0;
        let may_fail = kind != 1 || (!is_begun && never_ran);
        assert!(status.success() || may_fail, "{what}: without its fd holder it fails");
        what
    });
}

#[test]
fn a_restore_that_is_killed_while_it_fills_memory_leaves_a_whole_program_or_none() {
    kill_restores(&["--detach"], |_, mut restore, _| {
        restore.kill().unwrap();
        wait(&mut restore).to_string()
    });
}

#[test]
fn a_damaged_page_found_late_ends_the_program_and_is_told() {
    if !supported() {
        return;
    }
    let subject = Subject::image(64);
    assert_eq!(damage(Path::new(&subject.image_path()), 9000), 1);
    subject.will("watch", 7);
    let said = subject.restore(&["--lazy"]);
    assert_eq!(said.code, Some(5), "{said:?}");
    assert!(said.stderr.contains("damaged") && said.stderr.contains("had begun to run"), "{said:?}");
    subject.is_gone();
    subject.is_well("damage");
    let said = subject.restore(&[]);
    assert_eq!(said.code, Some(5), "{said:?}");
    assert!(!said.stderr.contains("had begun to run"), "{said:?}");
}

#[test]
fn a_log_serves_as_well_as_an_image() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let mut words: Vec<String> = ["run", "--name", "job", "--every", "50ms", "--"].map(String::from).into();
    words.extend(Subject::words(&lab, 64));
    let mut guardian = lab.undying(words).spawn().unwrap();
    let subject = Subject::found(lab);
    // Waits for a checkpoint that begins after the subject has written all pages.
    let newest = || subject.lab.json(&["ls", "job"]).as_array()?.last()?["seq"].as_u64();
    let first = newest().unwrap_or(0);
    until("checkpoints", || (newest()? >= first + 3).then_some(()));
    guardian.kill().unwrap();
    wait(&mut guardian);
    subject.end();
    subject.will("watch", 3);
    let said = subject.lab.say(["restore", "--files", "keep", "job", "--lazy", "--detach"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.stderr.contains("all memory loaded after"), "{said:?}");
    subject.goes_on("from a log");
    subject.end();
    assert!(damage(&subject.lab.store(), 9000) > 0);
    subject.will("watch", 4);
    let said = subject.lab.say(["restore", "--files", "keep", "job", "--lazy"]);
    assert_eq!(said.code, Some(5), "{said:?}");
    assert!(said.stderr.contains("had begun to run"), "{said:?}");
    subject.is_gone();
    subject.is_well("damage in a log");
}

#[test]
fn a_checkpoint_is_refused_as_long_as_memory_is_missing() {
    if !supported() {
        return;
    }
    let subject = Subject::image(MIB);
    let pidfile = subject.lab.path("pid");
    subject.will("watch", 5);
    let (image, file) = (subject.image_path(), pidfile.display().to_string());
    let words = ["restore", "--files", "keep", image.as_str(), "--lazy", "--detach", "--pidfile", &file];
    let mut filler = subject.lab.undying(words).spawn().unwrap();
    let process = ProcessId::of(Pid(filler.id() as i32)).unwrap();
    // The pid file exists from the first instruction of the program.
    let deadline = Instant::now() + crate::common::LIMIT;
    while !pidfile.exists() {
        assert!(Instant::now() < deadline, "no pid file");
    }
    process.signal(Signal::STOP).unwrap();
    until("it to stand", || process.is_stopped().then_some(()));
    assert_ne!(subject.status("TracerPid"), "0", "the memory was there too early");
    let pid = subject.pid.to_string();
    let said = subject.lab.say(["checkpoint", &pid, "--image", "other"]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stderr.contains("one tracer only") && said.stderr.contains("--lazy"), "{said:?}");
    process.signal(Signal::CONT).unwrap();
    assert!(wait(&mut filler).success());
    subject.goes_on("after a refusal");
    let said = subject.lab.say(["checkpoint", &pid, "--image", "other"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    subject.end();
}

#[test]
fn what_the_kernel_lacks_refuses_before_anything_is_begun() {
    if !supported() {
        return;
    }
    let subject = Subject::image(32);
    subject.will("watch", 6);
    let image = subject.image_path();
    let mut command = subject.lab.undying(["restore", "--files", "keep", &image, "--lazy"]);
    let said = subject.lab.call(command.env("UNDYING_FEATURES_OFF", "userfaultfd-missing"));
    assert_eq!(said.code, Some(4), "{said:?}");
    assert!(said.stderr.contains("without --lazy"), "{said:?}");
    assert!(subject.process().is_none());
    assert_eq!(subject.word(0), 0, "it has run");
}
