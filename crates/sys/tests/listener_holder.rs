//! Tests that calls of a subject (a watched program) neither fail nor hang when its guardian is killed.
//!
//! The guardian is the process that answers the reported calls of a subject. When the guardian dies, the
//! listener holder, a separate process, lets the calls continue.
//!
//! Owns: tests.
//! Invariants: guardian and subject are forks of the test. They make only system calls and small allocations.
//! Does not: execute other programs.
//!
//! Man page: fork(2), seccomp_unotify(2)
//! Since: Linux 5.9
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; without the feature the tests print `unsupported`
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::ffi::CString;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::ptr;
use std::time::{Duration, Instant};

use model::Pid;
use sys::listener_holder::{BROKEN_LINE, BUFFERS_MAX, HELD_CALLS_MAX, ListenerHolder, end_of};
use sys::pidfd;
use sys::seccomp_listener::{Listener, NotificationId, Receipt, Waited, watch_program};
use sys::watched_start::watch_from_start;
use undying_sys as sys;

mod common;

use common::{Directory, is_supported};

const LIMIT: Duration = Duration::from_secs(20);
/// The byte that a process of a subject writes at its end if all calls succeeded.
const WELL: u8 = b'.';
const FAILED: u8 = b'F';
const EVENTFD: rustix::event::EventfdFlags = rustix::event::EventfdFlags::CLOEXEC;

fn ends_within(process: BorrowedFd<'_>, milliseconds: i32) -> bool {
    let mut wait = libc::pollfd { fd: process.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: the kernel reads and writes one pollfd at the address given.
    unsafe { libc::poll(&raw mut wait, 1, milliseconds) == 1 }
}

/// Runs a function in a child process, which exits afterwards.
fn fork(work: impl FnOnce()) -> Pid {
    // SAFETY: the child runs `work`, which takes only the lock of the allocator. fork keeps this lock usable.
    match unsafe { libc::fork() } {
        0 => {
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            // SAFETY: a plain number.
            unsafe { libc::_exit(i32::from(outcome.is_err())) }
        }
        pid => Pid(pid),
    }
}

fn kill(pid: Pid) {
    // SAFETY: the calls take plain numbers. The pid belongs to a child that is reaped here.
    unsafe {
        libc::kill(pid.get(), libc::SIGKILL);
        libc::waitpid(pid.get(), ptr::null_mut(), 0);
    }
}

fn signal(process: &OwnedFd, number: i32) {
    // SAFETY: plain numbers and no structure.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), number, 0, 0) };
    assert_eq!(result, 0);
}

/// Waits until a holder has closed the descriptors that it inherited.
fn await_settled(holder: &OwnedFd) {
    let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", holder.as_raw_fd())).unwrap();
    let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap().trim().to_owned();
    let started = Instant::now();
    // The remaining descriptors are the socket, the pidfd and the stat file of the guardian, a listener, and the
    // file of the listener.
    while std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count) > 5 {
        assert!(started.elapsed() < LIMIT);
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn pipe() -> (File, OwnedFd) {
    let (read, write) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap();
    (File::from(read), write)
}

fn write(to: &OwnedFd, bytes: &[u8]) {
    // SAFETY: the kernel reads the bytes of a live slice.
    unsafe { libc::write(to.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
}

/// Reads until no writer is left. Fails after the time limit.
fn read_all(mut from: &File) -> Vec<u8> {
    let started = Instant::now();
    let mut bytes = Vec::new();
    loop {
        let mut wait = libc::pollfd { fd: from.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: the kernel reads and writes one pollfd at the address given.
        unsafe { libc::poll(&raw mut wait, 1, 100) };
        if wait.revents != 0 {
            let mut byte = [0];
            if from.read(&mut byte).unwrap() == 0 {
                return bytes;
            }
            bytes.push(byte[0]);
        }
        assert!(started.elapsed() < LIMIT, "a subject hangs after {bytes:?}");
    }
}

/// Makes calls that are reported. Returns whether all calls succeeded.
fn change_files(directory: &Path, name: &str, rounds: usize) -> bool {
    let at = |name: &str| CString::new(directory.join(name).to_str().unwrap()).unwrap();
    let (made, renamed) = (at(name), at(&format!("{name}-renamed")));
    let file = at(&format!("{name}-file"));
    (0..rounds).all(|_| {
        // SAFETY: the kernel reads strings that live; the descriptor that is closed was opened here.
        unsafe {
            let opened = libc::open(file.as_ptr(), libc::O_CREAT | libc::O_WRONLY, 0o600);
            libc::mkdir(made.as_ptr(), 0o700) == 0
                && libc::rename(made.as_ptr(), renamed.as_ptr()) == 0
                && opened >= 0
                && libc::close(opened) == 0
                && libc::rmdir(renamed.as_ptr()) == 0
                && libc::unlink(file.as_ptr()) == 0
        }
    })
}

/// Starts a subject of two processes. Each process writes its result to `result` at the end. The subject runs
/// in the child of a command, at the point before the child would execute a program.
fn start_subject(
    holder: &ListenerHolder,
    directory: &Directory,
    rounds: usize,
    result: &OwnedFd,
) -> Listener {
    let broken = File::options().append(true).create(true).open(directory.0.join("broken")).unwrap();
    let mut command = Command::new("/bin/true");
    let pending = watch_from_start(&mut command, watch_program(), Some((holder, broken.as_fd()))).unwrap();
    let (directory, result) = (directory.0.clone(), result.try_clone().unwrap());
    let be_two = move || {
        for name in ["one", "two"] {
            fork(|| {
                let number = result.as_raw_fd() as u32;
                // SAFETY: the closed descriptors are copies that this child does not use. Closing the copies
                // lets the owners of the other ends detect the end.
                unsafe {
                    libc::syscall(libc::SYS_close_range, 3, number - 1, 0);
                    libc::syscall(libc::SYS_close_range, number + 1, u32::MAX, 0);
                }
                write(&result, &[if change_files(&directory, name, rounds) { WELL } else { FAILED }]);
            });
        }
        // SAFETY: a plain number.
        unsafe { libc::_exit(0) }
    };
    // SAFETY: the closure forks and exits. The command is not used afterwards.
    unsafe { command.pre_exec(be_two) };
    command.spawn().unwrap().wait().unwrap();
    pending.receive().unwrap()
}

/// Starts a subject that makes no calls and ends when no process has the other end of `end` any more.
fn start_waiting_subject(
    holder: &ListenerHolder,
    directory: &Directory,
    end: &File,
    result: &OwnedFd,
) -> Listener {
    let broken = File::options().append(true).create(true).open(directory.0.join("broken")).unwrap();
    let mut command = Command::new("/bin/true");
    let pending = watch_from_start(&mut command, watch_program(), Some((holder, broken.as_fd()))).unwrap();
    let (end, result) = (end.try_clone().unwrap(), result.try_clone().unwrap());
    let wait = move || {
        fork(|| {
            // SAFETY: the descriptors are copies that this child does not use.
            let last = unsafe { libc::dup2(end.as_raw_fd(), 3) };
            // SAFETY: as above.
            unsafe {
                libc::dup2(result.as_raw_fd(), 4);
                libc::syscall(libc::SYS_close_range, 5, u32::MAX, 0);
                libc::read(last, [0_u8; 1].as_mut_ptr().cast(), 1);
                libc::write(4, [WELL].as_ptr().cast(), 1);
                // The standard destructors would close descriptors that are closed already.
                libc::_exit(0);
            }
        });
        // SAFETY: a plain number.
        unsafe { libc::_exit(0) }
    };
    // SAFETY: the closure forks and exits. The command is not used afterwards.
    unsafe { command.pre_exec(wait) };
    command.spawn().unwrap().wait().unwrap();
    pending.receive().unwrap()
}

/// Answers calls until no task uses the filter.
fn serve(holder: &ListenerHolder, listener: &Listener) {
    let mut buffer = holder.buffer().unwrap();
    let _ = listener.use_sync_wake_up();
    while listener.wait(None).unwrap() != Waited::Gone {
        if listener.receive(&mut buffer) == Ok(Receipt::Call) {
            // This loop takes about as long as the work of a real receiver.
            for _ in 0..500 {
                std::hint::spin_loop();
            }
            listener.answer_continue(buffer.id()).unwrap();
        }
    }
}

fn mark_in(directory: &Directory) -> String {
    String::from_utf8_lossy(&bytes_of_mark(directory)).into_owned()
}

fn bytes_of_mark(directory: &Directory) -> Vec<u8> {
    std::fs::read(directory.0.join("broken")).unwrap_or_default()
}

/// Starts a guardian with its subject. Returns the guardian, a pidfd of the holder, and the pipe with the
/// results of the subject.
fn start_guardian(
    directory: &Directory,
    rounds: usize,
    then: impl FnOnce(ListenerHolder),
) -> (Pid, OwnedFd, File) {
    let (results, result) = pipe();
    let (from, to) = pipe();
    let guardian = fork(|| {
        let holder = ListenerHolder::start().unwrap();
        write(&to, &holder.pid().get().to_ne_bytes());
        let listener = start_subject(&holder, directory, rounds, &result);
        drop(result);
        serve(&holder, &listener);
        then(holder);
    });
    let mut bytes = [0; 4];
    (&from).read_exact(&mut bytes).unwrap();
    let holder = pidfd::open(Pid(i32::from_ne_bytes(bytes))).unwrap();
    (guardian, holder, results)
}

#[test]
fn no_call_fails_or_hangs_when_the_guardian_is_killed() {
    const KILLS: usize = 300;
    if !is_supported() {
        return;
    }
    let mut random = u64::from(std::process::id());
    let (mut finished, mut taken_over) = (0, 0);
    for round in 0..KILLS {
        let directory = Directory::new(&format!("holder-{round}"));
        let (guardian, holder, results) = start_guardian(&directory, 100, drop);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((random >> 33) % 12_000));
        kill(guardian);
        let said = read_all(&results);
        assert!(said.iter().all(|byte| *byte == WELL), "round {round}: {said:?}");
        assert!(said.is_empty() || said.len() == 2, "round {round}: {said:?}");
        assert!(ends_within(holder.as_fd(), 10_000), "round {round}: the holder does not exit");
        finished += said.len();
        let mark = bytes_of_mark(&directory);
        let is_end = mark.is_empty() || end_of(&mark).is_some();
        assert!(is_end || mark == BROKEN_LINE, "round {round}: {mark:?}");
        taken_over += usize::from(!is_end);
    }
    println!("{KILLS} kills: {finished} subjects finished, {taken_over} times the holder took over");
    assert!(finished > KILLS && taken_over > KILLS / 10, "{finished} {taken_over}");
}

#[test]
fn a_call_that_was_received_and_not_answered_continues() {
    if !is_supported() {
        return;
    }
    let directory = Directory::new("holder-unanswered");
    let (results, result) = pipe();
    let (mut from, to) = pipe();
    let guardian = fork(|| {
        let holder = ListenerHolder::start().unwrap();
        let listener = start_subject(&holder, &directory, 1, &result);
        drop(result);
        let (mut first, mut second) = (holder.buffer().unwrap(), holder.buffer().unwrap());
        assert_eq!(listener.receive(&mut first), Ok(Receipt::Call));
        assert_eq!(listener.receive(&mut second), Ok(Receipt::Call));
        write(&to, b"x");
        std::thread::sleep(LIMIT);
    });
    from.read_exact(&mut [0]).unwrap();
    assert_eq!(mark_in(&directory), "");
    kill(guardian);
    assert_eq!(read_all(&results), [WELL, WELL]);
    assert_eq!(mark_in(&directory).as_bytes(), BROKEN_LINE);
}

/// Both calls are received into one buffer, so that only the table of held calls contains the first call.
#[test]
fn a_held_call_continues() {
    if !is_supported() {
        return;
    }
    let directory = Directory::new("holder-aside");
    let (results, result) = pipe();
    let (mut from, to) = pipe();
    let guardian = fork(|| {
        let holder = ListenerHolder::start().unwrap();
        let listener = start_subject(&holder, &directory, 1, &result);
        drop(result);
        let (mut buffer, table) = (holder.buffer().unwrap(), holder.held_calls());
        assert_eq!(listener.receive(&mut buffer), Ok(Receipt::Call));
        let _row = table.note(buffer.id()).unwrap();
        assert_eq!(listener.receive(&mut buffer), Ok(Receipt::Call));
        write(&to, b"x");
        std::thread::sleep(LIMIT);
    });
    from.read_exact(&mut [0]).unwrap();
    kill(guardian);
    assert_eq!(read_all(&results), [WELL, WELL]);
    assert_eq!(mark_in(&directory).as_bytes(), BROKEN_LINE);
}

#[test]
fn rows_of_the_table_are_free_again_when_they_are_dropped() {
    let holder = ListenerHolder::start().unwrap();
    let table = holder.held_calls();
    let id = |number: usize| NotificationId(number as u64 + 1);
    let mut rows: Vec<_> = (0..HELD_CALLS_MAX).map(|number| table.note(id(number)).unwrap()).collect();
    assert!(table.note(id(0)).is_none());
    rows.swap_remove(7);
    assert!(table.note(id(0)).is_some());
}

#[test]
fn a_guardian_that_outlives_its_subject_leaves_an_end_mark_and_no_holder() {
    if !is_supported() {
        return;
    }
    let directory = Directory::new("holder-outlived");
    let (mut from, to) = pipe();
    let (guardian, holder, results) = start_guardian(&directory, 3, |_holder| {
        write(&to, b"x");
        std::thread::sleep(LIMIT);
    });
    assert_eq!(read_all(&results), [WELL, WELL]);
    from.read_exact(&mut [0]).unwrap();
    assert!(!ends_within(holder.as_fd(), 50));
    kill(guardian);
    assert!(ends_within(holder.as_fd(), 10_000));
    let mark = bytes_of_mark(&directory);
    let ended = end_of(&mark).unwrap_or_else(|| panic!("{mark:?}"));
    assert!(ended.elapsed().unwrap() < Duration::from_secs(60), "{ended:?}");
    assert_eq!((end_of(&mark[1..]), end_of(&[&mark[..], b"x"].concat())), (None, None));
}

/// The holder finds guardian and subject dead at the same time. The holder cannot know whether the subject
/// made calls in between, unless the guardian has reported an orderly end.
#[test]
fn deaths_that_cannot_be_distinguished_leave_a_mark() {
    if !is_supported() {
        return;
    }
    for is_orderly in [false, true] {
        let directory = Directory::new(&format!("holder-orderly-{is_orderly}"));
        let (mut from, to) = pipe();
        let (mut reported, report) = pipe();
        let (results, result) = pipe();
        let guardian = fork(|| {
            let holder = ListenerHolder::start().unwrap();
            write(&to, &holder.pid().get().to_ne_bytes());
            let listener = start_subject(&holder, &directory, 3, &result);
            drop(result);
            reported.read_exact(&mut [0]).unwrap();
            serve(&holder, &listener);
            // All calls are answered, but the holder is stopped and has not checked the listener since.
            if is_orderly {
                drop(holder);
            }
            write(&to, b"x");
            std::thread::sleep(LIMIT);
        });
        let mut bytes = [0; 4];
        from.read_exact(&mut bytes).unwrap();
        let handle = pidfd::open(Pid(i32::from_ne_bytes(bytes))).unwrap();
        await_settled(&handle);
        signal(&handle, libc::SIGSTOP);
        write(&report, b"x");
        assert_eq!(read_all(&results), [WELL, WELL]);
        from.read_exact(&mut [0]).unwrap();
        kill(guardian);
        signal(&handle, libc::SIGCONT);
        assert!(ends_within(handle.as_fd(), 10_000));
        assert_eq!(mark_in(&directory).is_empty(), is_orderly);
    }
}

/// A dying guardian releases its descriptors one after the other, and may have stopped watching before it
/// releases the socket of the holder. Here, the subject ends in between: its pipe is released first, and many
/// descriptors follow before the socket.
#[test]
fn an_end_while_the_guardian_is_dying_leaves_a_mark() {
    const DESCRIPTORS: usize = 20_000;
    if !is_supported() {
        return;
    }
    let mut wanted = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    wanted.current = wanted.maximum;
    let count = wanted.maximum.map_or(DESCRIPTORS, |most| DESCRIPTORS.min(most as usize / 2));
    for round in 0..5 {
        let directory = Directory::new(&format!("holder-dying-{round}"));
        let (results, result) = pipe();
        let (mut from, to) = pipe();
        let guardian = fork(|| {
            let holder = ListenerHolder::start().unwrap();
            write(&to, &holder.pid().get().to_ne_bytes());
            let (end, hold) = pipe();
            rustix::process::setrlimit(rustix::process::Resource::Nofile, wanted).unwrap();
            let many: Vec<_> = (0..count).map(|_| rustix::event::eventfd(0, EVENTFD).unwrap()).collect();
            let last = rustix::io::fcntl_dupfd_cloexec(&hold, count as i32).unwrap();
            drop(hold);
            let listener = start_waiting_subject(&holder, &directory, &end, &result);
            drop((end, result));
            write(&to, b"x");
            serve(&holder, &listener);
            drop((last, many));
        });
        let mut bytes = [0; 4];
        from.read_exact(&mut bytes).unwrap();
        let holder = pidfd::open(Pid(i32::from_ne_bytes(bytes))).unwrap();
        from.read_exact(&mut [0]).unwrap();
        await_settled(&holder);
        kill(guardian);
        assert_eq!(read_all(&results), [WELL]);
        assert!(ends_within(holder.as_fd(), 10_000));
        assert_eq!(mark_in(&directory).as_bytes(), BROKEN_LINE, "round {round}");
    }
}

#[test]
fn the_holder_has_nothing_of_ours_and_ends_when_it_is_dropped() {
    let holder = ListenerHolder::start().unwrap();
    let process = format!("/proc/{}", holder.pid());
    let started = Instant::now();
    let status = loop {
        let status = std::fs::read_to_string(format!("{process}/status")).unwrap();
        let descriptors = std::fs::read_dir(format!("{process}/fd")).map_or(0, Iterator::count);
        if status.contains("undying-holder") && descriptors == 3 {
            break status;
        }
        assert!(started.elapsed() < LIMIT, "{descriptors} descriptors\n{status}");
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(status.contains("SigBlk:\tfffffffffffbfeff"), "{status}");
    let stat = std::fs::read_to_string(format!("{process}/stat")).unwrap();
    let session = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap();
    assert_eq!(session, holder.pid().to_string());
    assert_eq!(std::fs::read_link(format!("{process}/cwd")).unwrap().to_str(), Some("/"));
    let score = std::fs::read_to_string(format!("{process}/oom_score_adj")).unwrap();
    if score.trim() != "-1000" {
        println!("unsupported: CAP_SYS_RESOURCE: {score}");
    }
    assert!(holder.is_alive());
    assert!(std::fs::read_to_string(format!("/proc/self/task/{}/children", std::process::id())).is_ok());
    drop(holder);
    assert!(!std::path::Path::new(&process).exists());
}

#[test]
fn buffers_are_taken_once_and_given_back() {
    let holder = ListenerHolder::start().unwrap();
    let mut buffers: Vec<_> = std::iter::from_fn(|| holder.buffer()).collect();
    assert_eq!(buffers.len(), BUFFERS_MAX);
    buffers.pop();
    assert!(holder.buffer().is_some());
    // SAFETY: plain numbers. The test kills a holder on purpose.
    unsafe { libc::kill(holder.pid().get(), libc::SIGKILL) };
    let started = Instant::now();
    while holder.is_alive() {
        assert!(started.elapsed() < LIMIT);
    }
    let null = File::open("/dev/null").unwrap();
    // A holder that another test is just starting has a copy of the socket until it closes its inherited
    // descriptors.
    let refused = loop {
        match holder.hold(null.as_fd(), null.as_fd()) {
            Err(refused) => break refused,
            Ok(()) => assert!(started.elapsed() < LIMIT),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    // The error is ECONNRESET if messages were still unread when the last copy of the socket was closed.
    assert!([libc::EPIPE, libc::ECONNRESET].contains(&refused.errno.0), "{refused}");
}
