//! Tests of descriptors that `undying` passes on to the subject (a protected process tree): the pipe of a jobserver, a
//! listening socket, a log.
//!
//! Every program that this process starts inherits these descriptors. Therefore the test has its own process.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

#[path = "all/common/mod.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod common;

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::FdFlags;
use rustix::process::Signal;

use common::{Counter, Lab, supported, until, wait};

/// Longer than a round of the counter on a loaded machine. A counter without progress in this time waits for a token.
const QUIET: Duration = Duration::from_millis(300);

/// A pipe like the jobserver of `make -j`. Every program inherits both ends. The pipe contains a byte for each job that
/// may run.
struct Jobserver {
    from: OwnedFd,
    to: OwnedFd,
}

impl Jobserver {
    fn new() -> Self {
        let (from, to) = rustix::pipe::pipe().unwrap();
        Self { from, to }
    }

    fn give(&self) {
        rustix::io::write(&self.to, b"+").unwrap();
    }

    /// Reads all bytes from the pipe, including bytes that are returned in the meantime.
    fn take_all(&self) -> usize {
        let mut taken = 0;
        let quiet = Timespec { tv_sec: 0, tv_nsec: i64::from(QUIET.subsec_nanos()) };
        while poll(&mut [PollFd::new(&self.from, PollFlags::IN)], Some(&quiet)).unwrap() > 0 {
            taken += rustix::io::read(&self.from, &mut [0_u8; 1]).unwrap();
        }
        taken
    }

    fn words(&self) -> [String; 3] {
        ["token".to_owned(), self.from.as_raw_fd().to_string(), self.to.as_raw_fd().to_string()]
    }

    /// Asserts that the counter continues with a byte from this pipe, and waits without a byte.
    fn is_used_by(&self, counter: &Counter) {
        self.take_all();
        let before = counter.read();
        std::thread::sleep(QUIET);
        assert_eq!(counter.read(), before, "the counter goes on without a token");
        self.give();
        counter.goes_on(20);
    }
}

/// Makes a descriptor inheritable, so that started programs receive it.
fn hand_on(file: &impl AsFd) {
    rustix::io::fcntl_setfd(file, FdFlags::empty()).unwrap();
}

fn file_of(counter: &Counter, fd: &impl AsRawFd) -> PathBuf {
    std::fs::read_link(format!("/proc/{}/fd/{}", counter.pid(), fd.as_raw_fd())).unwrap()
}

fn run(lab: &Lab, jobserver: &Jobserver) -> std::process::Child {
    let words = jobserver.words();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut line: Vec<String> = ["run", "--name", "job", "--every", "50ms", "--"].map(str::to_owned).to_vec();
    line.extend(lab.counter_words(&words));
    lab.undying(line).spawn().unwrap()
}

fn wait_for_checkpoints(lab: &Lab, count: usize) {
    until("checkpoints", || {
        let said = lab.told();
        assert!(!said.contains("no checkpoint"), "{said}");
        let rows = lab.json(&["ls", "job"]);
        (rows.as_array()?.iter().filter(|row| row["committed"] == true).count() >= count).then_some(())
    });
}

#[test]
fn what_undying_was_started_with_comes_back_from_its_own_copy() {
    if !supported() {
        return;
    }
    let lab = Lab::new();
    let jobserver = Jobserver::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let log = File::create(lab.path("log")).unwrap();
    let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
    hand_on(&listener);
    hand_on(&log);
    hand_on(&far);
    jobserver.give();
    let mut guardian = run(&lab, &jobserver);
    wait_for_checkpoints(&lab, 2);
    let first = lab.guarded_counter().unwrap();
    let look = |counter: &Counter| {
        let own = |fd: &dyn AsRawFd| {
            let own = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).unwrap();
            assert_eq!(file_of(counter, &fd.as_raw_fd()), own);
        };
        own(&jobserver.from);
        own(&jobserver.to);
        own(&listener);
        own(&log);
        own(&far);
    };
    look(&first);
    jobserver.is_used_by(&first);

    first.process.signal(Signal::KILL).unwrap();
    let again = until("the subject", || lab.guarded_counter().filter(|now| now.process != first.process));
    look(&again);
    jobserver.is_used_by(&again);

    // `restore` also works with the image of a run, if the same descriptors are inherited.
    guardian.kill().unwrap();
    wait(&mut guardian);
    again.process.signal(Signal::KILL).unwrap();
    until("the end", || (!again.process.is_alive()).then(|| crate::common::reap(again.pid())));
    // The program has run unwatched after the death of the guardian, so its files cannot be rolled back.
    let mut restorer = lab.undying(["restore", "job", "--files", "keep"]).spawn().unwrap();
    let restored = until("the restored", || lab.guarded_counter().filter(|now| now.process != again.process));
    jobserver.is_used_by(&restored);
    look(&restored);
    restored.process.signal(Signal::TERM).unwrap();
    assert_eq!(wait(&mut restorer).code(), Some(143));

    // Without the descriptors, the restore is refused with the name of the missing descriptor.
    for file in [&jobserver.from.as_fd(), &jobserver.to.as_fd(), &listener.as_fd(), &far.as_fd()] {
        rustix::io::fcntl_setfd(file, FdFlags::CLOEXEC).unwrap();
    }
    let elsewhere = lab.say(["restore", "--detach", "job"]);
    assert_ne!(elsewhere.code, Some(0), "{elsewhere:?}");
    assert!(elsewhere.stderr.contains("help: "), "{elsewhere:?}");
    drop(near);
}
