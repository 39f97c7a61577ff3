//! Options that sockets of every family have, and those of the IP families.
//!
//! Owns: the table of options, reading those that differ from a new socket's, setting them again.
//! Invariants: an option that was never changed is neither saved nor set. What works on packets that a restore
//! itself sends (filters, cork, peek offset) is set late, when the socket's queues are filled.
//! Does not: know what cannot be read back: multicast memberships, TCP-MD5 keys, extended packet filters (refused).

use std::os::fd::{AsFd, BorrowedFd};

use prost::Message;
use sys::Errno;
use sys::socket_option::{self, SocketOption};

use super::Description;
use crate::error::Result;
use crate::obstacle::Obstacle;

pub(crate) const SOL_SOCKET: i32 = 1;
pub(crate) const IPPROTO_IP: i32 = 0;
pub(crate) const IPPROTO_TCP: i32 = 6;
pub(crate) const IPPROTO_UDP: i32 = 17;
pub(crate) const IPPROTO_IPV6: i32 = 41;
pub(crate) const IPPROTO_UDPLITE: i32 = 136;
pub(crate) const AF_UNIX: i32 = 1;
pub(crate) const AF_INET: i32 = 2;
pub(crate) const AF_INET6: i32 = 10;

/// No option here is longer.
const VALUE_BYTES_MAX: usize = 64;

/// When an option is set again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum When {
    /// As soon as the socket exists, before it has an address.
    Early,
    /// When its queues are filled.
    Late,
}

struct Row {
    option: SocketOption,
    when: When,
}

const fn early(level: i32, number: i32, name: &'static str) -> Row {
    Row { option: SocketOption { level, number, name }, when: When::Early }
}

const fn late(level: i32, number: i32, name: &'static str) -> Row {
    Row { option: SocketOption { level, number, name }, when: When::Late }
}

/// Sizes of buffers are set through other numbers than they are read by, and may be locked.
pub(crate) const SEND_BUFFER: SocketOption = SocketOption { level: SOL_SOCKET, number: 7, name: "SO_SNDBUF" };
pub(crate) const RECEIVE_BUFFER: SocketOption =
    SocketOption { level: SOL_SOCKET, number: 8, name: "SO_RCVBUF" };
const SEND_BUFFER_FORCE: SocketOption =
    SocketOption { level: SOL_SOCKET, number: 32, name: "SO_SNDBUFFORCE" };
const RECEIVE_BUFFER_FORCE: SocketOption =
    SocketOption { level: SOL_SOCKET, number: 33, name: "SO_RCVBUFFORCE" };
const BUFFER_LOCK: SocketOption = SocketOption { level: SOL_SOCKET, number: 72, name: "SO_BUF_LOCK" };
const LOCK_FILTER: SocketOption = SocketOption { level: SOL_SOCKET, number: 44, name: "SO_LOCK_FILTER" };
pub(crate) const PEEK_OFFSET: SocketOption =
    SocketOption { level: SOL_SOCKET, number: 42, name: "SO_PEEK_OFF" };
pub(crate) const REUSE_ADDRESS: SocketOption =
    SocketOption { level: SOL_SOCKET, number: 2, name: "SO_REUSEADDR" };

/// Options of every socket, in the order in which they are set.
const SOCKET: &[Row] = &[
    early(SOL_SOCKET, 2, "SO_REUSEADDR"),
    early(SOL_SOCKET, 15, "SO_REUSEPORT"),
    early(SOL_SOCKET, 5, "SO_DONTROUTE"),
    early(SOL_SOCKET, 6, "SO_BROADCAST"),
    early(SOL_SOCKET, 7, "SO_SNDBUF"),
    early(SOL_SOCKET, 8, "SO_RCVBUF"),
    early(SOL_SOCKET, 72, "SO_BUF_LOCK"),
    early(SOL_SOCKET, 9, "SO_KEEPALIVE"),
    early(SOL_SOCKET, 10, "SO_OOBINLINE"),
    early(SOL_SOCKET, 11, "SO_NO_CHECK"),
    early(SOL_SOCKET, 12, "SO_PRIORITY"),
    late(SOL_SOCKET, 13, "SO_LINGER"),
    late(SOL_SOCKET, 16, "SO_PASSCRED"),
    early(SOL_SOCKET, 18, "SO_RCVLOWAT"),
    early(SOL_SOCKET, 20, "SO_RCVTIMEO"),
    early(SOL_SOCKET, 21, "SO_SNDTIMEO"),
    early(SOL_SOCKET, 25, "SO_BINDTODEVICE"),
    early(SOL_SOCKET, 29, "SO_TIMESTAMP"),
    early(SOL_SOCKET, 34, "SO_PASSSEC"),
    early(SOL_SOCKET, 35, "SO_TIMESTAMPNS"),
    early(SOL_SOCKET, 36, "SO_MARK"),
    early(SOL_SOCKET, 37, "SO_TIMESTAMPING"),
    early(SOL_SOCKET, 40, "SO_RXQ_OVFL"),
    late(SOL_SOCKET, 42, "SO_PEEK_OFF"),
    early(SOL_SOCKET, 43, "SO_NOFCS"),
    early(SOL_SOCKET, 45, "SO_SELECT_ERR_QUEUE"),
    early(SOL_SOCKET, 46, "SO_BUSY_POLL"),
    early(SOL_SOCKET, 47, "SO_MAX_PACING_RATE"),
    early(SOL_SOCKET, 60, "SO_ZEROCOPY"),
    early(SOL_SOCKET, 63, "SO_TIMESTAMP_NEW"),
    early(SOL_SOCKET, 64, "SO_TIMESTAMPNS_NEW"),
    early(SOL_SOCKET, 69, "SO_PREFER_BUSY_POLL"),
    early(SOL_SOCKET, 70, "SO_BUSY_POLL_BUDGET"),
    early(SOL_SOCKET, 74, "SO_TXREHASH"),
    early(SOL_SOCKET, 75, "SO_RCVMARK"),
    late(SOL_SOCKET, 76, "SO_PASSPIDFD"),
];

/// Options of the IPv4 level; IPv6 sockets have them too, for mapped addresses.
const IPV4: &[Row] = &[
    early(IPPROTO_IP, 1, "IP_TOS"),
    early(IPPROTO_IP, 2, "IP_TTL"),
    early(IPPROTO_IP, 4, "IP_OPTIONS"),
    early(IPPROTO_IP, 6, "IP_RECVOPTS"),
    early(IPPROTO_IP, 7, "IP_RETOPTS"),
    early(IPPROTO_IP, 8, "IP_PKTINFO"),
    early(IPPROTO_IP, 10, "IP_MTU_DISCOVER"),
    early(IPPROTO_IP, 11, "IP_RECVERR"),
    early(IPPROTO_IP, 12, "IP_RECVTTL"),
    early(IPPROTO_IP, 13, "IP_RECVTOS"),
    early(IPPROTO_IP, 15, "IP_FREEBIND"),
    early(IPPROTO_IP, 18, "IP_PASSSEC"),
    early(IPPROTO_IP, 19, "IP_TRANSPARENT"),
    early(IPPROTO_IP, 20, "IP_RECVORIGDSTADDR"),
    early(IPPROTO_IP, 21, "IP_MINTTL"),
    early(IPPROTO_IP, 23, "IP_CHECKSUM"),
    early(IPPROTO_IP, 24, "IP_BIND_ADDRESS_NO_PORT"),
    early(IPPROTO_IP, 25, "IP_RECVFRAGSIZE"),
    early(IPPROTO_IP, 50, "IP_UNICAST_IF"),
    early(IPPROTO_IP, 51, "IP_LOCAL_PORT_RANGE"),
];

const IPV6: &[Row] = &[
    early(IPPROTO_IPV6, 26, "IPV6_V6ONLY"),
    early(IPPROTO_IPV6, 16, "IPV6_UNICAST_HOPS"),
    early(IPPROTO_IPV6, 23, "IPV6_MTU_DISCOVER"),
    early(IPPROTO_IPV6, 25, "IPV6_RECVERR"),
    early(IPPROTO_IPV6, 33, "IPV6_FLOWINFO_SEND"),
    early(IPPROTO_IPV6, 49, "IPV6_RECVPKTINFO"),
    early(IPPROTO_IPV6, 51, "IPV6_RECVHOPLIMIT"),
    early(IPPROTO_IPV6, 53, "IPV6_RECVHOPOPTS"),
    early(IPPROTO_IPV6, 56, "IPV6_RECVRTHDR"),
    early(IPPROTO_IPV6, 58, "IPV6_RECVDSTOPTS"),
    early(IPPROTO_IPV6, 60, "IPV6_RECVPATHMTU"),
    early(IPPROTO_IPV6, 62, "IPV6_DONTFRAG"),
    early(IPPROTO_IPV6, 66, "IPV6_RECVTCLASS"),
    early(IPPROTO_IPV6, 67, "IPV6_TCLASS"),
    early(IPPROTO_IPV6, 70, "IPV6_AUTOFLOWLABEL"),
    early(IPPROTO_IPV6, 72, "IPV6_ADDR_PREFERENCES"),
    early(IPPROTO_IPV6, 73, "IPV6_MINHOPCOUNT"),
    early(IPPROTO_IPV6, 74, "IPV6_RECVORIGDSTADDR"),
    early(IPPROTO_IPV6, 75, "IPV6_TRANSPARENT"),
    early(IPPROTO_IPV6, 76, "IPV6_UNICAST_IF"),
    early(IPPROTO_IPV6, 77, "IPV6_RECVFRAGSIZE"),
    early(IPPROTO_IPV6, 78, "IPV6_FREEBIND"),
];

/// Options that mean something for datagrams only; connections keep values of their own there.
const IPV4_MULTICAST: &[Row] = &[
    early(IPPROTO_IP, 32, "IP_MULTICAST_IF"),
    early(IPPROTO_IP, 33, "IP_MULTICAST_TTL"),
    early(IPPROTO_IP, 34, "IP_MULTICAST_LOOP"),
    early(IPPROTO_IP, 49, "IP_MULTICAST_ALL"),
];

const IPV6_MULTICAST: &[Row] = &[
    early(IPPROTO_IPV6, 17, "IPV6_MULTICAST_IF"),
    early(IPPROTO_IPV6, 18, "IPV6_MULTICAST_HOPS"),
    early(IPPROTO_IPV6, 19, "IPV6_MULTICAST_LOOP"),
    early(IPPROTO_IPV6, 29, "IPV6_MULTICAST_ALL"),
];

const TCP: &[Row] = &[
    early(IPPROTO_TCP, 4, "TCP_KEEPIDLE"),
    early(IPPROTO_TCP, 5, "TCP_KEEPINTVL"),
    early(IPPROTO_TCP, 6, "TCP_KEEPCNT"),
    early(IPPROTO_TCP, 7, "TCP_SYNCNT"),
    early(IPPROTO_TCP, 8, "TCP_LINGER2"),
    early(IPPROTO_TCP, 9, "TCP_DEFER_ACCEPT"),
    early(IPPROTO_TCP, 13, "TCP_CONGESTION"),
    early(IPPROTO_TCP, 16, "TCP_THIN_LINEAR_TIMEOUTS"),
    early(IPPROTO_TCP, 18, "TCP_USER_TIMEOUT"),
    early(IPPROTO_TCP, 23, "TCP_FASTOPEN"),
    early(IPPROTO_TCP, 25, "TCP_NOTSENT_LOWAT"),
    early(IPPROTO_TCP, 27, "TCP_SAVE_SYN"),
    early(IPPROTO_TCP, 30, "TCP_FASTOPEN_CONNECT"),
    early(IPPROTO_TCP, 34, "TCP_FASTOPEN_NO_COOKIE"),
    early(IPPROTO_TCP, 36, "TCP_INQ"),
    early(IPPROTO_TCP, 37, "TCP_TX_DELAY"),
    late(IPPROTO_TCP, 1, "TCP_NODELAY"),
    late(IPPROTO_TCP, 3, "TCP_CORK"),
];

const UDP: &[Row] = &[
    late(IPPROTO_UDP, 1, "UDP_CORK"),
    early(IPPROTO_UDP, 100, "UDP_ENCAP"),
    early(IPPROTO_UDP, 101, "UDP_NO_CHECK6_TX"),
    early(IPPROTO_UDP, 102, "UDP_NO_CHECK6_RX"),
    early(IPPROTO_UDP, 103, "UDP_SEGMENT"),
    early(IPPROTO_UDP, 104, "UDP_GRO"),
];

const UDPLITE: &[Row] =
    &[early(IPPROTO_UDPLITE, 10, "UDPLITE_SEND_CSCOV"), early(IPPROTO_UDPLITE, 11, "UDPLITE_RECV_CSCOV")];

/// What a socket was created as.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Message)]
pub(crate) struct Family {
    /// AF_UNIX, AF_INET or AF_INET6.
    #[prost(int32, tag = "1")]
    pub(crate) domain: i32,
    /// SOCK_STREAM …
    #[prost(int32, tag = "2")]
    pub(crate) kind: i32,
    /// IPPROTO_TCP …
    #[prost(int32, tag = "3")]
    pub(crate) protocol: i32,
}

/// The options of one socket that are not a new socket's.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Options {
    #[prost(message, repeated, tag = "1")]
    values: Vec<Value>,
    /// A classic packet filter.
    #[prost(bytes = "vec", tag = "2")]
    filter: Vec<u8>,
    #[prost(bool, tag = "3")]
    filter_locked: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
struct Value {
    #[prost(int32, tag = "1")]
    level: i32,
    #[prost(int32, tag = "2")]
    number: i32,
    #[prost(bytes = "vec", tag = "3")]
    bytes: Vec<u8>,
}

impl Family {
    /// What an open socket was created as.
    pub(crate) fn of(socket: impl AsFd) -> Result<Self> {
        let ask = |number, name| {
            socket_option::get_int(socket.as_fd(), SocketOption { level: SOL_SOCKET, number, name })
        };
        Ok(Self {
            domain: ask(39, "SO_DOMAIN")?,
            kind: ask(3, "SO_TYPE")?,
            protocol: ask(38, "SO_PROTOCOL")?,
        })
    }

    /// A new socket of this family.
    pub(crate) fn create(self) -> Result<std::os::fd::OwnedFd> {
        Ok(sys::socket::create(self.domain, self.kind, self.protocol)?)
    }

    fn rows(self) -> impl Iterator<Item = &'static Row> {
        let is_ip = self.domain == AF_INET || self.domain == AF_INET6;
        let tables = [
            (SOCKET, true),
            (IPV4, is_ip),
            (IPV6, self.domain == AF_INET6),
            (IPV4_MULTICAST, is_ip && self.protocol != IPPROTO_TCP),
            (IPV6_MULTICAST, self.domain == AF_INET6 && self.protocol != IPPROTO_TCP),
            (TCP, is_ip && self.protocol == IPPROTO_TCP),
            (UDP, is_ip && self.protocol == IPPROTO_UDP),
            (UDPLITE, is_ip && self.protocol == IPPROTO_UDPLITE),
        ];
        tables.into_iter().filter(|table| table.1).flat_map(|table| table.0)
    }
}

/// Obstacles that lie in the options of a socket.
pub(crate) fn obstacles(description: &Description, what: &str) -> Vec<Obstacle> {
    match socket_option::filter(description.as_fd()) {
        Err(error) if error.errno == Errno::EACCES => vec![description.obstacle(
            what,
            "it has an extended BPF program as packet filter, which cannot be read back",
            "let the program detach the filter first",
        )],
        _ => Vec::new(),
    }
}

/// The options that a new socket of a family has, with their values.
#[derive(Debug)]
pub(crate) struct Fresh {
    /// `None` for one that has no value yet.
    values: Vec<(SocketOption, Option<Bytes>)>,
}

/// The value of an option.
#[derive(Clone, Copy, Debug)]
struct Bytes {
    buffer: [u8; VALUE_BYTES_MAX],
    length: usize,
}

impl Bytes {
    fn as_slice(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

impl Fresh {
    /// Makes a new socket and reads them. What sockets of the family never have is left out.
    pub(crate) fn of(family: Family) -> Result<Self> {
        let socket = family.create()?;
        let mut values = Vec::new();
        for row in family.rows() {
            match read(socket.as_fd(), row.option)? {
                // An IPv6 socket that talks IPv4 may have options that a new one does not know.
                Answer::Unknown if row.option.level != IPPROTO_IP || family.domain != AF_INET6 => {}
                Answer::Unknown | Answer::NotNow => values.push((row.option, None)),
                Answer::Value(bytes) => values.push((row.option, Some(bytes))),
            }
        }
        Ok(Self { values })
    }
}

impl Options {
    /// Reads the options of a socket that are not those of a new one: one system call for each that the family has,
    /// and memory for those that differ.
    pub(crate) fn read(socket: impl AsFd, fresh: &Fresh) -> Result<Self> {
        let socket = socket.as_fd();
        let mut values = Vec::new();
        for (option, usual) in &fresh.values {
            let Answer::Value(bytes) = read(socket, *option)? else { continue };
            if usual.as_ref().map(Bytes::as_slice) != Some(bytes.as_slice()) {
                let bytes = bytes.as_slice().to_vec();
                values.push(Value { level: option.level, number: option.number, bytes });
            }
        }
        let filter_locked = match read(socket, LOCK_FILTER)? {
            Answer::Value(bytes) => bytes.as_slice() != [0; 4],
            Answer::Unknown | Answer::NotNow => false,
        };
        Ok(Self { values, filter: socket_option::filter(socket)?, filter_locked })
    }

    /// The classic packet filter; empty for none.
    pub(crate) fn filter(&self) -> &[u8] {
        &self.filter
    }

    /// The saved value of an `int` option; `None` for one that was never changed.
    pub(crate) fn int(&self, option: SocketOption) -> Option<i32> {
        let value = self.find(option)?;
        Some(i32::from_ne_bytes(*value.bytes.first_chunk()?))
    }

    fn find(&self, option: SocketOption) -> Option<&Value> {
        self.values.iter().find(|value| (value.level, value.number) == (option.level, option.number))
    }

    /// Sets what has to be set before the socket gets an address.
    pub(crate) fn apply_early(&self, socket: impl AsFd, family: Family) -> Result<()> {
        self.apply(socket.as_fd(), family, When::Early)
    }

    /// Sets what has to be set when the socket's queues are filled.
    pub(crate) fn apply_late(&self, socket: impl AsFd, family: Family) -> Result<()> {
        let socket = socket.as_fd();
        self.apply(socket, family, When::Late)?;
        if !self.filter.is_empty() {
            socket_option::attach_filter(socket, &self.filter)?;
        }
        if self.filter_locked {
            socket_option::set_int(socket, LOCK_FILTER, 1)?;
        }
        Ok(())
    }

    /// Gives buffers their saved sizes again after `make_room`.
    pub(crate) fn restore_buffers(&self, socket: impl AsFd, family: Family) -> Result<()> {
        let socket = socket.as_fd();
        let fresh = family.create()?;
        for (plain, force) in [(SEND_BUFFER, SEND_BUFFER_FORCE), (RECEIVE_BUFFER, RECEIVE_BUFFER_FORCE)] {
            let size = match self.int(plain) {
                Some(size) => size,
                None => socket_option::get_int(fresh.as_fd(), plain)?,
            };
            if socket_option::get_int(socket, plain)? != size {
                set_buffer(socket, plain, force, &size.to_ne_bytes())?;
            }
        }
        set(socket, BUFFER_LOCK, &self.int(BUFFER_LOCK).unwrap_or(0).to_ne_bytes())
    }

    fn apply(&self, socket: BorrowedFd<'_>, family: Family, when: When) -> Result<()> {
        for row in family.rows().filter(|row| row.when == when) {
            let Some(value) = self.find(row.option) else { continue };
            match row.option {
                SEND_BUFFER => set_buffer(socket, SEND_BUFFER, SEND_BUFFER_FORCE, &value.bytes)?,
                RECEIVE_BUFFER => set_buffer(socket, RECEIVE_BUFFER, RECEIVE_BUFFER_FORCE, &value.bytes)?,
                option => set(socket, option, &value.bytes)?,
            }
        }
        // Setting a size locks it; one that the kernel had grown by itself must go on growing.
        let grown = self.find(SEND_BUFFER).is_some() || self.find(RECEIVE_BUFFER).is_some();
        if when == When::Early && grown && self.find(BUFFER_LOCK).is_none() {
            set(socket, BUFFER_LOCK, &[0; 4])?;
        }
        Ok(())
    }
}

/// What a socket says of an option.
enum Answer {
    Value(Bytes),
    /// No socket of the family has it.
    Unknown,
    /// In its present state it has none.
    NotNow,
}

fn read(socket: BorrowedFd<'_>, option: SocketOption) -> Result<Answer> {
    let mut buffer = [0; VALUE_BYTES_MAX];
    match socket_option::get(socket, option, &mut buffer) {
        Ok(length) => Ok(Answer::Value(Bytes { buffer, length })),
        Err(error) if [ENOPROTOOPT, EOPNOTSUPP].contains(&error.errno.0) => Ok(Answer::Unknown),
        Err(error) if error.errno == Errno::EINVAL || error.errno.0 == ENOTCONN => Ok(Answer::NotNow),
        Err(error) => Err(error.into()),
    }
}

fn set(socket: BorrowedFd<'_>, option: SocketOption, bytes: &[u8]) -> Result<()> {
    match socket_option::set(socket, option, bytes) {
        // An older kernel than the one that saved it; the program can do without what its kernel lacks.
        Err(error) if error.errno.0 == ENOPROTOOPT => Ok(()),
        outcome => Ok(outcome?),
    }
}

const ENOPROTOOPT: i32 = 92;
const EOPNOTSUPP: i32 = 95;
const ENOTCONN: i32 = 107;

/// Sets the size of a buffer; the kernel doubles what it is given.
fn set_buffer(socket: BorrowedFd<'_>, plain: SocketOption, force: SocketOption, bytes: &[u8]) -> Result<()> {
    let size = bytes.first_chunk().map_or(0, |bytes| i32::from_ne_bytes(*bytes));
    match socket_option::set_int(socket, force, size / 2) {
        // Without privilege the system's limit applies, as it did when the program set it.
        Err(error) if error.errno == Errno::EPERM => Ok(socket_option::set_int(socket, plain, size / 2)?),
        outcome => Ok(outcome?),
    }
}

/// Makes room for a queue that is about to be filled; `restore_buffers` undoes it.
pub(crate) fn make_room(socket: impl AsFd, option: SocketOption, bytes: usize) -> Result<()> {
    let socket = socket.as_fd();
    let wanted = i32::try_from(bytes).unwrap_or(i32::MAX / 2);
    if socket_option::get_int(socket, option)? >= wanted {
        return Ok(());
    }
    let force = if option == SEND_BUFFER { SEND_BUFFER_FORCE } else { RECEIVE_BUFFER_FORCE };
    set_buffer(socket, option, force, &wanted.to_ne_bytes())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    fn read_options(socket: impl AsFd, family: Family) -> Result<Options> {
        Options::read(socket, &Fresh::of(family)?)
    }

    #[test]
    fn only_what_was_changed_is_saved_and_it_comes_back() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let family = Family::of(&socket).unwrap();
        assert_eq!(family, Family { domain: AF_INET, kind: 1, protocol: IPPROTO_TCP });
        rustix::net::sockopt::set_tcp_keepcnt(&socket, 3).unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 100_000).unwrap();
        rustix::net::sockopt::set_ip_ttl(&socket, 33).unwrap();
        let saved = read_options(&socket, family).unwrap();
        let numbers: Vec<_> = saved.values.iter().map(|value| (value.level, value.number)).collect();
        // The listener of the standard library sets SO_REUSEADDR itself.
        assert_eq!(numbers, [(1, 2), (1, 8), (1, 72), (0, 2), (6, 6)]);
        let copy = family.create().unwrap();
        saved.apply_early(&copy, family).unwrap();
        saved.apply_late(&copy, family).unwrap();
        assert_eq!(read_options(&copy, family).unwrap(), saved);
        assert_eq!(rustix::net::sockopt::socket_recv_buffer_size(&copy).unwrap(), 200_000);
    }

    #[test]
    fn a_locked_filter_is_attached_last() {
        let (one, _other) = UnixDatagram::pair().unwrap();
        let family = Family::of(&one).unwrap();
        socket_option::attach_filter(one.as_fd(), &socket_option::FILTER_DROPS_ALL).unwrap();
        socket_option::set_int(one.as_fd(), LOCK_FILTER, 1).unwrap();
        let saved = read_options(&one, family).unwrap();
        let (copy, _peer) = UnixDatagram::pair().unwrap();
        saved.apply_early(&copy, family).unwrap();
        assert!(socket_option::filter(copy.as_fd()).unwrap().is_empty());
        saved.apply_late(&copy, family).unwrap();
        assert_eq!(read_options(&copy, family).unwrap(), saved);
        assert!(socket_option::detach_filter(copy.as_fd()).is_err());
    }

    #[test]
    fn ipv6_sockets_have_the_options_of_both_levels() {
        let family = Family { domain: AF_INET6, kind: 2, protocol: IPPROTO_UDP };
        let Ok(socket) = family.create() else { return println!("unsupported: IPv6") };
        rustix::net::sockopt::set_ipv6_v6only(&socket, true).unwrap();
        rustix::net::sockopt::set_ipv6_recvtclass(&socket, true).unwrap();
        let saved = read_options(&socket, family).unwrap();
        assert_eq!(saved.values.len(), 2, "{saved:?}");
        let copy = family.create().unwrap();
        saved.apply_early(&copy, family).unwrap();
        assert_eq!(read_options(&copy, family).unwrap(), saved);
    }
}
