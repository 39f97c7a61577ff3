//! Saves and restores UDP and UDP-Lite sockets: the descriptor kind `fd/udp`.
//!
//! Owns: address, peer, options, multicast memberships, shut directions, and unread datagrams.
//! Invariants: an unread datagram is restored with its boundary and the address of its sender.
//! Does not: guarantee more than UDP does. Unread datagrams are lost without CAP_NET_RAW, or if a filter or device
//! drops them. Datagrams that arrive while no socket exists are lost too.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use prost::Message;
use rustix::fs::FileType;
use rustix::net::Shutdown;
use sys::clock::Deadline;
use sys::sock_diag::SockDiag;
use sys::socket::{self, SocketAddress};
use sys::socket_option::{self, SocketOption};
use sys::{Errno, Error};

use super::description::{Description, Known};
use super::inet_address::{parse, parse_plain, plain, show};
use super::inherited_socket::InheritedSocket;
use super::kind::{FdCapture, FdCreate, FdFacts, FdKind, FdRecord};
use super::multicast::{self, Membership};
use super::peek_queue::{Seen, peek_all};
use super::raw_packet::inject;
use super::scope::CaptureScope;
use super::socket_events::events;
use super::socket_family::{
    AF_INET, AF_INET6, Family, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_UDP, IPPROTO_UDPLITE, SOCK_DGRAM, SOL_SOCKET,
};
use super::socket_options::{self, Fresh, Options, RECEIVE_BUFFER, REUSE_PORT, make_room};
use super::sockets::Sockets;
use crate::error::{ResourceError, Result};
use crate::obstacle::Obstacle;
use crate::support::label;

const NAME: &str = "fd/udp";
const WHAT: &str = "UDP socket";
/// Reason and fix of a socket with UDP_CORK that has collected data.
const CORKED: (&str, &str) = (
    "the kernel holds a datagram that the program has not completed (UDP_CORK), and its data cannot be read",
    "retry when the program has sent the datagram",
);
const HEADER_BYTES: usize = 8;
const CHECKSUM_AT: usize = 6;
const ROOM_EXTRA: usize = 64 * 1024;
/// Timeout for one datagram from this process to itself.
const DELIVERY_TIMEOUT: Duration = Duration::from_millis(100);
/// Maximum number of lost datagrams of one socket. After more losses, the remaining datagrams are not sent.
const LOST_MAX: usize = 8;
const EADDRINUSE: i32 = 98;
const PACKET_INFO: SocketOption = SocketOption { level: IPPROTO_IP, number: 8, name: "IP_PKTINFO" };
const PACKET_INFO6: SocketOption = SocketOption { level: IPPROTO_IPV6, number: 49, name: "IPV6_RECVPKTINFO" };
const CORK: SocketOption = SocketOption { level: IPPROTO_UDP, number: 1, name: "UDP_CORK" };
const MEMORY: SocketOption = SocketOption { level: SOL_SOCKET, number: 55, name: "SO_MEMINFO" };

/// Descriptor kind ([`FdKind`]) of UDP and UDP-Lite sockets.
#[derive(Debug)]
pub struct Udp;

#[derive(Clone, PartialEq, Message)]
struct State {
    #[prost(message, required, tag = "1")]
    family: Family,
    #[prost(message, required, tag = "2")]
    options: Options,
    #[prost(bytes = "vec", tag = "3")]
    local: Vec<u8>,
    /// The address of the peer; empty for an unconnected socket.
    #[prost(bytes = "vec", tag = "4")]
    peer: Vec<u8>,
    /// Bits of the shut directions: 1 for receiving, 2 for sending.
    #[prost(uint32, tag = "5")]
    shut: u32,
    #[prost(message, repeated, tag = "6")]
    queue: Vec<Datagram>,
    #[prost(message, optional, tag = "7")]
    inherited: Option<InheritedSocket>,
    #[prost(message, repeated, tag = "8")]
    memberships: Vec<Membership>,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Datagram {
    #[prost(bytes = "vec", tag = "1")]
    bytes: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    from: Vec<u8>,
    /// The local host address to which the datagram was sent: 4 or 16 bytes; empty if unknown.
    #[prost(bytes = "vec", tag = "3")]
    to: Vec<u8>,
}

#[derive(Debug)]
struct Capture {
    family: Family,
    inherited: Option<InheritedSocket>,
    sockets: Sockets,
    diag: Rc<SockDiag>,
    fresh: Rc<Fresh>,
    seen: Vec<Seen>,
    state: State,
}

impl FdKind for Udp {
    fn facts(&self) -> FdFacts {
        FdFacts::of::<State>(NAME).without_files()
    }

    fn claims(&self, description: &Description) -> bool {
        FileType::from_raw_mode(description.stat.st_mode) == FileType::Socket
            && Family::of(description).is_ok_and(|family| {
                [AF_INET, AF_INET6].contains(&family.domain)
                    && family.kind == SOCK_DGRAM
                    && [IPPROTO_UDP, IPPROTO_UDPLITE].contains(&family.protocol)
            })
    }

    fn obstacles(&self, description: &Description, scope: &CaptureScope<'_>) -> Vec<Obstacle> {
        if scope.is_inherited(&description.stat) {
            return Vec::new();
        }
        let mut found = socket_options::obstacles(description, WHAT);
        let is_corked = socket_option::get_int(description.as_fd(), CORK).is_ok_and(|cork| cork == 1);
        if is_corked && holds_data(description.as_fd()).unwrap_or(false) {
            found.push(description.obstacle(WHAT, CORKED.0, CORKED.1));
        }
        found
    }

    fn prepare(&self, description: &Description, scope: &CaptureScope<'_>) -> Result<Box<dyn FdCapture>> {
        Ok(Box::new(Capture {
            family: Family::of(description)?,
            inherited: InheritedSocket::of(description, scope),
            sockets: scope.sockets.clone(),
            diag: scope.sockets.diag()?,
            fresh: scope.sockets.fresh(Family::of(description)?)?,
            seen: Vec::new(),
            state: State::default(),
        }))
    }

    fn label(&self, payload: &[u8]) -> Option<String> {
        let state = State::decode(payload).ok()?;
        Some(label::addresses(&state.local, &state.peer))
    }

    fn create(&self, records: &[FdRecord], context: &mut FdCreate<'_>) -> Result<()> {
        let mut shared: HashMap<Vec<u8>, u32> = HashMap::new();
        context.make_each(NAME, records, |state: State, _, context| {
            let socket = match state.inherited {
                Some(inherited) => inherited.take(context)?,
                None if state.shares_port() => {
                    let members = shared.entry(state.local.clone()).or_default();
                    *members += 1;
                    build(&state, *members - 1)?
                }
                None => build(&state, 0)?,
            };
            Ok(socket)
        })
    }
}

impl FdCapture for Capture {
    fn inside(&mut self, description: &Description) -> Result<()> {
        let socket = description.as_fd();
        self.state = State { family: self.family, inherited: self.inherited, ..State::default() };
        let peer = socket::peer(socket)?;
        if peer.is_none() {
            // A client usually connects its socket. A server answers each peer through the same socket.
            self.sockets.note_unheld();
        }
        if self.inherited.is_some() {
            return Ok(());
        }
        let shut = self.diag.shut_halves(self.family.domain, self.family.protocol, description.inode())?;
        self.state.options = Options::read(socket, &self.fresh)?;
        if self.state.options.int(CORK) == Some(1) && holds_data(socket)? {
            return Err(description.obstacle(WHAT, CORKED.0, CORKED.1).into());
        }
        self.state.local = socket::local(socket)?.0;
        self.state.peer = peer.unwrap_or_default().0;
        self.state.shut = u32::from(shut.unwrap_or(0));
        self.state.memberships = multicast::read(socket, self.family)?;
        // If receiving is shut down, the program cannot read the unread datagrams. They cannot be peeked either.
        let is_readable = events(socket)?.contains(rustix::event::PollFlags::IN) && self.state.shut & 1 == 0;
        self.seen = if is_readable { peek_with_destination(socket, self.family)? } else { Vec::new() };
        Ok(())
    }

    fn after(&mut self, _description: &Known) -> Result<Vec<u8>> {
        self.state.queue = self
            .seen
            .drain(..)
            .map(|seen| Datagram { to: host_bytes(&seen.destination), from: seen.from.0, bytes: seen.bytes })
            .collect();
        Ok(std::mem::take(&mut self.state).encode_to_vec())
    }
}

/// Reports whether the kernel has data of a socket that is not sent yet.
fn holds_data(socket: BorrowedFd<'_>) -> Result<bool> {
    Ok(socket::unacknowledged_bytes(socket)? > 0)
}

/// Peeks all datagrams with their destination addresses. Sets the option for destination addresses during the peek.
fn peek_with_destination(socket: BorrowedFd<'_>, family: Family) -> Result<Vec<Seen>> {
    let option = if family.domain == AF_INET { PACKET_INFO } else { PACKET_INFO6 };
    let before = socket_option::get_int(socket, option)?;
    socket_option::set_int(socket, option, 1)?;
    let outcome = peek_all(socket, family.kind);
    socket_option::set_int(socket, option, before)?;
    outcome
}

/// Returns the local host address in a `struct in_pktinfo` or `struct in6_pktinfo`.
fn host_bytes(information: &[u8]) -> Vec<u8> {
    const IPV4_BYTES: usize = 12;
    const IPV6_BYTES: usize = 20;
    match information.len() {
        // The fields are: interface index, our address (present only if the program enables it), destination.
        IPV4_BYTES => information[8..].to_vec(),
        IPV6_BYTES => information[..16].to_vec(),
        _ => Vec::new(),
    }
}

impl State {
    fn shares_port(&self) -> bool {
        self.options.int(REUSE_PORT) == Some(1)
    }
}

/// Builds one socket. `earlier` is the number of sockets of the same port (SO_REUSEPORT) that already have their
/// datagrams.
fn build(state: &State, earlier: u32) -> Result<OwnedFd> {
    let socket = state.family.create()?;
    state.options.apply_early(&socket, state.family)?;
    if state.peer.is_empty() {
        state.options.apply_unconnected(&socket, state.family)?;
    }
    let local = SocketAddress(state.local.clone());
    if parse(&local).is_some_and(|address| address.port() != 0) {
        socket::bind(socket.as_fd(), &local).map_err(|error| in_use(&local, error))?;
    }
    multicast::join(socket.as_fd(), &state.memberships)?;
    let bytes: usize = state.queue.iter().map(|datagram| 2 * datagram.bytes.len() + 1024).sum();
    make_room(&socket, RECEIVE_BUFFER, bytes + ROOM_EXTRA)?;
    // Without steering, the kernel chooses a socket of the group for each datagram.
    let must_steer = earlier > 0 && !state.queue.is_empty();
    let is_steered = must_steer && socket_option::steer_to(socket.as_fd(), earlier).is_ok();
    fill(state, &socket);
    if is_steered {
        socket_option::stop_steering(socket.as_fd())?;
    }
    if !state.peer.is_empty() {
        socket::connect(socket.as_fd(), &SocketAddress(state.peer.clone()))?;
    }
    let how = match state.shut {
        1 => Some(Shutdown::Read),
        2 => Some(Shutdown::Write),
        3 => Some(Shutdown::Both),
        _ => None,
    };
    if let Some(how) = how {
        // On an unconnected socket, the call takes effect and returns ENOTCONN.
        let _ = rustix::net::shutdown(&socket, how);
    }
    state.options.restore_buffers(&socket, state.family)?;
    state.options.apply_late(&socket, state.family)?;
    Ok(socket)
}

/// Fills the queue of a socket with the saved datagrams. A lost datagram is not an error.
fn fill(state: &State, socket: &OwnedFd) {
    let mut lost = 0;
    for datagram in &state.queue {
        lost += usize::from(!deliver(state, datagram, socket.as_fd()));
        if lost > LOST_MAX {
            break;
        }
    }
}

/// Sends a datagram to the socket, with the address of its original sender. Reports whether the datagram arrived.
fn deliver(state: &State, datagram: &Datagram, socket: BorrowedFd<'_>) -> bool {
    let from = parse_plain(&SocketAddress(datagram.from.clone()));
    let to = destination(state, datagram, from);
    let (Some(from), Some(to)) = (from, to) else { return false };
    let length = HEADER_BYTES + datagram.bytes.len();
    // In UDP-Lite, this field is the checksum coverage. 0 covers the whole datagram.
    let covered = if state.family.protocol == IPPROTO_UDP { length as u16 } else { 0 };
    let mut content = Vec::with_capacity(length);
    content.extend(from.port().to_be_bytes());
    content.extend(to.port().to_be_bytes());
    content.extend(covered.to_be_bytes());
    content.extend([0; 2]);
    content.extend(&datagram.bytes);
    let before = used(socket);
    if inject(from, to, state.family.protocol as u8, content, CHECKSUM_AT).is_err() {
        return false;
    }
    let deadline = Deadline::after(DELIVERY_TIMEOUT);
    while used(socket) <= before {
        if deadline.has_passed() {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Returns the destination for a datagram: the original destination if known, otherwise the address of the socket.
fn destination(state: &State, datagram: &Datagram, from: Option<SocketAddr>) -> Option<SocketAddr> {
    let local = parse_plain(&SocketAddress(state.local.clone()))?;
    let original = match datagram.to.len() {
        4 => datagram.to.first_chunk::<4>().map(|host| IpAddr::V4(Ipv4Addr::from(*host))),
        16 => datagram.to.first_chunk::<16>().map(|host| IpAddr::V6(Ipv6Addr::from(*host))),
        _ => None,
    };
    let original =
        original.filter(|host| !host.is_multicast()).map(|host| plain(SocketAddr::new(host, local.port())));
    let any = |address: &SocketAddr| address.ip().is_unspecified();
    let loopback = if from?.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
    original
        .or_else(|| (!any(&local)).then_some(local))
        .or_else(|| Some(SocketAddr::new(loopback, local.port())))
        .filter(|to| from.is_some_and(|from| from.is_ipv4() == to.is_ipv4()))
}

/// Returns the memory in bytes that the receive queue of a socket uses.
fn used(socket: BorrowedFd<'_>) -> u32 {
    let mut bytes = [0; 4];
    socket_option::get(socket, MEMORY, &mut bytes).map_or(0, |_| u32::from_ne_bytes(bytes))
}

fn in_use(local: &SocketAddress, error: Error) -> ResourceError {
    if error.errno != Errno(EADDRINUSE) {
        return error.into();
    }
    ResourceError::File {
        path: format!("UDP {}", show(local)),
        why: "another socket has this address".to_owned(),
        fix: "end the program that uses this address (`ss -ulnp` lists it), then restore again".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use model::DescriptionId;

    use super::super::test_support::{alone, capture, create, describe_all};
    use super::*;

    fn restore(socket: UdpSocket) -> UdpSocket {
        let records = capture(&Udp, &describe_all(&[socket.as_fd()]), true).unwrap();
        drop(socket);
        let mut created = create(&Udp, &records, HashMap::new(), false).unwrap();
        created.remove(&DescriptionId(0)).unwrap().into()
    }

    fn may_inject() -> bool {
        let may = socket::create(AF_INET, 3, 255).is_ok();
        if !may {
            println!("unsupported: CAP_NET_RAW");
        }
        may
    }

    #[test]
    fn a_bound_socket_is_restored_with_options_and_unread_datagrams() {
        let _alone = alone();
        for host in ["127.0.0.1:0", "0.0.0.0:0", "[::1]:0", "[::]:0"] {
            let Ok(receiver) = UdpSocket::bind(host) else { return println!("unsupported: {host}") };
            let address = receiver.local_addr().unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size(&receiver, 50_000).unwrap();
            let own = if address.is_ipv4() { "127.0.0.1" } else { "::1" };
            let senders = [UdpSocket::bind((own, 0)).unwrap(), UdpSocket::bind((own, 0)).unwrap()];
            senders[0].send_to(b"first", (own, address.port())).unwrap();
            senders[1].send_to(b"", (own, address.port())).unwrap();
            senders[1].send_to(&[7; 3000], (own, address.port())).unwrap();
            let receiver = restore(receiver);
            assert_eq!(receiver.local_addr().unwrap(), address);
            assert_eq!(rustix::net::sockopt::socket_recv_buffer_size(&receiver).unwrap(), 100_000);
            if !may_inject() {
                return;
            }
            let mut buffer = [0; 4000];
            receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            for (sender, bytes) in [(0, b"first".as_slice()), (1, b""), (1, &[7; 3000])] {
                let (length, from) = receiver.recv_from(&mut buffer).unwrap();
                assert_eq!((&buffer[..length], from), (bytes, senders[sender].local_addr().unwrap()));
            }
        }
    }

    #[test]
    fn a_connected_socket_receives_from_its_peer_only() {
        let _alone = alone();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(peer.local_addr().unwrap()).unwrap();
        let address = socket.local_addr().unwrap();
        peer.send_to(b"waits", address).unwrap();
        let socket = restore(socket);
        assert_eq!(socket.peer_addr().unwrap(), peer.local_addr().unwrap());
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.send_to(b"stranger", address).unwrap();
        peer.send_to(b"later", address).unwrap();
        let mut buffer = [0; 16];
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        if may_inject() {
            assert_eq!(socket.recv(&mut buffer).unwrap(), 5);
            assert_eq!(&buffer[..5], b"waits");
        }
        assert_eq!(socket.recv(&mut buffer).unwrap(), 5);
        assert_eq!(&buffer[..5], b"later");
        socket.send(b"back").unwrap();
        assert_eq!(peer.recv_from(&mut buffer).unwrap(), (4, address));
    }

    #[test]
    fn a_shut_half_stays_shut_and_an_unused_socket_stays_unused() {
        let _alone = alone();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        rustix::net::shutdown(&socket, Shutdown::Write).unwrap();
        let socket = restore(socket);
        assert_eq!(socket.send(b"x").unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
        let fresh = Family { domain: AF_INET, kind: SOCK_DGRAM, protocol: IPPROTO_UDPLITE }.create();
        let Ok(fresh) = fresh else { return println!("unsupported: UDP-Lite") };
        let copy = restore(fresh.into());
        assert_eq!(copy.local_addr().unwrap().port(), 0);
        assert_eq!(Family::of(&copy).unwrap().protocol, IPPROTO_UDPLITE);
    }

    #[test]
    fn a_multicast_membership_is_restored() {
        let _alone = alone();
        let group = Ipv4Addr::new(239, 77, 12, 6);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        if socket.join_multicast_v4(&group, &Ipv4Addr::LOCALHOST).is_err() {
            return println!("unsupported: multicast");
        }
        let socket = restore(socket);
        // Only a member of the group can leave the group.
        socket.leave_multicast_v4(&group, &Ipv4Addr::LOCALHOST).unwrap();
        assert!(socket.leave_multicast_v4(&group, &Ipv4Addr::LOCALHOST).is_err());
    }

    #[test]
    fn an_address_in_use_is_named() {
        let _alone = alone();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let records = capture(&Udp, &describe_all(&[socket.as_fd()]), false).unwrap();
        let error = create(&Udp, &records, HashMap::new(), false).unwrap_err().to_string();
        assert!(error.contains(&socket.local_addr().unwrap().to_string()), "{error}");
    }

    /// Returns `count` sockets that share one port (SO_REUSEPORT).
    fn sharing_one_port(count: usize) -> Vec<UdpSocket> {
        let family = Family { domain: AF_INET, kind: SOCK_DGRAM, protocol: 17 };
        let mut sockets: Vec<UdpSocket> = Vec::new();
        for _ in 0..count {
            let socket = family.create().unwrap();
            rustix::net::sockopt::set_socket_reuseport(&socket, true).unwrap();
            let address =
                sockets.first().map_or("127.0.0.1:0".parse().unwrap(), |one| one.local_addr().unwrap());
            socket::bind(socket.as_fd(), &super::super::inet_address::encode(address)).unwrap();
            sockets.push(socket.into());
        }
        sockets
    }

    fn waiting(socket: &UdpSocket) -> Vec<SocketAddr> {
        socket.set_nonblocking(true).unwrap();
        let mut buffer = [0; 16];
        let mut found: Vec<_> = std::iter::from_fn(|| Some(socket.recv_from(&mut buffer).ok()?.1)).collect();
        found.sort();
        found
    }

    #[test]
    fn sockets_that_share_a_port_are_restored_each_with_its_own_datagrams() {
        let _alone = alone();
        let sockets = sharing_one_port(3);
        let address = sockets[0].local_addr().unwrap();
        let senders: Vec<_> = (0..32).map(|_| UdpSocket::bind("127.0.0.1:0").unwrap()).collect();
        senders.iter().for_each(|sender| assert_eq!(sender.send_to(b"waits", address).unwrap(), 5));
        let fds: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        let records = capture(&Udp, &describe_all(&fds), true).unwrap();
        let before: Vec<_> = sockets.iter().map(waiting).collect();
        assert!(before.iter().all(|waiting| !waiting.is_empty()), "the kernel chooses by a hash: {before:?}");
        drop(sockets);
        let mut created = create(&Udp, &records, HashMap::new(), false).unwrap();
        let sockets: Vec<UdpSocket> =
            (0..3).map(|id| created.remove(&DescriptionId(id)).unwrap().into()).collect();
        assert!(sockets.iter().all(|socket| socket.local_addr().unwrap() == address));
        if may_inject() {
            assert_eq!(sockets.iter().map(waiting).collect::<Vec<_>>(), before);
        }
        senders.iter().for_each(|sender| assert_eq!(sender.send_to(b"later", address).unwrap(), 5));
        let after: Vec<_> = sockets.iter().map(waiting).collect();
        assert_eq!(after.iter().map(Vec::len).sum::<usize>(), senders.len());
        assert!(after.iter().all(|waiting| !waiting.is_empty()), "all of them receive: {after:?}");
    }

    #[test]
    fn a_queue_that_cannot_be_delivered_is_given_up() {
        if !may_inject() {
            return;
        }
        let _alone = alone();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut records = capture(&Udp, &describe_all(&[socket.as_fd()]), true).unwrap();
        drop(socket);
        let mut state: State = crate::error::decode(NAME, &records[0].payload).unwrap();
        let from = super::super::inet_address::encode("127.0.0.1:9".parse().unwrap()).0;
        // The destination is not an address of the socket.
        let datagram = Datagram { bytes: Vec::new(), from, to: vec![127, 0, 0, 77] };
        state.queue = vec![datagram; 10 * LOST_MAX];
        records[0].payload = state.encode_to_vec();
        let begun = std::time::Instant::now();
        create(&Udp, &records, HashMap::new(), false).unwrap();
        assert!(begun.elapsed() < DELIVERY_TIMEOUT * 10 * LOST_MAX as u32, "{:?}", begun.elapsed());
    }
}
