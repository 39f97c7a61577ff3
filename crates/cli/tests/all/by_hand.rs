//! Tests of `undying restore` by hand: memory and files are of the same moment, or the restore is refused and nothing
//! is changed.
//!
//! The subject is `ledger`, which checks its files against its memory before each step.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::{Lab, Said, compiled, copy_program, holders_of, supported, until, wait};

/// The time in which a restored subject makes many steps.
const SOME_STEPS: Duration = Duration::from_millis(150);

/// Creates a lab on a machine that can roll back files. Prints the reason otherwise.
fn lab() -> Option<Lab> {
    if !supported() {
        return None;
    }
    let lab = Lab::new();
    let report = lab.json(&["doctor"]);
    let checks = report["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "files-go-back").unwrap();
    if check["state"] == "ok" {
        return Some(lab);
    }
    println!("unsupported: files-go-back ({})", check["detail"]);
    None
}

/// Returns the path of the subject.
fn ledger() -> &'static Path {
    compiled("ledger")
}

/// Returns the path of the program file of a lab. `is_in_data` selects the data directory, in which the program creates
/// and removes files.
fn program_in(lab: &Lab, is_in_data: bool) -> PathBuf {
    lab.path(if is_in_data { "data" } else { "programs" }).join("ledger")
}

/// A ledger under a guardian, or restored by hand.
struct Keeping<'a> {
    lab: &'a Lab,
    guardian: Child,
    root: Pid,
}

/// How the first incarnation ends.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Ending {
    /// The guardian passes SIGTERM on to the program, and ends after the program.
    Orderly,
    /// The program is killed while its guardian is stopped. The guardian is killed afterwards.
    ProgramFirst,
    /// The guardian is killed, and the program runs on for a moment.
    GuardianFirst,
    /// The guardian and its fd holders are killed, and the program runs on for a moment.
    HoldersAndGuardian,
}

impl Ending {
    const ALL: [Self; 4] = [Self::Orderly, Self::ProgramFirst, Self::GuardianFirst, Self::HoldersAndGuardian];

    /// Reports whether the undo log is complete after this end.
    fn is_watched(self) -> bool {
        matches!(self, Self::Orderly | Self::ProgramFirst)
    }
}

impl<'a> Keeping<'a> {
    fn begin(lab: &'a Lab) -> Self {
        Self::with(lab, true, |_| ())
    }

    /// Starts the subject. `is_in_data` selects the directory of the program file; see [`program_in`].
    fn with(lab: &'a Lab, is_in_data: bool, streams: impl FnOnce(&mut Command)) -> Self {
        std::fs::create_dir_all(lab.path("data")).unwrap();
        std::fs::create_dir_all(lab.path("programs")).unwrap();
        copy_program(ledger(), &program_in(lab, is_in_data));
        let data = lab.path("data").display().to_string();
        let words = ["run", "--name", "job", "--files", "rewind", "--every", "100ms", "--keep", "100"];
        // With this cost limit, files can be rolled back to every checkpoint, even in a slow build.
        let mut command = lab.undying(words.into_iter().chain(["--files-cost-max", "10000", "--"]));
        command.arg(program_in(lab, is_in_data)).arg(data).stdout(Stdio::null()).stderr(Stdio::null());
        streams(&mut command);
        let guardian = command.spawn().unwrap();
        let root = until("exact checkpoints", || {
            let status = lab.json(&["status", "job"]).get(0).cloned()?;
            (status["files"]["exact"].as_u64()? >= 4).then_some(Pid(status["pid"].as_i64()? as i32))
        });
        Self { lab, guardian, root }
    }

    fn root(&self) -> Option<ProcessId> {
        ProcessId::of(self.root).ok().filter(|root| root.is_alive())
    }

    /// Ends the first incarnation.
    fn end(&mut self, ending: Ending) {
        let guardian = ProcessId::of(Pid(self.guardian.id() as i32)).unwrap();
        let root = self.root().unwrap();
        match ending {
            Ending::Orderly => guardian.signal(Signal::TERM).unwrap(),
            Ending::ProgramFirst => {
                guardian.signal(Signal::STOP).unwrap();
                root.signal(Signal::KILL).unwrap();
                // The fd holder records the end of the program.
                let mark = self.lab.store().join("job/undo/unwatched");
                until("the end mark", || std::fs::metadata(&mark).ok().filter(|mark| mark.len() > 0));
                guardian.signal(Signal::KILL).unwrap();
            }
            Ending::GuardianFirst => {
                guardian.signal(Signal::KILL).unwrap();
                std::thread::sleep(Duration::from_millis(20));
            }
            Ending::HoldersAndGuardian => {
                // A running guardian would replace the holders.
                guardian.signal(Signal::STOP).unwrap();
                for process in holders_of(guardian).into_iter().chain([guardian]) {
                    process.signal(Signal::KILL).unwrap();
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        wait(&mut self.guardian);
        if let Some(root) = self.root() {
            let _ = root.signal(Signal::KILL);
        }
        self.await_end();
    }

    /// Kills the present incarnation, and waits for its end.
    fn kill(&self) {
        if let Some(root) = self.root() {
            let _ = root.signal(Signal::KILL);
            self.await_end();
        }
    }

    fn await_end(&self) {
        until("the end", || {
            crate::common::reap(self.root);
            (!Path::new(&format!("/proc/{}", self.root)).exists()).then_some(())
        });
    }

    /// Restores a checkpoint. After a refusal, checks that no file was changed. After a success, checks that the program
    /// finds its files as it has left them.
    fn restore(&self, image: &str, options: &[&str]) -> Said {
        let before = files(&self.lab.path("data"));
        let said = self.lab.say(["restore", image, "--detach"].iter().chain(options));
        if said.code == Some(0) {
            std::thread::sleep(SOME_STEPS);
            let why = std::fs::read_to_string(self.lab.path("data/failed"));
            assert!(self.root().is_some() && why.is_err(), "different moments: {why:?} {said:?}");
            self.kill();
        } else {
            assert_eq!(said.code, Some(3), "{said:?}");
            assert_eq!(files(&self.lab.path("data")), before, "a refusal changes nothing: {said:?}");
        }
        said
    }

    /// Returns the checkpoints, oldest first.
    fn checkpoints(&self) -> Vec<u64> {
        let rows = self.lab.json(&["ls", "job"]);
        rows.as_array().unwrap().iter().filter_map(|row| row["seq"].as_u64()).collect()
    }

    /// Returns the checkpoints to which files can be rolled back, oldest first.
    fn exact(&self) -> Vec<u64> {
        let rows = self.lab.json(&["ls", "job"]);
        let exact = rows.as_array().unwrap().iter().filter(|row| row["files_exact"] == true);
        exact.filter_map(|row| row["seq"].as_u64()).collect()
    }
}

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        let _ = self.guardian.kill();
        let _ = self.guardian.wait();
    }
}

/// Returns the files of a directory: inode, change time and content.
fn files(directory: &Path) -> BTreeMap<PathBuf, (u64, i64, i64, Vec<u8>)> {
    let read = |entry: std::io::Result<std::fs::DirEntry>| {
        let path = entry.unwrap().path();
        let found = path.symlink_metadata().unwrap();
        let content = std::fs::read(&path).unwrap();
        (path, (found.ino(), found.ctime(), found.ctime_nsec(), content))
    };
    std::fs::read_dir(directory).unwrap().map(read).collect()
}

/// Appends to a file, as another program does.
fn touch(path: &Path) {
    File::options().append(true).open(path).unwrap().write_all(b"x").unwrap();
}

#[test]
fn restores_by_hand_in_random_order_keep_memory_and_files_together() {
    let mut restored = 0;
    for _ in 0..testkit::rounds(4, 100) {
        let Some(lab) = lab() else { return };
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        let mut keeping = Keeping::begin(&lab);
        std::thread::sleep(Duration::from_millis(random.u64(..200)));
        let ending = random.choice(Ending::ALL).unwrap();
        println!("{ending:?}");
        keeping.end(ending);
        for _ in 0..6 {
            if random.u8(..4) == 0 {
                let name = random.choice(["log", "table", "state"]).unwrap();
                println!("another program appends to {name}");
                touch(&lab.path("data").join(name));
            }
            let checkpoints = keeping.checkpoints();
            let image = match random.choice(&checkpoints) {
                Some(sequence) if random.bool() => format!("job@{sequence}"),
                _ => "job".to_owned(),
            };
            let policy = random.choice([&[][..], &[], &["--files", "rewind"]]).unwrap();
            println!("restore {image} {policy:?}");
            restored += usize::from(keeping.restore(&image, policy).code == Some(0));
        }
    }
    println!("{restored} restores succeeded");
}

#[test]
fn a_log_without_a_marked_end_reaches_nothing() {
    for ending in Ending::ALL {
        let Some(lab) = lab() else { return };
        let mut keeping = Keeping::begin(&lab);
        keeping.end(ending);
        let exact = keeping.exact();
        assert_eq!(!exact.is_empty(), ending.is_watched(), "{ending:?}: {exact:?}");
        let said = keeping.restore("job", &[]);
        assert_eq!(said.code == Some(0), ending.is_watched(), "{ending:?}: {said:?}");
        match ending {
            Ending::GuardianFirst => assert!(said.stderr.contains("without being watched"), "{said:?}"),
            Ending::HoldersAndGuardian => {
                assert!(said.stderr.contains("the end of the program is not recorded"), "{said:?}");
                assert!(said.stderr.contains("--files force"), "{said:?}");
            }
            _ => assert!(said.stderr.contains("files were rolled back to checkpoint"), "{said:?}"),
        }
    }
}

#[test]
fn a_program_that_was_killed_together_with_all_of_undying_is_restored_by_force() {
    let Some(lab) = lab() else { return };
    let mut keeping = Keeping::begin(&lab);
    let guardian = ProcessId::of(Pid(keeping.guardian.id() as i32)).unwrap();
    let mut processes = holders_of(guardian);
    processes.extend([keeping.root().unwrap(), guardian]);
    // All processes are stopped first, so that none of them acts between the kills.
    for signal in [Signal::STOP, Signal::KILL] {
        processes.iter().for_each(|process| process.signal(signal).unwrap());
    }
    wait(&mut keeping.guardian);
    keeping.await_end();
    assert_eq!(keeping.restore("job", &[]).code, Some(3));
    assert_eq!(keeping.restore("job", &["--files", "force"]).code, Some(0));
}

#[test]
fn a_second_restore_knows_that_the_first_one_ran_unwatched() {
    let Some(lab) = lab() else { return };
    let mut keeping = Keeping::begin(&lab);
    keeping.end(Ending::Orderly);
    let exact = keeping.exact();
    let (older, newest) = (exact[exact.len() / 2], *exact.last().unwrap());
    let said = keeping.restore(&format!("job@{older}"), &[]);
    assert_eq!(said.code, Some(0), "{said:?}");
    for image in [format!("job@{older}"), format!("job@{newest}"), "job".to_owned()] {
        for policy in [&[][..], &["--files", "rewind"], &["--files", "force"]] {
            let said = keeping.restore(&image, policy);
            assert_eq!(said.code, Some(3), "{said:?}");
            let why = format!("checkpoint {older} was restored by `undying restore`");
            assert!(said.stderr.contains(&why), "{said:?}");
        }
    }
    assert_eq!(keeping.exact(), [] as [u64; 0], "`ls` promises nothing");
}

#[test]
fn a_restore_that_fails_after_the_rollback_says_so_and_can_be_repeated() {
    let Some(lab) = lab() else { return };
    let mut keeping = Keeping::begin(&lab);
    keeping.end(Ending::Orderly);
    let exact = keeping.exact();
    let (older, newest) = (exact[exact.len() / 2], *exact.last().unwrap());
    let image = format!("job@{older}");
    let before = files(&lab.path("data"));
    let said = without_program(&lab, &image);
    assert_eq!(said.code, Some(125), "{said:?}");
    let told = format!("files were rolled back to checkpoint {older}, and then the program was not restored");
    assert!(said.stderr.contains(&told), "{said:?}");
    assert_ne!(files(&lab.path("data")), before);
    // Newer memory does not fit the older files.
    let said = keeping.restore(&format!("job@{newest}"), &[]);
    assert!(said.code == Some(3) && said.stderr.contains("rolled the files back to checkpoint"), "{said:?}");
    let said = keeping.restore(&format!("job@{newest}"), &["--files", "refuse"]);
    assert!(said.code == Some(3) && said.stderr.contains("rolled the files back to checkpoint"), "{said:?}");
    // Another program changes a file that the next rollback would not set back.
    let table = lab.path("data").join("table");
    let content = std::fs::read(&table).unwrap();
    let modified = std::fs::metadata(&table).unwrap().modified().unwrap();
    touch(&table);
    let said = keeping.restore(&image, &[]);
    assert!(said.code == Some(3) && said.stderr.contains("table was changed"), "{said:?}");
    std::fs::write(&table, content).unwrap();
    File::options().write(true).open(&table).unwrap().set_modified(modified).unwrap();
    // Without a number, the restore chooses the checkpoint of the files.
    let said = keeping.restore("job", &[]);
    let told = format!("files were rolled back to checkpoint {older} before");
    assert!(said.code == Some(0) && said.stderr.contains(&told), "{said:?}");
}

#[test]
fn a_restore_without_a_rollback_says_what_it_did_not_compare() {
    for (policy, told) in [("refuse", "only the files that were open"), ("keep", "files stay as they are")] {
        let Some(lab) = lab() else { return };
        let script = "exec 3> data; until [ -e stop ]; do sleep 0.05; done";
        let guarded = crate::common::Guarded::run(&lab, &["--every", "100ms"], script);
        guarded.await_checkpoints(2);
        guarded.end();
        let said = lab.say(["restore", "job", "--detach", "--files", policy]);
        assert!(said.code == Some(0) && said.stderr.contains(told), "{policy}: {said:?}");
    }
}

/// Removes a file, and returns a copy. A restore finds a file that was only renamed.
fn hide(lab: &Lab, path: &Path) -> PathBuf {
    let copy = lab.path("hidden");
    std::fs::copy(path, &copy).unwrap();
    std::fs::remove_file(path).unwrap();
    copy
}

/// Restores an image while the program file is missing. The rollback may change the directory of the program file, so
/// the file is known to be missing only after the rollback.
fn without_program(lab: &Lab, image: &str) -> Said {
    let program = program_in(lab, true);
    let hidden = hide(lab, &program);
    let said = lab.say(["restore", image, "--detach"]);
    std::fs::copy(&hidden, &program).unwrap();
    said
}

#[test]
fn a_restore_that_is_refused_has_not_touched_files() {
    let Some(lab) = lab() else { return };
    let (reader, writer) = std::io::pipe().unwrap();
    let mut keeping = Keeping::with(&lab, true, |command| {
        command.stdout(Stdio::from(writer));
    });
    keeping.end(Ending::Orderly);
    let said = keeping.restore("job", &[]);
    assert!(said.code == Some(3) && said.stderr.contains("fd 1 (pipe)"), "{said:?}");
    drop(reader);
}

/// The program file is outside of the directories that the program has changed.
#[test]
fn a_missing_program_file_is_found_before_files_are_rolled_back() {
    let Some(lab) = lab() else { return };
    let mut keeping = Keeping::with(&lab, false, |_| ());
    keeping.end(Ending::Orderly);
    let program = program_in(&lab, false);
    let hidden = hide(&lab, &program);
    let before = files(&lab.path("data"));
    let said = lab.say(["restore", "job", "--detach"]);
    assert!(said.code.is_some_and(|code| code != 0), "{said:?}");
    assert!(!said.stderr.contains("rolled back"), "{said:?}");
    assert_eq!(files(&lab.path("data")), before);
    std::fs::copy(&hidden, &program).unwrap();
    assert_eq!(keeping.restore("job", &[]).code, Some(0));
}

#[test]
fn messages_of_undying_in_the_standard_error_of_the_program_are_no_conflict() {
    for foreign in [false, true] {
        let Some(lab) = lab() else { return };
        let error = lab.path("error");
        let mut keeping = Keeping::with(&lab, true, |command| {
            command.stderr(File::options().create(true).append(true).open(&error).unwrap());
        });
        keeping.end(Ending::Orderly);
        // `undying run` writes this message when a process of the program has left its tree.
        let message =
            b"undying: pid 7 (sleep), which the program has started, goes on\nhelp: see the pages\n";
        File::options().append(true).open(&error).unwrap().write_all(message).unwrap();
        if foreign {
            touch(&error);
        }
        let said = keeping.restore("job", &[]);
        assert_eq!(said.code, Some(if foreign { 3 } else { 0 }), "{said:?}");
        if foreign {
            assert!(said.stderr.contains("files have changed since the program ended"), "{said:?}");
            continue;
        }
        let parts = std::fs::read_dir(lab.store().join("job/aside")).unwrap();
        let kept: Vec<String> =
            parts.map(|part| std::fs::read_to_string(part.unwrap().path().join("bytes")).unwrap()).collect();
        let [kept] = &*kept else { panic!("one file is kept, not {kept:?}") };
        // On a busy machine, the guardian has said before that its checkpoints cost too much.
        assert!(kept.ends_with(str::from_utf8(message).unwrap()), "{kept}");
        assert!(
            kept.lines().all(|line| line.starts_with("undying: ") || line.starts_with("help: ")),
            "{kept}"
        );
    }
}

/// Runs a shell script in the directory of the lab.
fn outside(lab: &Lab, script: &str) {
    let status = Command::new("sh").args(["-ec", script]).current_dir(lab.path("")).status().unwrap();
    assert!(status.success(), "{script}");
}

/// Another program puts the same bytes at the path of a file or directory, as another inode.
#[test]
fn a_file_that_was_replaced_or_removed_refuses_the_restore_by_name() {
    for (script, named) in [
        ("cp -a data/table copy; mv copy data/table", "data/table"),
        ("cp -a data/log copy; mv copy data/log", "data/log"),
        ("rm data/log", "data/log"),
        ("cp -a data/table copy; mv data/table old; mv copy data/table", "data/table"),
        ("cp -a data/table data/copy; ln data/copy copy; mv copy data/table", "data/table"),
        ("cp -a data copy; rm -r data; mv copy data", "data"),
        ("mv data old; cp -a old data", "data"),
        ("mkdir other; mv store data programs other; cp -a other/* .; rm -r other", "data"),
    ] {
        let Some(lab) = lab() else { return };
        let mut keeping = Keeping::with(&lab, false, |_| ());
        keeping.end(Ending::Orderly);
        outside(&lab, script);
        for policy in [&[][..], &["--files", "rewind"]] {
            let said = keeping.restore("job", policy);
            let path = lab.path(named).display().to_string();
            assert!(said.code == Some(3) && said.stderr.contains(&path), "{script}: {said:?}");
        }
    }
}

/// The copy is made while the program is stopped, so that the program changes neither file afterwards.
#[test]
fn a_file_that_was_replaced_while_the_program_ran_makes_it_start_from_its_beginning() {
    let Some(lab) = lab() else { return };
    let keeping = Keeping::with(&lab, false, |_| ());
    let root = keeping.root().unwrap();
    root.signal(Signal::STOP).unwrap();
    outside(&lab, "cp -a data/table copy; mv copy data/table");
    root.signal(Signal::KILL).unwrap();
    let reason = until("the next incarnation", || {
        let status = lab.json(&["status", "job"]).get(0).cloned()?;
        Some(status["fresh"]["reason"].as_str()?.to_owned())
    });
    let table = lab.path("data/table").display().to_string();
    assert!(reason.contains("removed or replaced") && reason.contains(&table), "{reason}");
}

#[test]
fn a_damaged_undo_log_is_named() {
    let Some(lab) = lab() else { return };
    let mut keeping = Keeping::begin(&lab);
    keeping.end(Ending::Orderly);
    let undo = lab.store().join("job/undo");
    let epochs = std::fs::read_dir(&undo).unwrap().map(|entry| entry.unwrap().path());
    let written = epochs.filter(|path| {
        path.extension().is_some_and(|name| name == "epoch") && path.metadata().unwrap().len() > 0
    });
    let newest = written.max().unwrap();
    let mut bytes = std::fs::read(&newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&newest, bytes).unwrap();
    let said = keeping.restore("job", &[]);
    assert!(said.code == Some(3) && said.stderr.contains("the recorded changes of files"), "{said:?}");
}

/// Restores an image of a sleeping program that was made where the machine had run 1,000,000 s longer.
#[test]
fn a_clock_that_is_behind_refuses_the_restore_by_name() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let (image, pidfile) = (lab.path("image"), lab.path("pid"));
    let script = format!(
        "setsid sleep 600 > /dev/null 2>&1 < /dev/null & echo $!; sleep 0.3; exec {} checkpoint $! --kill --image {}",
        env!("CARGO_BIN_EXE_undying"),
        image.display()
    );
    let clocks = ["--monotonic", "1000000", "--boottime", "1000000"];
    let mut command = Command::new("unshare");
    command.arg("--time").args(clocks).args(["sh", "-c", &script]);
    let said = lab.call(lab.detached(&mut command));
    if said.stderr.contains("unshare") {
        return println!("unsupported: time namespaces ({})", said.stderr);
    }
    assert_eq!(said.code, Some(0), "{said:?}");
    // The test is the parent of the killed program, whose number is taken until it is reaped.
    let pid = Pid(said.stdout.lines().next().unwrap().parse().unwrap());
    until("the end of the program", || {
        crate::common::reap(pid);
        ProcessId::of(pid).is_err().then_some(())
    });
    let restore = |options: &[&str]| {
        let words = ["restore", image.to_str().unwrap(), "--detach", "--pidfile", pidfile.to_str().unwrap()];
        lab.say(words.iter().chain(options))
    };
    let said = restore(&[]);
    assert_eq!(said.code, Some(3), "{said:?}");
    assert!(said.stderr.contains("behind the time of the checkpoint"), "{said:?}");
    assert!(said.stderr.contains("--late-timers"), "{said:?}");
    let said = restore(&["--late-timers"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let pid: i32 = std::fs::read_to_string(&pidfile).unwrap().trim().parse().unwrap();
    ProcessId::of(Pid(pid)).unwrap().signal(Signal::KILL).unwrap();
}
