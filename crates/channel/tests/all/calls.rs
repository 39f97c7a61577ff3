//! Tests of single calls of programs: the hand-over of sockets, the wait of callers, and the release of sockets.
//!
//! Owns: the tests, and the guardian (supervising process) that one test kills.
//! Invariants: a test waits for a state. A measured time limit is checked with a lower bound.
//! Does not: run third-party servers; `programs.rs` does.

use std::net::{Ipv4Addr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use sys::clock::{Clock, Stopwatch};
use sys::socket::SocketAddress;
use sys::watched_start::watch_from_start;
use testkit::until;
use tracee::StoppedTree;
use undying_channel::{Channels, HeldListener, Level, Limits};

use crate::common;
use crate::common::{CLIENT, Program, SERVER, await_listening, channels, python, usual};

/// A server that listens at the addresses of its arguments, `HOST|PORT` or `HOST|PORT|reuse`. The server sends its pid
/// to every client. A line with an index on standard input makes the server close the socket with this index. The line
/// `again` makes the server close its first socket and create it again.
const SERVER_TEXT: &str = "
import os, select, socket, sys
def make(text):
    host, port, *more = text.rsplit('|')
    s = socket.socket(socket.AF_INET6 if ':' in host else socket.AF_INET)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if 'reuse' in more: s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    if 'nonblocking' in more: s.setblocking(False)
    if 'nodelay' in more: s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if 'inheritable' in more: s.set_inheritable(True)
    s.bind((host, int(port)))
    s.listen(16)
    return s
sockets = [make(text) for text in sys.argv[1:]]
import fcntl
flags = [(fcntl.fcntl(s, fcntl.F_GETFL) & os.O_NONBLOCK != 0, fcntl.fcntl(s, fcntl.F_GETFD), s.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY), s.getsockname()[1]) for s in sockets]
while True:
    ready, _, _ = select.select(sockets + [sys.stdin], [], [])
    for s in ready:
        if s is sys.stdin:
            line = s.readline()
            if not line: os._exit(0)
            if line == 'again\\n':
                sockets.pop(0).close()
                sockets.append(make(sys.argv[1]))
            else:
                sockets.pop(int(line)).close()
            continue
        c, _ = s.accept()
        c.setblocking(True)
        c.sendall(('%d %s' % (os.getpid(), flags)).encode())
        c.close()
";

/// Starts a server with these addresses. Its standard input is a pipe.
fn serve(channels: &Channels, addresses: &[String]) -> Option<Program> {
    let mut command = python(SERVER_TEXT)?;
    command.args(addresses).stdin(Stdio::piped());
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    Some(Program::start_with_input(channels, SERVER, &mut command))
}

fn at(port: u16) -> String {
    format!("127.0.0.1|{port}")
}

/// Connects to a port, and returns the text that the server sends.
fn read(port: u16) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let mut text = String::new();
    std::io::Read::read_to_string(&mut stream, &mut text).unwrap();
    text
}

/// Waits until connections are refused. Children of other tests have duplicates of descriptors until they execute a
/// program. A connection that is being made while the socket is closed is reset.
fn await_refused(port: u16) {
    let refused = |error: &std::io::Error| error.kind() == std::io::ErrorKind::ConnectionRefused;
    until("a refusal", || TcpStream::connect((Ipv4Addr::LOCALHOST, port)).err().filter(refused));
}

fn listeners(channels: &Channels) -> Vec<HeldListener> {
    channels.held(SERVER).into_iter().filter(|row| row.level == Level::Listener).collect()
}

fn await_taken(channels: &Channels, count: usize) {
    until("listeners", || {
        let taken = listeners(channels).iter().filter(|row| row.is_taken).count();
        (taken == count).then_some(())
    });
}

#[test]
fn a_listener_is_handed_over_with_what_the_program_has_set() {
    let (Some(channels), port) = (usual(), testkit::free_port()) else { return };
    let Some(mut first) = serve(&channels, &[at(port)]) else { return };
    await_taken(&channels, 1);
    let text = read(port);
    assert!(text.ends_with(&format!("[(False, 1, 0, {port})]")), "{text}");
    let before = channels.inherit(SERVER).unwrap();
    first.kill();
    channels.died(SERVER);
    let changed = format!("127.0.0.1|{port}|nonblocking|nodelay|inheritable");
    let _second = serve(&channels, &[changed]).unwrap();
    await_taken(&channels, 1);
    let text = read(port);
    assert!(text.ends_with(&format!("[(True, 0, 1, {port})]")), "{text}");
    let after = channels.inherit(SERVER).unwrap();
    assert_eq!((before.len(), after.len()), (1, 1));
    assert_eq!((before[0].device, before[0].inode), (after[0].device, after[0].inode));
}

#[test]
fn listeners_of_one_address_are_handed_out_in_their_order() {
    let (Some(channels), port) = (usual(), testkit::free_port()) else { return };
    let addresses = [(); 3].map(|()| format!("127.0.0.1|{port}|reuse"));
    let Some(mut first) = serve(&channels, &addresses) else { return };
    await_taken(&channels, 3);
    let inodes = || -> Vec<_> { channels.inherit(SERVER).unwrap().iter().map(|row| row.inode).collect() };
    let before = inodes();
    first.kill();
    channels.died(SERVER);
    // The new incarnation (run of the program) binds one socket more than the old incarnation. The last socket is new.
    let more = [(); 4].map(|()| format!("127.0.0.1|{port}|reuse"));
    let second = serve(&channels, &more).unwrap();
    await_taken(&channels, 4);
    assert_eq!(inodes()[..3], before[..]);
    let links: Vec<String> = (0..64)
        .filter_map(|fd| std::fs::read_link(format!("/proc/{}/fd/{fd}", second.pid())).ok())
        .map(|link| link.to_string_lossy().into_owned())
        .filter(|link| link.starts_with("socket:"))
        .collect();
    let wanted: Vec<String> = inodes().iter().map(|inode| format!("socket:[{inode}]")).collect();
    assert_eq!(links, wanted);
    channels.scan(SERVER, second.pid());
    channels.scan(SERVER, second.pid());
    assert_eq!(listeners(&channels).len(), 4);
}

#[test]
fn a_listener_that_the_program_closes_is_released() {
    let (Some(channels), ports) = (usual(), [testkit::free_port(), testkit::free_port()]) else { return };
    let Some(mut server) = serve(&channels, &ports.map(at)) else { return };
    await_taken(&channels, 2);
    let mut input = server.0.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"0\n").unwrap();
    until("the release of a listener", || {
        channels.scan(SERVER, server.pid());
        (listeners(&channels).len() == 1).then_some(())
    });
    await_refused(ports[0]);
    // When the component dies, callers do not wait for the closed socket.
    assert_eq!(channels.held(SERVER).len(), 1);
    read(ports[1]);
}

/// Simulates a restore: the process has the socket before its filter is attached.
#[test]
fn a_restored_incarnation_has_its_listeners_already() {
    let limits = Limits { blocking: Duration::MAX, unclaimed: Duration::MAX, ..Limits::default() };
    let (Some(channels), port) = (channels(limits, Clock::default()), testkit::free_port()) else { return };
    let Some(mut first) = serve(&channels, &[at(port)]) else { return };
    await_taken(&channels, 1);
    let before = channels.inherit(SERVER).unwrap().remove(0);
    first.kill();
    channels.died(SERVER);
    let mut queued = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    let text = "
import socket
s = socket.socket(fileno=0)
while True:
    c, _ = s.accept()
    c.sendall(b'restored')
    c.close()
";
    let mut command = python(text).unwrap();
    command.stdin(Stdio::from(before.socket));
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    let pending = watch_from_start(&mut command, channels.filter(SERVER), None).unwrap();
    let second = Program(command.spawn().unwrap());
    let listener = pending.receive().unwrap();
    channels.attach(SERVER, listener.as_fd().try_clone_to_owned().unwrap()).unwrap();
    drop(command);
    assert!(!channels.listens(SERVER) && !listeners(&channels)[0].is_taken);
    channels.scan(SERVER, second.pid());
    assert!(channels.listens(SERVER) && listeners(&channels)[0].is_taken);
    let mut answer = String::new();
    std::io::Read::read_to_string(&mut queued, &mut answer).unwrap();
    assert_eq!(answer, "restored");
    assert_eq!(channels.inherit(SERVER).unwrap()[0].inode, before.inode);
}

#[test]
fn a_restored_program_connects_to_itself_before_the_first_scan() {
    let (Some(channels), port) = (usual(), testkit::free_port()) else { return };
    let text = format!(
        "
import signal, socket
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
listener = socket.socket()
listener.bind(('127.0.0.1', {port}))
listener.listen(8)
signal.sigwait([signal.SIGUSR1])
print(socket.socket().connect_ex(('127.0.0.1', {port})))
"
    );
    let Some(mut command) = python(&text) else { return };
    command.stdout(Stdio::piped());
    let mut server = Program::start(&channels, SERVER, &mut command);
    await_taken(&channels, 1);
    // What a restore reports. The program has its listener from its first instruction on.
    channels.died(SERVER);
    channels.begin(SERVER, true);
    rustix::process::kill_process(rustix::process::Pid::from_child(&server.0), rustix::process::Signal::USR1)
        .unwrap();
    assert_eq!(server.output(), "0\n");
}

#[test]
fn a_listener_at_any_port_is_not_held() {
    let Some(channels) = usual() else { return };
    let text = "
import socket, sys
for bind in (True, False):
    s = socket.socket()
    if bind: s.bind(('127.0.0.1', 0))
    s.listen(8)
    port = s.getsockname()[1]
    socket.create_connection(('127.0.0.1', port)).close()
    s.close()
    for _ in range(10000):
        # A child of another test that has not executed its program may have a copy.
        error = socket.socket().connect_ex(('127.0.0.1', port))
        if error: break
    print(error)
";
    let Some(mut command) = python(text) else { return };
    let mut server = Program::start(&channels, SERVER, command.stdout(Stdio::piped()));
    let refused = libc::ECONNREFUSED;
    assert_eq!(server.output(), format!("{refused}\n{refused}\n"));
    until("a listener", || channels.listens(SERVER).then_some(()));
    assert!(channels.held(SERVER).is_empty());
}

#[test]
fn abstract_names_and_packets_are_handed_over() {
    let Some(channels) = usual() else { return };
    let text = "
import os, socket, sys
s = socket.socket(socket.AF_UNIX, int(sys.argv[2]))
s.bind('\\0' + sys.argv[1])
s.listen(8)
while True: s.accept()[0].send(b'%d' % os.getpid())
";
    for (kind, name) in [(libc::SOCK_STREAM, "unix"), (libc::SOCK_SEQPACKET, "unix-seqpacket")] {
        let address = format!("undying-test-{}-{name}", std::process::id());
        let start = || {
            let mut command = python(text)?;
            Some(Program::start(&channels, SERVER, command.arg(&address).arg(kind.to_string())))
        };
        let Some(mut first) = start() else { return };
        await_taken(&channels, 1);
        let row = listeners(&channels).remove(0);
        assert_eq!((row.local, row.kind), (format!("@{address}"), name));
        first.kill();
        channels.died(SERVER);
        let name = [&[libc::AF_UNIX as u8, 0, 0], address.as_bytes()].concat();
        let client = sys::socket::create(libc::AF_UNIX, kind, 0).unwrap();
        sys::socket::connect(client.as_fd(), &SocketAddress(name)).unwrap();
        let second = start().unwrap();
        let mut bytes = [0; 16];
        let (length, _) = rustix::net::recv(&client, &mut bytes, rustix::net::RecvFlags::empty()).unwrap();
        assert_eq!(String::from_utf8_lossy(&bytes[..length]), second.pid().to_string());
        drop(second);
        channels.stopped(SERVER);
    }
}

#[test]
fn a_listener_that_the_program_closes_is_not_in_its_way() {
    let (Some(channels), port) = (usual(), testkit::free_port()) else { return };
    let Some(mut server) = serve(&channels, &[at(port)]) else { return };
    await_taken(&channels, 1);
    let inode = || channels.inherit(SERVER).unwrap()[0].inode;
    let (before, text) = (inode(), read(port));
    let mut input = server.0.stdin.take().unwrap();
    std::io::Write::write_all(&mut input, b"again\n").unwrap();
    // Without the handling, the second bind(2) of the server would fail with EADDRINUSE.
    for _ in 0..3 {
        assert_eq!(read(port), text);
    }
    await_taken(&channels, 1);
    assert_eq!(inode(), before);
}

#[test]
fn what_a_new_incarnation_does_not_bind_is_released_in_time() {
    let clock = Clock::by_hand();
    let limits = Limits::default();
    let (Some(channels), ports) =
        (channels(limits, clock.clone()), [testkit::free_port(), testkit::free_port()])
    else {
        return;
    };
    let Some(mut first) = serve(&channels, &ports.map(at)) else { return };
    await_taken(&channels, 2);
    first.kill();
    channels.died(SERVER);
    // While the component is dead, no socket is released.
    clock.advance(limits.unclaimed * 2);
    channels.scan(SERVER, first.pid());
    let second = serve(&channels, &[at(ports[1])]).unwrap();
    await_taken(&channels, 1);
    channels.scan(SERVER, second.pid());
    assert_eq!(listeners(&channels).len(), 2);
    channels.provider_ready(SERVER);
    clock.advance(limits.unclaimed_after_ready);
    channels.scan(SERVER, second.pid());
    assert_eq!(listeners(&channels).len(), 1);
    await_refused(ports[0]);
    read(ports[1]);
}

#[test]
fn a_held_listener_is_not_in_the_way_of_another_address() {
    let (Some(channels), port) = (usual(), testkit::free_port()) else { return };
    let Some(mut first) = serve(&channels, &[format!("0.0.0.0|{port}")]) else { return };
    await_taken(&channels, 1);
    first.kill();
    channels.died(SERVER);
    let mut second = serve(&channels, &[at(port)]).unwrap();
    await_taken(&channels, 1);
    assert_eq!(listeners(&channels)[0].local, format!("127.0.0.1:{port}"));
    read(port);
    second.kill();
    channels.died(SERVER);
    let _third = serve(&channels, &[format!("::|{port}")]).unwrap();
    await_taken(&channels, 1);
    assert_eq!(listeners(&channels)[0].local, format!("[::]:{port}"));
    read(port);
}

/// A client that connects to the port of its first argument in the mode of its second argument, and prints the result.
const CLIENT_TEXT: &str = "
import signal, socket, struct, sys, time
port, how = int(sys.argv[1]), sys.argv[2]
s = socket.socket()
class Alarm(Exception): pass
def alarm(*_): raise Alarm()
if how == 'nonblocking': s.setblocking(False)
if how == 'timeout': s.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack('ll', 0, 300000))
if how == 'signal':
    signal.signal(signal.SIGALRM, alarm)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
if how == 'signals':
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.siginterrupt(signal.SIGALRM, False)
    signal.setitimer(signal.ITIMER_REAL, 0.02, 0.02)
start = time.monotonic()
try:
    if how == 'nonblocking':
        error = s.connect_ex(('127.0.0.1', port))
        print('errno', error, end=' ')
    else:
        s.connect(('127.0.0.1', port))
        print('got', s.recv(64).decode().split()[0], end=' ')
except ConnectionRefusedError: print('refused', end=' ')
except Alarm: print('alarm', end=' ')
print(int((time.monotonic() - start) * 1000))
";

fn call(channels: &Channels, port: u16, how: &str) -> Option<Program> {
    let mut command = python(CLIENT_TEXT)?;
    command.arg(port.to_string()).arg(how).stdout(Stdio::piped());
    Some(Program::start(channels, CLIENT, &mut command))
}

/// Returns the result that a client has printed, and the duration of its call.
fn result(client: &mut Program) -> (String, Duration) {
    let text = client.output();
    let words: Vec<&str> = text.split_whitespace().collect();
    let took = words.last().unwrap().parse().unwrap_or_else(|_| panic!("{text}"));
    (words[..words.len() - 1].join(" "), Duration::from_millis(took))
}

fn await_waiting(channels: &Channels, count: usize) {
    until("callers that wait", || (channels.waiting().len() == count).then_some(()));
}

#[test]
fn a_caller_waits_for_a_provider_that_does_not_exist_yet() {
    let (Some(channels), port) = (usual(), testkit::free_port()) else { return };
    channels.declare(SERVER, &[format!("localhost:{port}")]).unwrap();
    let Some(mut client) = call(&channels, port, "plain") else { return };
    await_waiting(&channels, 1);
    let row = channels.waiting().remove(0);
    assert_eq!((row.caller, row.provider), (CLIENT, SERVER));
    assert_eq!((row.thread.get(), row.target), (client.pid().get(), format!("127.0.0.1:{port}")));
    let held = channels.held(SERVER);
    assert!(held.iter().all(|row| row.level == Level::Callers) && held.len() == 2, "{held:?}");
    let server = serve(&channels, &[at(port)]).unwrap();
    let (said, _) = result(&mut client);
    assert_eq!(said, format!("got {}", server.pid()));
    assert!(channels.waiting().is_empty());
}

#[test]
fn a_provider_that_is_ready_without_a_listener_has_callers_proceed() {
    let (Some(channels), port) = (usual(), testkit::free_port()) else { return };
    channels.declare(SERVER, &[format!("127.0.0.1:{port}")]).unwrap();
    let Some(mut client) = call(&channels, port, "plain") else { return };
    await_waiting(&channels, 1);
    channels.begin(SERVER, false);
    assert_eq!(channels.waiting().len(), 1);
    channels.provider_ready(SERVER);
    assert_eq!(result(&mut client).0, "refused");
    // After the death of the component, callers wait again until the component is stopped.
    channels.died(SERVER);
    let mut client = call(&channels, port, "plain").unwrap();
    await_waiting(&channels, 1);
    channels.stopped(SERVER);
    assert_eq!(result(&mut client).0, "refused");
    assert_eq!(result(&mut call(&channels, port, "plain").unwrap()).0, "refused");
}

#[test]
fn waits_end_by_limits_and_signals() {
    let limit = Duration::from_millis(400);
    let limits = Limits { blocking: limit, nonblocking: limit / 2, ..Limits::default() };
    let (Some(short), port) = (channels(limits, Clock::default()), testkit::free_port()) else { return };
    let declared = format!("127.0.0.1:{port}");
    short.declare(SERVER, &[&declared]).unwrap();
    let Some(mut client) = call(&short, port, "plain") else { return };
    let (said, took) = result(&mut client);
    assert!(said == "refused" && took >= limit - Duration::from_millis(1), "{said} {took:?}");
    let (said, took) = result(&mut call(&short, port, "nonblocking").unwrap());
    assert!(
        said == format!("errno {}", libc::EINPROGRESS) || said == format!("errno {}", libc::ECONNREFUSED)
    );
    assert!(took >= limit / 2 - Duration::from_millis(1) && took < limits.blocking * 20, "{took:?}");
    // The kernel executes the call after the first check that finds a pending signal.
    let (said, _) = result(&mut call(&short, port, "signals").unwrap());
    assert_eq!(said, "refused");
    // Signals interrupt the call repeatedly, and its limit continues.
    short.expect_stops(CLIENT);
    let (said, took) = result(&mut call(&short, port, "signals").unwrap());
    assert!(said == "refused" && took >= limit - Duration::from_millis(1), "{said} {took:?}");
    let long = usual().unwrap();
    long.declare(SERVER, &[&declared]).unwrap();
    let (said, _) = result(&mut call(&long, port, "timeout").unwrap());
    assert_eq!(said, "refused");
    let (said, _) = result(&mut call(&long, port, "signal").unwrap());
    // The signal handler raises the exception after the call has returned.
    assert!(["alarm", "refused"].contains(&&*said), "{said}");
    until("callers that were broken off", || long.waiting().is_empty().then_some(()));
}

/// Stops the caller like a checkpoint does.
#[test]
fn a_caller_that_waits_can_be_stopped() {
    let (Some(channels), port) = (usual(), testkit::free_port()) else { return };
    channels.declare(SERVER, &[format!("127.0.0.1:{port}")]).unwrap();
    channels.expect_stops(CLIENT);
    let Some(mut client) = call(&channels, port, "plain") else { return };
    for _ in 0..20 {
        await_waiting(&channels, 1);
        StoppedTree::stop(client.pid()).unwrap().resume().unwrap();
    }
    let server = serve(&channels, &[at(port)]).unwrap();
    assert_eq!(result(&mut client).0, format!("got {}", server.pid()));
}

#[test]
fn a_caller_that_is_killed_is_forgotten() {
    let (Some(channels), port) = (usual(), testkit::free_port()) else { return };
    channels.declare(SERVER, &[format!("127.0.0.1:{port}")]).unwrap();
    let Some(mut client) = call(&channels, port, "plain") else { return };
    await_waiting(&channels, 1);
    client.kill();
    await_waiting(&channels, 0);
}

#[test]
fn no_more_callers_are_held_than_the_limit_says() {
    let limits = Limits { callers_max: 2, ..Limits::default() };
    let (Some(channels), port) = (channels(limits, Clock::default()), testkit::free_port()) else { return };
    channels.declare(SERVER, &[format!("127.0.0.1:{port}")]).unwrap();
    let Some(mut first) = call(&channels, port, "plain") else { return };
    let mut second = call(&channels, port, "plain").unwrap();
    await_waiting(&channels, 2);
    assert_eq!(result(&mut call(&channels, port, "plain").unwrap()).0, "refused");
    // When the channels are dropped, the callers proceed.
    drop(channels);
    assert_eq!(result(&mut first).0, "refused");
    assert_eq!(result(&mut second).0, "refused");
}

#[test]
fn callers_of_a_unix_path_wait() {
    let Some(channels) = usual() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    channels.declare(SERVER, &[format!("unix:{}", path.display())]).unwrap();
    let text = format!(
        "import os, socket\nos.chdir({:?})\ns = socket.socket(socket.AF_UNIX)\ns.connect('socket')\nprint(s.recv(8))",
        directory.path()
    );
    let Some(mut command) = python(&text) else { return };
    let mut client = Program::start(&channels, CLIENT, command.stdout(Stdio::piped()));
    await_waiting(&channels, 1);
    let text = format!(
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind({path:?})\ns.listen(1)\n\
         c, _ = s.accept()\nc.sendall(b'here')\ns.accept()"
    );
    let _server = Program::start(&channels, SERVER, &mut python(&text).unwrap());
    assert_eq!(client.output(), "b'here'\n");
}

/// A server that first connects to its path to search for another instance. Then the server unlinks the path, waits for
/// a file, and binds the path.
const UNLINKING_TEXT: &str = "
import os, socket, sys, time
path, go = sys.argv[1], sys.argv[2]
try:
    socket.socket(socket.AF_UNIX).connect(path)
    print('another instance is running')
    sys.exit()
except (ConnectionRefusedError, FileNotFoundError): pass
if os.path.exists(path): os.unlink(path)
while not os.path.exists(go): time.sleep(0.002)
s = socket.socket(socket.AF_UNIX)
s.bind(path)
s.listen(8)
while True: s.accept()[0].sendall(b'here')
";

#[test]
fn a_path_that_is_unlinked_leads_to_the_held_listener_again() {
    let Some(channels) = usual() else { return };
    let directory = tempfile::tempdir().unwrap();
    let [path, go] = ["socket", "go"].map(|name| directory.path().join(name));
    let start = || {
        let mut command = python(UNLINKING_TEXT)?;
        Some(Program::start(&channels, SERVER, command.arg(&path).arg(&go)))
    };
    std::fs::write(&go, "").unwrap();
    let Some(mut first) = start() else { return };
    await_taken(&channels, 1);
    first.kill();
    channels.died(SERVER);
    std::fs::remove_file(&go).unwrap();
    // This connection queues in the backlog before the path is unlinked.
    let mut queued = std::os::unix::net::UnixStream::connect(&path).unwrap();
    let _second = start().unwrap();
    until("the path to be unlinked", || (!path.exists()).then_some(()));
    let text =
        "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.connect(sys.argv[1])\nprint(s.recv(8))";
    let mut command = python(text).unwrap();
    let mut client = Program::start(&channels, CLIENT, command.arg(&path).stdout(Stdio::piped()));
    await_waiting(&channels, 1);
    std::fs::write(&go, "").unwrap();
    assert_eq!(client.output(), "b'here'\n");
    let mut bytes = [0; 4];
    std::io::Read::read_exact(&mut queued, &mut bytes).unwrap();
    assert_eq!(&bytes, b"here");
    await_taken(&channels, 1);
    let names: Vec<_> =
        directory.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

/// A program that calls bind(2) and listen(2) by socketcall(2) through the 32-bit entry of the kernel. The program
/// sends its answers through the 64-bit entry.
const I386_TEXT: &str = r#"
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>
static long old(long number, long a, long b)
{
	long result;
	__asm__ volatile("int $0x80" : "=a"(result) : "a"(number), "b"(a), "c"(b) : "memory", "r8", "r9", "r10", "r11");
	return result;
}
int main(int count, char **arguments)
{
	if (old(20, 0, 0) != getpid())
		return 1;
	if (count < 2)
		return 0;
	unsigned *low = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
	struct sockaddr_in *address = (void *)(low + 16);
	int s = socket(AF_INET, SOCK_STREAM, 0);
	address->sin_family = AF_INET;
	address->sin_port = htons(atoi(arguments[1]));
	address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	low[0] = s, low[1] = (unsigned)(unsigned long)address, low[2] = sizeof *address;
	if (old(102, 2, (long)low))
		return 2;
	low[1] = 8;
	if (old(102, 4, (long)low))
		return 3;
	for (;;) {
		int c = accept(s, 0, 0);
		dprintf(c, "%d", getpid());
		close(c);
	}
}
"#;

#[test]
fn calls_through_the_32_bit_entry_are_understood() {
    let Some(compiler) = common::installed("cc") else { return };
    let directory = tempfile::tempdir().unwrap();
    let [source, program] = ["i386.c", "i386"].map(|name| directory.path().join(name));
    std::fs::write(&source, I386_TEXT).unwrap();
    assert!(Command::new(compiler).arg(&source).arg("-o").arg(&program).status().unwrap().success());
    if !Command::new(&program).status().unwrap().success() {
        return println!("unsupported: the kernel has no 32-bit calls");
    }
    let (Some(channels), port) = (usual(), testkit::free_port()) else { return };
    let start = || Program::start(&channels, SERVER, Command::new(&program).arg(port.to_string()));
    let mut first = start();
    await_taken(&channels, 1);
    assert_eq!(read(port), first.pid().to_string());
    first.kill();
    channels.died(SERVER);
    let second = start();
    await_taken(&channels, 1);
    assert_eq!(read(port), second.pid().to_string());
}

/// The environment variable of the guardian that is killed. The value is the directory of its output files.
const GUARDIAN: &str = "UNDYING_TEST_GUARDIAN";
const CALLERS: usize = 3;

/// The body of the guardian process. In other runs, this test does nothing.
#[test]
fn guardian_that_is_killed() {
    let Ok(place) = std::env::var(GUARDIAN) else { return };
    let place = Path::new(&place);
    let (channels, port) = (usual().unwrap(), testkit::free_port());
    channels.declare(SERVER, &[format!("127.0.0.1:{port}")]).unwrap();
    let callers: Vec<Program> = (0..CALLERS)
        .map(|number| {
            let mut command = python(CLIENT_TEXT).unwrap();
            let output = std::fs::File::create(place.join(number.to_string())).unwrap();
            command.arg(port.to_string()).arg("plain").stdout(output);
            Program::start(&channels, CLIENT, &mut command)
        })
        .collect();
    await_waiting(&channels, CALLERS);
    std::fs::write(place.join("ready"), "").unwrap();
    std::thread::sleep(testkit::limits::condition());
    drop(callers);
}

#[test]
fn callers_proceed_when_the_guardian_is_killed() {
    if usual().is_none() || python("").is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let mut guardian = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "calls::guardian_that_is_killed", "--nocapture"])
        .env(GUARDIAN, directory.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("callers of the guardian", || directory.path().join("ready").exists().then_some(()));
    guardian.kill().unwrap();
    guardian.wait().unwrap();
    for number in 0..CALLERS {
        let said = until("the end of a caller", || {
            let text = std::fs::read_to_string(directory.path().join(number.to_string())).unwrap();
            text.ends_with('\n').then_some(text)
        });
        assert!(said.starts_with("refused"), "{said}");
    }
}

/// A client that connects the number of times in its second argument, and prints the median duration in nanoseconds.
const COST_TEXT: &str = "
import socket, sys, time
port, count = int(sys.argv[1]), int(sys.argv[2])
times = []
for _ in range(count):
    s = socket.socket()
    start = time.monotonic_ns()
    s.connect(('127.0.0.1', port))
    times.append(time.monotonic_ns() - start)
    s.recv(64)
    s.close()
print(sorted(times)[count // 2])
";

/// Prints the cost of a call. The check only excludes scheduling delays of several milliseconds.
#[test]
fn the_cost_of_a_call_is_small() {
    const COUNT: usize = 2000;
    let (Some(channels), port) = (usual(), testkit::free_port()) else { return };
    let Some(server) = serve(&channels, &[at(port)]) else { return };
    await_listening(&channels, SERVER);
    channels.provider_ready(SERVER);
    let command = || {
        let mut command = python(COST_TEXT).unwrap();
        command.arg(port.to_string()).arg(COUNT.to_string()).stdout(Stdio::piped());
        command
    };
    let number = |text: String| text.trim().parse::<u64>().unwrap();
    let plain = number(String::from_utf8(command().output().unwrap().stdout).unwrap());
    let watched = number(Program::start(&channels, CLIENT, &mut command()).output());
    println!("connect(2): {plain} ns without a filter, {watched} ns with it");
    assert!(watched < plain + 5_000_000, "{plain} {watched}");
    for scan in ["first", "second"] {
        let watch = Stopwatch::start();
        channels.scan(SERVER, server.pid());
        println!("the {scan} scan for one listener: {:?}", watch.elapsed());
    }
}
