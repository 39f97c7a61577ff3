//! Asks the kernel about sockets by sock_diag(7): peers, names, files and queues.
//!
//! Owns: the sock_diag(7) requests for Unix sockets, for TCP sockets by address or port, and for shut halves of UDP
//! sockets, and for packet sockets; the request SOCK_DESTROY, which ends TCP sockets.
//! Invariants: a reply that cannot be parsed is an error, never a guess.
//! Does not: see sockets outside of the network namespace of this process.
//!
//! Man page: sock_diag(7)
//! Since: Linux 3.3 (CONFIG_UNIX_DIAG), shutdown state 3.7, SOCK_DESTROY 4.5 (CONFIG_INET_DIAG_DESTROY)
//! Probe: none; without the interface a request fails with ENOENT
//! Fallback: none; a checkpoint is refused, and the error names the Unix sockets. Without SOCK_DESTROY, the caller
//! waits until the kernel ends the socket

use std::cell::{Cell, RefCell};

use model::Inode;
use rustix::net::netlink::SOCK_DIAG;
use rustix::net::{RecvFlags, SocketFlags};

use crate::error::{Errno, Error, Result};
use crate::netlink::{
    self, ACKNOWLEDGE, DUMP, HEADER_BYTES, NetlinkSocket, PIECE_BYTES, REQUEST, each_attribute, messages,
    word,
};
use crate::packet_hold::SocketMark;
use crate::socket::SocketAddress;

mod listening;
pub mod packet;

const NAME: &str = "ask the kernel for sockets";

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const SHOW_NAME: u32 = 1;
const SHOW_FILE: u32 = 2;
const SHOW_PEER: u32 = 4;
const SHOW_WAITING: u32 = 8;
const SHOW_QUEUES: u32 = 16;
/// Offset of the sequence number in a netlink header.
const SEQUENCE: usize = 8;
const ANSWER_BYTES: usize = HEADER_BYTES + 16;
/// Offset of the attributes in a reply about an IP socket.
const FIXED_BYTES: usize = HEADER_BYTES + 72;
/// Size of `struct inet_diag_sockid` in bytes.
const IDENTITY_BYTES: usize = 48;
/// An identity that matches every socket.
const ANY_SOCKET: [u8; IDENTITY_BYTES] = [0; IDENTITY_BYTES];
/// The bits of all states.
const ANY_STATE: u32 = u32::MAX;
/// Errors of a kernel that does not list the sockets of a protocol.
const NOT_LISTED: [Errno; 2] = [Errno::ENOENT, Errno::EINVAL];

/// State number of a listening socket (TCP_LISTEN).
pub const LISTENING: u8 = 10;
/// State number of a connected socket (TCP_ESTABLISHED).
pub const CONNECTED: u8 = 1;

/// The state of one Unix socket, as the kernel reports it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UnixSocket {
    /// Inode of the socket.
    pub inode: Inode,
    /// Socket type: SOCK_STREAM, SOCK_DGRAM or SOCK_SEQPACKET.
    pub kind: u8,
    /// State: [`CONNECTED`], [`LISTENING`] or another number of the TCP states.
    pub state: u8,
    /// Address that the socket is bound to, without the family.
    pub name: Option<Vec<u8>>,
    /// File that the socket is bound to: the low 32 bits of its inode, and the device in the kernel's encoding.
    pub file: Option<(u32, u32)>,
    /// Inode of the peer. The inode is 0 when the peer has no descriptor (closed, or not accepted yet).
    pub peer: Option<Inode>,
    /// Inodes of the clients that wait to be accepted, in the order of the queue.
    pub waiting: Vec<Inode>,
    /// Number of bytes that can be read. For a listener: the number of waiting clients.
    pub receive_queue: u32,
    /// Bytes of memory with sent, unread data. For a listener: the maximum number of waiting clients.
    pub send_queue: u32,
    /// Shut halves as bits: 1 for receiving, 2 for sending.
    pub shut: u8,
}

/// The state of one TCP socket, as the kernel reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpSocket {
    /// Inode of the socket. The inode is 0 when no descriptor refers to the socket (closed, or not accepted yet).
    pub inode: Inode,
    /// State number of the socket.
    pub state: u8,
    /// Identity of the socket in the kernel. The kernel never reuses this identity for another socket.
    cookie: [u8; 8],
}

/// A TCP socket with its addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TcpSocketOfPort {
    /// Inode and state of the socket.
    pub socket: TcpSocket,
    /// Local address of the socket.
    pub local: SocketAddress,
    /// Address of the peer; all zeroes without a peer.
    pub peer: SocketAddress,
}

/// A netlink socket for sock_diag(7) requests.
#[derive(Debug)]
pub struct SockDiag {
    socket: NetlinkSocket,
    /// Sequence number of the last request. Each message of a reply contains this number. After an error, unread
    /// messages of an earlier reply have another number.
    sequence: Cell<u32>,
    /// Receive buffer for replies. A reply consists of one or more *pieces* (datagrams).
    piece: RefCell<Vec<u8>>,
}

impl SockDiag {
    /// Opens a netlink socket for the network namespace of this process.
    pub fn open() -> Result<Self> {
        let socket = NetlinkSocket::open(SOCK_DIAG, SocketFlags::empty(), NAME)?;
        Ok(Self { socket, sequence: Cell::new(0), piece: RefCell::new(vec![0; PIECE_BYTES]) })
    }

    /// Returns the Unix socket with this inode; `None` when the network namespace has no such socket.
    pub fn unix_socket(&self, inode: Inode) -> Result<Option<UnixSocket>> {
        let found = unless(&[Errno::ENOENT], self.ask(0, ANY_STATE, inode))?;
        Ok(found.and_then(|found| found.into_iter().next()))
    }

    /// Returns all Unix sockets in the given states. Bit N of `states` stands for state number N.
    pub fn unix_sockets(&self, states: u32) -> Result<Vec<UnixSocket>> {
        self.ask(DUMP, states, Inode(0))
    }

    /// Returns the TCP socket with these local and remote addresses (both IPv4, or both IPv6). Returns `None` when
    /// this machine has no such socket.
    pub fn tcp_socket(&self, local: &SocketAddress, remote: &SocketAddress) -> Result<Option<TcpSocket>> {
        let mut found = None;
        self.tcp_reply(0, local, remote, |message| {
            found = read_tcp_socket(message);
            found.is_some()
        })?;
        // If no connection has these addresses, the kernel replies with the listener on the local address.
        Ok(found.filter(|socket| socket.state != LISTENING))
    }

    /// Reports whether TCP-MD5 keys are set on the socket with these addresses. For a listener, `remote` is the
    /// unspecified address. The kernel shows the keys only to a caller with CAP_NET_ADMIN.
    pub fn has_md5_keys(&self, local: &SocketAddress, remote: &SocketAddress) -> Result<bool> {
        const MD5_KEYS: u16 = 18;
        /// INET_DIAG_INFO: a reply shows the keys only together with this attribute.
        const SHOW_INFO: u8 = 1 << 1;
        let mut found = false;
        self.tcp_reply(SHOW_INFO, local, remote, |message| {
            inet_attributes(message, |kind, _| found |= kind == MD5_KEYS)
        })?;
        Ok(found)
    }

    /// Asks for one TCP socket. Ignores that no socket has these addresses.
    fn tcp_reply(
        &self,
        show: u8,
        local: &SocketAddress,
        remote: &SocketAddress,
        read: impl FnMut(&[u8]) -> bool,
    ) -> Result<()> {
        let identity = identity(local, remote, ANY_COOKIE)?;
        let body = inet(local.family().into(), libc::IPPROTO_TCP, show, ANY_STATE, &identity);
        unless(&[Errno::ENOENT], self.exchange(0, &body, read)).map(drop)
    }

    /// Returns all TCP sockets of one address family with a local port, in any state (also TIME_WAIT).
    pub fn tcp_sockets_of_port(&self, family: i32, port: u16) -> Result<Vec<TcpSocketOfPort>> {
        let mut identity = ANY_SOCKET;
        identity[..2].copy_from_slice(&port.to_be_bytes());
        let mut found = Vec::new();
        self.exchange(DUMP, &inet(family, libc::IPPROTO_TCP, 0, ANY_STATE, &identity), |message| {
            read_connection(message).map(|one| found.push(one)).is_some()
        })?;
        Ok(found)
    }

    /// Ends a TCP socket. The kernel sends a reset to a peer that still waits for data.
    ///
    /// Needs CAP_NET_ADMIN. Fails with EOPNOTSUPP on a kernel without SOCK_DESTROY, and with ENOENT or ESTALE when
    /// the socket no longer exists.
    pub fn destroy_tcp(
        &self,
        socket: TcpSocket,
        local: &SocketAddress,
        remote: &SocketAddress,
    ) -> Result<()> {
        let identity = identity(local, remote, socket.cookie)?;
        let body = inet(local.family().into(), libc::IPPROTO_TCP, 0, ANY_STATE, &identity);
        self.request(SOCK_DESTROY, ACKNOWLEDGE, &body, |_| true)
    }

    /// Ends the closing TCP connections that have this mark, and that have no descriptor in any process.
    pub fn end_orphans(&self, mark: SocketMark) -> Result<()> {
        /// Bits of the states FIN_WAIT1, FIN_WAIT2, LAST_ACK and CLOSING.
        const CLOSING: u32 = 1 << 4 | 1 << 5 | 1 << 9 | 1 << 11;
        const MARK: u16 = 15;
        for family in [libc::AF_INET, libc::AF_INET6] {
            let mut found = Vec::new();
            self.exchange(DUMP, &inet(family, libc::IPPROTO_TCP, 0, CLOSING, &ANY_SOCKET), |message| {
                let mut is_marked = false;
                inet_attributes(message, |kind, value| {
                    is_marked |= kind == MARK && word(value, 0) == mark.0;
                });
                let is_orphan = |one: &TcpSocketOfPort| is_marked && one.socket.inode == Inode(0);
                found.extend(read_connection(message).filter(is_orphan));
                true
            })?;
            for TcpSocketOfPort { socket, local, peer } in found {
                unless(&[Errno::ENOENT, Errno(libc::ESTALE)], self.destroy_tcp(socket, &local, &peer))?;
            }
        }
        Ok(())
    }

    /// Returns the destination of a TCP socket in state SYN_SENT. getpeername(2) does not return this address.
    pub fn connecting_to(&self, family: i32, inode: Inode) -> Result<Option<SocketAddress>> {
        const SYN_SENT: u32 = 1 << 2;
        let mut found = None;
        self.exchange(DUMP, &inet(family, libc::IPPROTO_TCP, 0, SYN_SENT, &ANY_SOCKET), |message| {
            if read_tcp_socket(message).is_some_and(|socket| socket.inode == inode) {
                found = read_end(message, PEER);
            }
            true
        })?;
        Ok(found)
    }

    /// Returns the shut halves of a UDP socket as bits: 1 for receiving, 2 for sending. Returns `None` when the
    /// kernel does not report the halves.
    pub fn shut_halves(&self, family: i32, protocol: i32, inode: Inode) -> Result<Option<u8>> {
        const SHOW_SHUT: u8 = 1 << 7;
        const SHUT: u16 = 8;
        let mut found = None;
        let body = inet(family, protocol, SHOW_SHUT, ANY_STATE, &ANY_SOCKET);
        let outcome = self.exchange(DUMP, &body, |message| {
            if read_tcp_socket(message).is_some_and(|socket| socket.inode == inode) {
                inet_attributes(message, |kind, value| {
                    if (kind, value.len()) == (SHUT, 1) {
                        found = Some(value[0]);
                    }
                });
            }
            true
        });
        unless(&NOT_LISTED, outcome)?;
        Ok(found)
    }

    fn ask(&self, flags: u16, states: u32, inode: Inode) -> Result<Vec<UnixSocket>> {
        let show = SHOW_NAME | SHOW_FILE | SHOW_PEER | SHOW_WAITING | SHOW_QUEUES;
        let mut body = vec![libc::AF_UNIX as u8, 0, 0, 0];
        for word in [states, inode.get() as u32, show, u32::MAX, u32::MAX] {
            body.extend(word.to_ne_bytes());
        }
        let mut found = Vec::new();
        self.exchange(flags, &body, |message| {
            read_socket(message).map(|socket| found.push(socket)).is_some()
        })?;
        Ok(found)
    }

    /// Sends a request about sockets, and passes every reply message to `read`. `read` returns whether it could
    /// parse the message.
    fn exchange(&self, flags: u16, body: &[u8], read: impl FnMut(&[u8]) -> bool) -> Result<()> {
        self.request(SOCK_DIAG_BY_FAMILY, flags, body, read)
    }

    fn request(&self, kind: u16, flags: u16, body: &[u8], mut read: impl FnMut(&[u8]) -> bool) -> Result<()> {
        let malformed = || self.socket.failed(Errno::EINVAL);
        let sequence = self.sequence.get().wrapping_add(1);
        self.sequence.set(sequence);
        let mut request = Vec::with_capacity(HEADER_BYTES + body.len());
        netlink::write(&mut request, kind, REQUEST | flags, sequence, body);
        self.socket.send(&request)?;
        let mut piece = self.piece.borrow_mut();
        loop {
            let length = self.socket.receive(&mut piece, RecvFlags::empty())?;
            // All messages of one piece belong to one reply. A piece of an earlier reply is skipped.
            if word(&piece[..length], SEQUENCE) != sequence {
                continue;
            }
            for message in messages(&piece[..length]) {
                let message = message.ok_or_else(malformed)?;
                match message.kind {
                    netlink::DONE => return Ok(()),
                    netlink::ERROR => {
                        return message.errno().map_or(Ok(()), |errno| Err(self.socket.failed(errno)));
                    }
                    SOCK_DIAG_BY_FAMILY if !read(message.bytes) => return Err(malformed()),
                    _ => {}
                }
            }
            if flags & DUMP == 0 {
                return Ok(());
            }
        }
    }
}

/// Returns the value, or `None` if the outcome is one of these errors.
fn unless<Value>(errnos: &[Errno], outcome: Result<Value>) -> Result<Option<Value>> {
    match outcome {
        Err(error) if errnos.contains(&error.errno) => Ok(None),
        outcome => outcome.map(Some),
    }
}

/// Returns the `struct inet_diag_req_v2` of a request about IP sockets.
fn inet(family: i32, protocol: i32, show: u8, states: u32, identity: &[u8; IDENTITY_BYTES]) -> Vec<u8> {
    [&[family as u8, protocol as u8, show, 0][..], &states.to_ne_bytes(), identity].concat()
}

/// A cookie that matches every socket (INET_DIAG_NOCOOKIE).
const ANY_COOKIE: [u8; 8] = [0xff; 8];

/// Returns the `struct inet_diag_sockid` of a socket with these addresses, on any interface.
fn identity(local: &SocketAddress, remote: &SocketAddress, cookie: [u8; 8]) -> Result<[u8; IDENTITY_BYTES]> {
    let (Some(source), Some(target)) = (port_and_host(local), port_and_host(remote)) else {
        return Err(Error::new(NAME, Errno::EINVAL));
    };
    let parts = [&source.0[..], &target.0, &source.1, &target.1, &[0; 4], &cookie].concat();
    let mut identity = ANY_SOCKET;
    identity.copy_from_slice(&parts);
    Ok(identity)
}

/// Returns the port of an IP socket address in network byte order, and the host address in 16 bytes.
fn port_and_host(address: &SocketAddress) -> Option<([u8; 2], [u8; 16])> {
    let port = *address.0.get(2..)?.first_chunk()?;
    let mut host = [0; 16];
    if i32::from(address.family()) == libc::AF_INET {
        host[..4].copy_from_slice(address.0.get(4..8)?);
    } else {
        host.copy_from_slice(address.0.get(8..24)?);
    }
    Some((port, host))
}

fn read_tcp_socket(message: &[u8]) -> Option<TcpSocket> {
    const STATE: usize = HEADER_BYTES + 1;
    const COOKIE: usize = HEADER_BYTES + 44;
    const INODE: usize = HEADER_BYTES + 68;
    let fixed = message.get(..INODE + 4)?;
    let cookie = *fixed.get(COOKIE..)?.first_chunk()?;
    Some(TcpSocket { inode: Inode(u64::from(word(fixed, INODE))), state: fixed[STATE], cookie })
}

/// Passes every attribute of a reply about an IP socket to `read`. Returns whether all attributes were complete.
fn inet_attributes(message: &[u8], read: impl FnMut(u16, &[u8])) -> bool {
    each_attribute(message.get(FIXED_BYTES..).unwrap_or_default(), read)
}

fn read_connection(message: &[u8]) -> Option<TcpSocketOfPort> {
    let (local, peer) = (read_end(message, LOCAL)?, read_end(message, PEER)?);
    Some(TcpSocketOfPort { socket: read_tcp_socket(message)?, local, peer })
}

fn read_socket(message: &[u8]) -> Option<UnixSocket> {
    const INODE: usize = HEADER_BYTES + 4;
    let fixed = message.get(..ANSWER_BYTES)?;
    let mut socket = UnixSocket {
        inode: Inode(u64::from(word(fixed, INODE))),
        kind: fixed[HEADER_BYTES + 1],
        state: fixed[HEADER_BYTES + 2],
        ..UnixSocket::default()
    };
    each_attribute(&message[ANSWER_BYTES..], |kind, value| read_attribute(&mut socket, kind, value))
        .then_some(socket)
}

/// Offsets of port and host of the two ends of a connection in a reply.
const LOCAL: (usize, usize) = (HEADER_BYTES + 4, HEADER_BYTES + 8);
const PEER: (usize, usize) = (HEADER_BYTES + 6, HEADER_BYTES + 24);

/// Returns one address in a reply about a TCP socket, as a `struct sockaddr`.
fn read_end(message: &[u8], (port, host): (usize, usize)) -> Option<SocketAddress> {
    const SCOPE: usize = HEADER_BYTES + 40;
    let family = u16::from(*message.get(HEADER_BYTES)?);
    let mut bytes = family.to_ne_bytes().to_vec();
    bytes.extend(message.get(port..port + 2)?);
    if i32::from(family) == libc::AF_INET {
        bytes.extend(message.get(host..host + 4)?);
        bytes.extend([0; 8]);
    } else {
        bytes.extend([0; 4]);
        bytes.extend(message.get(host..host + 16)?);
        bytes.extend(message.get(SCOPE..SCOPE + 4)?);
    }
    Some(SocketAddress(bytes))
}

fn read_attribute(socket: &mut UnixSocket, kind: u16, value: &[u8]) {
    match (kind, value.len()) {
        (0, _) => socket.name = Some(value.to_vec()),
        (1, 8) => socket.file = Some((word(value, 0), word(value, 4))),
        (2, 4) => socket.peer = Some(Inode(u64::from(word(value, 0)))),
        (3, _) => {
            socket.waiting = value.chunks_exact(4).map(|client| Inode(u64::from(word(client, 0)))).collect();
        }
        (4, 8) => (socket.receive_queue, socket.send_queue) = (word(value, 0), word(value, 4)),
        (6, 1) => socket.shut = value[0],
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    pub(super) fn inode(socket: &impl AsRawFd) -> Inode {
        let link = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap();
        let text = link.to_str().unwrap().trim_start_matches("socket:[").trim_end_matches(']').to_owned();
        Inode(text.parse().unwrap())
    }

    #[test]
    fn ends_of_a_pair_know_each_other_and_what_is_shut() {
        let diag = SockDiag::open().unwrap();
        let (left, right) = UnixStream::pair().unwrap();
        left.shutdown(std::net::Shutdown::Write).unwrap();
        let seen = diag.unix_socket(inode(&left)).unwrap().unwrap();
        assert_eq!((seen.peer, seen.state, seen.shut), (Some(inode(&right)), CONNECTED, 2));
        assert_eq!(diag.unix_socket(inode(&right)).unwrap().unwrap().shut, 1);
        drop(right);
        assert_eq!(diag.unix_socket(inode(&left)).unwrap().unwrap().peer, Some(Inode(0)));
        assert_eq!(diag.unix_socket(Inode(0xffff_fff0)).unwrap(), None);
    }

    #[test]
    fn a_udp_socket_reports_which_halves_are_shut() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(socket.local_addr().unwrap()).unwrap();
        rustix::net::shutdown(&socket, rustix::net::Shutdown::Write).unwrap();
        let seen = SockDiag::open().unwrap().shut_halves(libc::AF_INET, libc::IPPROTO_UDP, inode(&socket));
        match seen.unwrap() {
            Some(shut) => assert_eq!(shut, 2),
            None => println!("unsupported: directory of UDP sockets"),
        }
    }

    #[test]
    fn the_other_end_of_a_tcp_connection_is_found() {
        use std::os::fd::AsFd;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (here, there) = (
            crate::socket::local(client.as_fd()).unwrap(),
            crate::socket::peer(client.as_fd()).unwrap().unwrap(),
        );
        let diag = SockDiag::open().unwrap();
        let waiting = diag.tcp_socket(&there, &here).unwrap().unwrap();
        assert_eq!((waiting.inode, waiting.state), (Inode(0), 1));
        let (server, _) = listener.accept().unwrap();
        assert_eq!(diag.tcp_socket(&there, &here).unwrap().unwrap().inode, inode(&server));
        assert_eq!(diag.tcp_socket(&here, &there).unwrap().unwrap().inode, inode(&client));
        let mut nobody = here.clone();
        nobody.0[3] ^= 1;
        assert_eq!(diag.tcp_socket(&nobody, &there).unwrap(), None);
    }

    #[test]
    fn sockets_of_a_port_are_listed_and_an_ended_one_is_destroyed() {
        use std::os::fd::AsFd;
        const TIME_WAIT: u8 = 6;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        let here = crate::socket::local(server.as_fd()).unwrap();
        let there = crate::socket::peer(server.as_fd()).unwrap().unwrap();
        let diag = SockDiag::open().unwrap();
        let all = diag.tcp_sockets_of_port(libc::AF_INET, port).unwrap();
        let states: Vec<_> = all.iter().map(|one| (one.socket.inode, one.socket.state)).collect();
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(
            states.contains(&(inode(&listener), LISTENING)) && states.contains(&(inode(&server), CONNECTED))
        );
        assert!(all.iter().any(|one| (&one.local, &one.peer) == (&here, &there)));
        drop(server);
        drop(client);
        let left = || diag.tcp_socket(&here, &there).unwrap();
        while left().is_some_and(|socket| socket.state != TIME_WAIT) {
            std::thread::yield_now();
        }
        let ended = left().unwrap();
        match diag.destroy_tcp(ended, &here, &there) {
            Ok(()) => assert_eq!(left(), None),
            Err(error) => return println!("unsupported: {error}"),
        }
        // The kernel finds the listener with this address, but the cookie of the listener differs.
        assert!(diag.destroy_tcp(ended, &here, &there).is_err());
        std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    }

    #[test]
    fn a_listener_reports_waiting_connections() {
        let path = std::env::temp_dir().join(format!("undying-diag-{}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let clients = [UnixStream::connect(&path).unwrap(), UnixStream::connect(&path).unwrap()];
        let all = SockDiag::open().unwrap().unix_sockets(1 << LISTENING).unwrap();
        std::fs::remove_file(&path).unwrap();
        let seen = all.iter().find(|socket| socket.inode == inode(&listener)).unwrap();
        assert_eq!(seen.waiting, clients.iter().map(inode).collect::<Vec<_>>());
        assert_eq!(seen.receive_queue, 2);
        assert!(seen.file.is_some());
        assert!(seen.name.as_ref().unwrap().starts_with(path.to_str().unwrap().as_bytes()));
    }
}
