//! Unix sockets of this process taken apart and built again.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use model::DescriptionId;
use sys::socket::Message;

use super::super::in_flight::discover;
use super::super::test_support::{alone, capture, create, describe_all, known_of, us};
use super::*;

const SOCK_SEQPACKET: i32 = 5;

/// Captures, closes and builds again; the result is in the order of the sockets, then what was hidden.
fn end_and_restore(sockets: Vec<OwnedFd>, others: Vec<OwnedFd>) -> Vec<Option<OwnedFd>> {
    let fds: Vec<BorrowedFd<'_>> = sockets.iter().chain(&others).map(AsFd::as_fd).collect();
    let mut descriptions = describe_all(&fds);
    discover(&mut descriptions, true).unwrap();
    let records = capture(&Unix, &descriptions, true).unwrap();
    let count = descriptions.len();
    drop(descriptions);
    let existing = others
        .into_iter()
        .enumerate()
        .map(|(index, other)| (DescriptionId((sockets.len() + index) as u32), other))
        .collect();
    drop(sockets);
    let mut created = create(&Unix, &records, existing, false).unwrap();
    (0..count).map(|id| created.remove(&DescriptionId(id as u32))).collect()
}

fn two(mut sockets: Vec<Option<OwnedFd>>) -> (OwnedFd, OwnedFd) {
    let second = sockets.remove(1).unwrap();
    (sockets.remove(0).unwrap(), second)
}

fn send(socket: &OwnedFd, bytes: &[u8]) {
    sys::socket::send(socket.as_fd(), &Message { bytes, ..Message::default() }).unwrap();
}

fn receive(socket: &OwnedFd) -> Vec<u8> {
    let mut buffer = [0; 256];
    let length = rustix::io::read(socket, &mut buffer).unwrap();
    buffer[..length].to_vec()
}

#[test]
fn a_pair_comes_back_with_both_queues_borders_and_descriptors() {
    let _alone = alone();
    let (left, right) = sys::socket::pair(SOCK_SEQPACKET).unwrap();
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    send(&left, b"first");
    let rights = [reader.as_fd()];
    let message = Message { bytes: b"second", rights: &rights, ..Message::default() };
    sys::socket::send(left.as_fd(), &message).unwrap();
    send(&right, b"back");
    let (left, right) = two(end_and_restore(vec![left, right], vec![reader]));
    assert_eq!(receive(&right), b"first");
    let mut buffer = [0; 16];
    let seen = sys::socket::peek(right.as_fd(), &mut buffer).unwrap().unwrap();
    assert_eq!((&buffer[..seen.length], seen.rights.len()), (b"second".as_slice(), 1));
    rustix::io::write(&writer, b"!").unwrap();
    assert_eq!(receive(&seen.rights[0]), b"!");
    assert_eq!(receive(&left), b"back");
    send(&right, b"on");
    assert_eq!(receive(&left), b"on");
}

#[test]
fn a_socket_in_flight_that_nobody_else_holds_is_found_and_comes_back() {
    let _alone = alone();
    let (left, right) = sys::socket::pair(state::SOCK_STREAM).unwrap();
    let (near, far) = sys::socket::pair(state::SOCK_STREAM).unwrap();
    send(&near, b"inside");
    let rights = [far.as_fd()];
    sys::socket::send(left.as_fd(), &Message { bytes: b"x", rights: &rights, ..Message::default() }).unwrap();
    drop(far);
    let mut restored = end_and_restore(vec![left, right, near], Vec::new());
    assert_eq!(restored.len(), 4);
    let near = restored.remove(2).unwrap();
    let right = restored.remove(1).unwrap();
    drop(restored);
    let seen = sys::socket::peek(right.as_fd(), &mut [0; 4]).unwrap().unwrap();
    assert_eq!(receive(&seen.rights[0]), b"inside");
    send(&seen.rights[0], b"answer");
    assert_eq!(receive(&near), b"answer");
}

#[test]
fn what_a_closed_peer_had_sent_is_read_before_the_end() {
    let _alone = alone();
    let (left, right) = UnixStream::pair().unwrap();
    (&left).write_all(b"last").unwrap();
    drop(left);
    let restored = end_and_restore(vec![right.into()], Vec::new()).remove(0).unwrap();
    let mut text = String::new();
    UnixStream::from(restored).read_to_string(&mut text).unwrap();
    assert_eq!(text, "last");
}

#[test]
fn shut_halves_stay_shut() {
    let _alone = alone();
    let (left, right) = UnixStream::pair().unwrap();
    (&left).write_all(b"x").unwrap();
    left.shutdown(std::net::Shutdown::Write).unwrap();
    let (left, right) = two(end_and_restore(vec![left.into(), right.into()], Vec::new()));
    assert_eq!((receive(&right), receive(&right)), (b"x".to_vec(), Vec::new()));
    assert!(rustix::io::write(&left, b"y").is_err());
    send(&right, b"z");
    assert_eq!(receive(&left), b"z");
}

#[test]
fn listeners_connections_and_waiting_clients_keep_their_names() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("listener");
    let listener = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&listener, 5).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    let server = listener.accept().unwrap().0;
    (&client).write_all(b"to the server").unwrap();
    let waiting = [UnixStream::connect(&path).unwrap(), UnixStream::connect(&path).unwrap()];
    (&waiting[0]).write_all(b"zero").unwrap();
    (&waiting[1]).write_all(b"one").unwrap();
    let [first, second] = waiting.map(OwnedFd::from);
    let sockets = vec![listener.into(), client.into(), server.into(), first, second];
    let mut restored = end_and_restore(sockets, Vec::new());
    let mut take = |index: usize| restored[index].take().unwrap();
    let listener = UnixListener::from(take(0));
    let (client, server) = (UnixStream::from(take(1)), UnixStream::from(take(2)));
    assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(path.as_path()));
    assert_eq!(server.local_addr().unwrap().as_pathname(), Some(path.as_path()));
    assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(path.as_path()));
    let mut buffer = [0; 13];
    (&server).read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"to the server");
    for (index, text) in [(3, "zero"), (4, "one")] {
        let mut client = UnixStream::from(take(index));
        let mut accepted = listener.accept().unwrap().0;
        let mut buffer = vec![0; text.len()];
        accepted.read_exact(&mut buffer).unwrap();
        assert_eq!(buffer, text.as_bytes());
        accepted.write_all(b"!").unwrap();
        client.read_exact(&mut buffer[..1]).unwrap();
    }
    let late = UnixStream::connect(&path).unwrap();
    assert!(listener.accept().is_ok());
    drop(late);
    let own = SockDiag::open().unwrap().unix_sockets(1 << sock_diag::LISTENING).unwrap();
    let seen = own
        .iter()
        .find(|one| {
            one.name.as_deref().is_some_and(|name| {
                state::show(&sys::socket::SocketAddress([b"xx", name].concat())) == path.to_str().unwrap()
            })
        })
        .unwrap();
    assert_eq!(seen.send_queue, 5);
}

#[test]
fn datagrams_wait_with_the_name_of_their_sender() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (there, here) = (folder.path().join("mailbox"), folder.path().join("sender"));
    let mailbox = UnixDatagram::bind(&there).unwrap();
    let sender = UnixDatagram::bind(&here).unwrap();
    let connected = UnixDatagram::unbound().unwrap();
    connected.connect(&there).unwrap();
    sender.send_to(b"named", &there).unwrap();
    connected.send(b"unnamed").unwrap();
    std::fs::remove_file(&here).unwrap();
    let mut restored = end_and_restore(vec![mailbox.into(), sender.into(), connected.into()], Vec::new());
    let connected = UnixDatagram::from(restored.remove(2).unwrap());
    let mailbox = UnixDatagram::from(restored.remove(0).unwrap());
    assert!(!here.exists() && there.exists());
    let mut buffer = [0; 16];
    let (length, from) = mailbox.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from.as_pathname()), (b"named".as_slice(), Some(here.as_path())));
    let (length, from) = mailbox.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from.is_unnamed()), (b"unnamed".as_slice(), true));
    connected.send(b"more").unwrap();
    assert_eq!(mailbox.recv(&mut buffer).unwrap(), 4);
}

#[test]
fn a_name_in_use_or_taken_by_another_file_is_refused_by_name() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let records = capture(&Unix, &describe_all(&[listener.as_fd()]), false).unwrap();
    let refuse = || create(&Unix, &records, HashMap::new(), false).unwrap_err().to_string();
    let error = refuse();
    assert!(error.contains(path.to_str().unwrap()) && error.contains("another program"), "{error}");
    drop(listener);
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"precious").unwrap();
    let error = refuse();
    assert!(error.contains("another file"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_peer_outside_is_an_obstacle_with_its_process() {
    let _alone = alone();
    let (left, right) = UnixStream::pair().unwrap();
    let descriptions = describe_all(&[left.as_fd()]);
    let scope = CaptureScope {
        pids: &[],
        descriptions: &known_of(&descriptions),
        open: &descriptions,
        inherited: &[],
        table: &[],
        kills: false,
        sockets: &Default::default(),
        areas: Vec::new(),
    };
    let found = Unix.obstacles(&descriptions[0], &scope);
    assert_eq!(found.len(), 1);
    assert!(found[0].place.starts_with("connected to"), "{found:?}");
    let inherited = [(descriptions[0].stat.st_dev, descriptions[0].inode())];
    let scope = CaptureScope { inherited: &inherited, ..scope };
    assert!(Unix.obstacles(&descriptions[0], &scope).is_empty());
    let both = describe_all(&[left.as_fd(), right.as_fd()]);
    let scope = CaptureScope {
        pids: &[us()],
        descriptions: &known_of(&both),
        open: &both,
        inherited: &[],
        table: &[],
        kills: true,
        sockets: &Default::default(),
        areas: Vec::new(),
    };
    assert!(Unix.obstacles(&both[0], &scope).is_empty());
}

#[test]
fn a_relative_name_stays_relative() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let socket = sys::socket::create(AF_UNIX, state::SOCK_STREAM, 0).unwrap();
    let mut name = sys::socket::SocketAddress((AF_UNIX as u16).to_ne_bytes().to_vec());
    name.0.extend(b"./relative\0");
    let bound = sys::working_directory::within(&path, || sys::socket::bind(socket.as_fd(), &name));
    bound.unwrap().unwrap();
    let restored = end_and_restore(vec![socket], Vec::new()).remove(0).unwrap();
    assert_eq!(sys::socket::local(restored.as_fd()).unwrap(), name);
    assert!(path.join("relative").exists());
}
