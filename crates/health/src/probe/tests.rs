//! Tests of probes with real sockets and programs, including faulty servers and programs.
//!
//! Owns: a server for each cause of a failed probe.
//! Does not: test the parser of status lines; `http` does.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::thread;
use std::time::{Duration, Instant};

use model::{Pid, Signal};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use sys::Errno;
use testkit::until;

use super::*;
use crate::test_support::{LIMIT, wait};

const SHORT: Duration = Duration::from_millis(200);
const REFUSED: Errno = Errno(111);

/// Runs an attempt to its end, like the event loop does.
fn run(probe: &Probe, timeout: Duration) -> Outcome {
    let mut attempt = Attempt::begin(probe, Instant::now(), timeout);
    let outcome = loop {
        if let Some(outcome) = attempt.advance(Instant::now()) {
            break outcome;
        }
        wait(attempt.handle(), attempt.due());
    };
    assert!(attempt.handle().is_none() && attempt.due().is_none());
    assert_eq!(attempt.advance(Instant::now()), None, "an attempt has one outcome");
    outcome
}

fn tcp(listener: &TcpListener) -> Probe {
    Probe::tcp(&listener.local_addr().unwrap().to_string()).unwrap()
}

fn exec(words: &[&str]) -> Probe {
    Probe::exec(&words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()).unwrap()
}

/// Starts a server for one connection, and probes the server.
fn ask(serve: impl FnOnce(TcpStream) + Send, timeout: Duration) -> Outcome {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/health?deep=1", listener.local_addr().unwrap());
    thread::scope(|scope| {
        scope.spawn(|| serve(listener.accept().unwrap().0));
        run(&Probe::http(&url).unwrap(), timeout)
    })
}

fn read_request(stream: &mut TcpStream) -> String {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        let mut piece = [0; 256];
        let count = stream.read(&mut piece).unwrap();
        assert_ne!(count, 0);
        request.extend(&piece[..count]);
    }
    String::from_utf8(request).unwrap()
}

#[test]
fn addresses_are_read_and_names_are_not_looked_up() {
    let at = |text: &str| Probe::Tcp(text.parse().unwrap());
    assert_eq!(Probe::tcp("127.0.0.1:7801"), Ok(at("127.0.0.1:7801")));
    assert_eq!(Probe::tcp("[::1]:80"), Ok(at("[::1]:80")));
    assert_eq!(Probe::tcp("localhost:80"), Ok(at("127.0.0.1:80")));
    assert_eq!(Probe::tcp("unix:/run/a.sock"), Ok(Probe::Unix("/run/a.sock".into())));
    let name = "db.example:5432".to_owned();
    assert_eq!(Probe::tcp(&name), Err(ProbeError::HostName(name)));
    for text in ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:99999", ":80", "::1", "300.1.1.1:80", "a b:80"] {
        assert_eq!(Probe::tcp(text), Err(ProbeError::Address(text.to_owned())), "{text}");
    }
    for text in ["unix:run/a.sock".to_owned(), "unix:".to_owned(), format!("unix:/{}", "a".repeat(108))] {
        assert_eq!(Probe::tcp(&text), Err(ProbeError::SocketPath(text.clone())), "{text}");
    }
}

#[test]
fn urls_are_read() {
    let target = |address: &str, host: &str, path: &str| {
        let (address, host, path) = (address.parse().unwrap(), host.to_owned(), path.to_owned());
        Ok(Probe::Http(HttpTarget { address, host, path }))
    };
    assert_eq!(
        Probe::http("http://127.0.0.1:8000/a?b#c"),
        target("127.0.0.1:8000", "127.0.0.1:8000", "/a?b")
    );
    assert_eq!(Probe::http("http://localhost"), target("127.0.0.1:80", "localhost", "/"));
    assert_eq!(Probe::http("HTTP://[::1]?x"), target("[::1]:80", "[::1]", "/?x"));
    assert_eq!(Probe::http("http://10.0.0.1/"), target("10.0.0.1:80", "10.0.0.1", "/"));
    let fails = |text: &str, kind: fn(String) -> ProbeError| {
        assert_eq!(Probe::http(text), Err(kind(text.to_owned())), "{text}");
    };
    fails("https://127.0.0.1/", ProbeError::Encrypted);
    fails("http://example.org/", ProbeError::HostName);
    fails("http://127.0.0.1/a b", ProbeError::UrlPath);
    fails("http://127.0.0.1/a\r\nX: y", ProbeError::UrlPath);
    for text in ["", "127.0.0.1:80", "ftp://127.0.0.1/", "http://", "http://u@127.0.0.1/", "http://::1/"] {
        fails(text, ProbeError::Url);
    }
    assert_eq!(Probe::exec(&[]), Err(ProbeError::NoProgram));
    assert_eq!(Probe::exec(&[String::new()]), Err(ProbeError::NoProgram));
}

#[test]
fn a_connection_is_accepted_or_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let probe = tcp(&listener);
    assert_eq!(run(&probe, LIMIT), Ok(()));
    let target = listener.local_addr().unwrap().to_string();
    drop(listener);
    // While another test starts a program, its child process holds duplicates of all descriptors for a moment.
    let failure = until("a refused connection", || run(&probe, LIMIT).err());
    assert_eq!(failure, Failure::Connect { target, errno: REFUSED });
}

#[test]
fn a_full_backlog_is_no_connection() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let probe = Probe::tcp(&format!("unix:{}", path.display())).unwrap();
    let fails = |errno| {
        let target = path.display().to_string();
        // The child process of another test may hold a duplicate of the listener for a moment longer than this test.
        let expected = Failure::Connect { target, errno };
        until("the failure", || (run(&probe, SHORT).err()? == expected).then_some(()));
    };
    fails(Errno::ENOENT);
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    assert_eq!(run(&probe, LIMIT), Ok(()));
    // The previous connection is still in the backlog.
    let outcome = run(&probe, SHORT);
    assert_eq!(outcome, Err(Failure::TimedOut { step: Step::Connect, limit: SHORT }));
    let mut attempt = Attempt::begin(&probe, Instant::now(), LIMIT);
    assert_eq!(attempt.advance(Instant::now()), None);
    listener.accept().unwrap();
    let outcome = until("the connection", || {
        wait(attempt.handle(), attempt.due());
        attempt.advance(Instant::now())
    });
    assert_eq!(outcome, Ok(()));
    drop(listener);
    fails(REFUSED);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "").unwrap();
    fails(REFUSED);
}

#[test]
fn an_answer_is_judged_by_its_status() {
    let answer = |text: &'static str| {
        ask(
            move |mut stream| {
                let request = read_request(&mut stream);
                assert!(request.starts_with("GET /health?deep=1 HTTP/1.1\r\nHost: 127.0.0.1:"), "{request}");
                assert!(request.contains("\r\nConnection: close\r\n"));
                stream.write_all(text.as_bytes()).unwrap();
            },
            LIMIT,
        )
    };
    assert_eq!(answer("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi"), Ok(()));
    assert_eq!(answer("HTTP/1.0 302 Found\r\n\r\n"), Ok(()));
    assert_eq!(answer("HTTP/1.1 103 Hints\r\nA: b\r\n\r\nHTTP/1.1 204 x\r\n"), Ok(()));
    assert_eq!(answer("HTTP/1.1 503 Busy\r\n\r\n"), Err(Failure::Status(503)));
    assert_eq!(answer("SSH-2.0-OpenSSH\r\n"), Err(Failure::Answer(AnswerError::NotHttp)));
    assert_eq!(answer("HTTP/1.1 20"), Err(Failure::Answer(AnswerError::Ended)));
}

#[test]
fn an_answer_that_comes_byte_by_byte_is_read() {
    let slow = |mut stream: TcpStream| {
        read_request(&mut stream);
        for byte in b"HTTP/1.1 200 OK\r\n" {
            stream.write_all(&[*byte]).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
    };
    assert_eq!(ask(slow, LIMIT), Ok(()));
}

#[test]
fn a_server_that_says_nothing_or_too_much_fails() {
    let silent = |mut stream: TcpStream| {
        read_request(&mut stream);
        // Blocks until the probe closes the connection.
        assert!(matches!(stream.read(&mut [0; 1]), Ok(0) | Err(_)));
    };
    let outcome = ask(silent, SHORT);
    assert_eq!(outcome, Err(Failure::TimedOut { step: Step::Answer, limit: SHORT }));
    let endless = |mut stream: TcpStream| {
        read_request(&mut stream);
        let piece = [b"HTTP/1.1 200 ".as_slice(), &[b'a'; 4096]].concat();
        while stream.write_all(&piece).is_ok() {}
    };
    assert_eq!(ask(endless, LIMIT), Err(Failure::Answer(AnswerError::TooLong)));
}

#[test]
fn a_program_is_judged_by_its_status() {
    assert_eq!(run(&exec(&["true"]), LIMIT), Ok(()));
    assert_eq!(run(&exec(&["sh", "-c", "exit 7"]), LIMIT), Err(Failure::Exit(7)));
    assert_eq!(run(&exec(&["sh", "-c", "kill -9 $$"]), LIMIT), Err(Failure::Killed(Signal(9))));
    let program = "/no/such/program".to_owned();
    let missing = Failure::Start { program: program.clone(), errno: Errno::ENOENT };
    assert!(!missing.is_of_the_program() && Failure::Exit(1).is_of_the_program());
    assert_eq!(run(&exec(&[&program]), LIMIT), Err(missing));
    // The standard streams of the program are open, and refer to /dev/null.
    assert_eq!(run(&exec(&["sh", "-c", "read x && exit 1; echo a && echo b >&2"]), LIMIT), Ok(()));
}

/// Waits until a script has written `count` pids into a file, and returns the pids.
fn pids_in(path: &std::path::Path, count: usize) -> Vec<i32> {
    until("the pids of a script", || {
        let text = fs::read_to_string(path).ok()?;
        let pids: Vec<i32> = text.lines().filter_map(|line| line.parse().ok()).collect();
        (pids.len() == count && text.ends_with('\n')).then_some(pids)
    })
}

/// Reports whether a process is gone, or is a zombie that its parent has not reaped yet.
fn is_gone(pid: i32) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}

#[test]
fn a_program_that_ignores_signals_is_killed_with_its_children() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pids");
    let script = "trap '' TERM INT HUP; sleep 1000 & echo $! > $0.new; echo $$ >> $0.new; mv $0.new $0; wait; sleep 1000";
    let probe = exec(&["sh", "-c", script, path.to_str().unwrap()]);
    let mut attempt = Attempt::begin(&probe, Instant::now(), LIMIT);
    assert_eq!(attempt.advance(Instant::now()), None);
    let pids = pids_in(&path, 2);
    // The deadline has passed.
    let late = Instant::now() + LIMIT;
    let outcome = until("the end of the program", || attempt.advance(late));
    assert_eq!(outcome, Err(Failure::TimedOut { step: Step::Exit, limit: LIMIT }));
    until("the end of its child", || is_gone(pids[0]).then_some(()));
    assert!(!std::path::Path::new(&format!("/proc/{}", pids[1])).exists(), "the program was not reaped");
}

#[test]
fn children_of_a_program_that_has_ended_are_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pids");
    let script = "sleep 1000 & echo $! > $0";
    assert_eq!(run(&exec(&["sh", "-c", script, path.to_str().unwrap()]), LIMIT), Ok(()));
    let pids = pids_in(&path, 1);
    until("the end of the child", || is_gone(pids[0]).then_some(()));
}

#[test]
fn an_attempt_that_is_dropped_leaves_no_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pids");
    let attempt = Attempt::begin(
        &exec(&["sh", "-c", "echo $$ > $0; exec sleep 1000", path.to_str().unwrap()]),
        Instant::now(),
        LIMIT,
    );
    let pids = pids_in(&path, 1);
    assert_eq!(attempt.child(), Some(Pid(pids[0])));
    drop(attempt);
    until("the end of the program", || is_gone(pids[0]).then_some(()));
}

#[test]
fn a_program_that_other_code_has_reaped_is_judged_all_the_same() {
    let mut attempt = Attempt::begin(&exec(&["sh", "-c", "exit 7"]), Instant::now(), LIMIT);
    let (handle, _) = attempt.handle().unwrap();
    rustix::process::waitid(rustix::process::WaitId::PidFd(handle), rustix::process::WaitIdOptions::EXITED)
        .unwrap();
    // Kernels before 6.15 do not keep the exit status of a reaped process.
    let outcome = attempt.advance(Instant::now()).unwrap();
    assert!([Err(Failure::Exit(7)), Err(Failure::StatusLost)].contains(&outcome), "{outcome:?}");
}

#[test]
fn a_connection_that_is_never_answered_times_out() {
    // The backlog of this listener is full after one connection. The kernel then drops further connection requests.
    let socket =
        rustix::net::socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)
            .unwrap();
    rustix::net::bind(&socket, &"127.0.0.1:0".parse::<SocketAddr>().unwrap()).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let listener = TcpListener::from(socket);
    let probe = tcp(&listener);
    let outcomes: Vec<_> = (0..3).map(|_| run(&probe, SHORT)).collect();
    let late = Err(Failure::TimedOut { step: Step::Connect, limit: SHORT });
    assert_eq!(outcomes.first(), Some(&Ok(())));
    assert_eq!(outcomes.last(), Some(&late), "{outcomes:?}");
    // A new attempt waits until its socket is writable, which means that the connection is established.
    let mut attempt = Attempt::begin(&probe, Instant::now(), LIMIT);
    assert_eq!(attempt.advance(Instant::now()), None);
    assert!(matches!(attempt.handle(), Some((_, crate::Interest::Writable))));
    drop(attempt);
}
