//! Tests of readiness with real programs, pipes, files and sockets.
//!
//! Owns: programs that become ready late, in unusual ways, or never.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;
use std::time::Instant;

use model::Pid;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sys::Errno;
use testkit::until;

use super::*;
use crate::test_support::{LONG, Running, wait};

#[test]
fn a_line_on_a_pipe_is_reported_once_and_the_pipe_stays_open() {
    let (mut ready, write) = FdReady::pipe().unwrap();
    let mut writer = File::from(write);
    assert_eq!(ready.advance(), None);
    writer.write_all(b"almost").unwrap();
    assert_eq!(ready.advance(), None);
    writer.write_all(b" there\nand more").unwrap();
    wait(ready.handle(), None);
    assert_eq!(ready.advance(), Some(Ready));
    writer.write_all(b"another\n").unwrap();
    assert_eq!(ready.advance(), None);
    assert!(ready.handle().is_some());
    drop(writer);
    // While another test starts a program, its child process holds duplicates of all descriptors for a moment.
    until("the end of the pipe", || {
        assert_eq!(ready.advance(), None);
        ready.handle().is_none().then_some(())
    });
}

#[test]
fn the_end_of_a_pipe_is_readiness_too() {
    let (mut ready, write) = FdReady::pipe().unwrap();
    let child = {
        let mut command = std::process::Command::new("sh");
        Running::start(command.args(["-c", "exec >&-; sleep 1000"]).stdout(write))
        // `command` is dropped here, which closes the write end in this process.
    };
    until("the end of the pipe", || ready.advance());
    assert!(ready.handle().is_none());
    assert_eq!(ready.advance(), None);
    drop(child);
}

#[test]
fn much_without_a_line_is_read_in_bounded_calls() {
    let (mut ready, write) = FdReady::pipe().unwrap();
    let writer = std::thread::spawn(move || File::from(write).write_all(&[b'a'; 1 << 20]).unwrap());
    until("the end of the pipe", || ready.advance());
    writer.join().unwrap();
}

/// A log file in a new directory.
struct Log {
    folder: tempfile::TempDir,
    now: Instant,
}

impl Log {
    fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), now: Instant::now() }
    }

    fn path(&self) -> std::path::PathBuf {
        self.folder.path().join("log")
    }

    fn append(&self, text: &str) {
        let mut file = OpenOptions::new().append(true).create(true).open(self.path()).unwrap();
        file.write_all(text.as_bytes()).unwrap();
    }

    fn search_for(&self, text: &str, offset: u64) -> LogReady {
        LogReady::new(&self.path(), offset, text, self.now).unwrap()
    }

    /// Polls at the due times until the text is found or the end of the file is reached.
    fn is_found(&mut self, ready: &mut LogReady) -> bool {
        loop {
            let due = ready.due().unwrap();
            self.now = self.now.max(due);
            if ready.advance(self.now).unwrap().is_some() {
                return true;
            }
            if ready.due() != Some(self.now) {
                return false;
            }
        }
    }
}

#[test]
fn a_text_is_found_behind_the_offset_and_across_two_writes() {
    let mut log = Log::new();
    log.append("server ready\n");
    let mut ready = log.search_for("server ready", 13);
    assert!(!log.is_found(&mut ready));
    assert_eq!(ready.due(), Some(log.now + LOG_POLL));
    assert_eq!(ready.advance(log.now), Ok(None), "it is not due");
    log.append("the serv");
    assert!(!log.is_found(&mut ready));
    log.append("er re");
    assert!(!log.is_found(&mut ready));
    log.append("ady, at last\n");
    assert!(log.is_found(&mut ready));
    assert_eq!(ready.due(), None);
    assert_eq!(ready.advance(log.now + LONG), Ok(None));
    let mut whole = log.search_for("server ready", 0);
    assert!(log.is_found(&mut whole));
}

#[test]
fn a_file_that_is_late_truncated_or_replaced_is_read_on() {
    let mut log = Log::new();
    let mut ready = log.search_for("ready", 0);
    assert!(!log.is_found(&mut ready));
    log.append("a long beginning, rea\n");
    assert!(!log.is_found(&mut ready));
    fs::write(log.path(), "dy\n").unwrap();
    assert!(!log.is_found(&mut ready), "the two halves belong to different files");
    fs::rename(log.path(), log.folder.path().join("log.1")).unwrap();
    assert!(!log.is_found(&mut ready));
    log.append("ready\n");
    assert!(log.is_found(&mut ready));
    let mut second = log.search_for("ready", 6);
    assert!(!log.is_found(&mut second));
    File::create(log.path()).unwrap();
    log.append("ready");
    assert!(log.is_found(&mut second));
}

#[test]
fn a_line_of_any_length_is_read_in_bounded_calls() {
    let mut log = Log::new();
    log.append(&"x".repeat(3_000_000));
    let mut ready = log.search_for("ready", 0);
    let calls = (1..).find(|_| {
        ready.advance(log.now).unwrap();
        ready.due() != Some(log.now)
    });
    assert_eq!(calls, Some(12));
    log.append("ready");
    assert!(log.is_found(&mut ready));
}

#[test]
fn a_text_is_found_however_the_file_grows() {
    let mut random = testkit::seeded("a_text_is_found_however_the_file_grows");
    for _ in 0..50 {
        let mut log = Log::new();
        let mut ready = log.search_for("abaab", 0);
        let mut whole = String::new();
        loop {
            let piece: String =
                (0..random.usize(1..6)).map(|_| *random.choice(&['a', 'b', '\n']).unwrap()).collect();
            log.append(&piece);
            whole.push_str(&piece);
            let is_found = log.is_found(&mut ready);
            assert_eq!(is_found, whole.contains("abaab"), "{whole:?}");
            if is_found {
                break;
            }
        }
    }
}

#[test]
fn what_is_no_line_or_no_file_is_an_error() {
    let mut log = Log::new();
    let new = |text: &str| LogReady::new(Path::new("/x"), 0, text, Instant::now()).err();
    assert_eq!(new(""), Some(LogTextError::Empty));
    assert_eq!(new("a\nb"), Some(LogTextError::SeveralLines("a\nb".to_owned())));
    rustix::fs::mkfifoat(rustix::fs::CWD, log.path(), rustix::fs::Mode::RWXU).unwrap();
    let mut ready = log.search_for("a", 0);
    assert_eq!(ready.advance(log.now).map_err(|error| error.errno), Err(Errno::EINVAL));
    // The next poll retries.
    fs::remove_file(log.path()).unwrap();
    log.append("a\n");
    assert!(log.is_found(&mut ready));
}

/// Polls at the due times until one search of all descriptors is complete.
fn listens(ready: &mut ListenReady) -> bool {
    let mut now = ready.due().unwrap();
    loop {
        if ready.advance(now).unwrap().is_some() {
            assert_eq!(ready.due(), None);
            return true;
        }
        if ready.due() != Some(now) {
            return false;
        }
        now = ready.due().unwrap();
    }
}

/// Starts a shell that passes the socket to its child process and closes its own descriptor.
fn with_socket(socket: OwnedFd) -> Running {
    let mut command = std::process::Command::new("sh");
    // `Running` sets standard input to /dev/null, so the socket is passed as standard output.
    command.args(["-c", "sleep 1000 & exec >&-; wait"]).stdout(socket);
    Running::start(&mut command)
}

#[test]
fn the_first_listener_of_a_tree_is_found() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let bound = rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .unwrap();
    let child = with_socket(bound.as_fd().try_clone_to_owned().unwrap());
    let mut ready = ListenReady::new(child.pid(), Instant::now()).unwrap();
    // The listener of this test process does not belong to the tree of the child.
    assert!(!listens(&mut ready));
    rustix::net::listen(&bound, 1).unwrap();
    until("the listener", || listens(&mut ready).then_some(()));
    // The set of listening sockets has not changed, but this is a new search without an earlier result.
    let mut late = ListenReady::new(child.pid(), Instant::now()).unwrap();
    // The shell may pass the socket to its child during the search.
    until("the listener, again", || listens(&mut late).then_some(()));
    let other = Running::shell("sleep 1000");
    let mut none = ListenReady::new(other.pid(), Instant::now()).unwrap();
    assert!(!listens(&mut none) && !listens(&mut none));
    drop((child, listener));
    let mut none = ListenReady::new(Pid(i32::MAX), Instant::now()).unwrap();
    assert!(none.advance(Instant::now()).is_err());
}

#[test]
fn a_unix_listener_is_found_among_thousands_of_descriptors() {
    let folder = tempfile::tempdir().unwrap();
    let (mut stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    stream.write_all(b"x").unwrap();
    let datagram = std::os::unix::net::UnixDatagram::bind(folder.path().join("datagram")).unwrap();
    // Other tests of this process may listen, so the search inspects a child process, which opens many descriptors.
    let unix = std::os::unix::net::UnixListener::bind(folder.path().join("stream")).unwrap();
    let script = "ulimit -n 8192; i=10; while [ $i -lt 5000 ]; do eval \"exec $i</dev/null\"; i=$((i + 1)); done; \
        echo ready > $0; exec sleep 1000";
    let mark = folder.path().join("ready");
    let start = |socket: OwnedFd| {
        let mut command = std::process::Command::new("bash");
        command.args(["-c", script]).arg(&mark).stdout(socket);
        let running = Running::start(&mut command);
        until("thousands of descriptors", || mark.exists().then_some(()));
        fs::remove_file(&mark).unwrap();
        running
    };
    let without = start(datagram.into());
    let now = Instant::now();
    let mut ready = ListenReady::new(without.pid(), now).unwrap();
    assert_eq!(ready.advance(now).unwrap(), None);
    assert_eq!(ready.due(), Some(now), "one call does not look at all of them");
    assert!(!listens(&mut ready));
    drop(without);
    assert!(unix.as_raw_fd() > 2);
    let with = start(unix.into());
    let mut ready = ListenReady::new(with.pid(), Instant::now()).unwrap();
    // The shell redirects its standard output for a moment while it creates the file `mark`.
    until("the listener", || listens(&mut ready).then_some(()));
}
