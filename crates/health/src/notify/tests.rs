//! Tests of messages over real sockets: from the process tree, from outside the tree, too long, and too many.
//!
//! Owns: a sender for each of these cases.
//! Does not: test the parser of lines; `message` does.

use std::ffi::OsString;
use std::io::Read as _;
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::process::Command;
use std::time::Duration;

use model::Pid;
use sys::Errno;
use sys::socket::{Message as Sent, send};
use testkit::until;

use super::*;
use crate::test_support::{Running, compile};

/// A program that sends WATCHDOG=1 to the abstract name in NOTIFY_SOCKET, and continues to run.
const SENDER: &str = r#"
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
int main(void) {
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    const char *name = getenv("NOTIFY_SOCKET");
    memcpy(to.sun_path + 1, name + 1, strlen(name) - 1);
    socklen_t length = sizeof(sa_family_t) + strlen(name);
    int sender = socket(AF_UNIX, SOCK_DGRAM, 0);
    if (sendto(sender, "WATCHDOG=1", 10, 0, (struct sockaddr *)&to, length) != 10)
        return 1;
    sleep(1000);
    return 0;
}
"#;

fn own() -> Pid {
    Pid(std::process::id() as i32)
}

/// Creates a socket that accepts messages of this process. `test` is part of its name.
fn bound(test: &str) -> NotifySocket {
    let name = format!("undying-test-{}-{test}", std::process::id());
    let mut socket = NotifySocket::bind_abstract(&name).unwrap();
    socket.set_root(Some(own()));
    socket
}

fn connected(socket: &NotifySocket) -> UnixDatagram {
    let sender = UnixDatagram::unbound().unwrap();
    let address = SocketAddr::from_abstract_name(&socket.name().as_bytes()[1..]).unwrap();
    sender.connect_addr(&address).unwrap();
    sender.set_nonblocking(true).unwrap();
    sender
}

fn signs(messages: Vec<Message>) -> Vec<Sign> {
    messages.into_iter().flat_map(|message| message.signs).collect()
}

#[test]
fn messages_of_the_tree_count_and_those_of_others_do_not() {
    let mut socket = bound("tree");
    let sender = connected(&socket);
    sender.send(b"READY=1\nSTATUS=up").unwrap();
    let messages = socket.advance().unwrap();
    assert_eq!(messages, [Message { sender: own(), signs: vec![Sign::Ready, Sign::Status("up".into())] }]);
    // This test process is not a descendant of `other`.
    let other = Running::shell("exec sleep 1000");
    for root in [Some(other.pid()), None] {
        socket.set_root(root);
        sender.send(b"READY=1").unwrap();
        assert_eq!(socket.advance().unwrap(), []);
    }
    assert_eq!(socket.ignored(), Ignored { of_strangers: 2, too_long: 0 });
}

#[test]
fn a_descendant_counts_and_may_send_to_a_name_without_a_file() {
    let name = format!("undying-test-{}-descendant", std::process::id());
    let mut socket = NotifySocket::bind_abstract(&name).unwrap();
    assert_eq!(socket.name(), OsString::from(format!("@{name}")));
    assert!(NotifySocket::bind_abstract(&name).is_err());
    socket.set_root(Some(own()));
    let folder = tempfile::tempdir().unwrap();
    let program = compile(folder.path(), SENDER);
    // The sender is a grandchild of this process.
    let mut command = Command::new("sh");
    command.args(["-c", "$0; true"]).arg(&program).env(NOTIFY_SOCKET, socket.name());
    let shell = Running::start(&mut command);
    let message = until("a message of the descendant", || socket.advance().unwrap().pop());
    assert_eq!(message.signs, [Sign::Watchdog]);
    assert_ne!(message.sender, shell.pid());
    // The parent of the sender is the shell.
    let parent = tracee::procfs::stat(message.sender).unwrap().ppid;
    assert_eq!(parent, shell.pid());
}

#[test]
fn long_messages_and_floods_are_bounded() {
    let mut socket = bound("long");
    let sender = connected(&socket);
    let long = [b"READY=1\n".as_slice(), &[b'a'; 100_000]].concat();
    sender.send(&long).unwrap();
    assert_eq!(socket.advance().unwrap(), []);
    assert_eq!(socket.ignored().too_long, 1);
    let exact = [b"READY=1\nSTATUS=".as_slice(), &[b'a'; 4096 - 15]].concat();
    sender.send(&exact).unwrap();
    assert_eq!(signs(socket.advance().unwrap()).len(), 2);
    let flood = std::thread::spawn(move || {
        for count in 0..10 * MESSAGES_PER_CALL {
            until("room in the queue", || sender.send(format!("ERRNO={}", count + 1).as_bytes()).ok());
        }
    });
    let mut received = Vec::new();
    while received.len() < 10 * MESSAGES_PER_CALL {
        let messages = socket.advance().unwrap();
        assert!(messages.len() <= MESSAGES_PER_CALL);
        received.extend(signs(messages));
    }
    flood.join().unwrap();
    let expected: Vec<_> =
        (1..=10 * MESSAGES_PER_CALL as i32).map(|count| Sign::Errno(Errno(count))).collect();
    assert_eq!(received, expected);
}

#[test]
fn descriptors_that_come_along_are_closed() {
    let mut socket = bound("descriptors");
    let sender = connected(&socket);
    let before = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let (mut reader, writer) = std::io::pipe().unwrap();
    let rights = [writer.as_fd(); 200];
    let message = Sent { bytes: b"FDSTORE=1\nFDNAME=a\nREADY=1", rights: &rights, ..Sent::default() };
    send(sender.as_fd(), &message).unwrap();
    drop(writer);
    assert_eq!(signs(socket.advance().unwrap()), [Sign::Ready]);
    // The pipe has no writer left. If the receiver had kept a descriptor, this read would block forever.
    assert_eq!(reader.read(&mut [0; 1]).unwrap(), 0);
    drop(reader);
    // Other tests of this process also open descriptors, but fewer than 150.
    assert!(std::fs::read_dir("/proc/self/fd").unwrap().count() < before + 150);
}

fn manager(variables: &[(&str, &str)]) -> std::result::Result<ServiceManager, ManagerError> {
    ServiceManager::from_variables(|name| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(*value))
    })
}

#[test]
fn both_sides_understand_each_other() {
    let mut socket = bound("both");
    let name = socket.name().into_string().unwrap();
    let manager = manager(&[(NOTIFY_SOCKET, &name)]).unwrap();
    assert!(manager.is_there() && manager.watchdog_interval().is_none());
    manager.ready().unwrap();
    manager.status("two\nlines").unwrap();
    manager.status(&"ä".repeat(3000)).unwrap();
    manager.ping().unwrap();
    manager.stopping().unwrap();
    let received = signs(socket.advance().unwrap());
    let expected = [
        Sign::Ready,
        Sign::Status("two lines".to_owned()),
        Sign::Status("ä".repeat(512)),
        Sign::Watchdog,
        Sign::Stopping,
    ];
    assert_eq!(received, expected);
    drop(socket);
    assert_eq!(manager.ping().map_err(|error| error.errno), Err(rustix::io::Errno::CONNREFUSED.into()));
}

#[test]
fn the_socket_of_a_manager_can_be_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let receiver = UnixDatagram::bind(&path).unwrap();
    let manager = manager(&[(NOTIFY_SOCKET, path.to_str().unwrap())]).unwrap();
    manager.ready().unwrap();
    let mut message = [0; 64];
    let length = receiver.recv(&mut message).unwrap();
    assert_eq!(&message[..length], b"READY=1");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(manager.ping().map_err(|error| error.errno), Err(Errno::ENOENT));
}

#[test]
fn the_watchdog_is_for_the_process_that_it_names() {
    let us = std::process::id().to_string();
    let limit = |variables: &[(&str, &str)]| manager(variables).unwrap().watchdog_interval();
    let (socket, usec) = ((NOTIFY_SOCKET, "@x"), (WATCHDOG_USEC, "30000000"));
    assert_eq!(limit(&[socket, usec]), Some(Duration::from_secs(30)));
    assert_eq!(limit(&[socket, usec, (WATCHDOG_PID, &us)]), Some(Duration::from_secs(30)));
    assert_eq!(limit(&[socket, usec, (WATCHDOG_PID, "1")]), None);
    assert_eq!(limit(&[socket, (WATCHDOG_USEC, "0")]), None);
    assert_eq!(limit(&[socket, (WATCHDOG_USEC, "soon")]), None);
    assert_eq!(limit(&[usec]), None);
}

#[test]
fn without_a_manager_nothing_is_sent_and_an_unknown_form_is_an_error() {
    let none = manager(&[]).unwrap();
    assert!(!none.is_there());
    none.ready().unwrap();
    assert!(manager(&[(NOTIFY_SOCKET, "")]).is_ok_and(|manager| !manager.is_there()));
    for text in ["vsock:2:1234", "relative", "@", &format!("/{}", "a".repeat(200))] {
        assert!(matches!(manager(&[(NOTIFY_SOCKET, text)]), Err(ManagerError::Address(_))), "{text}");
    }
    assert_eq!(ServiceManager::VARIABLES, ["NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"]);
}
