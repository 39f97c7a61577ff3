//! Tests: sockets of this process are captured and restored.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use model::DescriptionId;
use rustix::event::PollFlags;
use sys::packet_hold::{PacketHold, SocketMark};

use super::super::in_flight::discover;
use super::super::inet_address;
use super::super::socket_events::events;
use super::super::socket_family::IPPROTO_TCP;
use super::super::sockets::{Sockets, may_repair};
use super::super::test_support::{
    alone, capture, capture_again, capture_losing, create, describe_all, known_of,
};
use super::connection::After;
use super::*;

/// Captures sockets for a kill of the subject, disconnects them without a packet, restores them and starts them. The
/// results are in the order of the sockets.
fn end_and_restore(sockets: Vec<OwnedFd>, lost: bool) -> Vec<Option<TcpStream>> {
    let fds: Vec<BorrowedFd<'_>> = sockets.iter().map(AsFd::as_fd).collect();
    let mut descriptions = describe_all(&fds);
    discover(&mut descriptions, true).unwrap();
    let records = capture(&Tcp, &descriptions, true).unwrap();
    drop(descriptions);
    let count = sockets.len();
    drop(sockets);
    let mut created = create(&Tcp, &records, HashMap::new(), lost).unwrap();
    Tcp.start(&records, &created).unwrap();
    (0..count).map(|id| created.remove(&DescriptionId(id as u32)).map(TcpStream::from)).collect()
}

fn restore_one(socket: impl Into<OwnedFd>) -> TcpStream {
    end_and_restore(vec![socket.into()], false).remove(0).unwrap()
}

pub(super) fn pair(host: &str) -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(host).unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    for end in [&client, &server] {
        end.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    }
    (client, server)
}

fn read(mut from: &TcpStream, length: usize) -> Vec<u8> {
    from.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut bytes = vec![0; length];
    from.read_exact(&mut bytes).unwrap();
    bytes
}

fn is_at_end(mut stream: &TcpStream) -> bool {
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    matches!(stream.read(&mut [0; 1]), Ok(0))
}

pub(super) fn may() -> bool {
    if !may_repair() {
        println!("unsupported: CAP_NET_ADMIN");
    }
    may_repair()
}

#[test]
fn both_ends_of_a_connection_are_restored_with_data_in_flight() {
    let _alone = alone();
    for host in ["127.0.0.1:0", "[::1]:0"] {
        if !may() || TcpListener::bind(host).is_err() {
            return;
        }
        let (mut client, mut server) = pair(host);
        let addresses = (client.local_addr().unwrap(), client.peer_addr().unwrap());
        let large = vec![7; 300_000];
        client.set_nonblocking(true).unwrap();
        let written = client.write(&large).unwrap();
        server.write_all(b"to the client").unwrap();
        assert_eq!(read(&server, 10), [7; 10]);
        client.set_nodelay(true).unwrap();
        let mut ends = end_and_restore(vec![client.into(), server.into()], false);
        let (mut server, mut client) = (ends.remove(1).unwrap(), ends.remove(0).unwrap());
        assert_eq!((client.local_addr().unwrap(), client.peer_addr().unwrap()), addresses);
        assert!(client.nodelay().unwrap() && !server.nodelay().unwrap());
        assert_eq!(read(&server, written - 10), vec![7; written - 10]);
        assert_eq!(read(&client, 13), b"to the client");
        client.write_all(b"more").unwrap();
        server.write_all(b"less").unwrap();
        assert_eq!(read(&server, 4), b"more");
        assert_eq!(read(&client, 4), b"less");
        drop(client);
        assert!(is_at_end(&server));
    }
}

#[test]
fn an_outside_peer_does_not_notice_the_restore() {
    let _alone = alone();
    if !may() {
        return;
    }
    let (mut client, mut server) = pair("127.0.0.1:0");
    client.write_all(b"unread").unwrap();
    server.write_all(b"sent").unwrap();
    let fds = [server.as_fd()];
    let descriptions = describe_all(&fds);
    let records = capture(&Tcp, &descriptions, true).unwrap();
    drop(descriptions);
    drop(server);
    // Packets sent now are lost, and the peer retransmits them.
    client.write_all(b" and meanwhile").unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let mut created = create(&Tcp, &records, HashMap::new(), false).unwrap();
    Tcp.start(&records, &created).unwrap();
    server = created.remove(&DescriptionId(0)).unwrap().into();
    assert_eq!(read(&server, 20), b"unread and meanwhile");
    assert_eq!(read(&client, 4), b"sent");
    server.write_all(b"again").unwrap();
    assert_eq!(read(&client, 5), b"again");
    drop(server);
    assert!(is_at_end(&client));
}

#[test]
fn halves_that_are_shut_stay_shut() {
    let _alone = alone();
    if !may() {
        return;
    }
    let (mut client, server) = pair("127.0.0.1:0");
    client.write_all(b"last words").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut ends = end_and_restore(vec![client.into(), server.into()], false);
    let (mut server, mut client) = (ends.remove(1).unwrap(), ends.remove(0).unwrap());
    assert_eq!(read(&server, 10), b"last words");
    assert!(is_at_end(&server));
    assert!(client.write_all(b"x").is_err());
    server.write_all(b"answer").unwrap();
    assert_eq!(read(&client, 6), b"answer");
}

#[test]
fn a_fin_from_an_outside_peer_is_kept_and_ours_is_sent_again() {
    let _alone = alone();
    if !may() {
        return;
    }
    let (mut client, server) = pair("127.0.0.1:0");
    client.write_all(b"end").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut server = restore_one(server);
    assert_eq!(read(&server, 3), b"end");
    assert!(is_at_end(&server));
    server.write_all(b"still here").unwrap();
    assert_eq!(read(&client, 10), b"still here");
    server.shutdown(Shutdown::Write).unwrap();
    assert!(is_at_end(&client));

    let (mut client, server) = pair("127.0.0.1:0");
    server.shutdown(Shutdown::Write).unwrap();
    let server = restore_one(server);
    assert!(is_at_end(&client));
    client.write_all(b"late").unwrap();
    assert_eq!(read(&server, 4), b"late");
    drop(client);
    assert!(is_at_end(&server));
}

#[test]
fn a_connection_lost_in_a_crash_reports_it_at_once() {
    let _alone = alone();
    if !may() {
        return;
    }
    let (client, server) = pair("127.0.0.1:0");
    let lost = end_and_restore(vec![server.into()], true).remove(0).unwrap();
    let seen = events(&lost).unwrap();
    assert!(seen.contains(PollFlags::IN | PollFlags::HUP | PollFlags::ERR | PollFlags::RDHUP), "{seen:?}");
    let error = (&lost).read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(is_at_end(&lost));
    drop(client);
    // Without `kills`, the state of an outside connection is not saved.
    let (client, server) = pair("127.0.0.1:0");
    let descriptions = describe_all(&[server.as_fd()]);
    let records = capture(&Tcp, &descriptions, false).unwrap();
    let created = create(&Tcp, &records, HashMap::new(), false).unwrap();
    assert!(events(&created[&DescriptionId(0)]).unwrap().contains(PollFlags::HUP));
    (&server).write_all(b"lives").unwrap();
    assert_eq!(read(&client, 5), b"lives");
}

#[test]
fn a_listener_is_restored_with_options_backlog_and_waiting_clients() {
    let _alone = alone();
    if !may() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 9).unwrap();
    rustix::net::sockopt::set_socket_linger(&listener, Some(Duration::from_secs(3))).unwrap();
    let address = listener.local_addr().unwrap();
    let mut clients: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    let names: Vec<_> = clients.iter().map(|client| client.local_addr().unwrap()).collect();
    for (index, client) in clients.iter_mut().enumerate() {
        client.write_all(&[index as u8; 5]).unwrap();
    }
    let mut sockets: Vec<OwnedFd> = vec![listener.into()];
    sockets.extend(clients.into_iter().map(OwnedFd::from));
    let mut restored = end_and_restore(sockets, false);
    let listener = TcpListener::from(OwnedFd::from(restored.remove(0).unwrap()));
    assert_eq!(listener.local_addr().unwrap(), address);
    assert_eq!(sys::tcp_repair::info(listener.as_fd()).unwrap().backlog, 9);
    assert_eq!(rustix::net::sockopt::socket_linger(&listener).unwrap(), Some(Duration::from_secs(3)));
    for (index, client) in restored.iter().enumerate() {
        let (mut server, from) = listener.accept().unwrap();
        assert_eq!(from, names[index]);
        assert_eq!(read(&server, 5), [index as u8; 5]);
        server.write_all(b"hello").unwrap();
        assert_eq!(read(client.as_ref().unwrap(), 5), b"hello");
    }
}

#[test]
fn an_outside_client_that_waited_to_be_accepted_is_reset() {
    let _alone = alone();
    if !may() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    client.write_all(b"question").unwrap();
    let restored = end_and_restore(vec![listener.into()], false);
    client.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let error = client.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
    assert!(restored[0].is_some());
}

#[test]
fn unconnected_sockets_are_restored_in_their_state() {
    let _alone = alone();
    let family = Family { domain: AF_INET, kind: 1, protocol: IPPROTO_TCP };
    let fresh = family.create().unwrap();
    let copy = restore_one(fresh);
    assert_eq!(events(&copy).unwrap(), PollFlags::HUP);
    let (mut client, server) = pair("127.0.0.1:0");
    client.write_all(b"before").unwrap();
    drop(client);
    std::thread::sleep(Duration::from_millis(5));
    server.shutdown(Shutdown::Write).unwrap();
    std::thread::sleep(Duration::from_millis(5));
    let copy = restore_one(server);
    assert_eq!(read(&copy, 6), b"before");
    assert!(is_at_end(&copy));
    assert!((&copy).write(b"x").is_err());
}

/// Returns the ends of a connection that the first end has half closed.
fn half_closed() -> (TcpStream, TcpStream) {
    let (client, mut server) = pair("127.0.0.1:0");
    client.shutdown(Shutdown::Write).unwrap();
    server.write_all(b"answer").unwrap();
    let until = Instant::now() + Duration::from_secs(10);
    while tcp_state(&client) != Some(TcpState::FinWait2) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    (client, server)
}

fn tcp_state(socket: impl AsFd) -> Option<TcpState> {
    TcpState::from_number(tcp_repair::info(socket.as_fd()).unwrap().state)
}

#[test]
fn a_half_closed_connection_is_in_its_state_at_once() {
    let (client, server) = half_closed();
    let ends = end_and_restore(vec![client.into(), server.into()], false);
    let ends: Vec<TcpStream> = ends.into_iter().flatten().collect();
    assert_eq!(
        [0, 1].map(|end| tcp_state(&ends[end])),
        [Some(TcpState::FinWait2), Some(TcpState::CloseWait)]
    );
    assert_eq!(read(&ends[0], 6), b"answer");
}

/// The program has sent these packets before the checkpoint, so they do not wait for the next one.
#[test]
fn what_a_restore_sends_inside_is_not_held() {
    let hold = match PacketHold::start() {
        Ok(hold) => hold,
        Err(error) => return println!("unsupported: packet-hold: {error}"),
    };
    let (client, server) = half_closed();
    let sockets: [OwnedFd; 2] = [client.into(), server.into()];
    let records = {
        let mut descriptions = describe_all(&[sockets[0].as_fd(), sockets[1].as_fd()]);
        discover(&mut descriptions, true).unwrap();
        capture(&Tcp, &descriptions, true).unwrap()
    };
    drop(sockets);
    let created = create(&Tcp, &records, HashMap::new(), false).unwrap();
    for socket in created.values() {
        assert!(hold.mark().claim(socket.as_fd()).unwrap());
    }
    Tcp.start(&records, &created).unwrap();
    let ends = [0, 1].map(|id| &created[&DescriptionId(id)]);
    assert_eq!(ends.map(tcp_state), [Some(TcpState::FinWait2), Some(TcpState::CloseWait)]);
    assert!(ends.iter().all(|end| SocketMark::of(end.as_fd()).unwrap() == hold.mark()));
}

#[test]
fn a_socket_that_is_connecting_keeps_its_port_beside_connections_from_the_same_port() {
    const NONBLOCK: i32 = 0o4000;
    let _alone = alone();
    if !may() {
        return;
    }
    let full = socket::create(AF_INET, SOCK_STREAM, 0).unwrap();
    socket::bind(full.as_fd(), &any_port()).unwrap();
    rustix::net::listen(&full, 0).unwrap();
    let address = socket::local(full.as_fd()).unwrap();
    let connect = || {
        let client = socket::create(AF_INET, SOCK_STREAM | NONBLOCK, 0).unwrap();
        let _in_progress = socket::connect(client.as_fd(), &address);
        client
    };
    let state = |socket: &OwnedFd| TcpState::from_number(tcp_repair::info(socket.as_fd()).unwrap().state);
    // The queue takes the first clients. The SYN of a later one is dropped.
    let mut clients = vec![connect(), connect(), connect()];
    std::thread::sleep(Duration::from_millis(50));
    let client = clients.pop().unwrap();
    assert_eq!(state(&client), Some(TcpState::SynSent));
    let local = socket::local(client.as_fd()).unwrap();
    // The kernel gives the same port to connections to different peers.
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let same_port = socket::create(AF_INET, SOCK_STREAM, 0).unwrap();
    tcp_repair::set_repair(same_port.as_fd(), tcp_repair::Repair::On).unwrap();
    socket::bind(same_port.as_fd(), &local).unwrap();
    tcp_repair::set_repair(same_port.as_fd(), tcp_repair::Repair::Off).unwrap();
    let peer = inet_address::encode(other.local_addr().unwrap());
    socket::connect(same_port.as_fd(), &peer).unwrap();
    let restored: OwnedFd = restore_one(client).into();
    assert_eq!(
        (state(&restored), socket::local(restored.as_fd()).unwrap()),
        (Some(TcpState::SynSent), local)
    );
    assert_eq!(state(&same_port), Some(TcpState::Established));
}

#[test]
fn a_failed_checkpoint_does_not_change_the_connection() {
    let _alone = alone();
    if !may() {
        return;
    }
    let (mut client, mut server) = pair("127.0.0.1:0");
    rustix::net::sockopt::set_socket_reuseaddr(&server, true).unwrap();
    let descriptions = describe_all(&[server.as_fd()]);
    let table = [];
    let scope = CaptureScope {
        pids: &[],
        descriptions: &known_of(&descriptions),
        open: &descriptions,
        inherited: &[],
        table: &table,
        kills: true,
        loses_connections: false,
        sockets: &Default::default(),
        mappings: Vec::new(),
        index: Default::default(),
    };
    let mut capture = Tcp.prepare(&descriptions[0], &scope).unwrap();
    capture.inside(&descriptions[0]).unwrap();
    capture.relate(&descriptions[0], &scope).unwrap();
    capture.after(&descriptions[0]).unwrap();
    capture.release(&descriptions[0]);
    assert!(rustix::net::sockopt::socket_reuseaddr(&server).unwrap());
    client.write_all(b"there").unwrap();
    assert_eq!(read(&server, 5), b"there");
    server.write_all(b"back").unwrap();
    assert_eq!(read(&client, 4), b"back");
}

#[test]
fn an_address_in_use_is_named() {
    let _alone = alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let records = capture(&Tcp, &describe_all(&[listener.as_fd()]), false).unwrap();
    let error = create(&Tcp, &records, HashMap::new(), false).unwrap_err().to_string();
    assert!(error.contains(&listener.local_addr().unwrap().to_string()), "{error}");
    assert!(error.contains("another socket"), "{error}");
}

const KEEP_COUNT: SocketOption = SocketOption { level: IPPROTO_TCP, number: 6, name: "TCP_KEEPCNT" };

fn keep_counts(records: &[FdRecord]) -> Vec<Option<i32>> {
    let read = |record: &FdRecord| crate::error::decode::<state::State>(NAME, &record.payload).unwrap();
    records.iter().map(|record| read(record).options.int(KEEP_COUNT)).collect()
}

#[test]
fn options_are_read_in_the_pause_except_those_of_outside_connections() {
    let _alone = alone();
    if !may() {
        return;
    }
    let (client, server) = pair("127.0.0.1:0");
    let (held, _outside) = pair("127.0.0.1:0");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let descriptions = describe_all(&[client.as_fd(), server.as_fd(), held.as_fd(), listener.as_fd()]);
    let set = |count| {
        for socket in [client.as_fd(), held.as_fd(), listener.as_fd()] {
            socket_option::set_int(socket, KEEP_COUNT, count).unwrap();
        }
    };
    let sockets = Sockets::default();
    let take = |meanwhile: &dyn Fn()| {
        keep_counts(&capture_again(&Tcp, &descriptions, false, &sockets, meanwhile).unwrap())
    };
    set(3);
    assert_eq!(take(&|| {}), [Some(3), None, Some(3), Some(3)]);
    assert_eq!(take(&|| set(5)), [Some(5), None, Some(3), Some(5)]);
    std::thread::sleep(Duration::from_millis(1100));
    assert_eq!(take(&|| {}), [Some(5), None, Some(5), Some(5)]);
    // A socket that is no longer connected in the pause is read in the pause.
    let gone = take(&|| {
        set(7);
        rustix::net::connect_unspec(&held).unwrap();
    });
    assert_eq!(gone, [Some(7), None, Some(7), Some(7)]);
}

fn multipath() -> Option<OwnedFd> {
    let created = socket::create(AF_INET, SOCK_STREAM, IPPROTO_MPTCP);
    if created.is_err() {
        println!("unsupported: MPTCP");
    }
    created.ok()
}

fn any_port() -> socket::SocketAddress {
    inet_address::encode("127.0.0.1:0".parse().unwrap())
}

#[test]
fn an_mptcp_listener_is_restored_with_its_plain_connections() {
    let _alone = alone();
    let Some(listener) = multipath() else { return };
    socket_option::set_int(listener.as_fd(), super::super::socket_options::REUSE_ADDRESS, 1).unwrap();
    socket::bind(listener.as_fd(), &any_port()).unwrap();
    rustix::net::listen(&listener, 9).unwrap();
    let listener = TcpListener::from(listener);
    let address = listener.local_addr().unwrap();
    let client = TcpStream::connect(address).unwrap();
    let server = listener.accept().unwrap().0;
    assert_eq!(Family::of(&server).unwrap().protocol, IPPROTO_TCP);
    let descriptions = describe_all(&[listener.as_fd(), server.as_fd()]);
    for description in &descriptions {
        let known = known_of(&descriptions);
        let sockets = Sockets::default();
        assert_eq!(Tcp.obstacles(description, &scope(&known, &descriptions, &sockets, false)), Vec::new());
    }
    let records = capture(&Tcp, &descriptions, false).unwrap();
    drop((descriptions, listener, server, client));
    let mut created = create(&Tcp, &records, HashMap::new(), true).unwrap();
    let listener = TcpListener::from(created.remove(&DescriptionId(0)).unwrap());
    assert_eq!(listener.local_addr().unwrap(), address);
    assert_eq!(Family::of(&listener).unwrap().protocol, IPPROTO_MPTCP);
    assert_eq!(tcp_repair::info(listener.as_fd()).unwrap().backlog, 9);
    TcpStream::connect(address).unwrap();
    listener.accept().unwrap();
}

#[test]
fn an_mptcp_connection_is_lost_like_a_tcp_connection_and_never_taken_over() {
    let _alone = alone();
    let (Some(listener), Some(client)) = (multipath(), multipath()) else { return };
    socket::bind(listener.as_fd(), &any_port()).unwrap();
    rustix::net::listen(&listener, 9).unwrap();
    let listener = TcpListener::from(listener);
    socket::connect(client.as_fd(), &socket::local(listener.as_fd()).unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    if Family::of(&server).unwrap().protocol != IPPROTO_MPTCP {
        return println!("unsupported: MPTCP between sockets of this machine");
    }
    let descriptions = describe_all(&[server.as_fd()]);
    let (known, sockets) = (known_of(&descriptions), Sockets::default());
    let obstacles = |kills| Tcp.obstacles(&descriptions[0], &scope(&known, &descriptions, &sockets, kills));
    assert_eq!(obstacles(false), Vec::new());
    assert!(obstacles(true)[0].fix.contains("GODEBUG=multipathtcp=0"));
    let refused = capture(&Tcp, &descriptions, true).unwrap_err().to_string();
    assert!(refused.contains("MPTCP"), "{refused}");
    let records = capture(&Tcp, &descriptions, false).unwrap();
    drop((descriptions, server));
    let mut created = create(&Tcp, &records, HashMap::new(), true).unwrap();
    let mut server = TcpStream::from(created.remove(&DescriptionId(0)).unwrap());
    let error = server.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

fn scope<'a>(
    known: &'a [std::sync::Arc<super::super::Known>],
    open: &'a [Description],
    sockets: &'a Sockets,
    kills: bool,
) -> CaptureScope<'a> {
    CaptureScope {
        pids: &[],
        descriptions: known,
        open,
        inherited: &[],
        table: &[],
        kills,
        loses_connections: false,
        index: Default::default(),
        sockets,
        mappings: Vec::new(),
    }
}

#[test]
fn signed_segments_are_refused() {
    let _alone = alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut key = vec![0; 216];
    let address = inet_address::encode("127.0.0.1:0".parse().unwrap()).0;
    key[..address.len()].copy_from_slice(&address);
    key[130..132].copy_from_slice(&1_u16.to_ne_bytes());
    key[136] = b'k';
    let signature = SocketOption { level: IPPROTO_TCP, number: 14, name: "TCP_MD5SIG" };
    if !may() || socket_option::set(listener.as_fd(), signature, &key).is_err() {
        return println!("unsupported: TCP_MD5SIG");
    }
    let descriptions = describe_all(&[listener.as_fd()]);
    let (known, sockets) = (known_of(&descriptions), Sockets::default());
    let found = Tcp.obstacles(&descriptions[0], &scope(&known, &descriptions, &sockets, false));
    assert!(found.len() == 1 && found[0].why.contains("TCP_MD5SIG"), "{found:?}");
}

#[test]
fn listeners_that_share_a_port_keep_their_owner_and_their_waiting_clients() {
    const CLIENTS: usize = 6;
    let _alone = alone();
    if !may() {
        return;
    }
    let mut address = any_port();
    let mut listeners = Vec::new();
    for _ in 0..2 {
        let listener = socket::create(AF_INET, SOCK_STREAM, 0).unwrap();
        rustix::fs::fchown(&listener, Some(rustix::fs::Uid::from_raw(65_534)), None).unwrap();
        socket_option::set_int(listener.as_fd(), super::super::socket_options::REUSE_PORT, 1).unwrap();
        socket::bind(listener.as_fd(), &address).unwrap();
        address = socket::local(listener.as_fd()).unwrap();
        listeners.push(listener);
    }
    let waiting = |listener: &OwnedFd| tcp_repair::info(listener.as_fd()).unwrap().unacknowledged;
    // All clients wait in the queue of the second listener, since the first does not listen yet.
    rustix::net::listen(&listeners[1], 16).unwrap();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|_| TcpStream::connect(inet_address::parse(&address).unwrap()).unwrap().into())
        .collect();
    rustix::net::listen(&listeners[0], 16).unwrap();
    assert_eq!((waiting(&listeners[0]), waiting(&listeners[1])), (0, CLIENTS as u32));
    listeners.extend(clients);
    let restored = end_and_restore(listeners, false);
    let listeners: Vec<OwnedFd> = restored.into_iter().take(2).map(|socket| socket.unwrap().into()).collect();
    assert_eq!((waiting(&listeners[0]), waiting(&listeners[1])), (0, CLIENTS as u32));
    for listener in &listeners {
        assert_eq!(rustix::fs::fstat(listener).unwrap().st_uid, 65_534);
    }
    assert!(socket_option::stop_steering(listeners[0].as_fd()).is_err());
}

#[test]
fn options_of_a_listener_are_restored() {
    let _alone = alone();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let option = |level, number| SocketOption { level, number, name: "an option" };
    // The options are TCP_MAXSEG, TCP_WINDOW_CLAMP and SO_INCOMING_CPU.
    let wanted = [(option(IPPROTO_TCP, 2), 1000), (option(IPPROTO_TCP, 10), 60_000), (option(1, 49), 0)];
    for (option, value) in wanted {
        socket_option::set_int(listener.as_fd(), option, value).unwrap();
    }
    let listener = restore_one(listener);
    for (option, value) in wanted {
        assert_eq!(socket_option::get_int(listener.as_fd(), option).unwrap(), value, "{option:?}");
    }
}

#[test]
fn an_outside_connection_that_may_be_lost_is_not_taken_over() {
    let _alone = alone();
    let (mut client, server) = pair("127.0.0.1:0");
    let records = capture_losing(&Tcp, &describe_all(&[server.as_fd()]), true).unwrap();
    drop(server);
    // The peer receives end of file, as at the end of any process.
    assert!(matches!(client.read(&mut [0; 1]), Ok(0)));
    let mut created = create(&Tcp, &records, HashMap::new(), false).unwrap();
    Tcp.start(&records, &created).unwrap();
    let mut server = TcpStream::from(created.remove(&DescriptionId(0)).unwrap());
    let error = server.read(&mut [0; 1]).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset);
}

/// The kernel holds a short write back while an earlier write is not acknowledged (Nagle's algorithm). A timer of the
/// old socket must not send this data after the socket was read.
#[test]
fn data_that_was_unsent_at_the_read_does_not_reach_the_peer() {
    let _alone = alone();
    if !may() {
        return;
    }
    let (client, mut server) = pair("127.0.0.1:0");
    // The acknowledgement of the first write is dropped.
    socket_option::attach_filter(server.as_fd(), &socket_option::FILTER_DROPS_ALL).unwrap();
    server.write_all(&[1; 79]).unwrap();
    server.write_all(&[2; 16]).unwrap();
    let saved = connection::read(server.as_fd(), After::StaysInRepair).unwrap();
    assert_eq!((saved.written.len(), saved.unsent), (95, 16));
    // Loss probes begin after some milliseconds, retransmissions after 200 ms.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(socket::readable_bytes(client.as_fd()).unwrap(), 79);
}

/// A checkpoint of a continuing subject can contain unsent data that the kernel has sent afterwards. A restored socket
/// must accept the acknowledgement of this data.
#[test]
fn data_that_the_peer_received_after_the_read_counts_as_sent() {
    let _alone = alone();
    if !may() {
        return;
    }
    let (mut client, mut server) = pair("127.0.0.1:0");
    socket_option::attach_filter(server.as_fd(), &socket_option::FILTER_DROPS_ALL).unwrap();
    server.write_all(&[1; 79]).unwrap();
    server.write_all(&[2; 16]).unwrap();
    let descriptions = describe_all(&[server.as_fd()]);
    let records = capture(&Tcp, &descriptions, true).unwrap();
    drop(descriptions);
    let state: state::State = crate::error::decode(NAME, &records[0].payload).unwrap();
    let saved = state.connection.clone().unwrap();
    assert_eq!((saved.written.len(), saved.unsent), (95, 16));
    super::super::vacated::pass(&[(server.local_addr().unwrap(), client.local_addr().unwrap())]).unwrap();
    connection::unfreeze(server.as_fd(), saved.window_send).unwrap();
    connection::leave(server.as_fd(), 0, sys::tcp_repair::Repair::Off).unwrap();
    assert_eq!(read(&client, 95)[94], 2);
    connection::vanish(server.as_fd()).unwrap();
    drop(server);

    let server = connection::build(&state, &saved, saved.send_end).unwrap();
    connection::start(server.as_fd(), &state, &saved, false).unwrap();
    // Otherwise the kernel would ignore all segments of the peer, because they acknowledge unsent data.
    assert_eq!(socket::unsent_bytes(server.as_fd()).unwrap(), 0);
    let mut server = TcpStream::from(server);
    client.write_all(b"asks").unwrap();
    assert_eq!(read(&server, 4), b"asks");
    server.write_all(b"answers").unwrap();
    assert_eq!(read(&client, 7), b"answers");
}
