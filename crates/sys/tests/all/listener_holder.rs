//! Tests that calls of a subject (a watched program) neither fail nor hang when its guardian is killed.
//!
//! The guardian is the process that answers the reported calls of a subject. When the guardian dies, the
//! listener holders, two separate processes, let the calls continue.
//!
//! Owns: tests.
//! Invariants: guardian and subject are forks of the test. They make only system calls and small allocations.
//! Does not: execute other programs.
//!
//! Man page: fork(2), seccomp_unotify(2)
//! Since: Linux 5.9
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; without the feature the tests print `unsupported`

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

use crate::common::{Directory, is_supported};

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

/// Waits until the holders have closed the descriptors that they inherited.
fn await_settled(holders: &[OwnedFd]) {
    for holder in holders {
        let text = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", holder.as_raw_fd())).unwrap();
        let pid = text.lines().find_map(|line| line.strip_prefix("Pid:")).unwrap().trim().to_owned();
        let started = Instant::now();
        // The remaining descriptors are the socket, the pidfds of the guardian and of the other holder, the stat file
        // of the guardian, a listener, and the file of the listener.
        while std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count) > 6 {
            assert!(started.elapsed() < LIMIT);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Writes the pids of both holders to a pipe.
fn report_holders(holder: &ListenerHolder, to: &OwnedFd) {
    holder.pids().iter().for_each(|pid| write(to, &pid.get().to_ne_bytes()));
}

/// Opens the holders whose pids `report_holders` has written.
fn reported_holders(mut from: &File) -> Vec<OwnedFd> {
    let mut open = || {
        let mut bytes = [0; 4];
        from.read_exact(&mut bytes).unwrap();
        pidfd::open(Pid(i32::from_ne_bytes(bytes))).unwrap()
    };
    vec![open(), open()]
}

fn all_end(holders: &[OwnedFd]) -> bool {
    holders.iter().all(|holder| ends_within(holder.as_fd(), 10_000))
}

/// Reports whether a file has the mark of one or both holders.
fn is_mark(mark: &str) -> bool {
    let line = std::str::from_utf8(BROKEN_LINE).unwrap();
    mark == line || mark == line.repeat(2)
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

/// Starts a guardian with its subject. Returns the guardian, pidfds of the holders, and the pipe with the
/// results of the subject.
fn start_guardian(
    directory: &Directory,
    rounds: usize,
    then: impl FnOnce(ListenerHolder),
) -> (Pid, Vec<OwnedFd>, File) {
    let (results, result) = pipe();
    let (from, to) = pipe();
    let guardian = fork(|| {
        let holder = ListenerHolder::start(|create| create()).unwrap();
        report_holders(&holder, &to);
        let listener = start_subject(&holder, directory, rounds, &result);
        drop(result);
        serve(&holder, &listener);
        then(holder);
    });
    (guardian, reported_holders(&from), results)
}

/// Returns `short`, or `long` if the environment variable `UNDYING_LONG_TESTS` is set.
fn rounds(short: usize, long: usize) -> usize {
    if std::env::var_os("UNDYING_LONG_TESTS").is_some() { long } else { short }
}

#[test]
fn no_call_fails_or_hangs_when_the_guardian_is_killed() {
    if !is_supported() {
        return;
    }
    let kills = rounds(60, 300);
    let mut random = u64::from(std::process::id());
    let (mut finished, mut taken_over) = (0, 0);
    for round in 0..kills {
        let directory = Directory::new(&format!("holder-{round}"));
        let (guardian, holders, results) = start_guardian(&directory, 100, drop);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((random >> 33) % 12_000));
        kill(guardian);
        let said = read_all(&results);
        assert!(said.iter().all(|byte| *byte == WELL), "round {round}: {said:?}");
        assert!(said.is_empty() || said.len() == 2, "round {round}: {said:?}");
        assert!(all_end(&holders), "round {round}: a holder does not exit");
        finished += said.len();
        let mark = bytes_of_mark(&directory);
        let is_broken = mark.windows(BROKEN_LINE.len()).any(|part| part == BROKEN_LINE);
        assert!(mark.is_empty() || is_broken || end_of(&mark).is_some(), "round {round}: {mark:?}");
        taken_over += usize::from(is_broken && end_of(&mark).is_none());
    }
    println!("{kills} kills: {finished} subjects finished, {taken_over} times the holder took over");
    assert!(finished > kills && taken_over > kills / 10, "{finished} {taken_over}");
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
        let holder = ListenerHolder::start(|create| create()).unwrap();
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
    assert!(is_mark(&mark_in(&directory)));
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
        let holder = ListenerHolder::start(|create| create()).unwrap();
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
    assert!(is_mark(&mark_in(&directory)));
}

#[test]
fn rows_of_the_table_are_free_again_when_they_are_dropped() {
    let holder = ListenerHolder::start(|create| create()).unwrap();
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
    let (guardian, holders, results) = start_guardian(&directory, 3, |_holder| {
        write(&to, b"x");
        std::thread::sleep(LIMIT);
    });
    assert_eq!(read_all(&results), [WELL, WELL]);
    from.read_exact(&mut [0]).unwrap();
    assert!(!ends_within(holders[0].as_fd(), 50));
    kill(guardian);
    assert!(all_end(&holders));
    let mark = bytes_of_mark(&directory);
    let ended = end_of(&mark).unwrap_or_else(|| panic!("{mark:?}"));
    assert!(ended.elapsed().unwrap() < Duration::from_secs(60), "{ended:?}");
    assert_eq!((end_of(&mark[1..]), end_of(&[&mark[..], b"x"].concat())), (None, None));
    // One holder has seen the end, and the other holder has not.
    assert_eq!(end_of(&[BROKEN_LINE, &mark].concat()), Some(ended));
    assert_eq!((end_of(BROKEN_LINE), end_of(b"")), (None, None));
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
            let holder = ListenerHolder::start(|create| create()).unwrap();
            report_holders(&holder, &to);
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
        let holders = reported_holders(&from);
        await_settled(&holders);
        holders.iter().for_each(|holder| signal(holder, libc::SIGSTOP));
        write(&report, b"x");
        assert_eq!(read_all(&results), [WELL, WELL]);
        from.read_exact(&mut [0]).unwrap();
        kill(guardian);
        holders.iter().for_each(|holder| signal(holder, libc::SIGCONT));
        assert!(all_end(&holders));
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
            let holder = ListenerHolder::start(|create| create()).unwrap();
            report_holders(&holder, &to);
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
        let holders = reported_holders(&from);
        from.read_exact(&mut [0]).unwrap();
        await_settled(&holders);
        kill(guardian);
        assert_eq!(read_all(&results), [WELL]);
        assert!(all_end(&holders));
        assert!(is_mark(&mark_in(&directory)), "round {round}");
    }
}

#[test]
fn the_holders_have_nothing_of_ours_and_end_when_they_are_dropped() {
    let holder = ListenerHolder::start(|create| create()).unwrap();
    let processes: Vec<String> = holder.pids().iter().map(|pid| format!("/proc/{pid}")).collect();
    // The second holder has a pidfd of the first holder.
    for (process, (name, expected)) in processes.iter().zip([("undying-holder", 3), ("undying-spare", 4)]) {
        let started = Instant::now();
        let status = loop {
            let status = std::fs::read_to_string(format!("{process}/status")).unwrap();
            let descriptors = std::fs::read_dir(format!("{process}/fd")).map_or(0, Iterator::count);
            if status.contains(name) && descriptors == expected {
                break status;
            }
            assert!(started.elapsed() < LIMIT, "{descriptors} descriptors\n{status}");
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(status.contains("SigBlk:\tfffffffffffbfeff"), "{status}");
        let stat = std::fs::read_to_string(format!("{process}/stat")).unwrap();
        let session = stat.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap();
        assert_eq!(format!("/proc/{session}"), *process);
        assert_eq!(std::fs::read_link(format!("{process}/cwd")).unwrap().to_str(), Some("/"));
        let score = std::fs::read_to_string(format!("{process}/oom_score_adj")).unwrap();
        if score.trim() != "-1000" {
            println!("unsupported: CAP_SYS_RESOURCE: {score}");
        }
    }
    drop(holder);
    assert!(processes.iter().all(|process| !Path::new(process).exists()));
}

#[test]
fn buffers_are_taken_once_and_given_back() {
    let holder = ListenerHolder::start(|create| create()).unwrap();
    let mut buffers: Vec<_> = std::iter::from_fn(|| holder.buffer()).collect();
    assert_eq!(buffers.len(), BUFFERS_MAX);
    buffers.pop();
    assert!(holder.buffer().is_some());
}

/// Returns the children of a process that are holders and have its listener.
fn holders_of(guardian: Pid) -> Vec<OwnedFd> {
    let tasks = std::fs::read_dir(format!("/proc/{guardian}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let pids: Vec<i32> = children
        .flat_map(|pids| pids.split(' ').filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    pids.into_iter().filter(|pid| holds_listener(*pid)).filter_map(|pid| pidfd::open(Pid(pid)).ok()).collect()
}

/// Reports whether a process is a holder that has closed the inherited descriptors and has received a listener.
fn holds_listener(pid: i32) -> bool {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let links: Vec<_> = descriptors.filter_map(|fd| std::fs::read_link(fd.path()).ok()).collect();
    let is_listener = |link: &std::path::PathBuf| link.to_string_lossy().contains("seccomp notify");
    ["undying-holder\n", "undying-spare\n"].contains(&name.as_str())
        && links.len() <= 6
        && links.iter().any(is_listener)
}

/// Kills holders, alone, both, or one together with the guardian. The calls of the subject neither fail nor hang.
#[test]
fn no_call_fails_or_hangs_when_holders_are_killed_alone_or_in_pairs() {
    if !is_supported() {
        return;
    }
    let seed = std::env::var("UNDYING_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut random: u64 = seed.unwrap_or_else(|| std::process::id().into());
    println!("seed {random}");
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) % below
    };
    let kill_all =
        |processes: &[OwnedFd]| processes.iter().for_each(|one| signal_if_alive(one, libc::SIGKILL));
    for round in 0..rounds(9, 30) {
        let directory = Directory::new(&format!("holder-pairs-{round}"));
        let (guardian, holders, results) = start_guardian(&directory, 600, drop);
        std::thread::sleep(Duration::from_micros(next(8_000)));
        // First kill one holder or both, while the guardian lives.
        let killed = &holders[next(2) as usize..];
        kill_all(killed);
        assert!(all_end(killed));
        std::thread::sleep(Duration::from_micros(next(3_000)));
        let mut living = holders_of(guardian);
        let started = Instant::now();
        while living.len() < 2
            && started.elapsed() < LIMIT
            && Path::new(&format!("/proc/{guardian}/exe")).exists()
        {
            living = holders_of(guardian);
        }
        std::thread::sleep(Duration::from_micros(next(1_000)));
        // Then kill a pair: the guardian and one holder, in any order.
        if living.len() == 2 {
            living.remove(next(2) as usize);
        }
        if next(2) == 0 {
            kill_all(&living);
            kill(guardian);
        } else {
            kill(guardian);
            kill_all(&living);
        }
        let said = read_all(&results);
        assert!(said.iter().all(|byte| *byte == WELL), "round {round}: {said:?}");
    }
}

fn signal_if_alive(process: &OwnedFd, number: i32) {
    // SAFETY: plain numbers and no structure.
    unsafe { libc::syscall(libc::SYS_pidfd_send_signal, process.as_raw_fd(), number, 0, 0) };
}
