//! Tests of the observer with threads of this process, which have a filter with a listener.
//!
//! Owns: tests.
//! Does not: test which sends matter.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixListener, UnixStream};

use super::*;
use crate::seccomp_listener;

/// Runs `work` in a thread with a filter, after the thread is observed. Returns the observed sockets.
fn observed(work: impl FnOnce() + Send) -> Option<Vec<ObservedSocket>> {
    let observer = match SendObserver::shared() {
        Err(error) if [libc::EPERM, libc::ENOSYS, libc::ENOENT].contains(&error.errno.0) => {
            println!("unsupported: {error}");
            return None;
        }
        observer => observer.unwrap(),
    };
    std::thread::scope(|scope| {
        scope
            .spawn(|| {
                let own = Tid(rustix::thread::gettid().as_raw_nonzero().get());
                let before = observer.observe(own).unwrap_err();
                assert_eq!(before.errno, Errno::ENOENT);
                let _listener = seccomp_listener::install(&seccomp_listener::watch_program()).unwrap();
                let tree = observer.observe(own).unwrap();
                work();
                Some(tree.sockets().unwrap())
            })
            .join()
            .unwrap()
    })
}

fn find(sockets: &[ObservedSocket], inode: u64) -> Option<&ObservedSocket> {
    sockets.iter().find(|socket| socket.inode == inode)
}

fn inode(socket: &impl AsFd) -> u64 {
    rustix::fs::fstat(socket).unwrap().st_ino
}

#[test]
fn both_ends_of_a_tcp_connection_are_recorded_with_the_time_of_the_last_send() {
    for any in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
        let server = TcpListener::bind(any).unwrap();
        let port = server.local_addr().unwrap().port();
        let host = if any.starts_with("[::1]") { "::1" } else { "127.0.0.1" };
        let mut client = TcpStream::connect((host, port)).unwrap();
        let (mut accepted, _) = server.accept().unwrap();
        let idle = TcpStream::connect((host, port)).unwrap();
        let began = crate::clock::monotonic();
        let Some(sockets) = observed(|| {
            client.write_all(b"request").unwrap();
            accepted.read_exact(&mut [0; 7]).unwrap();
        }) else {
            return;
        };
        let (sender, receiver) =
            (find(&sockets, inode(&client)).unwrap(), find(&sockets, inode(&accepted)).unwrap());
        assert!(sender.sent.is_some_and(|at| at >= began && at <= crate::clock::monotonic()));
        assert_eq!(receiver.sent, None);
        assert_eq!((sender.local, sender.remote), (receiver.remote, receiver.local));
        assert_eq!(sender.remote.map(|end| end.port()), Some(port));
        assert_eq!(sender.local, Some(client.local_addr().unwrap()));
        assert!(find(&sockets, inode(&idle)).is_none(), "no data was sent over this connection");
    }
}

#[test]
fn an_accepted_unix_socket_has_an_address_and_its_peer_does_not() {
    let name = format!("undying-send-observer-{}", std::process::id());
    let address = net::SocketAddr::from_abstract_name(name).unwrap();
    let server = UnixListener::bind_addr(&address).unwrap();
    let mut client = UnixStream::connect_addr(&address).unwrap();
    let (mut accepted, _) = server.accept().unwrap();
    let Some(sockets) = observed(|| {
        accepted.write_all(b"reply").unwrap();
        client.write_all(b"thanks").unwrap();
    }) else {
        return;
    };
    let (of_server, of_client) =
        (find(&sockets, inode(&accepted)).unwrap(), find(&sockets, inode(&client)).unwrap());
    assert!(of_server.has_address && !of_client.has_address);
    assert_eq!((of_server.peer_inode, of_client.peer_inode), (of_client.inode, of_server.inode));
}

#[test]
fn a_port_that_was_bound_differs_from_a_port_that_the_kernel_has_chosen() {
    let bound = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = bound.local_addr().unwrap().port();
    drop(bound);
    let server = UdpSocket::bind(("127.0.0.1", port)).unwrap();
    let client =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).unwrap();
    let to = server.local_addr().unwrap();
    rustix::net::connect(&client, &to).unwrap();
    let from = std::net::UdpSocket::from(client.try_clone().unwrap()).local_addr().unwrap();
    let Some(sockets) = observed(|| {
        server.send_to(b"answer", from).unwrap();
        rustix::net::send(&client, b"question", rustix::net::SendFlags::empty()).unwrap();
    }) else {
        return;
    };
    assert!(find(&sockets, inode(&server)).unwrap().has_bound_port);
    assert!(!find(&sockets, inode(&client)).unwrap().has_bound_port);
}

#[test]
fn sends_of_other_threads_and_after_the_end_are_not_recorded() {
    let (mut other, _end) = UnixStream::pair().unwrap();
    let (mut own, _end) = UnixStream::pair().unwrap();
    let Some(sockets) = observed(|| own.write_all(b"x").unwrap()) else { return };
    other.write_all(b"x").unwrap();
    assert!(find(&sockets, inode(&own)).is_some());
    let Some(sockets) = observed(|| {}) else { return };
    assert!(find(&sockets, inode(&own)).is_none() && find(&sockets, inode(&other)).is_none());
}
