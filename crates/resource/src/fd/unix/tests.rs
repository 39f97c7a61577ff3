//! Tests: Unix sockets of this process are captured and restored.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use model::DescriptionId;
use rustix::fs::inotify::ReadFlags;
use sys::socket::Message;

use super::super::in_flight::discover;
use super::super::socket_family::{SOCK_SEQPACKET, SOCK_STREAM};
use super::super::test_support::{alone, capture, create, describe_all, known_of, us};
use super::*;
use crate::support::testing::Watched;

/// Captures, closes and restores sockets. The results are in the order of the sockets, followed by the others and the
/// sockets found in flight.
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
fn a_pair_is_restored_with_both_queues_boundaries_and_descriptors() {
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
fn a_socket_only_in_flight_is_found_and_restored() {
    let _alone = alone();
    let (left, right) = sys::socket::pair(SOCK_STREAM).unwrap();
    let (near, far) = sys::socket::pair(SOCK_STREAM).unwrap();
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
fn bytes_of_a_closed_peer_are_read_before_the_end() {
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
fn unread_datagrams_keep_the_name_of_their_sender() {
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
fn a_name_in_use_or_of_another_file_is_refused_by_name() {
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
fn an_outside_peer_is_an_obstacle_with_its_process() {
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
        loses_connections: false,
        sockets: &Default::default(),
        mappings: Vec::new(),
        index: Default::default(),
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
        loses_connections: false,
        sockets: &Default::default(),
        mappings: Vec::new(),
        index: Default::default(),
    };
    assert!(Unix.obstacles(&both[0], &scope).is_empty());
}

/// Captures a client of an outside server, and restores it while the server exists. The connection may be lost.
/// Asserts that the restored client reads the remaining bytes and then end of file.
fn assert_at_its_end(client: UnixStream, mut server: UnixStream) {
    server.write_all(b"last").unwrap();
    let descriptions = describe_all(&[client.as_fd()]);
    let records = super::super::test_support::capture_losing(&Unix, &descriptions, true).unwrap();
    drop((descriptions, client));
    let mut created = create(&Unix, &records, HashMap::new(), false).unwrap();
    let mut client = UnixStream::from(created.remove(&DescriptionId(0)).unwrap());
    let mut all = Vec::new();
    client.read_to_end(&mut all).unwrap();
    assert_eq!(all, b"last");
    assert!(client.write_all(b"x").is_err());
}

#[test]
fn a_lost_connection_to_an_outside_server_is_restored_as_closed() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("server");
    let listener = UnixListener::bind(&path).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    assert_at_its_end(client, listener.accept().unwrap().0);
    // The outside server still has its name.
    UnixStream::connect(&path).unwrap();
}

#[test]
fn a_lost_connection_does_not_need_the_abstract_name_of_the_server() {
    let _alone = alone();
    let name = format!("undying-test-{}", std::process::id());
    let address = std::os::unix::net::SocketAddr::from_abstract_name(&name).unwrap();
    let listener = UnixListener::bind_addr(&address).unwrap();
    let client = UnixStream::connect_addr(&address).unwrap();
    assert_at_its_end(client, listener.accept().unwrap().0);
    UnixStream::connect_addr(&address).unwrap();
}

#[test]
fn a_relative_name_stays_relative() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let socket = sys::socket::create(AF_UNIX, SOCK_STREAM, 0).unwrap();
    let mut name = sys::socket::SocketAddress((AF_UNIX as u16).to_ne_bytes().to_vec());
    name.0.extend(b"./relative\0");
    let bound = sys::working_directory::within(&path, || sys::socket::bind(socket.as_fd(), &name));
    bound.unwrap().unwrap();
    let restored = end_and_restore(vec![socket], Vec::new()).remove(0).unwrap();
    assert_eq!(sys::socket::local(restored.as_fd()).unwrap(), name);
    assert!(path.join("relative").exists());
}

/// Returns the sorted names in a directory.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn inode(path: &Path) -> u64 {
    std::fs::symlink_metadata(path).unwrap().ino()
}

/// Returns a listener that is bound to `first` in a folder, and the canonical path of the folder.
fn bound_first(folder: &tempfile::TempDir) -> (UnixListener, PathBuf) {
    let path = folder.path().canonicalize().unwrap();
    (UnixListener::bind(path.join("first")).unwrap(), path)
}

fn restored_listener(listener: UnixListener) -> UnixListener {
    UnixListener::from(end_and_restore(vec![listener.into()], Vec::new()).remove(0).unwrap())
}

fn assert_reachable(listener: &UnixListener, path: &Path) {
    let client = UnixStream::connect(path).unwrap();
    listener.set_nonblocking(true).unwrap();
    listener.accept().unwrap();
    drop(client);
}

#[test]
fn a_renamed_listener_keeps_its_address_and_its_new_name() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (listener, path) = bound_first(&folder);
    std::fs::rename(path.join("first"), path.join("present")).unwrap();
    std::fs::set_permissions(path.join("present"), std::fs::Permissions::from_mode(0o751)).unwrap();
    let listener = restored_listener(listener);
    assert_eq!(names_in(&path), ["present"]);
    assert_eq!(std::fs::metadata(path.join("present")).unwrap().mode() & 0o7777, 0o751);
    assert_eq!(listener.local_addr().unwrap().as_pathname(), Some(path.join("first").as_path()));
    assert_reachable(&listener, &path.join("present"));
    let listener = restored_listener(listener);
    assert_eq!(names_in(&path), ["present"]);
    assert_reachable(&listener, &path.join("present"));
}

#[test]
fn a_listener_whose_first_name_was_replaced_by_a_link_is_restored_with_the_link() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (listener, path) = bound_first(&folder);
    std::fs::hard_link(path.join("first"), path.join("link")).unwrap();
    std::fs::remove_file(path.join("first")).unwrap();
    let listener = restored_listener(listener);
    assert_eq!(names_in(&path), ["link"]);
    assert_reachable(&listener, &path.join("link"));
    // The file now has two names, and one of them is the address.
    std::fs::hard_link(path.join("link"), path.join("first")).unwrap();
    let listener = restored_listener(listener);
    assert_eq!(names_in(&path), ["first", "link"]);
    assert_eq!(inode(&path.join("first")), inode(&path.join("link")));
    assert_reachable(&listener, &path.join("first"));
    assert_reachable(&listener, &path.join("link"));
}

#[test]
fn an_unknown_name_is_an_obstacle() {
    let _alone = alone();
    let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (listener, path) = bound_first(&folder);
    std::fs::hard_link(path.join("first"), other.path().join("far")).unwrap();
    let describe = || describe_all(&[listener.as_fd()]);
    let found = names::obstacle(&describe()[0]).unwrap();
    assert!(found.why.contains("2 names"), "{found:?}");
    let error = capture(&Unix, &describe(), false).unwrap_err().to_string();
    assert!(error.contains("help:"), "{error}");
    std::fs::remove_file(path.join("first")).unwrap();
    assert!(names::obstacle(&describe()[0]).is_some());
    std::fs::remove_file(other.path().join("far")).unwrap();
    assert!(names::obstacle(&describe()[0]).is_none());
    drop(restored_listener(listener));
    assert!(names_in(&path).is_empty());
}

#[test]
fn listeners_with_one_address_after_another_keep_their_clients() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (old, path) = bound_first(&folder);
    let old_client = UnixStream::connect(path.join("first")).unwrap();
    let old_server = old.accept().unwrap().0;
    std::fs::rename(path.join("first"), path.join("old")).unwrap();
    let new = UnixListener::bind(path.join("first")).unwrap();
    let waiting = UnixStream::connect(path.join("first")).unwrap();
    (&old_client).write_all(b"old").unwrap();
    (&waiting).write_all(b"new").unwrap();
    let sockets = vec![new.into(), old.into(), old_client.into(), old_server.into(), waiting.into()];
    let mut restored = end_and_restore(sockets, Vec::new());
    let mut take = |index: usize| restored[index].take().unwrap();
    let (new, old) = (UnixListener::from(take(0)), UnixListener::from(take(1)));
    assert_eq!(receive(&take(3)), b"old");
    let accepted = new.accept().unwrap().0;
    assert_eq!(receive(&accepted.into()), b"new");
    assert_eq!(names_in(&path), ["first", "old"]);
    assert_reachable(&new, &path.join("first"));
    assert_reachable(&old, &path.join("old"));
}

#[test]
fn a_failed_restore_puts_existing_files_back() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (listener, path) = bound_first(&folder);
    let lost = path.join("lost");
    std::fs::create_dir(&lost).unwrap();
    let second = UnixListener::bind(lost.join("second")).unwrap();
    let records = capture(&Unix, &describe_all(&[listener.as_fd(), second.as_fd()]), false).unwrap();
    drop((listener, second));
    let before = inode(&path.join("first"));
    std::fs::remove_dir_all(&lost).unwrap();
    let error = create(&Unix, &records, HashMap::new(), false).unwrap_err().to_string();
    assert!(error.contains("directory of this socket does not exist"), "{error}");
    assert_eq!(names_in(&path), ["first"]);
    assert_eq!(inode(&path.join("first")), before);
    // A failure of another kind follows after this kind has created its sockets.
    let fail_later = || {
        let (mut created, objects, mut shared) = (HashMap::new(), HashMap::new(), crate::Shared::default());
        let mut context = FdCreate {
            created: &mut created,
            inherited: &[],
            held: &mut Vec::new(),
            covered: &Default::default(),
            handed_on: &mut std::collections::HashSet::new(),
            objects: &objects,
            connections_lost: false,
            kept: &super::super::kind::Kept::default(),
            connections: &mut Default::default(),
            shared: &mut shared,
        };
        Unix.create(&records[..1], &mut context).unwrap();
        assert_ne!(inode(&path.join("first")), before);
    };
    fail_later();
    assert_eq!(names_in(&path), ["first"]);
    assert_eq!(inode(&path.join("first")), before);
    std::fs::remove_file(path.join("first")).unwrap();
    let error = create(&Unix, &records, HashMap::new(), false).unwrap_err().to_string();
    assert!(error.contains("lost"), "{error}");
    assert!(names_in(&path).is_empty());
}

/// Restores sockets while `held` sockets were kept open. Returns the new sockets, by the ids of `records`.
fn restore_with_held(records: &[FdRecord], held: &mut Vec<OwnedFd>) -> HashMap<DescriptionId, OwnedFd> {
    let (mut created, objects, mut shared) = (HashMap::new(), HashMap::new(), crate::Shared::default());
    let mut context = FdCreate {
        created: &mut created,
        inherited: &[],
        held,
        covered: &Default::default(),
        handed_on: &mut std::collections::HashSet::new(),
        objects: &objects,
        connections_lost: true,
        kept: &super::super::kind::Kept::default(),
        connections: &mut Default::default(),
        shared: &mut shared,
    };
    Unix.create(records, &mut context).unwrap();
    shared.keep();
    created
}

/// Relative addresses do not tell two listeners apart. The files of the listeners do.
#[test]
fn held_listeners_with_relative_addresses_are_found_by_their_files() {
    let _alone = alone();
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let bind = |folder: &tempfile::TempDir| {
        sys::working_directory::within(folder.path(), || UnixListener::bind("x")).unwrap().unwrap()
    };
    let listeners = folders.each_ref().map(bind);
    let records = capture(&Unix, &describe_all(&listeners.each_ref().map(AsFd::as_fd)), false).unwrap();
    let mut held: Vec<OwnedFd> = listeners.into_iter().rev().map(OwnedFd::from).collect();
    let mut created = restore_with_held(&records, &mut held);
    assert!(held.is_empty(), "a kept listener was not taken");
    for (folder, record) in folders.iter().zip(&records) {
        let listener = UnixListener::from(created.remove(&record.id).unwrap());
        listener.set_nonblocking(true).unwrap();
        let _client = UnixStream::connect(folder.path().join("x")).unwrap();
        listener.accept().expect("the listener has the file of the other one");
    }
}

/// A client inside the subject waits in a kept listener whose address is relative to a directory of the program.
#[test]
fn a_waiting_client_reaches_a_held_listener_with_a_relative_address() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let bound = sys::working_directory::within(folder.path(), || UnixListener::bind("x"));
    let listener = bound.unwrap().unwrap();
    let client = UnixStream::connect(folder.path().join("x")).unwrap();
    let records = capture(&Unix, &describe_all(&[listener.as_fd(), client.as_fd()]), false).unwrap();
    drop(client);
    let mut held = vec![OwnedFd::from(listener)];
    let mut created = restore_with_held(&records, &mut held);
    assert!(held.is_empty(), "the kept listener was not taken");
    let listener = UnixListener::from(created.remove(&records[0].id).unwrap());
    let mut client = UnixStream::from(created.remove(&records[1].id).unwrap());
    // The dead client waits in the kept listener, too.
    let [mut dead, mut accepted] = [(); 2].map(|()| listener.accept().unwrap().0);
    let mut said = [0_u8; 5];
    assert_eq!(dead.read(&mut said).unwrap(), 0);
    client.write_all(b"hello").unwrap();
    accepted.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"hello");
}

/// A checkpoint between bind(2) and listen(2): the kept listener is the later state of the same socket.
#[test]
fn the_file_of_a_held_listener_does_not_refuse_the_socket_that_did_not_listen_yet() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("x");
    let address = sys::socket::SocketAddress(
        [&1_u16.to_ne_bytes()[..], path.as_os_str().as_encoded_bytes(), b"\0"].concat(),
    );
    let socket = sys::socket::create(1, SOCK_STREAM, 0).unwrap();
    sys::socket::bind(socket.as_fd(), &address).unwrap();
    let records = capture(&Unix, &describe_all(&[socket.as_fd()]), false).unwrap();
    rustix::net::listen(&socket, 1).unwrap();
    let mut held = vec![socket];
    let created = restore_with_held(&records, &mut held);
    assert_eq!(held.len(), 1, "a listener is no socket that is only bound");
    rustix::net::listen(&created[&records[0].id], 1).unwrap();
    UnixStream::connect(&path).unwrap();
}

/// A held listener has its own waiting clients, so connections of the image must use another listener.
#[test]
fn clients_of_a_held_listener_are_not_given_to_old_connections() {
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixStream};
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("kept");
    let named = SocketAddr::from_pathname(&path).unwrap();
    let hidden = SocketAddr::from_abstract_name(format!("undying-kept-{}", std::process::id())).unwrap();
    for address in [named, hidden] {
        let listener = UnixListener::bind_addr(&address).unwrap();
        let mut gone = UnixStream::connect_addr(&address).unwrap();
        let (server, _) = listener.accept().unwrap();
        gone.write_all(b"old").unwrap();
        let records = capture(&Unix, &describe_all(&[listener.as_fd(), server.as_fd()]), false).unwrap();
        drop((gone, server));
        let mut waiting = UnixStream::connect_addr(&address).unwrap();
        waiting.write_all(b"new").unwrap();
        let mut held = vec![OwnedFd::from(listener)];
        let mut created = restore_with_held(&records, &mut held);
        assert!(held.is_empty(), "the kept listener was not taken");
        let listener = UnixListener::from(created.remove(&records[0].id).unwrap());
        let (mut accepted, _) = listener.accept().unwrap();
        let mut said = [0_u8; 3];
        accepted.read_exact(&mut said).unwrap();
        assert_eq!(&said, b"new", "{address:?}");
        listener.set_nonblocking(true).unwrap();
        assert!(listener.accept().is_err(), "another client waits at {address:?}");
        assert!(created.contains_key(&records[1].id), "the old connection has its descriptor");
    }
}

#[test]
fn another_user_sees_a_socket_file_only_when_it_is_complete() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (listener, path) = bound_first(&folder);
    std::fs::set_permissions(path.join("first"), std::fs::Permissions::from_mode(0o640)).unwrap();
    let records = capture(&Unix, &describe_all(&[listener.as_fd()]), false).unwrap();
    drop(listener);
    let watched = Watched::new(&path);
    let built = create(&Unix, &records, HashMap::new(), false).unwrap();
    assert_eq!(watched.events(), [(ReadFlags::MOVED_TO, "first".to_owned())]);
    assert_eq!(std::fs::metadata(path.join("first")).unwrap().mode() & 0o7777, 0o640);
    drop(built);
}

#[test]
fn a_replaced_directory_is_refused() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        return println!("unsupported: root");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let (directory, precious) = (path.join("directory"), path.join("precious"));
    std::fs::create_dir(&directory).unwrap();
    let listener = UnixListener::bind(directory.join("socket")).unwrap();
    let records = capture(&Unix, &describe_all(&[listener.as_fd()]), false).unwrap();
    drop(listener);
    std::fs::rename(&directory, path.join("moved")).unwrap();
    std::fs::create_dir(&precious).unwrap();
    let refuse = || create(&Unix, &records, HashMap::new(), false).unwrap_err().to_string();
    std::os::unix::fs::symlink("precious", &directory).unwrap();
    let error = refuse();
    assert!(error.contains("symbolic link"), "{error}");
    std::fs::remove_file(&directory).unwrap();
    // A user that may write to the folder renames a directory of root.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o777)).unwrap();
    std::fs::rename(&precious, &directory).unwrap();
    let error = refuse();
    assert!(error.contains("another directory"), "{error}");
    assert!(names_in(&directory).is_empty());
    // If only root can have replaced the directory, the directory is accepted.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    create(&Unix, &records, HashMap::new(), false).unwrap();
    assert_eq!(names_in(&directory), ["socket"]);
}

#[test]
fn a_message_keeps_the_path_of_an_outside_sender() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let mailbox = UnixDatagram::bind(path.join("mailbox")).unwrap();
    let outside = UnixDatagram::bind(path.join("outside")).unwrap();
    outside.send_to(b"hello", path.join("mailbox")).unwrap();
    let mailbox = UnixDatagram::from(end_and_restore(vec![mailbox.into()], Vec::new()).remove(0).unwrap());
    let mut buffer = [0; 16];
    let (length, from) = mailbox.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"hello");
    assert_eq!(from.as_pathname(), Some(path.join("outside").as_path()));
    mailbox.send_to(b"answer", path.join("outside")).unwrap();
    assert_eq!(names_in(&path), ["mailbox", "outside"]);
}

#[test]
fn a_client_of_an_outside_listener_does_not_need_its_name() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let (listener, path) = bound_first(&folder);
    let client = UnixStream::connect(path.join("first")).unwrap();
    let server = listener.accept().unwrap().0;
    (&client).write_all(b"x").unwrap();
    let (client, server) = two(end_and_restore(vec![client.into(), server.into()], Vec::new()));
    assert_eq!(receive(&server), b"x");
    let client = UnixStream::from(client);
    assert_eq!(client.peer_addr().unwrap().as_pathname(), Some(path.join("first").as_path()));
    assert_eq!(names_in(&path), ["first"]);
    assert_reachable(&listener, &path.join("first"));
}

#[test]
fn an_urgent_byte_is_an_obstacle_until_it_is_read() {
    let _alone = alone();
    let (left, right) = UnixStream::pair().unwrap();
    if let Err(errno) = rustix::net::send(&left, b"!", rustix::net::SendFlags::OOB) {
        return println!("unsupported: urgent bytes in Unix sockets: {errno}");
    }
    let describe = || describe_all(&[right.as_fd(), left.as_fd()]);
    assert!(urgent_byte(&describe()[0]).is_some() && urgent_byte(&describe()[1]).is_none());
    let error = capture(&Unix, &describe(), false).unwrap_err().to_string();
    assert!(error.contains("MSG_OOB") && error.contains("help:"), "{error}");
    let mut byte = [0; 1];
    rustix::net::recv(&right, &mut byte, rustix::net::RecvFlags::OOB).unwrap();
    assert!(urgent_byte(&describe()[0]).is_none());
    capture(&Unix, &describe(), false).unwrap();
}

#[test]
fn the_groups_of_the_connecting_process_are_restored() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap().join("socket");
    let listener = UnixListener::bind(&path).unwrap();
    let client = sys::socket::create(AF_UNIX, SOCK_STREAM, 0).unwrap();
    let mut address = (AF_UNIX as u16).to_ne_bytes().to_vec();
    address.extend(path.as_os_str().as_encoded_bytes());
    address.push(0);
    let address = sys::socket::SocketAddress(address);
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
    let who = sys::socket::Credentials { pid: 4_001, uid: 1234, gid: 4321 };
    let act = sys::stand_in::Act::Connect { socket: client.as_fd(), address: &address };
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    if let Err(error) = sys::stand_in::perform(who, &[5, 1000], act) {
        return println!("unsupported: {error}");
    }
    let server = listener.accept().unwrap().0;
    let sockets = vec![listener.into(), client, server.into()];
    let server = end_and_restore(sockets, Vec::new()).remove(2).unwrap();
    assert_eq!(sys::socket::peer_credentials(server.as_fd()).unwrap(), who);
    assert_eq!(sys::socket::peer_groups(server.as_fd()).unwrap(), [5, 1000]);
}

/// Runs `create` in a thread, and fails the test if the call blocks.
fn create_in_time(records: Vec<FdRecord>) -> crate::Result<()> {
    const LIMIT: std::time::Duration = std::time::Duration::from_secs(20);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(create(&Unix, &records, HashMap::new(), false).map(drop)));
    receiver.recv_timeout(LIMIT).expect("a record makes the creation of a socket block forever")
}

#[test]
fn a_queue_that_does_not_fit_is_refused_without_blocking() {
    let _alone = alone();
    let (left, right) = UnixDatagram::pair().unwrap();
    left.send(b"one").unwrap();
    let mut records = capture(&Unix, &describe_all(&[left.as_fd(), right.as_fd()]), true).unwrap();
    let mut state: state::State = crate::error::decode(NAME, &records[1].payload).unwrap();
    // The limit net.unix.max_dgram_qlen is 10 or 512.
    state.queue = vec![state.queue[0].clone(); 100_000];
    records[1].payload = prost::Message::encode_to_vec(&state);
    let error = create_in_time(records).unwrap_err();
    assert!(error.to_string().contains("Resource temporarily unavailable"), "{error}");
}

#[test]
fn more_clients_than_the_backlog_are_refused_without_blocking() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("listener");
    let listener = UnixListener::bind(&path).unwrap();
    let client = UnixStream::connect(&path).unwrap();
    let mut records = capture(&Unix, &describe_all(&[listener.as_fd(), client.as_fd()]), true).unwrap();
    drop((listener, client));
    std::fs::remove_file(path).unwrap();
    let mut state: state::State = crate::error::decode(NAME, &records[0].payload).unwrap();
    // The limit net.core.somaxconn is 128 or 4096.
    state.listener.as_mut().unwrap().waiting = vec![1; 10_000];
    records[0].payload = prost::Message::encode_to_vec(&state);
    assert!(Unix.check(1, &records[0].payload).unwrap_err().to_string().contains("twice"));
    let error = create_in_time(records).unwrap_err();
    assert!(error.to_string().contains("Resource temporarily unavailable"), "{error}");
}
