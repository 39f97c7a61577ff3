//! Test of a watch whose filter also reports socket calls to a handler (`with_channels`).
//!
//! Owns: the test and its handler. The handler notes calls, and answers the call of connect(2) later.
//! Does not: hold listening sockets.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use model::{ByteCount, Pid, Sequence};
use sys::Errno;
use sys::clock::Clock;
use sys::listener_holder::{HeldCall, ListenerHolder};
use sys::seccomp_listener::{Listener, NotificationId};
use sys::socket_call::{CallHandler, CallKind, Handled, ReportedCall, read};
use testkit::ProcessId;
use undying_undo::watch::{Watch, WatchOptions};

const LIMIT: Duration = Duration::from_secs(60);

/// A handler that notes calls which name the socket of the program, and holds the call of connect(2). The handler
/// ignores calls of the C library, which connects to nscd to look up users. If `python3` is a script, the shell of the
/// script makes these calls as well.
#[derive(Debug, Default)]
struct Notes {
    kinds: Mutex<Vec<CallKind>>,
    aside: Mutex<Option<(Arc<Listener>, NotificationId, HeldCall)>>,
}

impl CallHandler for Notes {
    fn handle(&self, reported: &ReportedCall<'_>) -> Handled {
        let Some(call) = read(reported.notification) else { return Handled::Pass };
        if call.kind != CallKind::Listen
            && call.address.body().split(|byte| *byte == 0).next() != Some(b"socket")
        {
            return Handled::Pass;
        }
        self.kinds.lock().unwrap().push(call.kind);
        if call.kind != CallKind::Connect {
            return Handled::Pass;
        }
        let id = reported.notification.id();
        let row = reported.held.note(id).unwrap();
        *self.aside.lock().unwrap() = Some((Arc::clone(reported.listener), id, row));
        Handled::Held
    }
}

/// Describes the threads of this program and of its children.
fn threads() -> String {
    let own = ProcessId::of(Pid(std::process::id() as i32)).unwrap();
    let mut all = testkit::descendants(own);
    all.push(own);
    testkit::describe(&all)
}

const PROGRAM: &str = "
import errno, os, socket, sys, threading
listener = socket.socket(socket.AF_UNIX)
listener.bind('socket')
listener.listen(1)
def work():
    open('beside', 'w').close()
threading.Timer(0.05, work).start()
error = socket.socket(socket.AF_UNIX).connect_ex('socket')
print(errno.errorcode[error])
";

#[test]
fn calls_of_channels_are_handled_and_only_bind_is_recorded() {
    if let Some(why) = Watch::missing() {
        return println!("unsupported: {why}");
    }
    let place = tempfile::tempdir().unwrap();
    let (root, directory) = (place.path().join("files"), place.path().join("undo"));
    std::fs::create_dir(&root).unwrap();
    let start = Sequence(0);
    let options = WatchOptions {
        directory,
        bytes_max: ByteCount(1 << 30),
        cost_max: 1e9,
        apart_max: Duration::MAX,
        start,
        clock: Clock::default(),
    };
    let notes = Arc::new(Notes::default());
    let handler: Arc<dyn CallHandler> = Arc::clone(&notes) as Arc<dyn CallHandler>;
    let watch = Watch::start(options, ListenerHolder::start(|create| create()).unwrap())
        .unwrap()
        .with_channels(handler);
    watch.boundary(start, &[], &[]);
    watch.after_pause();
    let mut command = Command::new("python3");
    command.args(["-c", PROGRAM]).current_dir(&root).stdin(Stdio::null()).stdout(Stdio::piped());
    let pending = watch.calls().prepare(&mut command, false).unwrap();
    let child = command.spawn().unwrap();
    watch.calls().started(pending).unwrap();
    let began = Instant::now();
    // Calls of other threads must be answered while the call of connect(2) is held.
    while notes.aside.lock().unwrap().is_none() || !root.join("beside").exists() {
        assert!(began.elapsed() < LIMIT, "the call of connect(2) was not seen:\n{}", threads());
        std::thread::sleep(Duration::from_millis(1));
    }
    let (listener, id, row) = notes.aside.lock().unwrap().take().unwrap();
    assert_eq!(listener.answer_errno(id, Errno(libc::ENETDOWN)), Ok(true));
    drop(row);
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "ENETDOWN\n");
    assert_eq!(*notes.kinds.lock().unwrap(), [CallKind::Bind, CallKind::Listen, CallKind::Connect]);
    assert_eq!(watch.report().broken, None);
    assert!(root.join("socket").exists());
    watch.subject_ended().unwrap();
    watch.go_back(start, &[]).unwrap();
    assert!(!root.join("socket").exists() && !root.join("beside").exists());
}
