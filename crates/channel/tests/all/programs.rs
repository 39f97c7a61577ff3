//! Tests of unmodified programs that are killed while clients connect.
//!
//! Owns: the tests.
//! Invariants: a test prints a message if its program is not installed.
//! Does not: test single calls of a program; `calls.rs` does.

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use testkit::until;
use undying_channel::Level;

use crate::common::{
    Clients, Program, SERVER, Seen, Server, answer, await_listening, installed, python, usual,
};

const HTTP: &[u8] = b"GET / HTTP/1.0\r\n\r\n";
/// Number of times that each program is killed.
const DEATHS: usize = 5;
const CLIENTS: usize = 4;
/// Number of responses between two kills.
const ANSWERS: usize = 20;

/// Repeatedly kills a program while clients connect. No connection may be refused. The next incarnation must serve a
/// connection that was established while the program was dead.
fn survives(
    name: &str,
    server: &Server,
    request: &'static [u8],
    command: impl Fn() -> Command,
) -> Option<Seen> {
    let channels = usual()?;
    let mut random = testkit::seeded(name);
    let start = || {
        let mut command = command();
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let program = Program::start(&channels, SERVER, &mut command);
        await_listening(&channels, SERVER);
        channels.provider_ready(SERVER);
        program
    };
    let mut program = start();
    let clients = Clients::start(server, request, CLIENTS);
    for _ in 0..DEATHS {
        clients.await_answers(ANSWERS);
        std::thread::sleep(testkit::moment(&mut random, Duration::from_millis(5)));
        program.kill();
        channels.died(SERVER);
        let held = channels.held(SERVER);
        assert!(held.iter().any(|row| row.level == Level::Listener && !row.is_taken), "{name}: {held:?}");
        let mut queued = server.connect().unwrap();
        program = start();
        // A response shows that the connection was accepted. The program may still wait for the end of the request.
        assert!(answer(queued.as_mut(), request).unwrap() > 0, "{name}");
        channels.scan(SERVER, program.pid());
    }
    clients.await_answers(ANSWERS);
    let seen = clients.stop();
    println!("{name}: {seen:?}");
    assert_eq!((Seen::get(&seen.refused), Seen::get(&seen.late)), (0, 0), "{name}: {seen:?}");
    drop(program);
    channels.stopped(SERVER);
    // Children of other tests have duplicates of descriptors until they execute a program.
    let gone = until("the end of a listener", || server.connect().err());
    assert!([ErrorKind::ConnectionRefused, ErrorKind::NotFound].contains(&gone.kind()), "{name}: {gone}");
    std::sync::Arc::into_inner(seen)
}

fn tcp(port: u16) -> Server {
    Server::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
}

#[test]
fn python_http_server() {
    let (Some(python), port) = (installed("python3"), testkit::free_port()) else { return };
    let directory = tempfile::tempdir().unwrap();
    survives("http.server", &tcp(port), HTTP, || {
        let mut command = Command::new(&python);
        command.args(["-m", "http.server", &port.to_string(), "--directory"]).arg(directory.path());
        command
    });
}

#[test]
fn redis() {
    let (Some(redis), port) = (installed("redis-server"), testkit::free_port()) else { return };
    let directory = tempfile::tempdir().unwrap();
    survives("redis", &tcp(port), b"PING\r\n", || {
        let mut command = Command::new(&redis);
        command.args(["--port", &port.to_string(), "--save", "", "--appendonly", "no", "--dir"]);
        command.arg(directory.path());
        command
    });
}

#[test]
fn memcached() {
    let (Some(memcached), port) = (installed("memcached"), testkit::free_port()) else { return };
    survives("memcached", &tcp(port), b"version\r\n", || {
        let mut command = Command::new(&memcached);
        command.args(["-u", "root", "-l", "127.0.0.1", "-p", &port.to_string()]);
        command
    });
}

#[test]
fn node() {
    let (Some(node), port) = (installed("node"), testkit::free_port()) else { return };
    let text = format!("require('http').createServer((q, s) => s.end('here')).listen({port}, '127.0.0.1')");
    survives("node", &tcp(port), HTTP, || {
        let mut command = Command::new(&node);
        command.args(["-e", &text]);
        command
    });
}

/// Returns an nginx configuration whose files are all in one directory.
fn nginx_configuration(directory: &Path, port: u16) -> String {
    let at = directory.display();
    format!(
        "daemon off; user root; worker_processes 2; pid {at}/pid; error_log {at}/error.log;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; client_body_temp_path {at}/1; proxy_temp_path {at}/2; fastcgi_temp_path {at}/3;\n\
         uwsgi_temp_path {at}/4; scgi_temp_path {at}/5;\n\
         server {{ listen 127.0.0.1:{port}; location / {{ return 200 here; }} }} }}\n"
    )
}

#[test]
fn nginx_with_workers() {
    let (Some(nginx), port) = (installed("nginx"), testkit::free_port()) else { return };
    let directory = tempfile::tempdir().unwrap();
    let configuration = directory.path().join("nginx.conf");
    std::fs::write(&configuration, nginx_configuration(directory.path(), port)).unwrap();
    survives("nginx", &tcp(port), HTTP, || {
        let mut command = Command::new(&nginx);
        command.arg("-c").arg(&configuration).arg("-p").arg(directory.path());
        command
    });
}

/// A server with a Unix socket. With the second argument `unlinks`, the server unlinks an existing path.
const UNIX_SERVER: &str = "
import os, socket, sys
path, unlinks = sys.argv[1], sys.argv[2] == 'unlinks'
if unlinks and os.path.exists(path): os.unlink(path)
s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
s.bind(path)
s.listen(64)
while True:
    c, _ = s.accept()
    c.recv(16)
    c.sendall(b'here')
    c.close()
";

#[test]
fn a_unix_socket_whose_path_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    if python("").is_none() {
        return;
    }
    let seen = survives("unix", &Server::Unix(path.clone()), b"hello", || {
        let mut command = python(UNIX_SERVER).unwrap();
        command.arg(&path).arg("stays");
        command
    });
    assert!(seen.is_none_or(|seen| Seen::get(&seen.absent) == 0));
    let left: Vec<_> = directory.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.len() <= 1, "{left:?}");
}

#[test]
fn a_unix_socket_whose_path_is_unlinked() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    if python("").is_none() {
        return;
    }
    // For a moment, clients find no file. No client is refused.
    survives("unix, unlinked", &Server::Unix(path.clone()), b"hello", || {
        let mut command = python(UNIX_SERVER).unwrap();
        command.arg(&path).arg("unlinks");
        command
    });
    let left: Vec<_> = directory.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.len() <= 1, "{left:?}");
}

/// A server with a short backlog. The server returns the data of each connection.
const BUSY_SERVER: &str = "
import socket, sys
s = socket.socket()
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.bind(('127.0.0.1', int(sys.argv[1])))
s.listen(8)
while True:
    c, _ = s.accept()
    c.sendall(c.recv(16))
    c.close()
";

#[test]
fn thousands_of_connections_wait_for_a_dead_program() {
    let (Some(channels), port) = (usual(), testkit::free_port()) else { return };
    let somaxconn: usize =
        std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap().trim().parse().unwrap();
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let descriptors = limit.current.map_or(usize::MAX, |limit| limit as usize);
    let count = (somaxconn * 3 / 4).min(descriptors / 2).min(3000);
    let start = || {
        let mut command = python(BUSY_SERVER)?;
        Some(Program::start(&channels, SERVER, command.arg(port.to_string())))
    };
    let Some(mut program) = start() else { return };
    await_listening(&channels, SERVER);
    program.kill();
    channels.died(SERVER);
    let connect = |_| tcp(port).connect().unwrap();
    let mut waiting: Vec<_> = (0..count).map(connect).collect();
    let _program = start().unwrap();
    for (number, stream) in waiting.iter_mut().enumerate() {
        let mut text = number.to_string().into_bytes();
        assert_eq!(answer(stream.as_mut(), &text).unwrap(), text.len());
        text.clear();
    }
    println!("{count} connections waited and were served");
    assert!(count >= 256);
}

/// Kills a program at random moments: before bind(2), between its calls, and while it serves clients.
fn survives_any_moment(name: &str, server: &Server, start: impl Fn() -> Command) {
    const KILLS: usize = 60;
    let Some(channels) = usual() else { return };
    let mut random = testkit::seeded(name);
    let start = || Program::start(&channels, SERVER, start().stdout(Stdio::null()).stderr(Stdio::null()));
    let mut program = start();
    await_listening(&channels, SERVER);
    let clients = Clients::start(server, b"hello", CLIENTS);
    clients.await_answers(1);
    for _ in 0..KILLS {
        std::thread::sleep(testkit::moment(&mut random, Duration::from_millis(50)));
        program.kill();
        channels.died(SERVER);
        assert_eq!(channels.held(SERVER).len(), 1, "{name}");
        program = start();
        channels.scan(SERVER, program.pid());
    }
    clients.await_answers(ANSWERS);
    let seen = clients.stop();
    println!("{name}: {seen:?}");
    assert_eq!((Seen::get(&seen.refused), Seen::get(&seen.late)), (0, 0), "{name}: {seen:?}");
}

#[test]
fn a_tcp_server_that_is_killed_at_any_moment() {
    let port = testkit::free_port();
    if python("").is_some() {
        survives_any_moment("tcp, any moment", &tcp(port), || {
            let mut command = python(BUSY_SERVER).unwrap();
            command.arg(port.to_string());
            command
        });
    }
}

#[test]
fn a_unix_server_that_is_killed_at_any_moment() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    for how in ["stays", "unlinks"] {
        if python("").is_some() {
            survives_any_moment(&format!("unix, {how}, any moment"), &Server::Unix(path.clone()), || {
                let mut command = python(UNIX_SERVER).unwrap();
                command.arg(&path).arg(how);
                command
            });
            std::fs::remove_file(&path).unwrap();
        }
    }
}
