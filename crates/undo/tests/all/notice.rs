//! Test of the watch that notices changes of files and records nothing.
//!
//! Owns: the test. A Python program executes one statement for each line of its input.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use model::Sequence;
use sys::listener_holder::ListenerHolder;
use undying_undo::watch::{Notice, Watch};

const PROGRAM: &str = r#"
import ctypes, fcntl, mmap, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)
def attempt(name, *arguments):
    try:
        getattr(os, name)(*arguments)
    except OSError:
        pass
def openat2(path, flags):
    how = (ctypes.c_uint64 * 3)(flags, 0o600 if flags & os.O_CREAT else 0, 0)
    number = libc.syscall(437, -100, path.encode(), ctypes.byref(how), 24)
    assert number >= 0, ctypes.get_errno()
    os.close(number)
os.close(os.open("old", os.O_WRONLY | os.O_CREAT))
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
left, right = socket.socketpair()
for line in sys.stdin:
    exec(line)
    print("done", flush=True)
"#;

/// Statements that change a file, or that fail to change it.
const CHANGES: [&str; 30] = [
    "os.close(os.open('old', os.O_WRONLY))",
    "os.close(os.open('old', os.O_RDWR))",
    "os.close(os.open('new', os.O_RDONLY | os.O_CREAT))",
    "os.close(os.open('old', os.O_RDONLY | os.O_TRUNC))",
    "openat2('old', os.O_WRONLY)",
    "open('/proc/self/fd/%d' % log, 'w').close()",
    "os.truncate('old', 3)",
    "os.ftruncate(log, 3)",
    "os.posix_fallocate(log, 0, 4096)",
    "os.rename('new', 'newer')",
    "os.link('newer', 'linked')",
    "os.symlink('newer', 'symbolic')",
    "os.unlink('linked')",
    "os.mkdir('folder')",
    "os.rmdir('folder')",
    "os.mkfifo('pipe')",
    "os.chmod('old', 0o640)",
    "os.fchmod(log, 0o640)",
    "os.chown('old', os.getuid(), -1)",
    "os.utime('old', (1, 1))",
    "os.utime(log, (1, 1))",
    "attempt('setxattr', 'old', 'user.note', b'value')",
    "fcntl.fcntl(log, fcntl.F_SETFL, 0)",
    "socket.socket(socket.AF_UNIX).bind('socket')",
    "os.chmod('socket', 0o600)",
    "attempt('unlink', 'missing')",
    "attempt('open', 'missing/file', os.O_WRONLY)",
    "attempt('rename', 'missing', 'other')",
    "libc.syscall(425, 0, 0)",
    "libc.chroot(b'missing')",
];

/// Statements that change no file, or only the content of a file that is open.
const OTHERS: [&str; 14] = [
    "os.close(os.open('old', os.O_RDONLY))",
    "os.close(os.open('old', os.O_PATH))",
    "openat2('old', os.O_RDONLY)",
    "os.stat('old'); os.listdir('.')",
    "left.send(b'word'); right.recv(4)",
    "os.write(log, b'line'); os.fsync(log)",
    "open('/dev/null', 'w').write('x')",
    "open('/proc/self/comm', 'w').write('name')",
    "os.close(os.open('.', os.O_TMPFILE | os.O_RDWR))",
    "fcntl.fcntl(left, fcntl.F_SETFL, os.O_NONBLOCK)",
    "socket.socket(socket.AF_UNIX).bind(b'\\0abstract-%d' % os.getpid())",
    "socket.socket().bind(('127.0.0.1', 0))",
    "os.ftruncate(os.memfd_create('name'), 4096)",
    "open('pipe', 'r+b', buffering=0).write(b'x')",
];

struct Subject {
    child: Child,
    output: BufReader<std::process::ChildStdout>,
}

impl Subject {
    fn start(notice: &Notice, root: &Path) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", PROGRAM]).current_dir(root).stdin(Stdio::piped()).stdout(Stdio::piped());
        let pending = notice.calls().prepare(&mut command, false).unwrap();
        let mut child = command.spawn().unwrap();
        notice.calls().started(pending).unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    fn execute(&mut self, statement: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{statement}").unwrap();
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        assert_eq!(line, "done\n", "{statement}");
    }

    /// Makes the program end, and waits for its end.
    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

#[test]
fn every_change_of_a_file_is_noticed_until_the_next_checkpoint() {
    if let Some(why) = Watch::missing() {
        return println!("unsupported: {why}");
    }
    // Not every tmpfs has files without a name.
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let notice = Notice::new(ListenerHolder::start(|create| create()).unwrap());
    let mut subject = Subject::start(&notice, place.path());
    subject.execute("pass");
    assert_eq!(notice.unchanged_since(), None, "there is no checkpoint");
    let mut next = Sequence(1);
    let mut bind = || {
        let sequence = next;
        next = Sequence(next.get() + 1);
        notice.boundary(sequence);
        sequence
    };
    for statement in CHANGES {
        let sequence = bind();
        assert_eq!(notice.unchanged_since(), Some(sequence));
        subject.execute(statement);
        assert_eq!(notice.unchanged_since(), None, "{statement}");
    }
    let oldest = bind();
    for statement in OTHERS {
        subject.execute(statement);
        assert_eq!(notice.unchanged_since(), Some(oldest), "{statement}");
        bind();
    }
    subject.end();
    notice.start_over();
    assert_eq!(notice.unchanged_since(), None, "the program starts from its beginning");
}
