//! Tests of the seccomp notifications of threads and of programs.
//!
//! Owns: tests.
//! Invariants: without CAP_SYS_ADMIN, a test that needs this capability prints `unsupported` and returns.
//! Does not: test the filter call by call; the tests of `watch_filter` do.
//!
//! Man page: seccomp_unotify(2)
//! Since: Linux 5.5
//! Probe: `features::REGISTRY` entry "file-notify"
//! Fallback: none; without the feature the tests print `unsupported`

use std::ffi::CString;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::Duration;

use model::Fd;
use sys::seccomp_listener::{
    CallTable, FilterProgram, Listener, Notification, NotificationId, Receipt, Reported, Waited,
    filter_program, install, watch_program,
};
use sys::socket_call::{self, CallKind, SocketCall};
use sys::watched_start::watch_from_start;
use sys::{Errno, socket};
use undying_sys as sys;

use crate::common::{Directory, is_supported};

const LIMIT: Option<Duration> = Some(Duration::from_secs(10));

fn at(directory: &Directory, name: &str) -> CString {
    CString::new(directory.0.join(name).to_str().unwrap()).unwrap()
}

fn make_directory(path: &CString) -> i32 {
    // SAFETY: the kernel reads a string that lives.
    let result = unsafe { libc::mkdir(path.as_ptr(), 0o700) };
    if result == 0 { 0 } else { Errno::last().0 }
}

/// Runs `work` in a thread with the watch filter. Returns the listener of the filter, and the thread.
fn watched<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> (Listener, std::thread::JoinHandle<T>) {
    watched_by(watch_program(), work)
}

/// Runs `work` in a thread with another filter, as [`watched`] does.
fn watched_by<T: Send + 'static>(
    program: FilterProgram,
    work: impl FnOnce() -> T + Send + 'static,
) -> (Listener, std::thread::JoinHandle<T>) {
    let (give, take) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        give.send(install(&program).unwrap()).unwrap();
        work()
    });
    (Listener::new(take.recv().unwrap()).unwrap(), thread)
}

fn next(listener: &Listener) -> Notification {
    let mut notification = Notification::default();
    assert_eq!(listener.wait(LIMIT), Ok(Waited::Ready));
    assert_eq!(listener.receive(&mut notification), Ok(Receipt::Call));
    notification
}

#[test]
fn a_call_waits_for_its_answer_and_obeys_it() {
    if !is_supported() {
        return;
    }
    let directory = Directory::new("listener-answers");
    let (refused, made) = (at(&directory, "refused"), at(&directory, "made"));
    let address = refused.as_ptr() as u64;
    let (listener, thread) = watched(move || (make_directory(&refused), make_directory(&made)));
    let _ = listener.use_sync_wake_up();
    let first = next(&listener);
    assert_eq!((first.call(), first.table()), (libc::SYS_mkdir, CallTable::X86_64));
    assert_eq!(first.arguments()[..2], [address, 0o700]);
    assert!(first.tid().get() > 0 && first.tid().get() != std::process::id() as i32);
    assert!(listener.is_valid(first.id()) && !listener.is_valid(NotificationId(first.id().0 ^ 1)));
    assert!(!directory.0.join("refused").exists());
    assert_eq!(listener.answer_errno(first.id(), Errno::ENOSPC), Ok(true));
    let second = next(&listener);
    assert_eq!(listener.answer_continue(second.id()), Ok(true));
    assert_eq!(thread.join().unwrap(), (libc::ENOSPC, 0));
    assert!(!directory.0.join("refused").exists() && directory.0.join("made").exists());
    // The call is already answered, and its thread has ended.
    assert_eq!(listener.answer_continue(second.id()), Ok(false));
    assert!(!listener.is_valid(second.id()));
    assert_eq!(listener.wait(LIMIT), Ok(Waited::Gone));
}

#[test]
fn without_a_receiver_a_call_fails() {
    if !is_supported() {
        return;
    }
    let directory = Directory::new("listener-gone");
    let path = at(&directory, "made");
    let (begin, begun) = std::sync::mpsc::channel();
    let (listener, thread) = watched(move || {
        begun.recv().unwrap();
        make_directory(&path)
    });
    drop(listener);
    begin.send(()).unwrap();
    assert_eq!(thread.join().unwrap(), libc::ENOSYS);
}

#[test]
fn a_program_is_watched_from_its_first_call_and_has_nothing_of_ours() {
    if !is_supported() {
        return;
    }
    let directory = Directory::new("listener-program");
    let script = "echo \"$(ls /proc/self/fd | wc -l) $(grep NoNewPrivs /proc/self/status)\" > \"$1\"";
    let output = directory.0.join("output");
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, "sh"]).arg(&output);
    assert!(command.status().unwrap().success());
    let unwatched = std::fs::read_to_string(&output).unwrap();
    std::fs::remove_file(&output).unwrap();
    let pending = watch_from_start(&mut command, watch_program(), None).unwrap();
    let mut child = command.spawn().unwrap();
    let listener = pending.receive().unwrap();
    // The first reported calls are mappings of files that the C library reads.
    let opens = std::iter::repeat_with(|| next(&listener)).find(|call| {
        let is_open = call.call() == libc::SYS_openat;
        assert!(is_open || call.call() == libc::SYS_mmap, "{call:?}");
        is_open || !listener.answer_continue(call.id()).unwrap()
    });
    assert!(!output.exists());
    listener.answer_continue(opens.unwrap().id()).unwrap();
    while let Ok(waited) = listener.wait(LIMIT) {
        let mut notification = Notification::default();
        match waited {
            Waited::Ready => assert!(listener.receive(&mut notification).is_ok()),
            other => {
                assert_eq!(other, Waited::Gone);
                break;
            }
        }
        let _ = listener.answer_continue(notification.id());
    }
    assert!(child.wait().unwrap().success());
    assert_eq!(std::fs::read_to_string(output).unwrap(), unwatched);
}

#[test]
fn a_program_that_cannot_be_executed_leaves_no_listener() {
    if !is_supported() {
        return;
    }
    let mut command = Command::new("/nonexistent/program");
    let pending = watch_from_start(&mut command, watch_program(), None).unwrap();
    assert_eq!(command.spawn().unwrap_err().raw_os_error(), Some(libc::ENOENT));
    let listener = pending.receive();
    // The filter was installed before the program was looked up.
    assert!(listener.is_ok_and(|listener| listener.wait(LIMIT) == Ok(Waited::Gone)));
}

#[test]
fn a_socket_is_replaced_and_its_bind_succeeds() {
    if !is_supported() {
        return;
    }
    let held = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket::local(held.as_fd()).unwrap();
    let wanted = address.clone();
    let (listener, thread) = watched_by(filter_program(Reported::Channels), move || {
        let own = socket::create(libc::AF_INET, libc::SOCK_STREAM, 0).unwrap();
        let outcome = socket::bind(own.as_fd(), &wanted);
        (TcpListener::from(own), outcome)
    });
    let notification = next(&listener);
    let call = socket_call::read(&notification).unwrap();
    assert_eq!((call.kind, &call.address), (CallKind::Bind, &address));
    assert!(listener.replace_descriptor(NotificationId(1), held.as_fd(), call.socket, true).is_err());
    listener.replace_descriptor(notification.id(), held.as_fd(), call.socket, true).unwrap();
    assert_eq!(listener.answer_value(notification.id(), 0), Ok(true));
    let (own, outcome) = thread.join().unwrap();
    outcome.unwrap();
    assert_eq!(own.local_addr().unwrap(), held.local_addr().unwrap());
    assert!(rustix::io::fcntl_getfd(&own).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    let _client = TcpStream::connect(own.local_addr().unwrap()).unwrap();
    own.accept().unwrap();
}

#[test]
fn calls_of_channels_are_read_with_their_addresses() {
    if !is_supported() {
        return;
    }
    let (left, _right) = socket::pair(libc::SOCK_STREAM).unwrap();
    let number = Fd(left.as_raw_fd());
    let (listener, thread) = watched_by(filter_program(Reported::Channels), move || {
        let socket = left.as_raw_fd();
        let address = [1_u8; 200];
        // SAFETY: the kernel reads at most the bytes of the array. The last address is null, and the kernel
        // refuses this address.
        unsafe {
            libc::connect(socket, address.as_ptr().cast(), 3);
            libc::listen(socket, 1);
            libc::send(socket, address.as_ptr().cast(), 1, 0);
            libc::send(socket, address.as_ptr().cast(), 1, libc::MSG_FASTOPEN);
            libc::bind(socket, address.as_ptr().cast(), 200);
            libc::bind(socket, std::ptr::null(), 4);
        }
    });
    let read = |expected: Option<(CallKind, &[u8])>| {
        let notification = next(&listener);
        let expected = expected.map(|(kind, address)| SocketCall {
            kind,
            socket: number,
            address: socket::SocketAddress(address.to_vec()),
        });
        assert_eq!(socket_call::read(&notification), expected);
        listener.answer_continue(notification.id()).unwrap();
    };
    read(Some((CallKind::Connect, &[1; 3])));
    read(Some((CallKind::Listen, &[])));
    read(Some((CallKind::Send, &[])));
    read(None);
    read(None);
    thread.join().unwrap();
}

/// Answers calls until no task uses the filter, like a receiver whose thread gets signals. Returns the number
/// of answers.
fn answer_all(listener: &Listener) -> usize {
    let mut answered = 0;
    loop {
        let mut notification = Notification::default();
        match listener.wait(LIMIT).unwrap() {
            Waited::Gone => return answered,
            Waited::TimedOut => continue,
            Waited::Ready => {}
        }
        if listener.receive(&mut notification) == Ok(Receipt::Call) {
            assert!(listener.is_valid(notification.id()));
            assert_eq!(listener.answer_continue(notification.id()), Ok(true));
            answered += 1;
        }
    }
}

#[test]
fn signals_to_the_receiver_leave_no_call_unanswered() {
    const CALLS: usize = 2_000;
    const CALLERS: usize = 16;
    extern "C" fn nothing(_: i32) {}
    if !is_supported() {
        return;
    }
    let directory = Directory::new("listener-signals");
    let existing = at(&directory, ".");
    let work = move || {
        // There are several callers, so that one caller holds the kernel's lock of the filter while another
        // call is answered.
        let call = || (0..CALLS).all(|_| make_directory(&existing) == libc::EEXIST);
        std::thread::scope(|scope| {
            let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(call)).collect();
            callers.into_iter().all(|caller| caller.join().unwrap())
        })
    };
    let (listener, thread) = watched(work);
    let _ = listener.use_sync_wake_up();
    // SAFETY: the handler does nothing. No other test uses the signal.
    unsafe { libc::signal(libc::SIGUSR1, nothing as *const () as libc::sighandler_t) };
    let (give, take) = std::sync::mpsc::channel();
    let receiver = std::thread::spawn(move || {
        // SAFETY: the call has no arguments.
        give.send(unsafe { libc::gettid() }).unwrap();
        answer_all(&listener)
    });
    let tid = take.recv().unwrap();
    let own = std::process::id();
    while !receiver.is_finished() {
        // SAFETY: plain numbers. The thread belongs to this process, which has a handler for the signal.
        unsafe { libc::syscall(libc::SYS_tgkill, own, tid, libc::SIGUSR1) };
        (0..4000).for_each(|_| std::hint::spin_loop());
    }
    assert_eq!(receiver.join().unwrap(), CALLERS * CALLS);
    assert!(thread.join().unwrap());
}
