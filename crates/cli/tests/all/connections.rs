//! Tests of connections from a subject (a protected process tree) to processes outside its tree. Each mode of a
//! checkpoint handles such connections differently. With `--lose-connections`, the connections end as if the peer had
//! closed them.

use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Child, Command};

use model::Pid;
use rustix::process::Signal;
use testkit::ProcessId;

use crate::common::{Lab, until, wait};

/// Starts a program that reads its standard input to the end and then exits with status 0.
fn reader(lab: &Lab, input: OwnedFd) -> Child {
    let mut command = Command::new("cat");
    lab.detached(&mut command).stdin(input);
    let child = command.spawn().unwrap();
    let status = format!("/proc/{}/wchan", child.id());
    let name = format!("/proc/{}/comm", child.id());
    until("the reader", || {
        let runs = std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "cat");
        (runs && std::fs::read_to_string(&status).is_ok()).then_some(())
    });
    child
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Returns the result of `preflight` without options, with `--kill`, and with `--kill --lose-connections`.
fn answers(lab: &Lab, pid: &str) -> [bool; 3] {
    [
        &["preflight", pid][..],
        &["preflight", pid, "--kill"],
        &["preflight", pid, "--kill", "--lose-connections"],
    ]
    .map(|words| {
        let report = lab.json(words);
        assert_eq!(report["ok"], report["obstacles"].as_array().unwrap().is_empty(), "{report}");
        assert_eq!(report["mode"]["kill"], words.contains(&"--kill"));
        report["ok"] == true
    })
}

#[test]
fn preflight_answers_for_each_mode() {
    let lab = Lab::new();
    if !crate::common::supported() {
        return;
    }
    let listener = UnixListener::bind(lab.path("listener")).unwrap();
    let _client = UnixStream::connect(lab.path("listener")).unwrap();
    let child = reader(&lab, listener.accept().unwrap().0.into());
    let pid = child.id().to_string();
    assert_eq!(answers(&lab, &pid), [true, false, true]);
    let image = lab.path("image").display().to_string();
    let refused = lab.say(["checkpoint", &pid, "--image", &image, "--kill"]);
    assert_eq!(refused.code, Some(3), "{refused:?}");
    for words in ["--lose-connections", "harmless if the program connects again"] {
        assert!(refused.stderr.contains(words), "{words}: {refused:?}");
    }
    end(child);
}

#[test]
fn a_lost_connection_ends_as_if_the_peer_had_gone() {
    let lab = Lab::new();
    if !crate::common::supported() {
        return;
    }
    let (outside, inside) = UnixStream::pair().unwrap();
    let (reading, writing) = std::io::pipe().unwrap();
    let peers: [(OwnedFd, OwnedFd, &str); 2] =
        [(outside.into(), inside.into(), "socket"), (writing.into(), reading.into(), "pipe")];
    for (peer, end, name) in peers {
        let mut child = reader(&lab, end);
        let pid = child.id().to_string();
        assert_eq!(answers(&lab, &pid), [false, false, true], "{name}");
        let image = lab.path(name).display().to_string();
        let words = ["checkpoint", &pid, "--image", &image, "--lose-connections", "--kill"];
        let taken = lab.say(words);
        assert_eq!(taken.code, Some(0), "{taken:?}");
        child.wait().unwrap();
        let restored = lab.say(["restore", &image]);
        assert_eq!(restored.code, Some(0), "{name}: {restored:?}");
        drop(peer);
    }
}

#[test]
fn a_restore_by_hand_reports_the_connections_that_have_ended() {
    const CLIENT: &str = "import socket, sys
peer = socket.create_connection(('127.0.0.1', int(sys.argv[1])))
try: peer.recv(1)
except OSError: pass";
    let lab = Lab::new();
    if !crate::common::supported() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let run = ["run", "--name", "job", "--every", "100ms", "--", "python3", "-c", CLIENT, &port];
    let mut guardian = lab.undying(run).spawn().unwrap();
    let peer = listener.accept().unwrap();
    let taken = || lab.json(&["status", "job"])[0]["checkpoints"].as_u64();
    let before = until("a checkpoint", &taken);
    until("checkpoints of the connection", || taken().filter(|taken| *taken >= before + 3));
    ProcessId::of(Pid(guardian.id() as i32)).unwrap().signal(Signal::TERM).unwrap();
    assert_eq!(wait(&mut guardian).code(), Some(143));
    drop(peer);
    let restored = lab.say(["restore", "job"]);
    assert_eq!(restored.code, Some(0), "{restored:?}");
    assert!(restored.stderr.contains("1 connection ended with the program"), "{restored:?}");
}
