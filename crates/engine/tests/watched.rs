//! Tests checkpoints and restores of watched subjects. A seccomp filter reports each system call of a watched
//! subject that changes files. A restored subject can be watched from its first instruction.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use model::{Pid, Sequence, Signal};
use store::{ImageReader, ImageWriter, WriteOptions};
use sys::features::{self, Feature};
use sys::seccomp_listener::{Listener, Notification, Receipt, Waited, watch_program};
use sys::watched_start::watch_from_start;
use tracee::procfs;
use undying_engine::{
    CheckpointOptions, FilePolicy, Files, FilterInstall, RestoreOptions, checkpoint, restore,
};

/// The maximum duration of a wait.
const LIMIT: Duration = Duration::from_secs(30);
const KIND: &str = "state/seccomp";
/// The system call numbers of openat, mkdir, rename and rmdir on x86-64. The subject changes files only with these
/// calls.
const CALLS: [i64; 4] = [257, 83, 82, 84];
/// The system call number of mmap. A restored program does not call mmap, but a program that is being loaded can.
const MMAP: i64 = 9;

struct Lab {
    folder: tempfile::TempDir,
    program: PathBuf,
}

/// Answers the notified calls of a subject, and records their numbers.
struct Watcher {
    calls: Arc<Mutex<BTreeSet<i64>>>,
    thread: JoinHandle<()>,
}

impl Watcher {
    fn start(listener: Listener) -> Self {
        let calls = Arc::new(Mutex::new(BTreeSet::new()));
        let seen = Arc::clone(&calls);
        let thread = std::thread::spawn(move || {
            let mut notification = Notification::default();
            while listener.wait(None).unwrap() != Waited::Gone {
                if listener.receive(&mut notification).unwrap() == Receipt::Call {
                    seen.lock().unwrap().insert(notification.call());
                    listener.answer_continue(notification.id()).unwrap();
                }
            }
        });
        Self { calls, thread }
    }

    /// Returns the numbers of the calls since the previous `take_calls`.
    fn take_calls(&self) -> BTreeSet<i64> {
        std::mem::take(&mut self.calls.lock().unwrap())
    }
}

impl Lab {
    fn new() -> Option<Self> {
        let probe = features::entry(Feature::FileNotify).probe;
        if let Err(error) = probe(&std::env::temp_dir()) {
            println!("unsupported: file-notify: {error}");
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            println!("unsupported: root");
            return None;
        }
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let folder =
            tempfile::TempDir::with_prefix_in("undying-watched-", env!("CARGO_TARGET_TMPDIR")).unwrap();
        let program = testkit::compiled(env!("CARGO_MANIFEST_DIR"), "watched", &["-O1"])?;
        Some(Self { folder, program })
    }

    fn command(&self, mode: &str) -> Command {
        // A pipe that this test has inherited must not become a descriptor of the subject.
        sys::close_range::close_on_exec_from(model::Fd(3)).unwrap();
        let mut command = Command::new(&self.program);
        command.arg(mode).arg(self.said()).current_dir(self.folder.path());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Starts the subject with the filter.
    #[expect(clippy::zombie_processes, reason = "`kill` waits for it by its number")]
    fn start_watched(&self, mode: &str) -> (Pid, Watcher) {
        let mut command = self.command(mode);
        let pending = watch_from_start(&mut command, watch_program(), None).unwrap();
        let child = command.spawn().unwrap();
        (Pid(child.id() as i32), Watcher::start(pending.receive().unwrap()))
    }

    fn said(&self) -> PathBuf {
        self.folder.path().join("said")
    }

    fn rounds(&self) -> u64 {
        let text = std::fs::read_to_string(self.said()).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    fn await_rounds(&self, at_least: u64) {
        let begun = Instant::now();
        while self.rounds() < at_least {
            assert!(begun.elapsed() < LIMIT, "it has made {} rounds", self.rounds());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn checkpoint(&self, pid: Pid, number: u64) -> PathBuf {
        let image = self.folder.path().join(format!("image{number}"));
        let writer = ImageWriter::create(&image, WriteOptions::default()).unwrap();
        let options = CheckpointOptions {
            name: "watched".to_owned(),
            sequence: Sequence(number),
            ..CheckpointOptions::default()
        };
        checkpoint(pid, Box::new(writer), &options).unwrap();
        image
    }

    /// Kills the subject, and resets the file in which the subject reports its rounds.
    fn kill(&self, root: Pid) {
        let tree = tracee::tree::descendants(root).unwrap();
        for pid in &tree {
            sys::signal::send(*pid, Signal(9)).unwrap();
        }
        // Processes whose parents are dead are now children of this process.
        for pid in tree {
            let raw = rustix::process::Pid::from_raw(pid.get());
            rustix::process::waitpid(raw, rustix::process::WaitOptions::empty()).unwrap();
        }
        std::fs::write(self.said(), format!("{:31}", 0)).unwrap();
    }

    /// Restores an image. If `is_watched` is true, the tree gets the filter, and the channel delivers its listener.
    fn restore(&self, image: &Path, is_watched: bool) -> (Pid, Receiver<OwnedFd>) {
        let (give, take) = channel();
        let listener = move |listener| {
            give.send(listener).unwrap();
            Ok(())
        };
        let watch = FilterInstall { program: watch_program(), listener: Box::new(listener) };
        let options = RestoreOptions {
            files: Files { policy: FilePolicy::Keep, ..Files::default() },
            watch: is_watched.then_some(watch),
            ..RestoreOptions::default()
        };
        (restore(ImageReader::open(image).unwrap(), options).unwrap().roots.first(), take)
    }
}

/// Returns the number of filters of each thread of a tree. The root comes first, and in each process the leader.
fn filters(root: Pid) -> Vec<Vec<u32>> {
    let of_thread = |pid: Pid, tid| {
        let status = procfs::read(format!("/proc/{pid}/task/{tid}/status")).unwrap();
        procfs::status_line(&status, "Seccomp_filters").map_or(0, |count| count.parse().unwrap())
    };
    let mut tree = tracee::tree::descendants(root).unwrap();
    tree.sort_by_key(|pid| *pid != root);
    let of_process = |pid: &Pid| {
        let mut threads = procfs::threads(*pid).unwrap();
        threads.sort_by_key(|tid| *tid != pid.leader());
        threads.into_iter().map(|tid| of_thread(*pid, tid)).collect()
    };
    tree.iter().map(of_process).collect()
}

fn records(image: &Path) -> usize {
    ImageReader::open(image).unwrap().take_records().take_all(KIND).len()
}

#[test]
fn a_watched_subject_is_checkpointed_and_restored_under_a_new_watch() {
    let Some(lab) = Lab::new() else { return };
    let (mut pid, mut watcher) = lab.start_watched("plain");
    lab.await_rounds(20);
    let mut image = PathBuf::new();
    for life in 0..3 {
        assert_eq!(filters(pid), [[1, 1], [1, 1]], "life {life}");
        image = lab.checkpoint(pid, life);
        assert_eq!(records(&image), 0, "our filter is not the subject's");
        let calls: Vec<i64> = watcher.take_calls().into_iter().filter(|call| *call != MMAP).collect();
        assert!(calls.iter().all(|call| CALLS.contains(call)), "a checkpoint has made calls: {calls:?}");
        let rounds = lab.rounds();
        lab.await_rounds(rounds + 10);
        assert_eq!(watcher.take_calls(), BTreeSet::from(CALLS), "it is watched behind a checkpoint");
        lab.kill(pid);
        watcher.thread.join().unwrap();
        let (root, listener) = lab.restore(&image, true);
        pid = root;
        let listener = Listener::new(listener.recv().unwrap()).unwrap();
        std::thread::sleep(Duration::from_millis(20));
        // The subject may still report a round that it has already completed.
        let rounds = lab.rounds();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(lab.rounds(), rounds, "it changes files and is not answered");
        assert_eq!(listener.wait(Some(Duration::ZERO)), Ok(Waited::Ready));
        watcher = Watcher::start(listener);
        // The first number that the subject reports is the number at the checkpoint.
        lab.await_rounds(rounds + 1);
        let rounds = lab.rounds();
        lab.await_rounds(rounds + 20);
        assert_eq!(watcher.take_calls(), BTreeSet::from(CALLS), "life {life}");
    }
    lab.kill(pid);
    watcher.thread.join().unwrap();
    // A subject that is restored without the filter has no filter.
    let (pid, listener) = lab.restore(&image, false);
    assert!(listener.recv().is_err());
    lab.await_rounds(20);
    assert_eq!(filters(pid), [[0, 0], [0, 0]]);
    lab.kill(pid);
}

#[test]
fn filters_of_the_subjects_own_come_back_behind_ours() {
    let Some(lab) = Lab::new() else { return };
    let (pid, watcher) = lab.start_watched("filtered");
    lab.await_rounds(20);
    assert_eq!(filters(pid), [[2, 3], [2, 3]]);
    let image = lab.checkpoint(pid, 0);
    assert_eq!(records(&image), 4);
    lab.kill(pid);
    watcher.thread.join().unwrap();
    for (life, is_watched) in [true, false, true].into_iter().enumerate() {
        let (pid, listener) = lab.restore(&image, is_watched);
        let watcher = listener.recv().ok().map(|listener| Watcher::start(Listener::new(listener).unwrap()));
        assert_eq!(watcher.is_some(), is_watched);
        lab.await_rounds(20);
        let own = u32::from(is_watched);
        assert_eq!(filters(pid), [[1 + own, 2 + own], [1 + own, 2 + own]]);
        let again = lab.checkpoint(pid, life as u64 + 1);
        assert_eq!(records(&again), 4);
        lab.kill(pid);
        if let Some(watcher) = watcher {
            watcher.thread.join().unwrap();
        }
    }
}
