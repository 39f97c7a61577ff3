//! The table of socket options that are saved and restored.
//!
//! Owns: which options a socket family has, in which order they are set, and when.
//! Invariants: each option of the kernel's headers (asm-generic/socket.h, linux/in.h, in6.h, tcp.h, udp.h,
//! netlink.h) that can be read and set has a row here. The others are read-only, or are handled by the kind of
//! socket, or are refused, or stand in docs/limits.md.
//! Does not: read or set options; `socket_options` does.

use sys::socket_option::SocketOption;

use super::socket_options::{
    AF_INET, AF_INET6, AF_NETLINK, Family, IPPROTO_IP, IPPROTO_IPV6, IPPROTO_MPTCP, IPPROTO_TCP, IPPROTO_UDP,
    IPPROTO_UDPLITE, SOL_NETLINK, SOL_SOCKET,
};

/// When an option is set again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum When {
    /// As soon as the socket exists, before it has an address.
    Early,
    /// The same, for sockets without a connection only: a connection has a value of its own there.
    Unconnected,
    /// When its queues are filled.
    Late,
}

/// One option.
pub(super) struct Row {
    pub(super) option: SocketOption,
    pub(super) when: When,
}

const fn early(level: i32, number: i32, name: &'static str) -> Row {
    Row { option: SocketOption { level, number, name }, when: When::Early }
}

const fn unconnected(level: i32, number: i32, name: &'static str) -> Row {
    Row { option: SocketOption { level, number, name }, when: When::Unconnected }
}

const fn late(level: i32, number: i32, name: &'static str) -> Row {
    Row { option: SocketOption { level, number, name }, when: When::Late }
}

/// Options of every socket, in the order in which they are set.
const SOCKET: &[Row] = &[
    early(SOL_SOCKET, 1, "SO_DEBUG"),
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
    early(SOL_SOCKET, 65, "SO_TIMESTAMPING_NEW"),
    early(SOL_SOCKET, 40, "SO_RXQ_OVFL"),
    early(SOL_SOCKET, 41, "SO_WIFI_STATUS"),
    late(SOL_SOCKET, 42, "SO_PEEK_OFF"),
    early(SOL_SOCKET, 43, "SO_NOFCS"),
    early(SOL_SOCKET, 45, "SO_SELECT_ERR_QUEUE"),
    early(SOL_SOCKET, 46, "SO_BUSY_POLL"),
    early(SOL_SOCKET, 47, "SO_MAX_PACING_RATE"),
    unconnected(SOL_SOCKET, 49, "SO_INCOMING_CPU"),
    early(SOL_SOCKET, 60, "SO_ZEROCOPY"),
    early(SOL_SOCKET, 61, "SO_TXTIME"),
    early(SOL_SOCKET, 63, "SO_TIMESTAMP_NEW"),
    early(SOL_SOCKET, 64, "SO_TIMESTAMPNS_NEW"),
    early(SOL_SOCKET, 69, "SO_PREFER_BUSY_POLL"),
    early(SOL_SOCKET, 70, "SO_BUSY_POLL_BUDGET"),
    early(SOL_SOCKET, 73, "SO_RESERVE_MEM"),
    early(SOL_SOCKET, 74, "SO_TXREHASH"),
    early(SOL_SOCKET, 75, "SO_RCVMARK"),
    late(SOL_SOCKET, 76, "SO_PASSPIDFD"),
    early(SOL_SOCKET, 82, "SO_RCVPRIORITY"),
    late(SOL_SOCKET, 83, "SO_PASSRIGHTS"),
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
    early(IPPROTO_IP, 26, "IP_RECVERR_RFC4884"),
    early(IPPROTO_IP, 50, "IP_UNICAST_IF"),
    early(IPPROTO_IP, 51, "IP_LOCAL_PORT_RANGE"),
];

const IPV6: &[Row] = &[
    early(IPPROTO_IPV6, 26, "IPV6_V6ONLY"),
    early(IPPROTO_IPV6, 2, "IPV6_2292PKTINFO"),
    early(IPPROTO_IPV6, 3, "IPV6_2292HOPOPTS"),
    early(IPPROTO_IPV6, 4, "IPV6_2292DSTOPTS"),
    early(IPPROTO_IPV6, 5, "IPV6_2292RTHDR"),
    early(IPPROTO_IPV6, 8, "IPV6_2292HOPLIMIT"),
    early(IPPROTO_IPV6, 11, "IPV6_FLOWINFO"),
    early(IPPROTO_IPV6, 16, "IPV6_UNICAST_HOPS"),
    early(IPPROTO_IPV6, 23, "IPV6_MTU_DISCOVER"),
    early(IPPROTO_IPV6, 25, "IPV6_RECVERR"),
    early(IPPROTO_IPV6, 31, "IPV6_RECVERR_RFC4884"),
    early(IPPROTO_IPV6, 33, "IPV6_FLOWINFO_SEND"),
    early(IPPROTO_IPV6, 49, "IPV6_RECVPKTINFO"),
    early(IPPROTO_IPV6, 51, "IPV6_RECVHOPLIMIT"),
    early(IPPROTO_IPV6, 53, "IPV6_RECVHOPOPTS"),
    early(IPPROTO_IPV6, 54, "IPV6_HOPOPTS"),
    early(IPPROTO_IPV6, 57, "IPV6_RTHDR"),
    early(IPPROTO_IPV6, 55, "IPV6_RTHDRDSTOPTS"),
    early(IPPROTO_IPV6, 59, "IPV6_DSTOPTS"),
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
    unconnected(IPPROTO_TCP, 2, "TCP_MAXSEG"),
    unconnected(IPPROTO_TCP, 10, "TCP_WINDOW_CLAMP"),
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
    early(IPPROTO_TCP, 33, "TCP_FASTOPEN_KEY"),
    early(IPPROTO_TCP, 34, "TCP_FASTOPEN_NO_COOKIE"),
    early(IPPROTO_TCP, 36, "TCP_INQ"),
    early(IPPROTO_TCP, 37, "TCP_TX_DELAY"),
    early(IPPROTO_TCP, 44, "TCP_RTO_MAX_MS"),
    early(IPPROTO_TCP, 45, "TCP_RTO_MIN_US"),
    early(IPPROTO_TCP, 46, "TCP_DELACK_MAX_US"),
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

/// Memberships of groups are restored by the kind `netlink`.
const NETLINK: &[Row] = &[
    early(SOL_NETLINK, 3, "NETLINK_PKTINFO"),
    early(SOL_NETLINK, 4, "NETLINK_BROADCAST_ERROR"),
    late(SOL_NETLINK, 5, "NETLINK_NO_ENOBUFS"),
    early(SOL_NETLINK, 8, "NETLINK_LISTEN_ALL_NSID"),
    early(SOL_NETLINK, 10, "NETLINK_CAP_ACK"),
    early(SOL_NETLINK, 11, "NETLINK_EXT_ACK"),
    early(SOL_NETLINK, 12, "NETLINK_GET_STRICT_CHK"),
];

/// The options that sockets of a family have.
pub(super) fn rows(family: Family) -> impl Iterator<Item = &'static Row> {
    let is_ip = family.domain == AF_INET || family.domain == AF_INET6;
    let is_tcp = [IPPROTO_TCP, IPPROTO_MPTCP].contains(&family.protocol);
    let tables = [
        (SOCKET, true),
        (IPV4, is_ip),
        (IPV6, family.domain == AF_INET6),
        (IPV4_MULTICAST, is_ip && !is_tcp),
        (IPV6_MULTICAST, family.domain == AF_INET6 && !is_tcp),
        (TCP, is_ip && is_tcp),
        (UDP, is_ip && family.protocol == IPPROTO_UDP),
        (NETLINK, family.domain == AF_NETLINK),
        (UDPLITE, is_ip && family.protocol == IPPROTO_UDPLITE),
    ];
    tables.into_iter().filter(|table| table.1).flat_map(|table| table.0)
}
