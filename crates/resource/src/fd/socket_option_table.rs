//! Table of the socket options that are saved and restored.
//!
//! Owns: the options of each socket family, and when and in which order a restore sets them.
//! Invariants: every option in the kernel's headers that can be read and set has a row here. The headers are
//! asm-generic/socket.h, linux/in.h, in6.h, tcp.h, udp.h, netlink.h and mptcp.h. An option without a row is
//! read-only, refused, handled by the descriptor kind of the socket, or listed in docs/limits.md. A test demands a
//! verdict for each option without a row. Another test probes the options of the running kernel.
//! Does not: read or set options; `socket_options` does.

use sys::socket_option::SocketOption;

use super::socket_family::{
    AF_INET, AF_INET6, AF_NETLINK, AF_PACKET, Family, IPPROTO_ICMPV6, IPPROTO_IP, IPPROTO_IPV6,
    IPPROTO_MPTCP, IPPROTO_TCP, IPPROTO_UDP, IPPROTO_UDPLITE, SOCK_RAW, SOL_NETLINK, SOL_PACKET, SOL_RAW,
    SOL_SOCKET,
};

/// When the restore sets an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum When {
    /// When the socket exists and has no address.
    Early,
    /// As [`When::Early`], but only for a socket without a connection. A connection has its own value of the option.
    Unconnected,
    /// After the queues of the socket were filled.
    Late,
}

/// One option that is saved and restored.
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

/// Options of the IPv4 level. IPv6 sockets have these options too, for IPv4-mapped addresses.
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
    early(IPPROTO_IPV6, 30, "IPV6_ROUTER_ALERT_ISOLATE"),
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

/// Options for datagrams. A connection has its own values of these options.
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

/// Options of raw sockets. `ICMP_FILTER` and `ICMPV6_FILTER` exist only for the protocols ICMP and ICMPv6.
const RAW: &[Row] = &[
    early(IPPROTO_IP, 3, "IP_HDRINCL"),
    early(IPPROTO_IP, 5, "IP_ROUTER_ALERT"),
    early(IPPROTO_IP, 22, "IP_NODEFRAG"),
    early(SOL_RAW, 1, "ICMP_FILTER"),
    early(IPPROTO_IPV6, 7, "IPV6_CHECKSUM"),
    early(IPPROTO_IPV6, 36, "IPV6_HDRINCL"),
    early(IPPROTO_ICMPV6, 1, "ICMPV6_FILTER"),
];

/// Options of packet sockets. The version and the reserved bytes determine the frames of a ring. The kind `packet` restores
/// the rings afterwards.
const PACKET: &[Row] = &[
    early(SOL_PACKET, 10, "PACKET_VERSION"),
    early(SOL_PACKET, 12, "PACKET_RESERVE"),
    early(SOL_PACKET, 8, "PACKET_AUXDATA"),
    early(SOL_PACKET, 9, "PACKET_ORIGDEV"),
    early(SOL_PACKET, 14, "PACKET_LOSS"),
    early(SOL_PACKET, 24, "PACKET_VNET_HDR_SZ"),
    early(SOL_PACKET, 16, "PACKET_TX_TIMESTAMP"),
    early(SOL_PACKET, 17, "PACKET_TIMESTAMP"),
    early(SOL_PACKET, 19, "PACKET_TX_HAS_OFF"),
    early(SOL_PACKET, 20, "PACKET_QDISC_BYPASS"),
    early(SOL_PACKET, 23, "PACKET_IGNORE_OUTGOING"),
];

/// Options of the netlink level. The kind `netlink` restores the memberships of groups.
const NETLINK: &[Row] = &[
    early(SOL_NETLINK, 3, "NETLINK_PKTINFO"),
    early(SOL_NETLINK, 4, "NETLINK_BROADCAST_ERROR"),
    late(SOL_NETLINK, 5, "NETLINK_NO_ENOBUFS"),
    early(SOL_NETLINK, 8, "NETLINK_LISTEN_ALL_NSID"),
    early(SOL_NETLINK, 10, "NETLINK_CAP_ACK"),
    early(SOL_NETLINK, 11, "NETLINK_EXT_ACK"),
    early(SOL_NETLINK, 12, "NETLINK_GET_STRICT_CHK"),
];

/// Returns the options of a socket family.
pub(super) fn rows(family: Family) -> impl Iterator<Item = &'static Row> {
    let is_ip = family.domain == AF_INET || family.domain == AF_INET6;
    let is_raw = family.kind == SOCK_RAW;
    let is_tcp = [IPPROTO_TCP, IPPROTO_MPTCP].contains(&family.protocol) && !is_raw;
    let tables = [
        (SOCKET, true),
        (IPV4, is_ip),
        (IPV6, family.domain == AF_INET6),
        (IPV4_MULTICAST, is_ip && !is_tcp),
        (IPV6_MULTICAST, family.domain == AF_INET6 && !is_tcp),
        (TCP, is_ip && is_tcp),
        (UDP, is_ip && family.protocol == IPPROTO_UDP && !is_raw),
        (RAW, is_ip && is_raw),
        (PACKET, family.domain == AF_PACKET),
        (NETLINK, family.domain == AF_NETLINK),
        (UDPLITE, is_ip && family.protocol == IPPROTO_UDPLITE && !is_raw),
    ];
    tables.into_iter().filter(|table| table.1).flat_map(|table| table.0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::os::fd::{AsFd, OwnedFd};

    use sys::socket_option;

    use super::super::socket_family::{AF_UNIX, Family};
    use super::*;
    use crate::support::kernel_headers::Verdict::{
        Action, Derived, Ignored, Kept, Lost, Refused, Same, Value,
    };
    use crate::support::kernel_headers::{Verdict, definitions, judge};

    const HEADERS: &[(&str, &[&str])] = &[
        ("asm-generic/socket.h", &["SO_"]),
        ("linux/in.h", &["IP_", "MCAST_"]),
        ("linux/in6.h", &["IPV6_"]),
        ("linux/tcp.h", &["TCP_"]),
        ("linux/udp.h", &["UDP_"]),
        ("linux/netlink.h", &["NETLINK_"]),
        ("linux/mptcp.h", &["MPTCP_"]),
        ("linux/if_packet.h", &["PACKET_"]),
    ];

    const SOCKET_OPTIONS: &str = "crates/resource/src/fd/socket_options.rs";
    const SOCKET_FAMILY: &str = "crates/resource/src/fd/socket_family.rs";
    const MULTICAST: &str = "crates/resource/src/fd/multicast.rs";
    const NETLINK_KIND: &str = "crates/resource/src/fd/netlink.rs";
    const PACKET_KIND: &str = "crates/resource/src/fd/packet.rs";
    const UNIX_STATE: &str = "crates/resource/src/fd/unix/state.rs";
    const TCP_KIND: &str = "crates/resource/src/fd/tcp/mod.rs";
    const TCP_REPAIR: &str = "crates/sys/src/tcp_repair.rs";

    /// Verdicts for the names in the headers that have no row, up to Linux 6.18.
    const VERDICTS: &[(&str, Verdict)] = &[
        ("SO_TYPE", Kept(SOCKET_FAMILY)),
        ("SO_PROTOCOL", Kept(SOCKET_FAMILY)),
        ("SO_DOMAIN", Kept(SOCKET_FAMILY)),
        ("SO_ERROR", Lost("a pending error (`SO_ERROR`)")),
        ("SO_SNDBUFFORCE", Same("SO_SNDBUF")),
        ("SO_RCVBUFFORCE", Same("SO_RCVBUF")),
        ("SO_BSDCOMPAT", Ignored),
        ("SO_PEERCRED", Kept(UNIX_STATE)),
        ("SO_PEERGROUPS", Kept(UNIX_STATE)),
        ("SO_PEERPIDFD", Same("SO_PEERCRED")),
        ("SO_SNDLOWAT", Ignored),
        ("SO_RCVTIMEO_*", Same("SO_RCVTIMEO")),
        ("SO_SNDTIMEO_*", Same("SO_SNDTIMEO")),
        ("SO_TIMESTAMP_OLD", Same("SO_TIMESTAMP")),
        ("SO_TIMESTAMPNS_OLD", Same("SO_TIMESTAMPNS")),
        ("SO_TIMESTAMPING_OLD", Same("SO_TIMESTAMPING")),
        ("SO_SECURITY_*", Ignored),
        ("SO_ATTACH_FILTER", Kept("crates/sys/src/socket_option.rs")),
        ("SO_GET_FILTER", Same("SO_ATTACH_FILTER")),
        ("SO_DETACH_FILTER", Action),
        ("SO_LOCK_FILTER", Kept(SOCKET_OPTIONS)),
        ("SO_ATTACH_BPF", Refused(SOCKET_OPTIONS)),
        ("SO_DETACH_BPF", Action),
        ("SO_ATTACH_REUSEPORT_*", Lost("`SO_ATTACH_REUSEPORT_CBPF`, `_EBPF`")),
        ("SO_DETACH_REUSEPORT_BPF", Action),
        ("SO_PEERNAME", Derived),
        ("SO_ACCEPTCONN", Derived),
        ("SO_PEERSEC", Derived),
        ("SO_BPF_EXTENSIONS", Derived),
        ("SO_CNX_ADVICE", Action),
        ("SO_MEMINFO", Derived),
        ("SO_INCOMING_NAPI_ID", Lost("`SO_INCOMING_NAPI_ID` change")),
        ("SO_COOKIE", Lost("`SO_COOKIE` and")),
        ("SO_NETNS_COOKIE", Derived),
        ("SO_BINDTOIFINDEX", Same("SO_BINDTODEVICE")),
        ("SO_DEVMEM_*", Action),
        ("SO_INQ", Lost("`SO_INQ` of a Unix socket")),
        ("IP_PROTOCOL", Value),
        ("IP_PKTOPTIONS", Derived),
        ("IP_MTU", Derived),
        ("IP_XFRM_POLICY", Lost("`IP_XFRM_POLICY`")),
        ("IP_IPSEC_POLICY", Same("IP_XFRM_POLICY")),
        ("IP_RECVRETOPTS", Same("IP_RETOPTS")),
        ("IP_ORIGDSTADDR", Same("IP_RECVORIGDSTADDR")),
        ("IP_PMTUDISC_*", Value),
        ("IP_DEFAULT_MULTICAST_*", Value),
        ("IP_ADD_MEMBERSHIP", Same("MCAST_JOIN_GROUP")),
        ("IP_ADD_SOURCE_MEMBERSHIP", Same("MCAST_JOIN_GROUP")),
        ("IP_DROP_*", Same("MCAST_JOIN_GROUP")),
        ("IP_BLOCK_SOURCE", Same("MCAST_MSFILTER")),
        ("IP_UNBLOCK_SOURCE", Same("MCAST_MSFILTER")),
        ("IP_MSFILTER", Same("MCAST_MSFILTER")),
        ("MCAST_JOIN_GROUP", Kept(MULTICAST)),
        ("MCAST_MSFILTER", Kept(MULTICAST)),
        ("MCAST_JOIN_SOURCE_GROUP", Same("MCAST_JOIN_GROUP")),
        ("MCAST_LEAVE_*", Same("MCAST_JOIN_GROUP")),
        ("MCAST_BLOCK_SOURCE", Same("MCAST_MSFILTER")),
        ("MCAST_UNBLOCK_SOURCE", Same("MCAST_MSFILTER")),
        ("MCAST_EXCLUDE", Value),
        ("MCAST_INCLUDE", Value),
        ("IPV6_FL_*", Value),
        ("IPV6_FLOWINFO_FLOWLABEL", Value),
        ("IPV6_FLOWINFO_PRIORITY", Value),
        ("IPV6_PRIORITY_*", Value),
        ("IPV6_TLV_*", Value),
        ("IPV6_PMTUDISC_*", Value),
        ("IPV6_PREFER_SRC_*", Value),
        ("IPV6_ADDRFORM", Same("SO_DOMAIN")),
        ("IPV6_2292PKTOPTIONS", Same("IPV6_HOPOPTS")),
        ("IPV6_ROUTER_ALERT", Lost("`IPV6_ROUTER_ALERT`")),
        // Control messages of sendmsg(2) and recvmsg(2).
        ("IPV6_NEXTHOP", Value),
        ("IPV6_HOPLIMIT", Value),
        ("IPV6_AUTHHDR", Ignored),
        ("IPV6_USE_MIN_MTU", Ignored),
        ("IPV6_ADD_MEMBERSHIP", Same("MCAST_JOIN_GROUP")),
        ("IPV6_DROP_MEMBERSHIP", Same("MCAST_JOIN_GROUP")),
        ("IPV6_MTU", Lost("`IPV6_MTU`")),
        ("IPV6_PKTINFO", Lost("`IPV6_PKTINFO`")),
        ("IPV6_PATHMTU", Derived),
        ("IPV6_JOIN_ANYCAST", Lost("anycast addresses")),
        ("IPV6_LEAVE_ANYCAST", Same("IPV6_JOIN_ANYCAST")),
        ("IPV6_FLOWLABEL_MGR", Lost("flow labels")),
        ("IPV6_IPSEC_POLICY", Same("IP_XFRM_POLICY")),
        ("IPV6_XFRM_POLICY", Same("IP_XFRM_POLICY")),
        ("IPV6_ORIGDSTADDR", Same("IPV6_RECVORIGDSTADDR")),
        ("TCP_MSS_*", Value),
        ("TCP_INFO", Derived),
        ("TCP_CC_INFO", Derived),
        ("TCP_IS_MPTCP", Derived),
        // This option is not permanent, see tcp(7).
        ("TCP_QUICKACK", Action),
        ("TCP_THIN_DUPACK", Ignored),
        ("TCP_MD5SIG*", Refused(TCP_KIND)),
        ("TCP_AO_*", Refused(TCP_KIND)),
        ("TCP_ULP", Refused(TCP_KIND)),
        ("TCP_REPAIR*", Kept(TCP_REPAIR)),
        ("TCP_QUEUE_SEQ", Kept(TCP_REPAIR)),
        ("TCP_TIMESTAMP", Kept(TCP_REPAIR)),
        ("TCP_SAVED_SYN", Lost("`TCP_SAVED_SYN`")),
        ("TCP_ZEROCOPY_RECEIVE", Action),
        ("TCP_RECEIVE_ZEROCOPY_FLAG_*", Value),
        ("TCP_CM_INQ", Same("TCP_INQ")),
        ("UDP_ENCAP_*", Value),
        ("NETLINK_ADD_MEMBERSHIP", Kept(NETLINK_KIND)),
        ("NETLINK_LIST_MEMBERSHIPS", Kept(NETLINK_KIND)),
        ("NETLINK_DROP_MEMBERSHIP", Same("NETLINK_ADD_MEMBERSHIP")),
        ("NETLINK_RX_RING", Ignored),
        ("NETLINK_TX_RING", Ignored),
        ("PACKET_HOST", Value),
        ("PACKET_BROADCAST", Value),
        ("PACKET_MULTICAST", Value),
        ("PACKET_OTHERHOST", Value),
        ("PACKET_OUTGOING", Value),
        ("PACKET_LOOPBACK", Value),
        ("PACKET_USER", Value),
        ("PACKET_KERNEL", Value),
        ("PACKET_FASTROUTE", Value),
        ("PACKET_MR_*", Value),
        ("PACKET_ADD_MEMBERSHIP", Kept(PACKET_KIND)),
        ("PACKET_DROP_MEMBERSHIP", Same("PACKET_ADD_MEMBERSHIP")),
        ("PACKET_RECV_OUTPUT", Ignored),
        ("PACKET_RX_RING", Kept(PACKET_KIND)),
        ("PACKET_TX_RING", Kept(PACKET_KIND)),
        ("PACKET_COPY_THRESH", Kept(PACKET_KIND)),
        ("PACKET_STATISTICS", Derived),
        ("PACKET_ROLLOVER_STATS", Derived),
        ("PACKET_HDRLEN", Derived),
        ("PACKET_VNET_HDR", Same("PACKET_VNET_HDR_SZ")),
        ("PACKET_FANOUT", Kept(PACKET_KIND)),
        ("PACKET_FANOUT_DATA", Refused(PACKET_KIND)),
        ("PACKET_FANOUT_*", Value),
        ("MPTCP_INFO", Derived),
        ("MPTCP_TCPINFO", Derived),
        ("MPTCP_FULL_INFO", Derived),
        ("MPTCP_SUBFLOW_ADDRS", Derived),
        ("MPTCP_INFO_FLAG_*", Value),
        ("MPTCP_SUBFLOW_*", Value),
        ("MPTCP_PM_*", Value),
        ("MPTCP_RST_*", Value),
        ("MPTCP_ATTR_*", Value),
    ];

    /// Names of netlink protocols. The kind `netlink` contains the list of supported protocols.
    const PROTOCOLS: &[&str] = &[
        "ROUTE",
        "UNUSED",
        "USERSOCK",
        "FIREWALL",
        "SOCK_DIAG",
        "INET_DIAG",
        "NFLOG",
        "XFRM",
        "SELINUX",
        "ISCSI",
        "AUDIT",
        "FIB_LOOKUP",
        "CONNECTOR",
        "NETFILTER",
        "IP6_FW",
        "DNRTMSG",
        "KOBJECT_UEVENT",
        "GENERIC",
        "SCSITRANSPORT",
        "ECRYPTFS",
        "RDMA",
        "CRYPTO",
        "SMC",
    ];

    fn all() -> impl Iterator<Item = &'static Row> {
        let tables =
            [SOCKET, IPV4, IPV6, IPV4_MULTICAST, IPV6_MULTICAST, TCP, UDP, UDPLITE, RAW, PACKET, NETLINK];
        tables.into_iter().flatten()
    }

    #[test]
    fn every_option_of_the_headers_has_a_row_or_a_verdict() {
        let found: Vec<_> =
            HEADERS.iter().filter_map(|(header, prefixes)| definitions(header, prefixes)).flatten().collect();
        if found.is_empty() {
            return println!("unsupported: kernel headers");
        }
        let is_protocol =
            |name: &str| name.strip_prefix("NETLINK_").is_some_and(|protocol| PROTOCOLS.contains(&protocol));
        let names = found.iter().map(|one| one.name.as_str()).filter(|name| !is_protocol(name));
        judge(names, |name| all().any(|row| row.option.name == name), VERDICTS);
        for row in all() {
            let same = found.iter().find(|one| one.name == row.option.name);
            let number = same.and_then(|one| one.value.parse::<i32>().ok()).unwrap_or(row.option.number);
            assert_eq!(number, row.option.number, "{}", row.option.name);
        }
    }

    /// Options without a row that a socket accepts and returns: level and number. `VERDICTS` contains the reasons.
    const RETURNED_WITHOUT_ROW: &[(i32, i32)] = &[
        (SOL_SOCKET, 14),
        (SOL_SOCKET, 44),
        (SOL_SOCKET, 62),
        (IPPROTO_IPV6, 6),
        (IPPROTO_TCP, 12),
        (IPPROTO_TCP, 17),
        (IPPROTO_TCP, 19),
        // The options of a multicast router (MRT6_ASSERT, MRT6_PIM), and second names of IPv6 options.
        (IPPROTO_IPV6, 207),
        (IPPROTO_IPV6, 208),
        (SOL_RAW, 7),
        (SOL_RAW, 36),
        // PACKET_COPY_THRESH, which not all kernels return; PACKET_VNET_HDR, which PACKET_VNET_HDR_SZ includes.
        (SOL_PACKET, 7),
        (SOL_PACKET, 15),
    ];

    /// Upper limit of the probed option numbers. No option has a larger number.
    const NUMBER_MAX: i32 = 256;

    /// Probes the running kernel, which may be newer than the headers.
    #[test]
    fn every_option_that_this_kernel_accepts_and_returns_has_a_row() {
        let families = [
            (AF_INET, 1, IPPROTO_TCP),
            (AF_INET6, 1, IPPROTO_TCP),
            (AF_INET, 2, IPPROTO_UDP),
            (AF_INET6, 2, IPPROTO_UDP),
            (AF_UNIX, 1, 0),
            (AF_UNIX, 2, 0),
            (AF_NETLINK, 3, 0),
            (AF_PACKET, SOCK_RAW, 0),
            (AF_INET, SOCK_RAW, 1),
            (AF_INET6, SOCK_RAW, IPPROTO_ICMPV6),
        ];
        let known: HashSet<_> = all().map(|row| (row.option.level, row.option.number)).collect();
        let levels = [
            SOL_SOCKET,
            IPPROTO_IP,
            IPPROTO_IPV6,
            IPPROTO_TCP,
            IPPROTO_UDP,
            SOL_NETLINK,
            SOL_RAW,
            SOL_PACKET,
            IPPROTO_ICMPV6,
        ];
        let mut found = Vec::new();
        for (domain, kind, protocol) in families {
            let family = Family { domain, kind, protocol };
            let Ok(mut socket) = family.create() else {
                println!("unsupported: sockets of family {domain}");
                continue;
            };
            let options = levels.iter().flat_map(|level| (0..NUMBER_MAX).map(|number| (*level, number)));
            let missing = options
                .filter(|option| !known.contains(option) && !RETURNED_WITHOUT_ROW.contains(option))
                .filter(|(level, number)| is_accepted_and_returned(family, &mut socket, *level, *number));
            found.extend(missing.map(|option| (family, option)));
        }
        assert!(found.is_empty(), "no row for {found:?}");
    }

    /// Reports whether a socket returns another value of an option after the option was set. The socket is then replaced by
    /// a new one. The kernel takes 10 ms to close a packet socket.
    fn is_accepted_and_returned(family: Family, socket: &mut OwnedFd, level: i32, number: i32) -> bool {
        let option = SocketOption { level, number, name: "an option" };
        let mut is_changed = false;
        let tell = || {
            let mut buffer = [0; 128];
            socket_option::get(socket.as_fd(), option, &mut buffer)
                .ok()
                .map(|length| buffer[..length].to_vec())
        };
        let Some(before) = tell() else { return false };
        let is_returned = [1, 0, 2].into_iter().any(|value| {
            let is_accepted = socket_option::set_int(socket.as_fd(), option, value).is_ok();
            is_changed |= is_accepted;
            is_accepted && tell().is_some_and(|after| after != before || after.is_empty())
        });
        if is_changed {
            *socket = family.create().expect("a socket of this family was created before");
        }
        is_returned
    }
}
